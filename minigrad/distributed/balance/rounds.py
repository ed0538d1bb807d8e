"""El Che on a rank: times its rounds of whole batches, and lets the state machine decide from the readings of all.

It holds no formula; `ElChe` has them all. Every rank hands in its reading, and computes the same decision from the same
readings, so that a round costs one small message besides the reduction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TextIO, TypeVar, overload

from minigrad.arguments import as_integer
from minigrad.data.ledger import SampleLedger
from minigrad.distributed.balance.cadence import CadenceConfig, ElChe
from minigrad.distributed.balance.dispatcher import Dispatcher
from minigrad.distributed.balance.divergence import Divergence
from minigrad.distributed.balance.guarded import GuardedCadence
from minigrad.distributed.balance.guards import Guard, as_guard, guard_data
from minigrad.distributed.balance.indices import Indices, batch_indices
from minigrad.distributed.balance.journal import Journal
from minigrad.distributed.balance.meter import Metered, StepTime, StepTimes
from minigrad.distributed.balance.state import config_data, resumed
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.record.listening import EventListener, listener
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
        guard: Says whether the anchor may grow, before it does; see `balance.guards`. It judges what each round
            reports: see `report`.
        journal: Where rank 0 writes readings and decisions, as JSON lines that `replay` takes.
        timeline: Gets an event "cadence" with round, anchor, counts and reason for each decision, and the verdict of
            a guard; by default the communicator, where it takes events.

    Attributes:
        comm: The communicator to train with.
        cadence: The state, equal on all ranks.
        divergence: How far the ranks were apart when that was reported last; print it.
        reason: Why the counts are as they are; a guard's verdict and its reason come first.

    Raises:
        ArgumentError: guard is none. ReplicaMismatchError: configurations or guards differ between ranks.

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
        guard: Guard | None = None,
        journal: TextIO | None = None,
        timeline: EventListener | None = None,
        ledger: SampleLedger | None = None,
    ) -> None:
        self.comm, self._ledger = Metered(comm), ledger
        self.cadence = GuardedCadence(ElChe.start(comm.world_size, config), as_guard("Rounds", guard))
        guarding = {"guard": guard_data(self.cadence.guard)}
        gather_alike("Rounds", "configurations", comm, {**config_data(self.el_che.config), **guarding})
        self.reason = "no round yet"
        self._takes_reports = guard is not None
        self._reported: Divergence | None = None  # of the round that runs
        self.divergence: Divergence | None = None
        self._divergences = deque[Divergence | None]()  # of those that were not decided on yet
        self._times = StepTimes("Rounds", self.comm)
        self._timeline = listener("Rounds", timeline, comm)
        self._journal = Journal(journal, self._state) if journal is not None and comm.rank == 0 else None
        self._unread: list[_Row] = []  # rounds that not all ranks have read yet; those of a device come later
        self._number = 0

    @property
    def el_che(self) -> ElChe:
        """How many batches each rank runs."""
        return self.cadence.el_che

    @property
    def _state(self) -> ElChe | GuardedCadence:
        """What is kept of a run."""
        return self.cadence if self.cadence.is_guarded else self.el_che

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
            ArgumentError: with several ranks, where no collective of the round went through `rounds.comm`; or nothing
                was reported to a guard.
        """
        if batches_left is not None:
            batches_left = as_integer("Rounds", "batches_left", batches_left, 1)
        counts, rank = self.counts(batches_left), self.comm.rank
        start = sum(counts[:rank])
        with self._around(counts[rank], batches_left):
            yield slice(start, start + counts[rank])

    @contextmanager
    def _around(self, batches: int, left: int | None) -> Iterator[None]:
        """Around a round in which this rank runs so many batches, of all that are left."""
        self._reported, rank = None, self.comm.rank
        with self._times.measure(batches):
            yield
        if self.cadence.is_guarded and self._reported is None:
            raise ArgumentError(
                f"rank {rank}: Rounds: expected rounds.report(divergence) in a round, for the guard to judge, got none"
            )
        self._divergences.append(self._reported)
        self._report(left)

    def report(self, divergence: Divergence) -> None:
        """Say how far the ranks were apart in this round, once in each where there is a guard.

        A round combines gradients, of which nothing is left of a rank's own where they lay; and the parameters of all
        ranks are the same. So what a guard is to judge is the user's to measure: as a rule how far each rank's gradient
        is from the mean, as `DivergenceMeter` tells it, the state of a comm hook: `rounds.report(meter.report(steps))`.

        Args:
            divergence: Equal on all ranks.

        Raises:
            ArgumentError: it is none, or that of other ranks; or there is no guard that could judge it.
        """
        if not isinstance(divergence, Divergence) or len(divergence.relative) != self.comm.world_size:
            raise ArgumentError(
                f"Rounds.report: expected a Divergence of {self.comm.world_size} ranks, got {divergence!r:.100}"
            )
        if not self._takes_reports:
            raise ArgumentError("Rounds.report: expected Rounds(..., guard=) to judge it, got none")
        self._reported = self.divergence = divergence

    @overload
    def deal(self, batches: Dispatcher) -> Iterator[Sequence[Indices]]: ...
    @overload
    def deal(self, batches: Sequence[T]) -> Iterator[Sequence[T]]: ...

    def deal(self, batches: Dispatcher | Sequence[Any]) -> Iterator[Any]:
        """This rank's batches of each round, until all are used; what the loop does with them is the round.

        Args:
            batches: A list of those of an epoch, equal on all ranks: indices, as a rule, which cost little. Of equal
                size, for a rank's speed is told by batches. Or a `Dispatcher`, which cuts them when a round comes.

        Raises:
            ArgumentError: they have no length, or can't be sliced; or with a ledger they are no rows of indices, or
                come from a dispatcher, which has its own; or a dispatcher goes by shares.
        """
        if isinstance(batches, Dispatcher):
            if self._ledger is not None:
                raise ArgumentError("Rounds.deal: expected the ledger to be the Dispatcher's, got one of Rounds")
            return self._rounds_of(batches)
        if not (hasattr(batches, "__len__") and hasattr(batches, "__getitem__")):
            raise ArgumentError(f"Rounds.deal: expected a list of batches, got {type(batches).__name__}: list() it")
        return self._dealt(batches)

    def _rounds_of(self, dispatcher: Dispatcher) -> Iterator[Sequence[Indices]]:
        for mine in dispatcher.rounds(self.counts):
            with self._around(len(mine), dispatcher.remaining):
                yield mine

    def _dealt(self, batches: Sequence[T]) -> Iterator[Sequence[T]]:
        first = 0
        if self._ledger is not None:
            self._ledger.open(batches)
        while first < len(batches):
            left = len(batches) - first
            used = sum(self.counts(left))
            with self.round(left) as mine:
                if self._ledger is not None:
                    _tell(self._ledger, batches[first : first + used], mine)
                yield batches[first + mine.start : first + mine.stop]
            first += used
        if self._ledger is not None:
            self._ledger.close()

    def state_dict(self) -> dict[str, Any]:
        """The state to resume a run with, plain data for JSON; equal on all ranks."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` told. All ranks do, with the same.

        Raises:
            StateDictError: it is that of other ranks, options or guards, or no state of a cadence.
        """
        if self.cadence.is_guarded:
            self.cadence = self.cadence.resumed("Rounds", state)
        else:
            el_che = resumed("Rounds", self.el_che, ElChe.from_state_dict(state))
            self.cadence = replace(self.cadence, el_che=el_che)
        self.reason, self._unread = "resumed", []
        self._divergences.clear()
        if self._journal is not None:
            self._journal.started(self._state)

    def _report(self, batches_left: int | None) -> None:
        """Hand in what was read, and decide on each round that all ranks have read."""
        self._unread += [_row(time) for time in self._times.read()]
        alike: Any = batches_left
        if self._takes_reports:
            alike = {"batches_left": batches_left, "divergence": repr(self._reported)}
        gathered = gather_alike("Rounds", "batches_left", self.comm.inner, alike, self._unread)
        for rows in zip(*gathered):  # of one round
            self._number += 1
            self._decide(rows)
        self._unread = self._unread[min(map(len, gathered)) :]

    def _decide(self, rows: Sequence[_Row]) -> None:
        batches, walls, waits = zip(*rows)
        divergence = self._divergences.popleft()
        self.cadence, wanted, self.reason = self.cadence.report(walls, batches, min(waits), divergence)
        if self._journal is not None and self.cadence.is_guarded:
            self._journal.judged(walls, batches, min(waits), divergence, self.cadence, self.reason)
        elif self._journal is not None:
            self._journal.reported(walls, batches, min(waits), wanted, self.reason)
        fields = {"anchor": self.el_che.anchor, "counts": wanted, "reason": self.reason}
        if self.cadence.verdict is not None:
            fields["verdict"] = self.cadence.verdict.action
        self._timeline.event("cadence", round=self._number, **fields)


def _row(time: StepTime) -> _Row:
    batches = time.size or 0
    return [batches, max(0.0, 1e3 * time.computed_s) if batches else 0.0, 1e3 * time.waited_s]


def _tell(ledger: SampleLedger, batches: Sequence[Any], mine: slice) -> None:
    """Tell a ledger which samples of the batches of all ranks are this one's."""
    sizes = [len(batch_indices("Rounds.deal", batch)) for batch in batches]
    start = sum(sizes[: mine.start])
    ledger.dealt_of(sum(sizes), slice(start, start + sum(sizes[mine])))
