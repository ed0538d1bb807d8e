"""A rank that does what a coordinator commands: the shell of runs whose ranks are not in step.

It takes one command after the other, and looks for new ones between two batches. What it makes of a round counts only
once the round is committed: until then a `Restore`, which comes where another rank has failed, undoes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from minigrad.data.chunks import ChunkPool
from minigrad.data.dispatch import Portion
from minigrad.data.ledger import SampleLedger
from minigrad.data.order import Indices
from minigrad.distributed.comm.differences import Facts, describe, gather_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.errors import CollectiveTimeoutError, RankFailedError
from minigrad.train import coordinator as c
from minigrad.train.epoch import EpochMeter, EpochMetrics
from minigrad.train.run.accounts import EpochAccounts, Row
from minigrad.train.run.combining import Combining, Trainee
from minigrad.train.run.letters import Letters, generation_of

_WHO = "Trainer.start"
_BACK = (c.Restore, c.Save, c.Stop)  # commands that break off what is under way


class HearsCommits(Protocol):
    """What else is told what a rank has come to, on each rank at the same commits."""

    def epoch(self, metrics: EpochMetrics) -> None:
        """An epoch is committed."""

    def committed(self, commit: c.Commit, comm: Communicator | None) -> None:
        """A round is committed; comm is that of the members, where they have combined."""

    def settled(self, commit: c.Commit, comm: Communicator, together: AbstractContextManager[None]) -> None:
        """The same, when all has heard of it: a place where all members can meet, inside together."""

    def save(self, order: c.Save, comm: Communicator, begun: Sequence[EpochMetrics]) -> None:
        """The run ends before its end: write down the last commit, with all members.

        Args:
            begun: The figures of epochs that are not over.
        """


class _BrokenOffError(Exception):
    """What is under way is of no use any more, for a command has come."""

    def __init__(self, command: c.Order) -> None:
        super().__init__(type(command).__name__)
        self.command = command


class CoordinatedRank:
    """One rank.

    Args:
        rank, world_size: Which, of how many at the start.
        trainee: Its model, and its steps.
        combining: What of it is combined.
        meter: On a communicator of this rank alone; `trainee` counts by it.
        letters: Brings commands.
        pool: The first epoch.
        ledger: Of this rank; it hears of what all have taken.
        hears: Told of commits and epochs.
        patience_s: After how long in a round it says that it goes on.
        options: What has to be alike on all ranks, by name.

    Attributes:
        committed: The last committed round.
        commit_state: Of the coordinator there, as the `Commit` brought it.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        trainee: Trainee,
        combining: Combining,
        meter: EpochMeter,
        letters: Letters,
        pool: ChunkPool,
        ledger: SampleLedger,
        hears: HearsCommits,
        *,
        patience_s: float,
        options: Facts = MappingProxyType({}),
    ) -> None:
        self.rank, self._options = rank, options
        self.trainee, self.combining, self.ledger = trainee, combining, ledger
        self.accounts = EpochAccounts(pool.length, world_size)
        self.committed = 0
        self.commit_state: Mapping[str, Any] | None = None
        self._meter, self._letters, self._hears = meter, letters, hears
        self._now_s, self._patience_s, self._began_s = letters.now_s, patience_s, letters.now_s()
        self._said_s = self._began_s  # when it told last that it goes on
        self._pool, self._orders = pool, dict[int, Indices]()
        self._waiting = deque[c.Order]()
        self._comm: Communicator | None = None
        self._members: tuple[int, ...] = ()  # whose it is
        self._generation = 0
        self._told: dict[int, list[Row]] = {}  # of this rank's parts, by round
        self._rows: dict[int, dict[int, list[Row]]] = {}  # of all ranks, by round that is combined and not committed

    def go_on(self, committed: int, accounts: EpochAccounts) -> None:
        """Begin behind a round, with what is known of epochs that are not over."""
        self.committed, self.accounts = committed, accounts

    def run(self) -> None:
        """Do what is commanded, until the end.

        Raises:
            RankFailedError: the run ends because of a failure, of another rank too.
        """
        stop: c.Stop | None = None
        while stop is None:
            order = self._waiting.popleft() if self._waiting else self._letters.next(None)
            while order is not None:
                try:
                    stop = order if isinstance(order, c.Stop) else None
                    self._do(order)
                    order = None
                except _BrokenOffError as error:
                    order = error.command
        if stop.error:
            raise RankFailedError(f"rank {self.rank}: {stop.error}")

    def _do(self, order: c.Order) -> None:
        _DOES.get(type(order), _nothing)(self, order)

    def _answer(self, order: c.Order, kind: Callable[..., c.Answer], *more: Any) -> None:
        self._letters.say(kind(order.rank, order.term, order.round, order.ask, *more))

    def _look(self) -> None:
        """Do what was commanded meanwhile; what breaks off is raised."""
        while (order := self._letters.next(0.0)) is not None:
            if isinstance(order, _BACK):
                self._waiting.clear()
                raise _BrokenOffError(order)
            if isinstance(order, c.Train):
                self._waiting.append(order)
            else:
                self._do(order)

    # ------------------------------------------------------------------------------------------------------ a round

    def train(self, order: c.Train) -> None:
        """Make the batches of a part."""
        began_s = self._said_s = self._now_s()
        samples, made, rows = 0.0, 0, list[Row]()
        for run in self.combining.cut(order.portions):
            made += len(run)
            self._meter.start(run[0].epoch)
            with self._meter.step():
                n = self.trainee.backward(self._batches(order, run, made - len(run)))
                self.combining.stepped(n, made == len(order.portions))
            samples += n
            rows.append([run[0].epoch, {**self._meter.told(), "epoch_s": self._now_s() - self._began_s}])
        self._told[order.round] = rows
        self.combining.end(order.round, samples)
        self._answer(order, c.Trained, samples, len(order.portions), self._now_s() - began_s)

    def _batches(self, order: c.Train, portions: Iterable[Portion], made: int) -> Iterator[Indices]:
        """The samples of each batch; before each it looks for commands, and says that it goes on."""
        for number, portion in enumerate(portions, made):
            self._look()
            if self._now_s() - self._said_s > self._patience_s:
                self._said_s = self._now_s()
                self._answer(order, c.Working, number)
            yield self._indices(portion)

    def _indices(self, portion: Portion) -> Indices:
        if portion.epoch not in self._orders:
            near = {epoch: order for epoch, order in self._orders.items() if abs(epoch - portion.epoch) <= 1}
            pool = replace(self._pool, epoch=portion.epoch, left=None, ready=())
            self._orders = {**near, portion.epoch: pool.order()}
        order = self._orders[portion.epoch]
        return np.concatenate([order[start:stop] for start, stop in portion.places])

    def combine(self, order: c.Combine) -> None:
        """Combine a round with all members."""
        began_s = self._now_s()
        weights = dict(zip(order.givers, order.samples))
        try:
            with self._letters.together(order.members):
                comm = self._meet(order.members)
                rows = self._told.get(order.round, [])
                told = gather_alike(_WHO, "rates", comm, self.combining.alike(), rows)
                self.combining.combine(order.round, weights.get(self.rank, 0.0))
        except (CollectiveTimeoutError, RankFailedError) as error:
            self._answer(order, c.Broken, str(error))
            return
        self._rows[order.round] = dict(zip(order.members, told))
        self._answer(order, c.Combined, self._now_s() - began_s)

    def _meet(self, members: Sequence[int]) -> Communicator:
        """The communicator of these, which begins where they have gone on from another round than before."""
        if self._comm is None:
            comm = self._letters.regroup(members, self._generation)
            gather_alike(_WHO, "options and models", comm, {**describe(self.trainee.model), **self._options})
            self.combining.meet(comm)
            self._comm, self._members = comm, tuple(members)
        return self._comm

    def commit(self, order: c.Commit) -> None:
        """What was combined holds."""
        self.combining.commit(order.round, sum(each.samples for each in order.taken))
        c.write_samples(self.ledger, order)
        self.committed, self.commit_state = order.round, order.state
        self._told.pop(order.round, None)
        ended = self.accounts.commit(order, self._rows.pop(order.round, {}))
        self._hears.committed(order, self._comm)
        for metrics in ended:
            self._hears.epoch(metrics)
        if ended:
            self.combining.remember()
        if self._comm is not None:
            self._hears.settled(order, self._comm, self._letters.together(self._members))

    # ------------------------------------------------------------------------------------------------ where one fails

    def restore(self, order: c.Restore) -> None:
        """Go back to the last commit."""
        self._go_back(order)
        self._answer(order, c.Restored)

    def save(self, order: c.Save) -> None:
        """Go back to the last commit, and write it down together."""
        self._go_back(order)
        try:
            with self._letters.together(order.members):
                self._hears.save(order, self._meet(order.members), self.accounts.begun())
        except (CollectiveTimeoutError, RankFailedError):
            pass  # another one has failed meanwhile, of which the coordinator hears
        self._answer(order, c.Saved)

    def _go_back(self, order: c.Restore | c.Save) -> None:
        self._comm, self._generation = None, generation_of(order)
        self._told, self._rows = {}, {}
        self.combining.restore()

    def recall(self, order: c.Recall) -> None:
        """Say which commit it had last."""
        self._answer(order, c.Recalled, self.committed, self.commit_state)

    def finish(self, order: c.Finish) -> None:
        """Say that it has all commits."""
        self._answer(order, c.Finished)


def _nothing(rank: CoordinatedRank, order: c.Order) -> None:
    """A `Stop` has nothing to be done."""


_DOES: Mapping[type[c.Order], Callable[[CoordinatedRank, Any], None]] = {
    c.Train: CoordinatedRank.train,
    c.Combine: CoordinatedRank.combine,
    c.Commit: CoordinatedRank.commit,
    c.Restore: CoordinatedRank.restore,
    c.Save: CoordinatedRank.save,
    c.Recall: CoordinatedRank.recall,
    c.Finish: CoordinatedRank.finish,
}
