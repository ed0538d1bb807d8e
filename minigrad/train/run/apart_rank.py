"""One rank of a run whose ranks are not in step, from its worker to what it has trained."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from minigrad.backend.device import Device
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.solo import SoloCommunicator
from minigrad.distributed.comm.wrappers import Call, Make, Wrapper
from minigrad.errors import DistributedError
from minigrad.train import coordinator as c
from minigrad.train.epoch import EpochMetrics
from minigrad.train.run.accounts import EpochAccounts
from minigrad.train.run.apart_saving import ApartSaving, States
from minigrad.train.run.callbacks import Callbacks
from minigrad.train.run.combining import CombinedGradients, CombinedParameters, Combining
from minigrad.train.run.coordinated import CoordinatedRank
from minigrad.train.run.handle import Run, TrainedState
from minigrad.train.run.noting import Letters, noted
from minigrad.train.run.rank import Worker


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

    @property
    def global_ranks(self) -> tuple[int, ...]:
        """Of all, whether they live or not."""
        return tuple(range(self.world_size))

    def around(self, call: Call, arrays: Sequence[Any], make: Make) -> Any:
        """Refuse.

        Raises:
            DistributedError: always.
        """
        raise DistributedError(
            f"rank {self.rank}: {call.kind}: expected no collective where ranks are not in step, got one: they meet in "
            "rounds alone"
        )


class SharedRun:
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

    def __init__(
        self, worker: Worker, shared: SharedRun, letters: Letters, combining: Combining, saving: ApartSaving
    ) -> None:
        self._worker, self._shared, self._letters = worker, shared, letters
        self._combining, self._saving = combining, saving
        self._state: Mapping[str, Any] | None = None  # of the coordinator at the last commit
        self._callbacks = Callbacks(worker.config.callbacks, worker)
        self._has_asked = self._has_ended = False

    def begin(self) -> None:
        self._callbacks.before_epoch()

    def committed(self, commit: c.Commit, comm: Communicator | None) -> None:
        worker, self._state = self._worker, commit.state
        if comm is not None:
            worker.leads = comm.rank == 0
        if self._shared.is_first("round", commit.round):
            self._shared.run.advance(sum(each.samples for each in commit.taken), None)
        wants = "a callback" if worker.wants_stop else "run.stop()" if self._shared.run.wants_stop else ""
        if wants and not self._has_asked:
            self._has_asked = True
            self._letters.say(c.StopAsked(f"{wants} on rank {worker.rank}"))

    def settled(self, commit: c.Commit, comm: Communicator, together: AbstractContextManager[None]) -> None:
        if self._saving.is_due(commit.round):
            with together, self._combining.as_committed():
                self._saving.write(commit.round, commit.state, comm)

    def epoch(self, metrics: EpochMetrics) -> None:
        self._end(metrics)
        if self._worker.epoch < self._worker.config.epochs:
            self._callbacks.before_epoch()

    def _end(self, metrics: EpochMetrics) -> None:
        self._worker.epoch += 1
        self._saving.history.append(metrics)
        self._callbacks.after_epoch(metrics)
        if self._shared.is_first("epoch", metrics.epoch):
            self._shared.run.epoch(metrics)

    def save(self, order: c.Save, comm: Communicator, begun: Sequence[EpochMetrics]) -> None:
        self._saving.at_the_end(order.round, self._state, comm)
        told, self._has_ended = self._has_ended, True  # it is saved again where a rank fails meanwhile
        for metrics in begun[:1] if not order.error and not told else ():
            self._end(metrics)


def train_directed(
    worker: Worker, letters: Letters, shared: SharedRun, bound: int, patience_s: float, saved: tuple[int, States] | None
) -> TrainedState:
    """What each rank does, until the coordinator ends it.

    Args:
        bound: How many rounds it may be ahead of what is committed.
        patience_s: After how long in a round it says that it goes on.
        saved: What to go on from; see `saved_states`.
    """
    config, alike, letters = worker.config, worker.alike(saved is None), noted(worker, letters)
    accounts = EpochAccounts(len(config.dataset), worker.world_size)
    saving = ApartSaving(worker, accounts)
    committed = 0 if saved is None else saving.resume(saved)
    combining: Combining
    combining = CombinedGradients(worker) if config.average == "gradients" else CombinedParameters(worker, bound)
    told = _Told(worker, shared, letters, combining, saving)
    which = (worker.rank, worker.world_size, worker, combining, worker.meter)
    data = (worker.pool(), worker.ledger)
    rank = CoordinatedRank(*which, letters, *data, told, patience_s=patience_s, options=alike)
    rank.go_on(committed, accounts)
    if shared.is_first("resumed", 0):
        shared.run.resumed(saving.history, accounts.samples + worker.epoch * len(config.dataset))
    if not accounts.samples:
        told.begin()
    rank.run()
    saving.close()
    return TrainedState.of(worker.model)
