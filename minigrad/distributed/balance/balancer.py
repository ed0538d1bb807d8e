"""The balancer of a rank: times its steps, lets rank 0 decide from the readings of all, and applies the plan.

It holds no formula; `Balance` has them all. Ranks talk only where a decision is due: they hand in their readings, and
take over the plan that rank 0 made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TextIO

from minigrad.distributed.balance.cost import CostModel, Reading
from minigrad.distributed.balance.journal import Journal
from minigrad.distributed.balance.meter import Metered, timer_for
from minigrad.distributed.balance.plan import Balance, BalanceConfig, Plan
from minigrad.distributed.comm.base import Communicator
from minigrad.errors import ArgumentError


class Timeline(Protocol):
    """Takes notes of what happens in a run."""

    def event(self, kind: str, **fields: Any) -> None:
        """Something happened."""


_Row = list[float] | None  # [samples, seconds] of a step, None where it could not be measured


@dataclass
class _Step:
    """A step whose times may still be on their way from the device.

    Attributes:
        first_wait, end_wait: Numbers of the stretches of waiting in it.
        seconds: From its start to its end; None until the device has passed it.
        waited_s: Of the waits read so far.
    """

    samples: int
    first_wait: int
    end_wait: int
    seconds: float | None = None
    waited_s: float = 0.0


class Balancer:
    """Divides each batch among the ranks so that all are done at one time.

    Everything that the ranks do together in a step goes through `balancer.comm`, which times the waiting: DDP is made
    with it. Timing covers the whole of the step less that.

    Args:
        comm: The ranks. All make a balancer, with equal configurations.
        config: See `BalanceConfig`.
        journal: Where rank 0 writes readings and decisions, as JSON lines that `replay` takes.
        timeline: Gets an event "balance" with step, shards and reason for each decision; by default the communicator,
            where it takes events.

    Attributes:
        comm: The communicator to train with.
        balance: The state; readings are on rank 0 only.
        reason: Why the plan is as it is.

    Example:
        >>> from minigrad import nn, distributed, optim, randn
        >>> def train(comm):
        ...     balancer = Balancer(comm)
        ...     ddp = distributed.DDP(nn.Linear(3, 1), balancer.comm)
        ...     optimizer, batch = optim.SGD(ddp.parameters(), lr=0.1), randn(12, 3)
        ...     for _ in range(3):
        ...         with balancer.step(len(batch)) as rows:
        ...             optimizer.zero_grad()
        ...             ddp(batch[rows]).square().mean().backward()
        ...             optimizer.step()
        ...     return balancer.shard_sizes(12)
        >>> distributed.run(train, 2)
        [(5, 7), (5, 7)]
    """

    def __init__(
        self,
        comm: Communicator,
        config: BalanceConfig | None = None,
        *,
        journal: TextIO | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.comm = Metered(comm)
        self.balance = Balance.start(comm.world_size, config)
        self.reason = "no step yet"
        self._timer = timer_for(comm)
        self._timeline: Any = timeline if timeline is not None else comm if hasattr(comm, "event") else None
        self._journal = Journal(journal, self.balance) if journal is not None and comm.rank == 0 else None
        self._open: deque[_Step] = deque()  # not read yet, the oldest first
        self._waits_read = 0
        self._read: list[_Row] = []  # of the steps that were read since the last decision
        self._sizes: list[int] = []  # their batches

    @property
    def ratios(self) -> tuple[float, ...]:
        """The share of each rank."""
        return self.balance.plan.ratios

    def shard_sizes(self, batch_size: int) -> tuple[int, ...]:
        """The samples of each rank in the coming step; see `Balance.shard_sizes`."""
        return self.balance.shard_sizes(batch_size)

    def rows(self, batch_size: int) -> slice:
        """This rank's samples of the coming batch, where every rank sees all of it."""
        sizes, rank = self.shard_sizes(batch_size), self.comm.rank
        start = sum(sizes[:rank])
        return slice(start, start + sizes[rank])

    @contextmanager
    def step(self, batch_size: int) -> Iterator[slice]:
        """Around one training step; decides afterwards where that is due.

        Args:
            batch_size: Samples of all ranks together; equal on all of them.

        Yields:
            This rank's samples of the batch.

        Raises:
            ArgumentError: with several ranks, where no collective of the step went through `balancer.comm`.
        """
        rows = self.rows(batch_size)
        waits, calls = self.comm.stretches, self.comm.calls
        self._timer.start()
        try:
            yield rows
        finally:
            self._timer.stop()
        if self.comm.world_size > 1 and self.comm.calls == calls:
            raise ArgumentError(
                f"rank {self.comm.rank}: Balancer: expected the step's collectives to go through balancer.comm, "
                "got none, so waiting would count as computing: make DDP with balancer.comm"
            )
        self._open.append(_Step(rows.stop - rows.start, waits, self.comm.stretches))
        self._finish_step(batch_size)

    def _finish_step(self, batch_size: int) -> None:
        self._sizes.append(batch_size)
        self._collect()
        if self.balance.config.is_due(self.balance.step + 1):
            self._decide()
        else:
            self.balance = replace(self.balance, step=self.balance.step + 1)

    def _collect(self) -> None:
        """Take in what the timers have of the steps so far; those of a device come later."""
        for seconds in self._timer.read_s():
            next(step for step in self._open if step.seconds is None).seconds = seconds
        for seconds in self.comm.timer.read_s():
            for step in self._open:
                if step.first_wait <= self._waits_read < step.end_wait:
                    step.waited_s += seconds
            self._waits_read += 1
        while self._open and self._open[0].seconds is not None and self._waits_read >= self._open[0].end_wait:
            step = self._open.popleft()
            seconds = (step.seconds or 0.0) - step.waited_s
            self._read.append([step.samples, seconds] if step.samples and seconds > 0.0 else None)

    def _decide(self) -> None:
        """Hand in the readings, and take over rank 0's plan."""
        gathered = self.comm.inner.all_gather_object(self._read)
        made = self._plan_of(gathered) if self.comm.rank == 0 else None
        plan, reason = self.comm.inner.all_gather_object(made)[0]
        self._read, self._sizes = [], []
        if self.comm.rank != 0:
            self.balance = replace(self.balance, step=self.balance.step + 1, plan=_plan_from(plan))
        self.reason = reason
        if self._timeline is not None:
            fields = {"step": self.balance.step, "shards": self.balance.plan.shards, "reason": reason}
            self._timeline.event("balance", **fields)

    def _plan_of(self, gathered: list[list[_Row]]) -> tuple[dict[str, Any], str]:
        """Rank 0 observes the steps since the last decision, one after the other."""
        steps = len(self._sizes)
        self.balance = replace(self.balance, step=self.balance.step + 1 - steps)
        missing: list[_Row] = [None]  # a device's last steps come with the next decision
        padded = [missing * (steps - len(rows)) + rows[-steps:] for rows in gathered]
        reason = ""
        for batch_size, rows in zip(self._sizes, zip(*padded)):
            readings = [None if row is None else Reading(*row) for row in rows]
            self.balance, plan, reason = self.balance.observe(batch_size, readings)
            if self._journal is not None:
                self._journal.observed(batch_size, readings, plan, reason)
        return asdict(self.balance.plan), reason


def _plan_from(data: dict[str, Any]) -> Plan:
    """The plan whose fields came as JSON."""
    costs = tuple(CostModel(**cost) for cost in data["costs"])
    return Plan(tuple(data["ratios"]), data["batch_size"], tuple(data["shards"]), costs)
