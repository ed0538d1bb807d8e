"""What an epoch came to, over all ranks: the figures, a pure function of each rank's sums, and what collects those."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from minigrad.arguments import as_integer, as_real, as_samples
from minigrad.data.sampler import check_keys
from minigrad.distributed.comm.context import communicator_for
from minigrad.distributed.comm.differences import check_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.errors import ArgumentError, StateDictError
from minigrad.tensor import Tensor
from minigrad.train.metrics import Mean, MetricCollection, Scalars, check_names, finish_scalars, mean_of
from minigrad.train.totals import Totals, added, as_count, as_scalar

_WHO = "EpochMeter"


@dataclass(frozen=True)
class RankMetrics:
    """One rank's part of an epoch.

    Attributes:
        loss: The mean over its own samples, each step's before that step; None where it had none.
        scalars: The same of what was recorded, and of the metrics that were given.
        samples: That it really used.
        steps: That it took part in, also where it had no samples.
        train_s: Seconds in all its steps together, waiting for other ranks included.
        throughput: samples / train_s; 0 where it had no step.
    """

    loss: float | None
    scalars: dict[str, float | None]
    samples: float
    steps: int
    train_s: float
    throughput: float


@dataclass(frozen=True)
class EpochMetrics:
    """What an epoch came to, the same bits on all ranks.

    Attributes:
        epoch: Its number.
        loss: The mean over the samples of all ranks; None where there were none.
        scalars: The same of what `record_scalar` recorded, and the results of the metrics that were given, by name.
        per_rank: The part of each rank.
        epoch_s: Seconds from its start to its end on the rank where that took longest.
        throughput: Samples of all ranks / epoch_s; 0 where no time passed.
        shares: The fraction of the samples that each rank really used; all 0 where there were none.

    Example:
        >>> from minigrad.distributed import SoloCommunicator
        >>> meter = EpochMeter(SoloCommunicator())
        >>> with meter.step(4):
        ...     meter.add_loss(0.5)
        >>> metrics = meter.finish()
        >>> metrics.loss, metrics.shares, EpochMetrics.from_json(metrics.to_json()) == metrics
        (0.5, (1.0,), True)
    """

    epoch: int
    loss: float | None
    scalars: dict[str, float | None]
    per_rank: tuple[RankMetrics, ...]
    epoch_s: float
    throughput: float
    shares: tuple[float, ...]

    def to_json(self) -> str:
        """As text; `from_json` reads it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EpochMetrics:
        """What `to_json` told.

        Raises:
            ArgumentError: it is something else.
        """
        try:
            fields = json.loads(text)
            fields["per_rank"] = tuple(RankMetrics(**each) for each in fields["per_rank"])
            fields["shares"] = tuple(fields["shares"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise ArgumentError(f"EpochMetrics: expected the text of to_json, got something else: {error!r}") from error


Told = dict[str, Any]  # a rank's sums, as EpochMeter.finish tells them: plain data


def combine_epoch(epoch: int, told: Sequence[Told], metrics: MetricCollection | None = None) -> EpochMetrics:
    """The figures of an epoch from the sums of all ranks: a pure function but for what metrics keep by rank.

    Args:
        epoch: Its number.
        told: Of each rank: loss (Σ n·loss and Σ n), scalars [batches, {name: the same}], metrics, samples, steps,
            train_s, epoch_s.
        metrics: Whose results are among the scalars.
    """
    by_name = finish_scalars([each["scalars"] for each in told])
    if metrics is not None:
        results = metrics.finish([each["metrics"] for each in told])
        by_name |= {name: (value, metrics[name].per_rank) for name, value in results.items()}
    samples = [each["samples"] for each in told]
    total, epoch_s = added(samples), max(each["epoch_s"] for each in told)
    return EpochMetrics(
        epoch,
        mean_of([added(part) for part in zip(*(each["loss"] for each in told))]),
        {name: value for name, (value, _) in by_name.items()},
        tuple(
            RankMetrics(
                mean_of(each["loss"]),
                {name: values[rank] for name, (_, values) in by_name.items()},
                each["samples"],
                each["steps"],
                each["train_s"],
                _ratio(each["samples"], each["train_s"]),
            )
            for rank, each in enumerate(told)
        ),
        epoch_s,
        _ratio(total, epoch_s),
        tuple(_ratio(each, total) for each in samples),
    )


def joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of one `EpochMeter` with what those of several ranks have counted of an epoch, for other ranks.

    Args:
        states: What `EpochMeter.state_dict` has told on each rank, not none.
    """

    def summed(kept: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"kind": kept[0]["kind"], "totals": Totals.joined([each["totals"] for each in kept]).state()}

    def by_name(kept: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        names = sorted({name for each in kept for name in each})
        return {name: summed([each[name] for each in kept if name in each]) for name in names}

    scalars = [each["scalars"] for each in states]
    return {
        "epoch": states[0]["epoch"],
        "loss": summed([each["loss"] for each in states]),
        "scalars": {
            "batches": sum(each["batches"] for each in scalars),
            "means": by_name([each["means"] for each in scalars]),
        },
        "metrics": by_name([each["metrics"] for each in states]),
        "samples": added(each["samples"] for each in states),
        **{name: max(each[name] for each in states) for name in ("steps", "train_s", "epoch_s")},
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else 0.0


class EpochMeter:
    """Collects what a rank's loop does in an epoch, without waiting for a GPU; all ranks meet once, at its end.

    Args:
        comm: The ranks; by default those of this context. Times are those of its clock, a virtual one in a simulation.
        metrics: More of them, which the loop updates; the meter resets them.

    Example:
        >>> from minigrad.distributed import run
        >>> from minigrad.train import record_scalar
        >>> def train(comm):
        ...     meter = EpochMeter(comm)
        ...     for batch in ([1.0, 3.0], [5.0]) if comm.rank else ([2.0, 2.0],):
        ...         with meter.step(len(batch)):
        ...             meter.add_loss(sum(batch) / len(batch))
        ...             record_scalar("largest", max(batch))
        ...     return meter.finish()
        >>> metrics, same = run(train, 2)
        >>> metrics.loss, metrics.scalars, metrics.shares, metrics == same
        (2.6, {'largest': 3.0}, (0.4, 0.6), True)
    """

    def __init__(self, comm: Communicator | None = None, metrics: MetricCollection | None = None) -> None:
        self._comm = communicator_for(_WHO, comm)
        if metrics is not None and not isinstance(metrics, MetricCollection):
            raise ArgumentError(f"{_WHO}: expected a MetricCollection, got {type(metrics).__name__}")
        self._metrics = metrics
        self.start(0)

    def start(self, epoch: int) -> None:
        """Begin an epoch anew: nothing is counted."""
        self._begin(epoch)
        if self._metrics is not None:
            self._metrics.reset()

    def _begin(self, epoch: int) -> None:
        self._epoch = as_integer(_WHO, "epoch", epoch, 0)
        self._scalars, self._loss = Scalars(), Mean()
        self._samples, self._steps, self._train_s = 0.0, 0, 0.0
        self._began_s = self._comm.clock.now_s()
        self._n: float | None = None

    @contextmanager
    def step(self, n: Any = None) -> Iterator[None]:
        """Around a step, which is timed; with n also `batch`."""
        began_s = self._comm.clock.now_s()
        with self.batch(n) if n is not None else nullcontext():
            yield
        self.count_step(began_s)

    def count_step(self, began_s: float) -> None:
        """A step is over that began at that moment of the communicator's clock."""
        self._comm.clock.progress(1.0)  # a simulation lets pass what backward still owes
        self._steps += 1
        self._train_s += self._comm.clock.now_s() - began_s

    @contextmanager
    def batch(self, n: Any) -> Iterator[None]:
        """Around the training function's work on a batch of n samples: inside, `record_scalar` counts n.

        Raises:
            ArgumentError: n is no number of samples, or there is a batch around it, which counts them already.
        """
        samples = as_samples(f"{_WHO}.batch", n)
        if self._n is not None:
            raise ArgumentError(f"{_WHO}.batch: expected no batch around it, got one of {self._n:g}: write step()")
        self._n = samples
        try:
            with self._scalars.batch(samples):
                yield
            self._samples += samples
        finally:
            self._n = None

    @contextmanager
    def open_batch(self) -> Iterator[None]:
        """Around the training function's work on a batch whose samples are known afterwards: see `settle_batch`.

        Raises:
            ArgumentError: there is a batch around it.
        """
        if self._n is not None:
            raise ArgumentError(f"{_WHO}.open_batch: expected no batch around it, got one of {self._n:g}")
        with self._scalars.open():
            yield

    def settle_batch(self, n: float) -> None:
        """Count the last open batch, which had so many samples, and what was recorded in it."""
        self._scalars.settle(n)
        self._samples += n

    def add_loss(self, loss: float | Tensor, n: Any = None) -> None:
        """Count the mean loss of a batch.

        Args:
            n: The samples that it is a mean over; by default those of the batch around it.

        Raises:
            ArgumentError: no n, or no batch around it.
        """
        if n is None and self._n is None:
            raise ArgumentError(f"{_WHO}.add_loss: expected n, or a batch around it, got neither: write meter.step(n)")
        who = f"{_WHO}.add_loss"
        self._loss.update(as_scalar(who, "loss", loss), self._n if n is None else as_count(who, n))

    def add_loss_sum(self, total: Any, n: float) -> None:
        """Count batches of n samples together, whose Σ n·loss is known: a float, or an array where it was computed."""
        self._loss.add_sums(total, n)

    def state_dict(self) -> dict[str, Any]:
        """What this rank has counted of the epoch, to go on from with the same bits: plain data, each rank its own.

        It waits for its devices. Seconds go on from so many; those from the state to its loading are not counted.
        """
        return {
            "epoch": self._epoch,
            "loss": self._loss.state_dict(),
            "scalars": self._scalars.state_dict(),
            "metrics": {} if self._metrics is None else self._metrics.state_dict(),
            "samples": self._samples,
            "steps": self._steps,
            "train_s": self._train_s,
            "epoch_s": self._comm.clock.now_s() - self._began_s,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the epoch that `state_dict` told of; all ranks do, each from its own.

        Raises:
            StateDictError: it is that of other metrics, or no such state.
        """
        check_keys(_WHO, state, self.state_dict())
        loss, scalars = Mean(), Scalars()
        loss.load_state_dict(state["loss"])
        scalars.load_state_dict(state["scalars"])
        try:
            epoch, steps = (as_integer(_WHO, name, state[name], 0) for name in ("epoch", "steps"))
            samples, train_s, epoch_s = (as_real(_WHO, n, state[n], 0.0) for n in ("samples", "train_s", "epoch_s"))
        except ArgumentError as error:
            raise StateDictError(str(error)) from error
        if self._metrics is not None:
            self._metrics.load_state_dict(state["metrics"])
        elif state["metrics"]:
            raise StateDictError(f"{_WHO}: expected a state without metrics, got those of {[*state['metrics']]}")
        self._begin(epoch)
        self._loss, self._scalars, self._samples, self._steps, self._train_s = loss, scalars, samples, steps, train_s
        self._began_s -= epoch_s

    def told(self) -> Told:
        """This rank's sums so far, for `combine_epoch`; waits for its device."""
        metrics = self._metrics
        told: Told = {
            "alike": {"epoch": self._epoch, **({} if metrics is None else metrics.kinds())},
            "loss": self._loss.read(),
            "scalars": [self._scalars.batches, self._scalars.read()],
            "metrics": {} if metrics is None else {name: metric.read() for name, metric in metrics.items()},
            "samples": self._samples,
            "steps": self._steps,
            "train_s": self._train_s,
        }
        self._comm.clock.progress(1.0)
        told["epoch_s"] = self._comm.clock.now_s() - self._began_s
        return told

    def finish(self) -> EpochMetrics:
        """The figures of the epoch; all ranks call it together, and it waits for their devices once.

        The next epoch begins then.

        Raises:
            ReplicaMismatchError: ranks are in different epochs, have different metrics, or recorded different names;
                on all of them, and the first difference is named. A rank without a batch has recorded none.
            ArgumentError: a name is that of a metric and of a scalar; see also `Metric.result`.
        """
        comm, metrics = self._comm, self._metrics
        found = comm.all_gather_object(self.told())
        who = f"rank {comm.rank}: {_WHO}"
        check_alike(who, "epochs and metrics", {rank: each["alike"] for rank, each in enumerate(found)})
        check_names(who, [each["scalars"] for each in found])
        twice = sorted({name for each in found for name in each["scalars"][1]} & {*found[0]["metrics"]})
        if twice:
            raise ArgumentError(f"{_WHO}: expected another name for a scalar than that of a metric, got {twice[0]!r}")
        epoch = combine_epoch(self._epoch, found, metrics)
        self.start(self._epoch + 1)
        return epoch
