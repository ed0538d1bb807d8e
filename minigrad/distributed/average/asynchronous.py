"""Averaging that lets nobody wait: what a rank sends, takes, applies and waits for. Pure.

A round of a rank is `k` steps of its own. At its end the rank sends what it has come to, its snapshot, with the number
of the round to every other rank, and goes on. Round t is complete where the snapshots of all ranks are there. Then
every rank computes the same mean x(t) from the same snapshots, and applies it as a difference: θ += x(t) - snapshot, so
that the steps that it has made since stay as they are. No rank has to do anything for others, and none waits for one
that is slow, until it is more than `bound` rounds ahead of it.

Where several rounds are on their way at once, each counts what its own steps have done: a snapshot that was taken while
an earlier one is not applied yet travels as the change since that one, and stands for x(t - 1) + change. So

    θ of a rank = x(last round applied) + the changes of its rounds since, and of the steps of this one

holds all the time, and x(t) = x(t - 1) + the mean of the changes of round t: nothing is applied twice, as a difference
to an older snapshot would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from minigrad.arguments import as_integer, keep_as
from minigrad.distributed.average.policies import Policy, PolicyState, StepsMade
from minigrad.errors import ArgumentError, CollectiveMismatchError


@dataclass(frozen=True)
class Async(Policy):
    """Combine when the snapshots of all ranks are there, and wait only where ranks are far apart in rounds.

    For parameters only: gradients are of values that other ranks have left by then, and buffers, such as running
    statistics, stay each rank's own. `Async(0)` waits for all in every round, and is `EveryK(k)` to the bit. With a
    bound > 0 what a rank has made in a round without samples is undone at its end, for it may be NaN.

    Unlike other policies it makes no combination that all ranks take part in at one time, so it takes the plain `Mean`,
    keeps the moments of optimizers, and needs no guard: nobody decides how often.

    Args:
        bound: How many rounds the fastest rank may be ahead of the slowest before it waits, >= 0.
        k: Steps of a round, >= 1.

    Example:
        >>> from minigrad import distributed, nn, optim, randn
        >>> from minigrad.distributed.average import ParameterAverager
        >>> def train(comm):
        ...     model = nn.Linear(3, 1)
        ...     averager = ParameterAverager(model, comm, Async(bound=4))
        ...     optimizer = optim.SGD(model.parameters(), lr=0.1)
        ...     for _ in range(3 + comm.rank):
        ...         optimizer.zero_grad()
        ...         model(randn(5, 3)).square().mean().backward()
        ...         optimizer.step()
        ...         averager.step(5)
        ...     averager.finish()
        ...     return model.weight.detach().numpy()
        >>> first, second = distributed.run(train, 2)
        >>> bool((first == second).all())
        True
    """

    bound: int
    k: int = 1

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "bound", least=0)
        keep_as(self, as_integer, "k", least=1)

    def decide(self, state: PolicyState, made: StepsMade) -> tuple[PolicyState, bool, str]:
        """Whether a round is over, after k steps."""
        due = made.batches >= self.k
        return state, due, f"{self.k} steps are made" if due else ""


@dataclass(frozen=True)
class AsyncState:
    """How far a rank knows all ranks to have come, in rounds; each method gives the next state.

    Attributes:
        rank: This one.
        bound: See `Async`.
        came: The last round of each rank whose snapshot is there; of this rank, that was sent.
        ended: Which ranks have said that they make no more rounds.
        applied: The last round whose mean was applied.

    Example:
        >>> state = AsyncState.start(0, 2, bound=1)
        >>> state = state.sent().sent()
        >>> state.waits_for()
        ((1,), 'round 2 is 2 ahead of rank 1, more than 1: wait for round 1')
        >>> state = state.took(1, 1)
        >>> state.waits_for(), list(state.complete())
        (((), 'no rank is more than 1 behind round 2'), [1])
    """

    rank: int
    bound: int
    came: tuple[int, ...]
    ended: tuple[bool, ...]
    applied: int = 0

    @staticmethod
    def start(rank: int, world_size: int, bound: int, rounds: int = 0) -> AsyncState:
        """The state where all ranks have made so many rounds, and all are applied."""
        return AsyncState(rank, bound, (rounds,) * world_size, (False,) * world_size, rounds)

    @property
    def round(self) -> int:
        """The last round of this rank that was sent."""
        return self.came[self.rank]

    @property
    def is_settled(self) -> bool:
        """Whether all that this rank has sent is applied, so that its values have their place among all."""
        return self.applied >= self.round

    @property
    def is_over(self) -> bool:
        """Whether all ranks have ended, and all that they have sent is applied."""
        return all(self.ended) and self.applied == max(self.came)

    def sent(self, last: bool = False) -> AsyncState:
        """This rank has sent its next snapshot.

        Args:
            last: It makes no more rounds.

        Raises:
            ArgumentError: it had said so before.
        """
        if self.ended[self.rank]:
            raise ArgumentError(f"AsyncState: expected no round of rank {self.rank} after its last, got another one")
        return self._came(self.rank, self.round + 1, last)

    def took(self, src: int, number: int, last: bool = False) -> AsyncState:
        """A snapshot of another rank is there.

        Args:
            number: Of its round, as the snapshot says.
            last: That rank makes no more rounds.

        Raises:
            CollectiveMismatchError: it is not the one that comes next from that rank.
        """
        if self.ended[src] or number != self.came[src] + 1:
            wanted = "none after its last" if self.ended[src] else f"that of round {self.came[src] + 1}"
            raise CollectiveMismatchError(
                f"rank {self.rank}: Async: expected a snapshot of rank {src}, {wanted}, got that of round {number}"
            )
        return self._came(src, number, last)

    def _came(self, rank: int, number: int, last: bool) -> AsyncState:
        came, ended = list(self.came), list(self.ended)
        came[rank], ended[rank] = number, last
        return replace(self, came=tuple(came), ended=tuple(ended))

    def takes_from(self) -> tuple[int, ...]:
        """Ranks from which the next snapshot may be asked for: of rounds that this rank has made, or when it has ended.

        It asks for no others: so those that are ahead never fill its memory, and no circle of ranks waits in itself.
        """
        over = self.ended[self.rank]
        ranks = (r for r in range(len(self.came)) if r != self.rank and not self.ended[r])
        return tuple(r for r in ranks if over or self.came[r] < self.round)

    def complete(self) -> Iterator[int]:
        """Rounds that can be applied, in order: all who made them have sent theirs."""
        number = self.applied + 1
        while number <= max(self.came) and all(
            end or last >= number for last, end in zip(self.came, self.ended)
        ):
            yield number
            number += 1

    def took_part(self, number: int) -> tuple[int, ...]:
        """The ranks that made a round; those that had ended before it did not."""
        return tuple(r for r, last in enumerate(self.came) if last >= number)

    def applied_next(self) -> AsyncState:
        """The mean of the next round was applied.

        Raises:
            ArgumentError: it is not complete.
        """
        if self.applied + 1 not in self.complete():
            raise ArgumentError(f"AsyncState: expected round {self.applied + 1} to be complete, got {self}")
        return replace(self, applied=self.applied + 1)

    def waits_for(self) -> tuple[tuple[int, ...], str]:
        """The ranks that this one has to wait for before it goes on, and why; none within the bound.

        A rank that has ended waits until all have.
        """
        if self.ended[self.rank]:
            missing = tuple(r for r, end in enumerate(self.ended) if not end)
            return missing, f"this rank has ended, and {_named(missing)} not" if missing else "all ranks have ended"
        needed = self.round - self.bound
        late = tuple(r for r, last in enumerate(self.came) if last < needed and not self.ended[r])
        if not late:
            return (), f"no rank is more than {self.bound} behind round {self.round}"
        ahead = self.round - min(self.came[r] for r in late)
        return late, (
            f"round {self.round} is {ahead} ahead of {_named(late)}, more than {self.bound}: wait for round {needed}"
        )

    def surely_taken(self, dst: int) -> int:
        """The last round of this rank whose snapshot another one has taken for certain, for it could not go on else."""
        return min(self.round, self.came[dst] - 1 - self.bound)

    def restarted(self) -> AsyncState:
        """All ranks have ended, and go on together.

        Raises:
            ArgumentError: they have not, or something is not applied.
        """
        if not self.is_over:
            raise ArgumentError(f"AsyncState: expected all ranks to have ended, and all to be applied, got {self}")
        return AsyncState.start(self.rank, len(self.came), self.bound, max(self.came))


def _named(ranks: tuple[int, ...]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + " and ".join(map(str, ranks))
