"""The engine of ranks that are not in step, as a run starts it: who directs them, and what each rank is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from minigrad.backend.device import CPU, Device
from minigrad.data.dispatch import Dispatch
from minigrad.distributed.comm.checks import default_timeout_s
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.solo import SoloCommunicator
from minigrad.distributed.comm.wrappers import Call, Make, Wrapper
from minigrad.errors import DistributedError
from minigrad.train import coordinator as c
from minigrad.train.epoch import EpochMetrics
from minigrad.train.run.callbacks import Callbacks
from minigrad.train.run.combining import CombinedGradients, CombinedParameters, Combining
from minigrad.train.run.config import RunConfig
from minigrad.train.run.coordinated import CoordinatedRank
from minigrad.train.run.directed import Directed
from minigrad.train.run.handle import Run, TrainedState
from minigrad.train.run.letters import Letters
from minigrad.train.run.rank import Worker
from minigrad.train.run.simulated import Simulated

_SOON_S = 0.1  # after which a wish to stop is seen


class ApartCommunicator(Wrapper):
    """What a rank is, while it has no communicator with others: those begin with the first round.

    Args:
        rank, world_size: Which, of how many.
        device: Its own.
        letters: Tell the time.
    """

    def __init__(self, rank: int, world_size: int, device: Device, letters: Letters) -> None:
        super().__init__(SoloCommunicator(device, clock=letters.clock))
        self.rank, self.world_size = rank, world_size

    def around(self, call: Call, arrays: Sequence[Any], make: Make) -> Any:
        """Refuse.

        Raises:
            DistributedError: always.
        """
        raise DistributedError(
            f"rank {self.rank}: {call.kind}: expected no collective where ranks are not in step, got one: they meet in "
            "rounds alone"
        )


class _Shared:
    """What the ranks of one process tell their run: each thing once, whoever of them comes first."""

    def __init__(self, run: Run) -> None:
        self.run, self._lock, self._told = run, threading.Lock(), dict[str, int]()

    def is_first(self, what: str, number: int) -> bool:
        """Whether nobody has told this number yet, nor a higher one."""
        with self._lock:
            before = self._told.get(what, -1)
            self._told[what] = max(before, number)
        return number > before


class _Told:
    """What a rank does where rounds and epochs are committed; see `HearsCommits`."""

    def __init__(self, worker: Worker, shared: _Shared, letters: Letters) -> None:
        self._worker, self._shared, self._letters = worker, shared, letters
        self._callbacks = Callbacks(worker.config.callbacks, worker)
        self._has_asked = False

    def begin(self) -> None:
        self._callbacks.before_epoch()

    def committed(self, commit: c.Commit, comm: Communicator | None) -> None:
        worker = self._worker
        if self._shared.is_first("round", commit.round):
            self._shared.run.advance(sum(each.samples for each in commit.taken), None)
        if worker.wants_stop and not self._has_asked:
            self._has_asked = True
            self._letters.say(c.StopAsked(f"a callback on rank {worker.rank}"))

    def epoch(self, metrics: EpochMetrics) -> None:
        self._end(metrics)
        if self._worker.epoch < self._worker.config.epochs:
            self._callbacks.before_epoch()

    def _end(self, metrics: EpochMetrics) -> None:
        self._worker.epoch += 1
        self._callbacks.after_epoch(metrics)
        if self._shared.is_first("epoch", metrics.epoch):
            self._shared.run.epoch(metrics)

    def save(self, order: c.Save, comm: Communicator, begun: Sequence[EpochMetrics]) -> None:
        for metrics in begun[:1] if not order.error else ():
            self._end(metrics)


def train_apart(config: RunConfig, world_size: int, run: Run) -> TrainedState:
    """Train with ranks that a coordinator directs; what those have come to that live.

    Raises:
        Exception: what the first rank that failed has raised, where the run ends because of that.
    """
    timeout_s = default_timeout_s(config.timeout_s)
    shared = _Shared(run)
    devices = [CPU] * world_size if config.devices is None else list(map(Device, config.devices))

    def body(rank: int, letters: Letters) -> TrainedState:
        worker = Worker(config, ApartCommunicator(rank, world_size, devices[rank], letters))
        return train_directed(worker, letters, shared, timeout_s)

    directions = coordinator_config(config, world_size, timeout_s)
    desk: dict[str, Any] = {
        "wishes": lambda: "run.stop()" if run.wants_stop else "",
        "most_rounds": config.max_steps,
        "event": None if config.timeline is None else Telling(config.timeline),
    }
    ranks: Directed
    if config.cluster is not None:
        ranks = Simulated(directions, body, config.cluster, timeout_s=timeout_s, **desk)
    else:
        ranks = Directed(directions, body, timeout_s=timeout_s, devices=devices, longest_s=_SOON_S, **desk)
    try:
        state = ranks.run()
    finally:
        if isinstance(ranks, Simulated):
            run.trace = ranks.trace
    found: TrainedState = ranks.results[state.living[0]]
    return found


def coordinator_config(config: RunConfig, world_size: int, timeout_s: float) -> c.CoordinatorConfig:
    """What the coordinator of a run is told; ranks wait for each other less long than it does for them."""
    pool = Worker.pool_of(config)
    limits = (config.max_overshoot, config.max_batch_diff, config.epochs)
    dispatch = Dispatch(pool, world_size, config.dispatch, config.shares, *limits)  # type: ignore[arg-type]
    by_shares = config.shares is not None and config.average == "gradients" and not config.when.measures
    return c.CoordinatorConfig(
        dispatch, config.when, config.on_failure, 1.25 * timeout_s, rounds_by_shares=by_shares
    )


def train_directed(worker: Worker, letters: Letters, shared: _Shared, timeout_s: float) -> TrainedState:
    """What each rank does, until the coordinator ends it."""
    config = worker.config
    bound = coordinator_config(config, worker.world_size, timeout_s).bound
    combining: Combining
    combining = CombinedGradients(worker) if config.average == "gradients" else CombinedParameters(worker, bound)
    told = _Told(worker, shared, letters)
    which = (worker.rank, worker.world_size, worker, combining, worker.meter)
    rank = CoordinatedRank(*which, letters, worker.pool(), worker.ledger, told, patience_s=timeout_s / 4)
    told.begin()
    rank.run()
    return TrainedState.of(worker.model)


class Telling:
    """Lets a timeline hear of commands.

    Args:
        timeline: An object with event(kind, **fields).
    """

    def __init__(self, timeline: Any) -> None:
        self._timeline = timeline

    def __call__(self, command: c.Command) -> None:
        which = {name: getattr(command, name) for name in ("rank", "round") if hasattr(command, name)}
        self._timeline.event(type(command).__name__.lower(), reason=command.reason, **which)
