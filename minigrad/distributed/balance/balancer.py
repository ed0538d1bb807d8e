"""The balancer of a rank: times its steps, lets rank 0 decide from the readings of all, and applies the division.

It holds no formula; `Balance` has them all, or a strategy of the user's own. Ranks talk only where a decision is due:
they hand in their readings, and take over the division that rank 0 made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TextIO

import numpy as np

from minigrad.data.ledger import SampleLedger
from minigrad.data.order import Indices
from minigrad.distributed.balance.cost import Reading
from minigrad.distributed.balance.division import BalanceConfig, Division
from minigrad.distributed.balance.indices import batch_indices
from minigrad.distributed.balance.journal import Journal
from minigrad.distributed.balance.meter import Metered, StepTimes
from minigrad.distributed.balance.state import config_data, resumed
from minigrad.distributed.balance.strategy import BalanceFunction, Strategy, StrategyState, start
from minigrad.distributed.comm.differences import check_alike, gather_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.record.listening import EventListener, listener
from minigrad.errors import ArgumentError


_Row = list[float] | None  # [samples, seconds] of a step, None where it could not be measured


class Balancer:
    """Divides each batch among the ranks so that all are done at one time.

    Everything that the ranks do together in a step goes through `balancer.comm`, which times the waiting: DDP is made
    with it. Timing covers the whole of the step less that.

    Args:
        comm: The ranks. All make a balancer, at one place of the program.
        strategy: What decides, a pure function (state, batch_size, readings) -> (state, sizes, reason): see
            `minigrad.distributed.balance.strategy`. Or a function (batch_size, throughputs) -> sizes, which is taken as
            `stateless` makes it one. By default `Balance`, whose configuration may stand here as well. A strategy's
            first decision comes after calibration_steps, it is called for each step in order, and all ranks call it,
            so that one that is no function of its arguments is found.
        config: See `BalanceConfig`; a strategy takes calibration_steps and interval_steps alone.
        journal: Where rank 0 writes readings and decisions, as JSON lines that `replay` takes.
        timeline: Gets an event "balance" with step, shards and reason for each decision; by default the communicator,
            where it takes events.
        ledger: Is told which places of the batches in order this rank is dealt; who combines is told it by
            `keep_ledger`.

    Attributes:
        comm: The communicator to train with.
        balance: The state; `Balance`'s readings are on rank 0 only.
        reason: Why the division is as it is.

    Raises:
        ArgumentError: it is no strategy, or options that are not for one.
        ReplicaMismatchError: strategies or configurations differ between ranks.

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
        strategy: Strategy | BalanceFunction | BalanceConfig | None = None,
        config: BalanceConfig | None = None,
        *,
        journal: TextIO | None = None,
        timeline: EventListener | None = None,
        ledger: SampleLedger | None = None,
    ) -> None:
        self.comm, self._ledger = Metered(comm), ledger
        if isinstance(strategy, BalanceConfig):
            if config is not None:
                raise ArgumentError(f"Balancer: expected one configuration, got {strategy} and {config}")
            strategy, config = None, strategy
        self.balance = start("Balancer", comm.world_size, strategy, config)
        facts = {"strategy": self.balance.name, **config_data(self.balance.config)}
        gather_alike("Balancer", "configurations", comm, facts)
        self.reason = "no step yet"
        self._times = StepTimes("Balancer", self.comm)
        self._timeline = listener("Balancer", timeline, comm)
        self._journal = Journal(journal, self.balance) if journal is not None and comm.rank == 0 else None
        self._read: list[_Row] = []  # of the steps that were read since the last decision
        self._sizes: list[int] = []  # their batches

    @property
    def ratios(self) -> tuple[float, ...]:
        """The share of each rank."""
        return self.balance.division.ratios

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
            ArgumentError: with several ranks, where no collective of the step went through `balancer.comm`; or, on all
                ranks, what the strategy did is no decision.
            ReplicaMismatchError: the strategy decided otherwise on another rank.
        """
        rows = self.rows(batch_size)
        if self._ledger is not None:
            self._ledger.dealt_of(batch_size, rows)
        with self._times.measure(rows.stop - rows.start):
            yield rows
        self._finish_step(batch_size)

    def deal(self, batches: Iterable[Sequence[int] | Indices]) -> Iterator[Indices]:
        """This rank's indices of each batch; what the loop does with them is the step.

        Each batch is cut when its step comes, so all ranks make the same number of steps, whatever the division.

        Args:
            batches: Indices of the samples of each global batch; equal on all ranks.

        Raises:
            ArgumentError: a batch that is no row of indices.

        Example: `for mine in balancer.deal(BatchSampler(RandomSampler(data, seed=0), 64)): ...`
        """
        if self._ledger is not None:
            self._ledger.open(batches)
        for batch in batches:
            indices = batch_indices("Balancer.deal", batch)
            with self.step(len(indices)) as rows:
                yield indices[rows].astype(np.int64, copy=False)
        if self._ledger is not None:
            self._ledger.close()

    def state_dict(self) -> dict[str, Any]:
        """The state to resume a run with, plain data for JSON.

        That of rank 0 serves all ranks: it has the readings. Those since the last decision are not in it.
        """
        return self.balance.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` told on rank 0. All ranks do, with the same.

        Raises:
            StateDictError: it is that of other ranks or options, or no state of a balancer.
        """
        self.balance = resumed("Balancer", self.balance, self.balance.from_state_dict(state))
        self.reason, self._read, self._sizes = "resumed", [], []
        if self._journal is not None:
            self._journal.started(self.balance)

    def _finish_step(self, batch_size: int) -> None:
        self._sizes.append(int(batch_size))
        for step in self._times.read():
            measured = step.size and step.computed_s > 0.0
            self._read.append([float(step.size or 0), step.computed_s] if measured else None)
        if self.balance.config.is_due(self.balance.step + 1):
            self._decide()
        else:
            self.balance = replace(self.balance, step=self.balance.step + 1)

    def _decide(self) -> None:
        """Hand in the readings, and take over rank 0's division."""
        gathered = gather_alike("Balancer", "batch sizes", self.comm.inner, self._sizes, self._read)
        made, failure = None, None
        if self.comm.rank == 0 or isinstance(self.balance, StrategyState):
            try:
                made = self._decision_on(gathered)
            except Exception as error:  # which no rank may be alone with
                failure = error
        division, self.reason, *_ = _agreed(self.comm.inner, self.balance.name, made, failure)
        self._read, self._sizes = [], []
        if made is None:
            self.balance = replace(self.balance, step=self.balance.step + 1, division=Division.from_data(division))
        shards = self.balance.division.shards
        self._timeline.event("balance", step=self.balance.step, shards=shards, reason=self.reason)

    def _decision_on(self, gathered: list[list[_Row]]) -> list[Any]:
        """Observe the steps since the last decision, one after the other: division, reason, and a strategy's state."""
        steps = len(self._sizes)
        self.balance = replace(self.balance, step=self.balance.step + 1 - steps)
        missing: list[_Row] = [None]  # a device's last steps come with the next decision
        padded = [missing * (steps - len(rows)) + rows[-steps:] for rows in gathered]
        reason = ""
        for batch_size, rows in zip(self._sizes, zip(*padded)):
            readings = [None if row is None else Reading(*row) for row in rows]
            self.balance, division, reason = self.balance.observe(batch_size, readings)
            if self._journal is not None:
                self._journal.observed(batch_size, readings, division, reason)
        own = [self.balance.text] if isinstance(self.balance, StrategyState) else []
        return [self.balance.division.to_data(), reason, *own]


def _agreed(comm: Communicator, name: str, made: list[Any] | None, failure: Exception | None) -> list[Any]:
    """What rank 0 decided.

    Raises:
        ArgumentError: on all ranks, where one could not decide.
        ReplicaMismatchError: on all ranks, where one decided otherwise.
    """
    told = comm.all_gather_object(made if failure is None else f"{type(failure).__name__}: {failure}")
    for rank, decision in enumerate(told):
        if isinstance(decision, str):
            raise ArgumentError(
                f"rank {comm.rank}: Balancer: expected a decision of {name} on rank {rank}, got {decision}"
            ) from failure
    names = "division", "reason", "state"
    facts = {rank: dict(zip(names, decision)) for rank, decision in enumerate(told) if decision is not None}
    advice = "a strategy is a function of its arguments alone"
    check_alike(f"rank {comm.rank}: Balancer", f"decisions of {name}", facts, advice)
    decided: list[Any] = told[0]
    return decided
