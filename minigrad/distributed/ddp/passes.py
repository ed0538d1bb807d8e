"""One synchronising pass: what has been counted, launched and waited for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.base import Communicator, Work
from minigrad.distributed.ddp.buckets import BucketPlan
from minigrad.distributed.ddp.hooks import Waitable
from minigrad.distributed.ddp.ledger import Ledger
from minigrad.distributed.ddp.naming import Naming
from minigrad.distributed.ddp.stats import Stats
from minigrad.distributed.ddp.combine import weight_of


class Pass:
    """The state of one pass; constructing it launches the collective that counts.

    That collective adds up one float64 vector: the samples; for each rank, its mark; and, where
    unused parameters are looked for, for each parameter how many ranks used it.

    Args:
        layout: An id that all ranks have to agree on.
        samples: This rank's.
        mark: What must be alike beside the model, as a number > 0, see `Alike`; 0 where a rank has no data any more.
        used: For each parameter whether this rank has a gradient for it; empty where nobody looks.

    Attributes:
        ledger: What it sends and waits for.
        works: One for each bucket launched so far, in order.
        reached: The parameters that backward reaches, or that have a gradient.
        mark, marks: This rank's, and those of all ranks where the host knows the counts.
        total: Samples of all ranks, once counted.
        active_ranks: The ranks that still have data, once counted.
        shrink: A factor on the weight of every rank.
        weighted: Whether the gradients were weighted before the pass.
        sends: Whether any bucket may be under way.
        in_hook: Whether a comm hook runs.
    """

    def __init__(
        self, comm: Communicator, plan: BucketPlan, layout: str, samples: float, mark: float, used: Sequence[bool]
    ) -> None:
        self.samples, self.total, self.shrink, self.weighted = samples, -1.0, 1.0, False
        self._sent, self._bytes, self._is_booked = 0, 0, False
        self.sends = self.in_hook = False
        self.works: list[Waitable] = []
        self.reached: set[int] = set()
        self.active_ranks: list[int] = []
        self._pending = [len(bucket.entries) for bucket in plan.buckets]
        self._world_size, self._clock = comm.world_size, comm.clock
        self._looks = bool(used)
        self.mark = mark
        self.marks: list[float] | None = None
        row = [0.0] * comm.world_size
        row[comm.rank] = mark
        self._plan = plan
        self.ledger = Ledger(comm.clock)
        with Naming(plan, None):
            began_s = self.ledger.now_s()
            self._counting = self._count(comm, [samples, *row, *map(float, used)], layout)
            self.ledger.called(self._counting, began_s)
        self._ready_order: list[int] = []
        self._began_s = self._clock.now_s()
        self._over_s = -1.0

    def _count(self, comm: Communicator, row: list[float], layout: str) -> Work:
        self._vector = np.array(row)
        return comm.all_reduce(self._vector, layout=layout)

    def _read(self) -> Array:
        if self.total < 0.0:  # the first time
            self.ledger.wait(self._counting, host=True)
        return self._vector

    def complete(self, bucket: int) -> bool:
        """One more gradient of a bucket is complete; whether the next bucket to launch is."""
        self._pending[bucket] -= 1
        if self._pending[bucket] == 0:
            self._ready_order.append(bucket)
        return self.next_is_ready()

    def has_taken(self, bucket: int) -> bool:
        """Whether a bucket is complete, so that it may have gone out; no comm hook runs that has to see it."""
        return self._pending[bucket] == 0 and not self.in_hook

    def next_is_ready(self) -> bool:
        """Whether there is a next bucket to launch, and all of its gradients are complete."""
        return len(self.works) < len(self._pending) and self._pending[len(self.works)] == 0

    def counted(self, wait: bool) -> bool:
        """Whether the counts of all ranks are known; with wait=True they are."""
        if self.total < 0.0:
            with Naming(self._plan, None):
                if not wait and not self.ledger.done(self._counting):
                    return False
                total, *counts = self._read().tolist()
            self.total, self.marks = total, counts[: self._world_size]
            self.active_ranks = [rank for rank, mark in enumerate(self.marks) if mark]
        return True

    @property
    def weight(self) -> float:
        """n_r / Σn, shrunk by what `join` asked for."""
        return weight_of(self.samples, self.total) * self.shrink

    def launching(self) -> AbstractContextManager[None]:
        """Around everything that launches one bucket."""
        return nullcontext()

    def weight_in_memory(self) -> Array | None:
        """The weight as float64 (1,) where the gradients live; None for 1."""
        return None if self.weight == 1.0 else np.array([self.weight])

    def used(self, parameter: int) -> bool:
        """Whether any rank used a parameter; True where nobody looked."""
        return not self._looks or bool(self._read()[1 + self._world_size + parameter] > 0)

    def launched(self, work: Waitable, began_s: float, nbytes: int) -> None:
        """The next bucket is under way, as one collective since began_s."""
        self.works.append(work)
        self.ledger.called(work, began_s, nbytes)

    def handed_over(self, work: Waitable) -> None:
        """The next bucket is under way, by a comm hook whose collectives are booked when it calls them."""
        self.works.append(work)
        self._is_booked = True

    def backward_over(self) -> None:
        """From now on there is nothing to do but wait."""
        if self._over_s < 0.0:
            self._over_s = self._clock.now_s()

    def wait_for(self, bucket: int) -> None:
        """Wait for a bucket that was launched."""
        with Naming(self._plan, bucket):
            if self._is_booked:
                self.works[bucket].wait()
            else:
                self.ledger.wait(self.works[bucket])

    def wait(self) -> None:
        """Wait for every bucket."""
        for bucket in range(len(self.works)):
            self.wait_for(bucket)
        self._sent, self._bytes = self.ledger.sent, self.ledger.nbytes  # what follows is not the gradients'

    def add_to(self, stats: Stats, company: Sequence[Pass] = ()) -> None:
        """Add what this pass took to the statistics.

        Args:
            company: The passes of other wrappers in the same backward that end after this one.
        """
        stats.backward_s += self._over_s - self._began_s
        if self._world_size > 1:
            account = self.ledger.account()
            stats.idle_s += account.idle_s
            stats.exposed_s += account.exposed_s
            stats.hidden_s += account.hidden_s
            stats.backward_s -= self.ledger.blocked_s(account, self._began_s, self._over_s)
            for other in company:
                other.ledger.others.append(account)
        self._add_counts(stats)

    def _add_counts(self, stats: Stats) -> None:
        stats.passes += 1
        stats.bytes_sent += self._bytes
        stats.calls += self._sent
        stats.ready_order = self._ready_order
