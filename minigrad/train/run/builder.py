"""`Trainer.builder`: a run said in a chain of calls, by flodl's names; it fills the `RunConfig` of `Trainer.start`.

What flodl's builder does, this one does: its ranks step by themselves and combine parameters, at El Che's cadence and
under a guard, unless something else is said. What has no value here is `RunConfig`'s default; so the rate is the
user's on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

from minigrad.arguments import as_integer, as_real, check_choice, check_switch
from minigrad.backend.device import Device, available_devices
from minigrad.distributed.average import EASGD, Cadence, TrendGuard
from minigrad.distributed.balance.cadence import CadenceConfig
from minigrad.errors import ArgumentError
from minigrad.train.epoch import EpochMetrics
from minigrad.train.run.callbacks import check_callbacks
from minigrad.train.run.config import RunConfig
from minigrad.train.run.handle import Run
from minigrad.train.run.schedules import ScheduleByRanks
from minigrad.train.run.start import start

_WHO = "Trainer.builder"
_NEEDED = ("dataset", "batch_size", "num_epochs")
_SAME = {  # as it is said, and the option of RunConfig that it is
    "dataset": "dataset",
    "batch_size": "batch_size",
    "num_epochs": "epochs",
    "max_overshoot": "max_overshoot",
    "max_grad_norm": "max_grad_norm",
    "timeline": "timeline",
    "partition_ratios": "shares",
    "snapshot_timeout_secs": "timeout_s",
}
_CADENCE = ("anchor", "min_anchor", "max_anchor", "overhead_target", "max_batch_diff")  # options of CadenceConfig
_GUARDS = ("divergence_threshold", "convergence_guard", "no_divergence_guard")
_PLACES = ("ranks", "devices", "comm", "cluster")


class _Says:
    """A call in the chain: takes a value, and gives a builder that has it."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, builder: None, kind: type) -> _Says: ...
    @overload
    def __get__(self, builder: DdpBuilder, kind: type) -> Callable[[Any], DdpBuilder]: ...

    def __get__(self, builder: DdpBuilder | None, kind: type) -> _Says | Callable[[Any], DdpBuilder]:
        if builder is None:
            return self

        def say(value: Any) -> DdpBuilder:
            return builder.saying(self.name, value)

        say.__name__, say.__doc__ = self.name, self.__doc__
        return say


