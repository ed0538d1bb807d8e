"""Metrics: sums over this rank's samples that update without waiting, and one small message for all ranks' results.

Weights are samples: a result is Σ n·value / Σ n over all batches of all ranks, whatever each rank's part of them was.
On a GPU the sums stay there until a result is asked for. All ranks add up the same numbers in the same order, so they
get the same bits. NaN is never left out: a metric that met one is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from minigrad.absent import absent, tell_lacking
from minigrad.arguments import as_integer, as_real, as_samples
from minigrad.data.sampler import check_keys
from minigrad.distributed.comm.context import communicator_for
from minigrad.distributed.comm.differences import check_alike, gather_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.errors import ArgumentError, CallError, DeviceError, ShapeError, StateDictError
from minigrad.foreign import spoken
from minigrad.tensor import Tensor
from minigrad.train.labels import matches
from minigrad.train.totals import Pair, Totals, added, as_count, as_scalar

# ------------------------------------------------------------------------------------------------------- metrics


class Metric:
    """What all metrics share.

    Attributes:
        per_rank: The result of each rank's own samples, None where it had none; empty before the first `result`.
    """

    _one_of_many = "mean"  # what makes one number of several

    def __init__(self) -> None:
        self._totals = Totals()
        self.per_rank: tuple[float | None, ...] = ()

    @spoken
    def update(self, value: Any, n: Any = None) -> None:
        """Count a batch of this rank; it never waits for a GPU.

        Args:
            value: The mean over the batch: a number, or a tensor of one element, of which no tape is kept.
            n: The samples that it is a mean over, >= 0; with 0 the value is left out.

        Raises:
            ArgumentError: no number, or no n. ShapeError: several numbers.
        """
        who = f"{type(self).__name__}.update"
        self._totals.add(as_scalar(who, "value", value, self._one_of_many), as_count(who, n))

    def add_sums(self, total: Any, n: float) -> None:
        """Count what is multiplied already: Σ n·value, a float or an array where it was computed, and Σ n."""
        self._totals.add_sums(total, n)

    def __call__(self, *args: Any, **options: Any) -> None:
        name = type(self).__name__
        raise CallError(f"{name}: expected update(value, n), and result(comm) where all ranks are to meet, got a call")

    def result(self, comm: Communicator | None = None) -> float | None:
        """The value over the samples of all ranks since the last `reset`; all ranks call it, with one small message.

        Args:
            comm: The ranks; by default those of this context, see `distributed.init` and `run`.

        Returns:
            The same bits on all ranks; NaN where any value was. None where no rank had a sample, but for a Sum.

        Raises:
            ArgumentError: no communicator; or on all ranks where an n or a value on a GPU was out of range.
            ReplicaMismatchError: another rank asks for another metric; on all ranks.
        """
        return _result(f"{type(self).__name__}.result", MetricCollection({_ALONE: self}), comm)[_ALONE]

    def reset(self) -> None:
        """Start anew; `per_rank` stays until the next result."""
        self._totals = Totals()

    def read(self) -> Pair:
        """Σ n·value and Σ n of this rank; waits for its device."""
        return self._totals.read()

    def state_dict(self) -> dict[str, Any]:
        """This rank's sums, to go on from with the same bits: plain data. It waits for its device."""
        return {"kind": repr(self), "totals": self._totals.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` told.

        Raises:
            StateDictError: it is that of another metric, or no such state.
        """
        who = type(self).__name__
        check_keys(who, state, self.state_dict())
        if state["kind"] != repr(self):
            raise StateDictError(f"{who}: expected the state of {self!r}, got that of {state['kind']!r:.100}")
        self._totals = _totals_from(who, state["totals"])

    def finish(self, pair: Pair) -> float | None:
        """The value of sums."""
        return mean_of(pair)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _totals_from(who: str, state: Any) -> Totals:
    try:
        return Totals.from_state(state)
    except (TypeError, ValueError, LookupError, DeviceError) as error:
        raise StateDictError(f"{who}: expected a usable state, got {state!r:.200}: {error}") from error


def mean_of(pair: Pair) -> float | None:
    """Σ n·value / Σ n; None without samples."""
    return pair[0] / pair[1] if pair[1] else None


class Mean(Metric):
    """The mean over all samples of all ranks.

    Example:
        >>> from minigrad.distributed import run
        >>> def body(comm):
        ...     loss = Mean()
        ...     loss.update(1.0 + comm.rank, 3 - 2 * comm.rank)     # 3 samples of 1.0, and 1 of 2.0
        ...     return loss.result(comm), loss.per_rank
        >>> run(body, 2)
        [(1.25, (1.0, 2.0)), (1.25, (1.0, 2.0))]
    """


class Sum(Metric):
    """The sum over all samples of all ranks: Σ n·value; 0 without any.

    Example:
        >>> from minigrad.distributed import SoloCommunicator
        >>> tokens = Sum()
        >>> for count in (7, 5):
        ...     tokens.update(count)
        >>> tokens.result(SoloCommunicator())
        12.0
    """

    _one_of_many = "sum"

    @spoken
    def update(self, value: Any, n: Any = 1) -> None:
        """Count n times a value; see `Metric.update`."""
        super().update(value, n)

    def finish(self, pair: Pair) -> float | None:
        """The sum."""
        return pair[0]


class Accuracy(Metric):
    """The fraction of labels that were met, over all samples of all ranks.

    Args:
        ignore_index: Labels that count as no sample, as in `cross_entropy`.

    Example:
        >>> from minigrad import tensor
        >>> from minigrad.distributed import SoloCommunicator
        >>> accuracy = Accuracy()
        >>> accuracy.update(tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), tensor([1, 0, 0]))    # logits and labels
        >>> accuracy.update(1.0, 2)                                                             # or a fraction and n
        >>> accuracy.result(SoloCommunicator())
        0.8
    """

    def __init__(self, ignore_index: int = -100) -> None:
        super().__init__()
        self.ignore_index = as_integer("Accuracy", "ignore_index", ignore_index)

    @spoken
    def update(self, value: Any, n: Any = None) -> None:
        """Count a batch of this rank; it never waits for a GPU.

        Args:
            value: Logits or probabilities (N, C, ...), or classes (N, ...); or the fraction of labels that were met.
            n: Labels (N, ...) with the former, of integers or bools; with a fraction its samples.

        Raises:
            ShapeError: labels of another shape, or logits of one class. DtypeError: labels or classes that are no
                integers.
            ArgumentError: neither of the two forms, or a fraction outside [0, 1].
        """
        who = "Accuracy.update"
        given, labels = (x.data if isinstance(x, Tensor) else x for x in (value, n))
        if getattr(given, "ndim", 0):
            self._totals.add_sums(*matches(who, given, labels, self.ignore_index))
            return
        if getattr(labels, "ndim", 0):
            raise ShapeError(f"{who}: expected logits (N, C) or classes (N,) with labels, got {given!r:.60}")
        fraction = as_scalar(who, "value", given)
        if isinstance(fraction, float) and not math.isnan(fraction):
            as_real(who, "the fraction of labels that were met", fraction, 0.0, 1.0)
        self._totals.add(fraction, as_count(who, n))

    def __repr__(self) -> str:
        return "Accuracy()" if self.ignore_index == -100 else f"Accuracy(ignore_index={self.ignore_index})"

    def finish(self, pair: Pair) -> float | None:
        """The fraction; ArgumentError where it is none, as a number of labels that were met."""
        value = mean_of(pair)
        if value is not None and not math.isnan(value):
            as_real("Accuracy", "the fraction of labels that were met", value, 0.0, 1.0)
        return value


class MetricCollection:
    """Metrics by name whose results all ranks exchange in one small message.

    Args:
        metrics: By name, the same on all ranks.

    Example:
        >>> from minigrad.distributed import run
        >>> def body(comm):
        ...     metrics = MetricCollection({"loss": Mean(), "accuracy": Accuracy()})
        ...     metrics["loss"].update(0.5, 8)
        ...     metrics["accuracy"].update(0.75, 8)
        ...     return metrics.result(comm)
        >>> run(body, 2)[0]
        {'loss': 0.5, 'accuracy': 0.75}
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        if not isinstance(metrics, Mapping) or not all(
            isinstance(name, str) and isinstance(metric, Metric) for name, metric in metrics.items()
        ):
            raise ArgumentError(f"MetricCollection: expected metrics by name, got {metrics!r:.100}")
        if len({id(metric) for metric in metrics.values()}) < len(metrics):
            raise ArgumentError(f"MetricCollection: expected each metric once, got one under two of {list(metrics)}")
        self._metrics = dict(metrics)

    def __getitem__(self, name: str) -> Metric:
        if name not in self._metrics:
            raise ArgumentError(f"MetricCollection: expected one of {', '.join(self._metrics)}, got {name!r}")
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def keys(self) -> Iterable[str]:
        """Names."""
        return self._metrics.keys()

    def values(self) -> Iterable[Metric]:
        """Metrics."""
        return self._metrics.values()

    def items(self) -> Iterable[tuple[str, Metric]]:
        """Names and metrics."""
        return self._metrics.items()

    def reset(self) -> None:
        """Start all of them anew."""
        for metric in self._metrics.values():
            metric.reset()

    def kinds(self) -> dict[str, str]:
        """What each is: what has to be alike on all ranks."""
        return {name: repr(metric) for name, metric in self._metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        """The states of all, by name; see `Metric.state_dict`."""
        return {name: metric.state_dict() for name, metric in self._metrics.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` told.

        Raises:
            StateDictError: it is that of other metrics, or no such state; nothing was changed then.
        """
        before = self.state_dict()
        check_keys("MetricCollection", state, before)
        try:
            for name, metric in self._metrics.items():
                metric.load_state_dict(state[name])
        except StateDictError:
            for name, metric in self._metrics.items():
                metric.load_state_dict(before[name])
            raise

    def result(self, comm: Communicator | None = None) -> dict[str, float | None]:
        """The result of each, see `Metric.result`; all ranks call it.

        Raises:
            ArgumentError: see `Metric.result`.
            ReplicaMismatchError: names or kinds differ between ranks; on all ranks, and the first is named.
        """
        return _result("MetricCollection.result", self, comm)

    def finish(self, rows: list[dict[str, Pair]]) -> dict[str, float | None]:
        """The results of the sums of all ranks, which each metric keeps by rank too."""
        found = {}
        for name, metric in self.items():
            pairs = [row[name] for row in rows]
            found[name], metric.per_rank = finished(name, metric, pairs)
        return found


_ALONE = "metric"  # the name of one in no collection


def _result(who: str, metrics: MetricCollection, comm: Communicator | None) -> dict[str, float | None]:
    comm = communicator_for(who, comm)
    rows = gather_alike(who, "metrics", comm, metrics.kinds(), {name: m.read() for name, m in metrics.items()})
    return metrics.finish(rows)


def finished(name: str, metric: Metric, pairs: list[Pair]) -> tuple[float | None, tuple[float | None, ...]]:
    """A metric's result over all ranks, and that of each; ArgumentError where a number of samples is none."""
    for rank, (_, n) in enumerate(pairs):
        if not 0.0 <= n < math.inf:
            whose = type(metric).__name__ + (f" {name}" if name != _ALONE else "")
            raise ArgumentError(f"{whose}: expected finite numbers of samples >= 0, got others on rank {rank}")
    return metric.finish([added(part) for part in zip(*pairs)]), tuple(
        metric.finish(pair) if pair[1] else None for pair in pairs
    )


# ------------------------------------------------------------------------------------------------------- scalars


class Scalars:
    """Means of what a training function records by `record_scalar`, under the names that it gives them.

    Attributes:
        batches: So many were counted since the last `reset`.

    Example:
        >>> from minigrad.distributed import SoloCommunicator
        >>> scalars = Scalars()
        >>> for n, error in ((3, 0.0), (1, 1.0)):
        ...     with scalars.batch(n):
        ...         record_scalar("error", error)
        >>> scalars.result(SoloCommunicator())
        {'error': 0.25}
    """

    def __init__(self) -> None:
        self.batches = 0
        self._means: dict[str, Mean] = {}
        self._waiting: list[tuple[str, Any]] = []  # of a batch whose samples are not known yet

    @contextmanager
    def open(self) -> Iterator[None]:
        """Around the training function's work on a batch whose samples are known afterwards: `settle` tells them."""
        self._waiting = []
        token = _scope.set((self, None))
        try:
            yield
        finally:
            _scope.reset(token)

    def settle(self, n: float) -> None:
        """Count what was recorded in the last open batch, which had so many samples."""
        self.batches += 1
        for name, value in self._waiting:
            self.record(name, value, n)
        self._waiting = []

    @contextmanager
    def batch(self, n: Any) -> Iterator[None]:
        """Around the training function's work on a batch of n samples."""
        samples = as_samples("Scalars.batch", n)
        self.batches += 1
        token = _scope.set((self, samples))
        try:
            yield
        finally:
            _scope.reset(token)

    def record(self, name: str, value: Any, n: Any) -> None:
        """Count a value under a name; without n when it is settled how many samples its batch had."""
        if n is None:
            self._waiting.append((name, value))
            return
        self._means.setdefault(name, Mean()).update(value, n)

    def read(self) -> dict[str, Pair]:
        """The sums of this rank by name; waits for its devices."""
        return {name: mean.read() for name, mean in self._means.items()}

    def reset(self) -> None:
        """Start anew, without names."""
        self.batches, self._means, self._waiting = 0, {}, []

    def state_dict(self) -> dict[str, Any]:
        """This rank's sums by name, to go on from with the same bits: plain data. It waits for its devices."""
        return {"batches": self.batches, "means": {name: mean.state_dict() for name, mean in self._means.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` told.

        Raises:
            StateDictError: it is no such state.
        """
        who = "Scalars"
        check_keys(who, state, self.state_dict())
        if not isinstance(state["means"], Mapping):
            raise StateDictError(f"{who}: expected means by name, got {state['means']!r:.100}")
        means = {name: Mean() for name in state["means"]}
        for name, mean in means.items():
            mean.load_state_dict(state["means"][name])
        self.batches, self._means = as_integer(who, "batches", state["batches"], 0), means

    def result(self, comm: Communicator | None = None) -> dict[str, float | None]:
        """The mean of each name over the samples of all ranks; None where none had one. All ranks call it.

        Raises:
            ArgumentError: no communicator.
            ReplicaMismatchError: ranks recorded different names; on all of them. One without a batch has none.
        """
        comm = communicator_for("Scalars.result", comm)
        rows = comm.all_gather_object([self.batches, self.read()])
        check_names(f"rank {comm.rank}: Scalars.result", rows)
        return {name: value for name, (value, _) in finish_scalars(rows).items()}


Row = list[Any]  # [batches, {name: pair}] of a rank


def check_names(who: str, rows: list[Row]) -> None:
    """Refuse ranks that had batches and recorded different names; ReplicaMismatchError."""
    found = {rank: dict.fromkeys(means, "recorded") for rank, (batches, means) in enumerate(rows) if batches}
    if found:
        check_alike(who, "names of scalars", found, "call record_scalar in each batch of each rank")


def finish_scalars(rows: list[Row]) -> dict[str, tuple[float | None, tuple[float | None, ...]]]:
    """Of each name, sorted, the mean over all ranks and that of each rank."""
    names = sorted({name for _, means in rows for name in means})
    return {name: finished(name, Mean(), [means.get(name, [0.0, 0.0]) for _, means in rows]) for name in names}


_scope: ContextVar[tuple[Scalars, float | None] | None] = ContextVar("minigrad scalars", default=None)


def record_scalar(name: str, value: Any, n: Any = None) -> None:
    """Record a number of this batch, whose mean over the samples of all ranks becomes a figure of the epoch.

    Call it in the training function: the `loss_fn` of a `SingleDeviceTrainer` under a `DistributedTrainer`, or what
    runs inside `with meter.step(n):` of an `EpochMeter` or `with scalars.batch(n):`. It does not wait for a GPU.

    Args:
        name: Of the figure, one of `EpochMetrics.scalars`; the same names on all ranks.
        value: The mean over the batch: a number, or a tensor of one element, of which no tape is kept.
        n: What it is a mean over, where that is not the batch's samples.

    Raises:
        ArgumentError: no batch is being counted in this context, or no text, number or n. ShapeError: several numbers.

    Example:
        >>> from minigrad import nn, optim, ones
        >>> from minigrad.distributed import SoloCommunicator
        >>> from minigrad.train import DistributedTrainer, SingleDeviceTrainer
        >>> def loss_fn(model, x):
        ...     output = model(x)
        ...     record_scalar("largest", output.abs().max())
        ...     return output.square().mean()
        >>> model = nn.Linear(3, 1)
        >>> single = SingleDeviceTrainer(model, optim.SGD(model.parameters(), lr=0.1), loss_fn)
        >>> trainer = DistributedTrainer(single, SoloCommunicator())
        >>> loss = trainer.train_epoch([ones(4, 3)])
        >>> list(trainer.epoch_metrics.scalars)
        ['largest']
    """
    scope = _scope.get()
    if scope is None:
        raise ArgumentError(
            f"record_scalar: expected a batch that is being counted in this context, got none for {name!r}: call it "
            "inside a trainer's loss_fn, or within `with meter.step(n):` of train.EpochMeter"
        )
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"record_scalar: expected a name, got {name!r:.100}")
    scalars, samples = scope
    value = as_scalar("record_scalar", name, value)
    scalars.record(name, value, samples if n is None else as_count("record_scalar", n))


def __getattr__(name: str) -> Any:
    raise absent(__name__, name)


tell_lacking("Metric", Metric)
tell_lacking("MetricCollection", MetricCollection)
