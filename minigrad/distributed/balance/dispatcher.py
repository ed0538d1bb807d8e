"""The dispatcher of a rank: the batches of one epoch after the other, round by round, as `data.Dispatch` divides them.

It holds no formula. All ranks compute the same rounds from the same counts, so that a round costs no message; what
these are computed from is compared where an epoch begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from minigrad.arguments import check_shares
from minigrad.data.chunks import ChunkPool
from minigrad.data.dispatch import Batches, Dispatch, Portion
from minigrad.data.ledger import SampleLedger
from minigrad.data.order import Indices, Shares
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.protocol import Communicator, check_is_communicator
from minigrad.errors import ArgumentError, StateDictError

_WHO = "Dispatcher"


class Dispatcher:
    """Gives each rank its batches of each round, indices of samples, until an epoch is over; the next loop is the next.

    What the loop does with them is a round, with one reduction: all ranks make as many, and one may have no batch.
    `Rounds.deal` takes it in place of a list, and says by the speeds that it has measured how many batches each gets.

    Args:
        comm: The ranks. All make one, at one place of the program.
        pool: The first epoch; it has the batch size of a rank, the seed and the number of samples.
        mode: "progressive", "static" or "proportional"; see `minigrad.data.Dispatch`.
        shares: Fraction of the samples for each rank, >= 0, of sum 1; by default equal ones.
        max_overshoot: The most batches that a rank runs of the next epoch while others are in this one; 0 for none.
        max_batch_diff: The most batches that a rank runs in a round beyond those of the slowest; None for no limit.
        epochs: How many there are, the first being number 0; needed with max_overshoot.
        ledger: Is told what this rank was dealt. A round that was not combined, because it failed, was skipped or came
            after the state that was loaded, is dealt again; without one a round is over when the next is asked for.
            With a `ParameterAverager` a rank steps by its batches one by one: the ledger is told of each when the loop
            takes it, and one that it never took is missing.

    Attributes:
        dispatch: The state, equal on all ranks.
        reason: Why the batches of the last round are these.

    Raises:
        ArgumentError: see `minigrad.data.Dispatch`; or a ledger of another length than the pool.
        ReplicaMismatchError: options or states differ between ranks; on all of them.

    Example:
        >>> from minigrad import data, distributed
        >>> def body(comm):
        ...     dispatcher = Dispatcher(comm, data.ChunkPool(10, batch_size=3, shuffle=False), shares=(2 / 3, 1 / 3))
        ...     return [[batch.tolist() for batch in mine] for mine in dispatcher]
        >>> distributed.run(body, 2)
        [[[[0, 1, 2], [3, 4, 5]], [[9]]], [[[6, 7, 8]], []]]
    """

    def __init__(
        self,
        comm: Communicator,
        pool: ChunkPool,
        mode: str = "progressive",
        *,
        shares: Shares | None = None,
        max_overshoot: int = 0,
        max_batch_diff: int | None = None,
        epochs: int | None = None,
        ledger: SampleLedger | None = None,
    ) -> None:
        check_is_communicator(_WHO, comm)
        if ledger is not None and not isinstance(ledger, SampleLedger):
            raise ArgumentError(f"{_WHO}: expected ledger as a SampleLedger, got {ledger!r:.100}")
        if shares is not None:
            check_shares(_WHO, shares)
        given = None if shares is None else tuple(float(share) for share in shares)
        self.comm, self.ledger = comm, ledger
        self.dispatch = Dispatch(pool, comm.world_size, mode, given, max_overshoot, max_batch_diff, epochs)
        if ledger is not None and ledger.length != pool.length:
            raise ArgumentError(f"{_WHO}: expected a ledger of {pool.length} samples, got one of {ledger.length}")
        self._compare()
        self.reason = "no round yet"
        self._kept, self._since = self.dispatch, -1  # before the rounds that are not combined, and since which step
        self._is_dealing = False
        self._taken: _Taken | None = None  # the batches of the round, where each counts from when it is taken
        self._orders: dict[int, Indices] = {}  # of the epochs that are being dealt

    @property
    def epoch(self) -> int:
        """The epoch that is being dealt, or comes next."""
        return self.dispatch.epoch

    @property
    def remaining(self) -> int:
        """Samples that are left of it."""
        return self.dispatch.remaining

    def __iter__(self) -> Iterator[Sequence[Indices]]:
        return self.rounds()

    def rounds(self, counts: Callable[[], Sequence[int]] | None = None) -> Iterator[Sequence[Indices]]:
        """This rank's batches of each round of the epoch, or of what is left of it.

        Args:
            counts: Asked before each round for the batches of each rank, equal on all of them; by default as shares
                say, or one each.

        Raises:
            ArgumentError: there are no more epochs; or shares would not count, since counts are asked for.
            ReplicaMismatchError: the ranks have come to other places of the data.
        """
        if counts is not None and not callable(counts):
            raise ArgumentError(f"{_WHO}.rounds: expected counts as a function, got {counts!r:.100}")
        if counts is not None and self.dispatch.mode == "progressive" and self.dispatch.shares is not None:
            raise ArgumentError(
                f'{_WHO}: expected no shares with mode="progressive", where counts of batches say what ranks take, got '
                f"{list(self.dispatch.shares)}: leave one of them out"
            )
        return self._rounds(counts)

    def _rounds(self, counts: Callable[[], Sequence[int]] | None) -> Iterator[Sequence[Indices]]:
        if self.ledger is not None and self._is_dealing and self._is_open:  # the loop before was broken off
            self.dispatch, self._since = self._kept, -1
            self.ledger.give_back()
        if self.dispatch.epochs is not None and self.epoch >= self.dispatch.epochs:
            raise ArgumentError(f"{_WHO}: expected {self.dispatch.epochs} epochs, got another one: {self.epoch}")
        self._compare()
        self._is_dealing = True
        while self._settled().remaining:
            before = self.dispatch
            self.dispatch, batches = before.round(counts() if counts is not None else None)
            self.reason = batches.reason
            yield self._given(batches, before)
        self.dispatch = self.dispatch.next_epoch()
        self._is_dealing = False

    @property
    def _is_open(self) -> bool:
        """Whether rounds were dealt of which nothing is left where a run goes on from its state."""
        ledger = self.ledger
        return ledger is not None and 0 <= self._since and not (ledger.keeps_pending or ledger.is_combined(self._since))

    def _settled(self) -> Dispatch:
        """The state, in which rounds that came to nothing are to be dealt again."""
        if self.ledger is not None and self._since >= 0 and self.ledger.step > self._since:
            if not self.ledger.is_combined(self._since):
                self.dispatch = self._kept
            self._since = -1
        return self.dispatch

    def _given(self, batches: Batches, before: Dispatch) -> Sequence[Indices]:
        """The samples of this rank's batches, which the ledger hears of."""
        mine = batches.of_ranks[self.comm.rank]
        indices = [self._indices(portion) for portion in mine]
        ledger = self.ledger
        if ledger is None:
            return indices
        if self._since < 0:
            self._kept, self._since = before, ledger.step
        if ledger.keeps_pending:
            self._taken = _Taken(ledger, mine, indices)
            return self._taken
        for portion in mine:
            _tell(ledger, portion)
        return indices

    def _indices(self, portion: Portion) -> Indices:
        if portion.epoch not in self._orders:
            pools = {self.epoch: self.dispatch.pool, self.epoch + 1: self.dispatch.pool.next_epoch()}
            kept = {epoch: order for epoch, order in self._orders.items() if epoch in pools}
            self._orders = {**kept, portion.epoch: pools[portion.epoch].order()}
        order = self._orders[portion.epoch]
        return np.concatenate([order[start:stop] for start, stop in portion.places])

    def _compare(self) -> None:
        gather_alike(_WHO, "options and states", self.comm, self.dispatch.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """The state to resume a run with, plain data for JSON; equal on all ranks.

        With a ledger what was dealt and not combined is still to be dealt in it; without one it is not, nor with a
        `ParameterAverager`, for a rank's own steps were made of it.

        Raises:
            StateDictError: with an averager, where this rank has not taken all batches of its round.
        """
        if self._taken is not None and self._is_dealing and self._taken.left:
            raise StateDictError(
                f"rank {self.comm.rank}: {_WHO}: expected a state behind the batches of a round, got one with "
                f"{self._taken.left} of {len(self._taken)} still to be taken: save after the last one"
            )
        return (self._kept if self._is_open else self.dispatch).state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next loop the rest of an epoch. All ranks do, with the same; the ledger takes its own state.

        Raises:
            StateDictError: it is of other ranks, options or data, or no state of a dispatcher.
        """
        self.dispatch = self._kept = self.dispatch.loaded(state)
        self.reason, self._since, self._is_dealing, self._orders = "resumed", -1, False, {}
        self._taken = None


class _Taken(Sequence[Indices]):
    """A rank's batches of a round; a ledger hears of each when it is taken first."""

    def __init__(self, ledger: SampleLedger, portions: Sequence[Portion], batches: Sequence[Indices]) -> None:
        self._ledger, self._portions, self._batches = ledger, portions, batches
        self._told: set[int] = set()

    @property
    def left(self) -> int:
        """How many were not taken."""
        return len(self._batches) - len(self._told)

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, index: int) -> Indices: ...
    @overload
    def __getitem__(self, index: slice) -> list[Indices]: ...

    def __getitem__(self, index: int | slice) -> Indices | list[Indices]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        if number not in self._told:
            self._told.add(number)
            _tell(self._ledger, self._portions[number])
        return self._batches[number]


def _tell(ledger: SampleLedger, portion: Portion) -> None:
    for start, stop in portion.places:
        ledger.dealt(start, stop - start, epoch=portion.epoch)
