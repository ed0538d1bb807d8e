"""A rank that averages without waiting for others: `Async` says how, here its snapshots are sent, taken and applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from minigrad.arguments import as_samples, check_counts
from minigrad.backend.device import to_host
from minigrad.backend.dtypes import Array
from minigrad.distributed.average.asynchronous import Async, AsyncState
from minigrad.distributed.average.policies import Policy, StepsMade
from minigrad.distributed.average.report import AverageReport, Hears, Told
from minigrad.distributed.average.saved import array_on, check_fits, check_length
from minigrad.distributed.average.snapshots import Courier, Snapshot, mean_of, no_sums_of, total_of, value_of
from minigrad.distributed.average.travelling import Piece
from minigrad.distributed.balance.divergence import Divergence, divergence_of
from minigrad.distributed.comm.protocol import Communicator
from minigrad.errors import StateDictError
from minigrad.nn.parameter import Parameter
from minigrad.stamp import mark_changed
from minigrad.tensor import Tensor


class AsyncRounds:
    """The rounds of one rank under `Async`.

    Args:
        comm: The ranks.
        policy: Its options.
        pieces: The parameters, equal on all ranks now.
        params: All that lie in them.

    Attributes:
        progress: How far the ranks have come, as this one knows.
        ledger: Hears which of the samples that this rank was dealt are in a round that it has applied.
    """

    def __init__(
        self, comm: Communicator, policy: Async, pieces: Sequence[Piece], params: Sequence[Parameter]
    ) -> None:
        self._comm, self._policy, self._pieces, self._params = comm, policy, list(pieces), list(params)
        self.progress = AsyncState.start(comm.rank, comm.world_size, policy.bound)
        self.ledger: Hears | None = None
        with comm.device.current():
            self._restart([piece.values().copy() for piece in self._pieces])

    def _restart(self, common: list[Array]) -> None:
        """Begin where nothing is on its way, after a round with this mean."""
        self._common = common
        self._seen = list(self._common)  # this rank's values at its last snapshot, and all that was applied since
        self._courier = Courier(self._comm, self._common)
        self._snapshots: dict[int, dict[int, Snapshot]] = {}  # of rounds that are not applied, by rank
        self._batches, self._samples = 0, 0.0  # since the last snapshot

    def step(self, samples: float) -> AverageReport | None:
        """Count a step; send a snapshot where a round is over, and apply what has come.

        Returns:
            The report of the last round that was applied, else None.

        Raises:
            CollectiveTimeoutError, RankFailedError: a rank that is more than the bound behind does not come.
        """
        self._batches, self._samples = self._batches + 1, self._samples + samples
        made = StepsMade(self._comm.rank, self._comm.world_size, self._batches, self._samples)
        if self._policy.decide(None, made)[1]:
            self._send()
        for src in self.progress.takes_from():
            while src in self.progress.takes_from() and (found := self._courier.arrived(src)) is not None:
                self._take(src, found)
        report = self._apply()
        while missing := self.progress.waits_for()[0]:
            self._take(missing[0], self._courier.wait(missing[0]))
            report = self._apply() or report
        return report

    def finish(self) -> AverageReport:
        """Send what is left, and apply the rounds of all ranks until none makes more."""
        self._send(last=True)
        report = self._apply()
        while missing := self.progress.waits_for()[0]:
            self._take(missing[0], self._courier.wait(missing[0]))
            report = self._apply() or report
        self._courier.flush()
        self.progress = self.progress.restarted()
        for piece, common in zip(self._pieces, self._common):
            piece.put(common)
        self._mark()
        self._restart(self._common)
        assert report is not None, "the last round of this rank is applied here"
        return report

    # ------------------------------------------------------------------------------------------------- inside

    def _send(self, last: bool = False) -> None:
        if not self._samples and self._policy.bound:
            self._undo()
        is_change = not self.progress.is_settled
        with self._comm.device.current():
            now = [piece.values() for piece in self._pieces]
            values = [each - seen for each, seen in zip(now, self._seen)] if is_change else now
            self._seen = [each.copy() for each in now]
        number = self.progress.round + 1
        snapshot = Snapshot(number, self._samples, self._batches, is_change, last, values)
        self.progress = self.progress.sent(last)
        self._keep(self._comm.rank, self._courier.send(snapshot))
        if self.ledger is not None:
            self.ledger.sent(self._samples)
        self._batches, self._samples = 0, 0.0

    def _undo(self) -> None:
        """Drop what the steps of a round without samples have made: they count nothing, not even NaN.

        The mean may come when more steps are made, and as a difference it would leave NaN where it is.
        """
        for piece, seen in zip(self._pieces, self._seen):
            piece.put(seen)
        self._mark()

    def _take(self, src: int, snapshot: Snapshot) -> None:
        self.progress = self.progress.took(src, snapshot.number, snapshot.is_last)
        self._courier.forget(src, self.progress.surely_taken(src))
        self._keep(src, snapshot)

    def _keep(self, rank: int, snapshot: Snapshot) -> None:
        self._snapshots.setdefault(snapshot.number, {})[rank] = snapshot

    def _apply(self) -> AverageReport | None:
        report = None
        for number in list(self.progress.complete()):
            made = self._snapshots.pop(number)
            report = self._mix(number, [made.get(rank) for rank in range(self._comm.world_size)])
            self.progress = self.progress.applied_next()
            if self.ledger is not None:
                self.ledger.combined()
        if report is not None:
            self._mark()
        return report

    def _mix(self, number: int, made: list[Snapshot | None]) -> AverageReport:
        """Apply one round."""
        whole = total_of([0.0 if each is None else each.samples for each in made])
        mine, sums = made[self._comm.rank], no_sums_of(self._common[0], self._comm.world_size)
        since = self.progress.round - number
        why = f"round {number} of all ranks is there" + (f", {since} rounds and" if since > 0 else "")
        why += f", {self._batches} steps since stay" if since <= 0 else f" {self._batches} steps since stay"
        if whole:
            for i, piece in enumerate(self._pieces):
                self._go_on(i, piece, mean_of(made, i, self._common[i], whole, list(sums)), mine, since)
        steps = max(1, *(0 if each is None else each.batches for each in made))
        self._comm.event("average", number=number, fragment=0, reason=why, state=self.progress.waits_for()[1])
        return AverageReport(number, why, 0, self._courier.nbytes, np.full(1, whole), _Sums(sums, steps))

    def _go_on(self, i: int, piece: Piece, mean: Array, mine: Snapshot | None, since: int) -> None:
        """Apply a mean as a difference; where no step was made since, the values are the mean, to the bit."""
        if mine is None or (since == 0 and not self._batches):
            piece.put(mean)
            self._seen[i] = mean
        else:
            with self._comm.device.current():
                difference = mean - value_of(mine, i, self._common[i])
                piece.put(piece.values() + difference)
                self._seen[i] = self._seen[i] + difference
        self._common[i] = mean

    def _mark(self) -> None:
        for param in self._params:
            mark_changed(param)

    # -------------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """What to go on from, where nothing is on its way: plain data, and tensors that share memory with this.

        Raises:
            StateDictError: something is, and other ranks may have come to other places: no state of all is known.
        """
        self._check_settled()
        told = {"rounds": self.progress.applied, "batches": self._batches, "samples": self._samples}
        return {**told, "common": [Tensor(each) for each in self._common]}

    def _check_settled(self) -> None:
        if not self.progress.is_settled:
            raise StateDictError(
                f"rank {self._comm.rank}: Async: expected a state with nothing on its way, got "
                f"{self.progress.round - self.progress.applied} rounds of this rank that are not applied: call "
                "finish() on all ranks"
            )

    def check_state(self, who: str, state: Mapping[str, Any]) -> None:
        """Refuse what `state` of other parameters told, or what comes while something is on its way; StateDictError."""
        self._check_settled()
        for saved, common in zip(check_length(who, "dtypes", state["common"], self._common), self._common):
            check_fits(who, "the mean of the last round", saved, common)
        check_counts(who, 0, rounds=state["rounds"], batches=state["batches"])
        as_samples(who, state["samples"])

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` told, which was checked; the parameters are the module's."""
        rank, world_size = self._comm.rank, self._comm.world_size
        self.progress = AsyncState.start(rank, world_size, self._policy.bound, int(state["rounds"]))
        self._restart([array_on(self._comm.device, saved) for saved in state["common"]])
        self._batches, self._samples = int(state["batches"]), float(state["samples"])


def is_async(policy: Policy) -> TypeGuard[Async]:
    """Whether ranks under a policy go by this file."""
    return isinstance(policy, Async)


class _Sums(Told):
    """The divergence of a round, of which every rank knows the sums of all."""

    def __init__(self, sums: Array, steps: int) -> None:
        super().__init__()
        self._sums, self._steps = sums, steps

    def read(self) -> Divergence:
        """See `AverageReport.divergence`."""
        return divergence_of(to_host(self._sums).tolist(), self._steps)