class DdpBuilder:
    """What a run is told, call by call; each gives a builder that has it too, and leaves the one before as it is.

    `dataset`, `batch_size` and `num_epochs` are needed. All that `RunConfig` has beside these names is said by
    `options(name=value, ...)`.

    Example:
        >>> from minigrad import Trainer, nn, ones, optim
        >>> from minigrad.data import TensorDataset
        >>> run = (
        ...     Trainer.builder(
        ...         lambda device: nn.Linear(2, 1).to(device),
        ...         lambda params: optim.SGD(params, lr=0.1),
        ...         lambda model, batch: model(batch[0]).square().mean(),
        ...     )
        ...     .dataset(TensorDataset(ones(6, 2))).batch_size(1).num_epochs(2)
        ...     .policy("sync").options(ranks=2, seed=0)
        ...     .run()
        ... )
        >>> sorted(run.join().params)
        ['bias', 'weight']
    """

    dataset = _Says("The samples, the same on all ranks.")
    batch_size = _Says("Samples of one rank in one step.")
    num_epochs = _Says("How many epochs.")
    policy = _Says('When ranks combine: "sync", "cadence", "async", or a policy; "cadence" by default.')
    backend = _Says('"nccl": the ranks are on GPUs, on all of this machine where none is named; "cpu": they are not.')
    overhead_target = _Says("El Che's: reduction time over computing time; see `CadenceConfig`.")
    anchor = _Says("El Che's: batches of the slowest rank to begin with.")
    min_anchor = _Says("El Che's: the anchor never shrinks below it.")
    max_anchor = _Says("El Che's: the anchor never grows above it.")
    max_batch_diff = _Says("How far ranks may be apart in batches: under El Che, by how much a count changes at once.")
    max_overshoot = _Says("The most batches of the next epoch that a rank runs while others are in this one.")
    divergence_threshold = _Says("The threshold of the `TrendGuard` that holds the cadence; 0.05 by default.")
    convergence_guard = _Says("Another guard, such as `GrowthGuard()`.")
    progressive_dispatch = _Says("Whether ranks take samples when they have time; False by default.")
    max_grad_norm = _Says("Clip the gradient that a step is made by to this L2 norm.")
    timeline = _Says("An object with event(kind, **fields).")
    lr_scale_ratio = _Says("Multiply rates by 1 + (world_size - 1) * ratio; 0, which leaves them, by default.")
    scheduler = _Says("scheduler(world_size) gives a schedule: a function from a step to a factor of the rates.")
    epoch_fn = _Says("epoch_fn(epoch, worker), called on each rank before an epoch.")
    metrics_fn = _Says("metrics_fn(metrics), called after an epoch, on rank 0: the lowest that lives.")
    checkpoint_every = _Says("Epochs between two calls of checkpoint_fn.")
    checkpoint_fn = _Says("checkpoint_fn(version, model), called where metrics_fn is; version: epochs that are over.")
    easgd_alpha = _Says("Combine as `EASGD(alpha)` does.")
    partition_ratios = _Says("Fraction of the samples for each rank.")
    snapshot_timeout_secs = _Says("Seconds for which ranks wait for each other.")

    def __init__(self, make_model: Any, make_optimizer: Any, train_fn: Any) -> None:
        self._given = (make_model, make_optimizer, train_fn)
        self._said: dict[str, Any] = {}
        self._more: dict[str, Any] = {}

    def no_divergence_guard(self) -> DdpBuilder:
        """Let nothing hold the cadence."""
        return self.saying("no_divergence_guard", True)

    def options(self, **options: Any) -> DdpBuilder:
        """More options, by `RunConfig`'s names, such as seed, ranks, devices, comm, cluster, average, callbacks.

        Raises:
            ArgumentError: `RunConfig` has none of such a name, or it is the policy or what is needed.
        """
        ours = {**{_SAME[name]: name for name in _NEEDED}, "policy": "policy"}
        not_here = {"make_model", "make_optimizer", "train_fn", *ours}
        known = {field.name for field in fields(RunConfig) if field.init} - not_here
        for name in options:
            if name in ours:
                raise ArgumentError(f"{_WHO}: expected .{ours[name]}(...), got {name} in options")
            if name not in known:
                raise ArgumentError(f"{_WHO}: expected options among {', '.join(sorted(known))}, got {name!r}")
        found = self._copy()
        found._more |= options
        return found

    def saying(self, name: str, value: Any) -> DdpBuilder:
        """A builder in which this is said too."""
        found = self._copy()
        found._said[name] = value
        return found

    def _copy(self) -> DdpBuilder:
        found = DdpBuilder(*self._given)
        found._said, found._more = dict(self._said), dict(self._more)
        return found

    def run(self) -> Run:
        """Begin; see `Trainer.start`.

        Raises:
            ArgumentError: see `config`.
        """
        return start(self.config())

    # -------------------------------------------------------------------------------------------- what it comes to

    def config(self) -> RunConfig:
        """What all that was said comes to.

        Raises:
            ArgumentError: something needed was not said, a value out of its range, or what does not go together.
        """
        missing = [f".{name}(...)" for name in _NEEDED if name not in self._said]
        if missing:
            raise ArgumentError(f"{_WHO}: expected {', '.join(missing)} before run, got none")
        as_integer(_WHO, "num_epochs", self._said["num_epochs"], 1)
        filled = {option: self._said[name] for name, option in _SAME.items() if name in self._said}
        for part in (self._where(), self._when(), self._whose_samples(), self._guard(), self._rates()):
            filled |= part
        if "easgd_alpha" in self._said:
            filled["outer"] = EASGD(self._said["easgd_alpha"])
        twice = sorted(filled.keys() & self._more.keys())
        if twice:
            raise ArgumentError(f"{_WHO}: expected {', '.join(twice)} to be said once, got it in options too")
        callbacks = check_callbacks(_WHO, self._more.get("callbacks", ()), resume=False)
        more = {**self._more, "callbacks": [*self._callbacks(), *callbacks]}
        options = {"average": "parameters", **filled, **more}
        return RunConfig(*self._given, **options)

    def _has(self, name: str) -> bool:
        return name in self._said

    def _where(self) -> dict[str, Any]:
        """The place of a backend that was said."""
        if not self._has("backend"):
            return {}
        backend = self._said["backend"]
        check_choice(_WHO, ("nccl", "cpu"), backend=backend)
        given = {name: self._more[name] for name in _PLACES if self._more.get(name) is not None}
        gpus = [device for device in available_devices() if device.type == "cuda"]
        if not given and backend == "nccl" and gpus:
            return {"devices": gpus}
        on = given.get("devices", [given["comm"].device] if "comm" in given else ["cpu"])
        if not isinstance(on, Sequence):
            return {}  # RunConfig says what it expects
        wanted = "cuda" if backend == "nccl" else "cpu"
        if any(Device(device).type != wanted for device in on):
            raise ArgumentError(
                f"{_WHO}: expected ranks on {wanted} with backend {backend!r}, got {', '.join(map(str, on))}: ranks on "
                'GPUs combine over NCCL and others do not, so leave .backend(...) out, or name other devices'
            )
        return {}

    def _when(self) -> dict[str, Any]:
        """The policy, with what was said of El Che."""
        policy = self._said.get("policy", "cadence")
        cadence = {name: self._said[name] for name in _CADENCE if self._has(name)}
        if self._is_progressive or policy != "cadence":
            ahead = {name: cadence.pop(name) for name in ("max_batch_diff",) if name in cadence}
        else:
            ahead = {}
        if not cadence:
            return {"policy": policy, **ahead}
        if policy != "cadence":
            named = ", ".join(cadence)
            where = "say them in its CadenceConfig" if isinstance(policy, Cadence) else "only El Che has them"
            raise ArgumentError(f"{_WHO}: expected policy 'cadence' with {named}, got {policy!r}: {where}")
        return {"policy": Cadence(CadenceConfig(**cadence)), **ahead}

    @property
    def _has_cadence(self) -> bool:
        policy = self._said.get("policy", "cadence")
        return policy == "cadence" or isinstance(policy, Cadence)

    @property
    def _is_progressive(self) -> bool:
        return bool(self._said.get("progressive_dispatch", False))

    def _whose_samples(self) -> dict[str, Any]:
        """How samples are dealt: by speed under El Che, as there; else as `RunConfig` does, or what options say."""
        if self._has("progressive_dispatch"):
            check_switch(_WHO, progressive_dispatch=self._said["progressive_dispatch"])
        if self._is_progressive:
            return {"dispatch": "progressive"}
        by_speed = self._has_cadence and not self._has("partition_ratios") and "dispatch" not in self._more
        return {"dispatch": "proportional"} if by_speed else {}

    def _guard(self) -> dict[str, Any]:
        """One guard: what was said, else what holds a cadence that can be held."""
        said = [name for name in _GUARDS if self._has(name)]
        if len(said) > 1:
            raise ArgumentError(f"{_WHO}: expected one of {', '.join(_GUARDS)}, got {' and '.join(said)}")
        if said == ["divergence_threshold"]:
            return {"guard": TrendGuard(threshold=self._said["divergence_threshold"])}
        if said == ["convergence_guard"]:
            return {"guard": self._said["convergence_guard"]}
        more = self._more
        in_step = not self._is_progressive and more.get("on_failure", "stop") == "stop"
        applies = self._has_cadence and in_step and more.get("average", "parameters") == "parameters"
        return {"guard": TrendGuard()} if not said and applies and "guard" not in more else {}

    def _rates(self) -> dict[str, Any]:
        """What becomes of rates on many ranks, and over steps."""
        found: dict[str, Any] = {}
        if self._has("lr_scale_ratio"):
            ratio = as_real(_WHO, "lr_scale_ratio", self._said["lr_scale_ratio"], least=0.0, finite=True)
            found["lr_scale"] = RateByRanks(ratio) if ratio else None
        if self._has("scheduler"):
            if not callable(self._said["scheduler"]):
                raise ArgumentError(f"{_WHO}: expected scheduler as a function, got {self._said['scheduler']!r:.100}")
            found["schedule"] = ScheduleByRanks(self._said["scheduler"])
        return found

    def _callbacks(self) -> list[Any]:
        """What is called between epochs."""
        said, found = self._said, list[Any]()
        for name in ("epoch_fn", "metrics_fn", "checkpoint_fn"):
            if self._has(name) and not callable(said[name]):
                raise ArgumentError(f"{_WHO}: expected {name} as a function, got {said[name]!r:.100}")
        if self._has("epoch_fn"):
            found.append(BeforeEpoch(said["epoch_fn"]))
        if self._has("metrics_fn"):
            found.append(OnFirstRank(lambda metrics, worker: said["metrics_fn"](metrics)))
        if self._has("checkpoint_every") != self._has("checkpoint_fn"):
            raise ArgumentError(
                f"{_WHO}: expected both checkpoint_every and checkpoint_fn, got one: files of all that a run needs to "
                "resume are written by .options(callbacks=[Checkpoint(folder, every=5)])"
            )
        if self._has("checkpoint_fn"):
            every = as_integer(_WHO, "checkpoint_every", said["checkpoint_every"], 1)
            found.append(OnFirstRank(lambda metrics, worker: said["checkpoint_fn"](worker.epoch, worker.model), every))
        return found


@dataclass(frozen=True)
class RateByRanks:
    """The factor of all rates on W ranks: 1 + (W - 1) * ratio."""

    ratio: float

    def __call__(self, world_size: int) -> float:
        """The factor."""
        return 1.0 + (world_size - 1) * self.ratio


@dataclass(frozen=True)
class BeforeEpoch:
    """A callback that is called before an epoch, on each rank."""

    function: Callable[[int, Any], object]

    def before_epoch(self, worker: Any) -> None:
        """Call it."""
        self.function(worker.epoch, worker)


@dataclass(frozen=True)
class OnFirstRank:
    """A callback that is called on the rank that leads after every so many epochs."""

    function: Callable[[EpochMetrics, Any], object]
    every: int = 1

    def after_epoch(self, metrics: EpochMetrics, worker: Any) -> None:
        """Call it, where it is due."""
        if worker.leads and worker.epoch % self.every == 0:
            self.function(metrics, worker)
