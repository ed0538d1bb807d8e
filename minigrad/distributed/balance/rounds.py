"""El Che on a rank: times its rounds of whole batches, and lets the state machine decide from the readings of all.

It holds no formula; `ElChe` has them all. Every rank hands in its reading, and computes the same decision from the same
readings, so that a round costs one small message besides the reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

from minigrad.arguments import as_integer
from minigrad.distributed.balance.cadence import CadenceConfig, ElChe
from minigrad.distributed.balance.journal import Journal
from minigrad.distributed.balance.meter import Metered, StepTime, StepTimes, Timeline, listener
from minigrad.distributed.balance.state import config_data, resumed
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.errors import ArgumentError

T = TypeVar("T")
_Row = list[Any]  # batches of a rank in a round, milliseconds of computing, of waiting; plain data


class Rounds:
    """Lets each rank run several whole batches between two reductions: so many that all are done at one time.

    The reduction of a round goes through `rounds.comm`, which times the waiting: DDP is made with it. What the rank
    that comes last waits for is the reduction alone; that is the overhead which El Che keeps near its target.

    Args:
        comm: The ranks. All make one, at one place of the program.
        config: See `CadenceConfig`.
        journal: Where rank 0 writes readings and decisions, as JSON lines that `replay` takes.
        timeline: Gets an event "cadence" with round, anchor, counts and reason for each decision; by default the
            communicator, where it takes events.

    Attributes:
        comm: The communicator to train with.
        el_che: The state, equal on all ranks.
        reason: Why the counts are as they are.

    Raises:
        ReplicaMismatchError: configurations differ between ranks.

    Example:
        >>> from minigrad import distributed, nn, optim, randn
        >>> def train(comm):
        ...     rounds = Rounds(comm, CadenceConfig.fixed(2))
        ...     ddp = distributed.DDP(nn.Linear(3, 1), rounds.comm)
        ...     optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        ...     for mine in rounds.deal([randn(4, 3) for _ in range(10)]):
        ...         optimizer.zero_grad()
        ...         with ddp.no_sync():
        ...             for batch in mine:
        ...                 (ddp(batch).square().mean() / len(mine)).backward()
        ...         ddp.flush()  # the mean over the samples of all ranks
        ...         optimizer.step()
        ...     return rounds.el_che.anchor
        >>> distributed.run(train, 2)
        [2, 2]
    """

    def __init__(
        self,
        comm: Communicator,
        config: CadenceConfig | None = None,
        *,
        journal: TextIO | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.comm = Metered(comm)
        self.el_che = ElChe.start(comm.world_size, config)
        gather_alike("Rounds", "configurations", comm, config_data(self.el_che.config))
        self.reason = "no round yet"
        self._times = StepTimes("Rounds", self.comm)
        self._timeline = listener("Rounds", timeline, comm)
        self._journal = Journal(journal, self.el_che) if journal is not None and comm.rank == 0 else None
        self._unread: list[_Row] = []  # rounds that not all ranks have read yet; those of a device come later
        self._number = 0

    def counts(self, batches_left: int | None = None) -> tuple[int, ...]:
        """Batches of each rank in the coming round; together at most batches_left."""
        return self.el_che.batch_counts if batches_left is None else self.el_che.clamp_total(batches_left)

    @contextmanager
    def round(self, batches_left: int | None = None) -> Iterator[slice]:
        """Around one round, with the reduction at its end; decides afterwards.

        Args:
            batches_left: The most batches that all ranks together may run, > 0; equal on all of them.

        Yields:
            This rank's batches, counted from the first of the round. It may have none: it still has to reduce.

        Raises:
            ArgumentError: with several ranks, where no collective of the round went through `rounds.comm`.
        """
        if batches_left is not None:
            batches_left = as_integer("Rounds", "batches_left", batches_left, 1)
        counts, rank = self.counts(batches_left), self.comm.rank
        start = sum(counts[:rank])
        with self._times.measure(counts[rank]):
            yield slice(start, start + counts[rank])
        self._report(batches_left)

    def deal(self, batches: Sequence[T]) -> Iterator[Sequence[T]]:
        """This rank's batches of each round, until all are used; what the loop does with them is the round.

        Args:
            batches: Those of an epoch, equal on all ranks: indices, as a rule, which cost little. Of equal size, for
                a rank's speed is told by batches.

        Raises:
            ArgumentError: they have no length, or can't be sliced.
        """
        if not (hasattr(batches, "__len__") and hasattr(batches, "__getitem__")):
            raise ArgumentError(f"Rounds.deal: expected a list of batches, got {type(batches).__name__}: list() it")
        first = 0
        while first < len(batches):
            left = len(batches) - first
            used = sum(self.counts(left))
            with self.round(left) as mine:
                yield batches[first + mine.start : first + mine.stop]
            first += used

    def state_dict(self) -> dict[str, Any]:
        """The state to resume a run with, plain data for JSON; equal on all ranks."""
        return self.el_che.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` told. All ranks do, with the same.

        Raises:
            StateDictError: it is that of other ranks or options, or no state of a cadence.
        """
        self.el_che = resumed("Rounds", self.el_che, ElChe.from_state_dict(state))
        self.reason, self._unread = "resumed", []
        if self._journal is not None:
            self._journal.started(self.el_che)

    def _report(self, batches_left: int | None) -> None:
        """Hand in what was read, and decide on each round that all ranks have read."""
        self._unread += [_row(time) for time in self._times.read()]
        gathered = gather_alike("Rounds", "batches_left", self.comm.inner, batches_left, self._unread)
        for rows in zip(*gathered):  # of one round
            self._number += 1
            self._decide(rows)
        self._unread = self._unread[min(map(len, gathered)) :]

    def _decide(self, rows: Sequence[_Row]) -> None:
        batches, walls, waits = zip(*rows)
        self.el_che, wanted, self.reason = self.el_che.report_timing(walls, batches, min(waits))
        if self._journal is not None:
            self._journal.reported(walls, batches, min(waits), wanted, self.reason)
        fields = {"anchor": self.el_che.anchor, "counts": wanted, "reason": self.reason}
        self._timeline.event("cadence", round=self._number, **fields)


def _row(time: StepTime) -> _Row:
    batches = time.size or 0
    return [batches, max(0.0, 1e3 * time.computed_s) if batches else 0.0, 1e3 * time.waited_s]
