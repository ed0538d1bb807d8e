"""One synchronising pass: what becomes of the buckets of one backward, until they hold the combined gradients.

At its start one float64 collective adds up the samples of all ranks. A pass is then told of each gradient that is
complete. A bucket goes out once its last gradient is there, the buckets before it are out, and that sum is known: its
range of the flat gradient is scaled by n_r / Σn and summed in place, so that the result is the gradient of the mean
over all samples of the global batch. 16-bit gradients are weighted and summed in float32, and rounded once.
Buckets go out in order of their index on every rank, whatever the order in which gradients became ready: the n-th call
of a rank meets the n-th of each other one, so all must be the same call, and timing differs from rank to rank.

A `Lane` is where passes run: here the host, in `ddp.lanes` a GPU. `TravellingBuckets` are the plan where it lies. A
`Pass` counts gradients, launches, waits and adopts; its `Logbook` notes when, for `stats()` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array, is_half
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.ddp.buckets import Bucket, BucketPlan
from minigrad.distributed.ddp.combine import weight_of
from minigrad.distributed.ddp.hooks import Booked, GradBucket, RegisteredHook, Waitable
from minigrad.distributed.ddp.layout import Layout
from minigrad.distributed.ddp.logbook import Logbook
from minigrad.distributed.ddp.own import OwnGradients
from minigrad.distributed.ddp.refusals import named, unreduced
from minigrad.distributed.ddp.stats import NonFiniteFlags, Stats
from minigrad.errors import DistributedError
from minigrad.nn.flat import adopt_gradients, fill_missing

_AT_ONCE = nullcontext()
Rule = Callable[[list[int]], float]  # of join: the ranks that have data -> a factor on the weights of all


class Lane:
    """Where the passes of a reducer run: here the host, which goes on while collectives run, and waits for them.

    Args:
        comm: The ranks.

    Attributes:
        booked: The same, each call noted in the logbook of the pass under way: comm hooks and buffers call by this one.
    """

    called_s: float | None = None  # when a simulation began to charge the call of the module that comes next

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.booked = comm, Booked(comm)
        self._vector: Array = None

    def count(self, row: list[float], layout: str) -> Work:
        """Launch the sum over the ranks of a row of numbers."""
        self._vector = np.array(row)
        return self.comm.all_reduce(self._vector, layout=layout)

    def is_ordered(self, counting: Work) -> bool:
        """Whether what is launched from now on comes after that sum, though the host does not know it."""
        return False

    def counts(self, counting: Work, logbook: Logbook) -> list[float]:
        """That sum; waits for it."""
        logbook.wait(counting, host=True)
        return self._vector.tolist()  # type: ignore[no-any-return]

    def weight(self, samples: float, weight: float) -> Array | None:
        """The weight of this rank's gradients, float64 (1,), where they live; None for 1.

        Args:
            samples: This rank's.
            weight: As the host knows it; NaN where it does not.
        """
        return None if weight == 1.0 else np.array([weight])

    def launching(self) -> AbstractContextManager[None]:
        """Around everything that launches one bucket."""
        return _AT_ONCE

    def waiting(self) -> AbstractContextManager[None]:
        """Around the waits for all buckets."""
        return _AT_ONCE

    def stand(self, still: bool) -> None:
        """From here on the caller has nothing to do but wait; or that is over."""

    def add_times(self, stats: Stats, logbook: Logbook, began_s: float, over_s: float, company: list[Logbook]) -> Any:
        """Add what a pass took, which had nothing to do but wait from over_s on; see `Logbook.add_to`."""
        stats.backward_s += over_s - began_s
        return logbook.add_to(stats, began_s, over_s, company) if self.comm.world_size > 1 else None


class TravellingBuckets:
    """The buckets of a plan, where they lie: made with the plan, and the same in every pass.

    Args:
        comm: The ranks.
        layout: The parameters.
        plan: Made for them.
        name: Who sends them, in headers.
        tracks: Look for gradients that are not finite.

    Attributes:
        id: What headers say of them: all ranks have to agree on it.
        of: The bucket of each parameter that is in one, by their numbers.
        nonfinite: What was found of that; None where nobody looks.
    """

    def __init__(self, comm: Communicator, layout: Layout, plan: BucketPlan, name: str, tracks: bool) -> None:
        self.layout, self.plan, self.id = layout, plan, f"{name}, plan {plan.id}"
        self.of = {i: bucket.index for bucket in plan.buckets for i in bucket.entries}
        self.nonfinite = NonFiniteFlags(comm, plan) if tracks else None
        self._widens = not comm.adds_weighted
        self._kept: dict[int, tuple[Array, GradBucket]] = {}  # with the flat gradients that they lie in

    def is_plain(self, bucket: Bucket) -> bool:
        """Whether one weighted all-reduce combines a bucket: nobody looks at it, and it travels as it is."""
        half = self._widens and is_half(self.layout.buffers[bucket.buffer].dtype)
        return self.nonfinite is None and not half

    def shown(self, bucket: Bucket, weight: Array | None, samples: float) -> GradBucket:
        """A bucket as hooks see it, at the start of a pass; made anew only where its gradients have moved."""
        flat = self.layout.buffers[bucket.buffer].grad
        kept = self._kept.get(bucket.index)
        if kept is None or kept[0] is not flat:
            last = bucket.index == len(self.plan.buckets) - 1
            params, array = self.layout.params_of(bucket), self.layout.gradients(bucket)
            kept = flat, GradBucket(bucket.index, array, params, last, f"{self.id} bucket {bucket.index}")
            self._kept[bucket.index] = kept
        kept[1].begin(weight, self.nonfinite.of(bucket.index) if self.nonfinite is not None else None, samples)
        return kept[1]


class Pass:
    """One pass. `start` comes first, then `complete` for each gradient that backward announces, then `finish`.

    The collective at its start adds up one vector: the samples; for each rank, its mark; and, where unused parameters
    are looked for, for each parameter how many ranks used it.

    Args:
        lane: Where it runs.
        buckets: What travels.
        own: This rank's gradients.
        samples: What they weigh.
        mark: One number > 0 for the optimizers, schedules, loss scales and options of this rank, see `Alike`, to be
            compared at the end; 0 where it has no data any more.
        used: For each parameter whether this rank has a gradient for it; empty where nobody looks.
        hook: Adds up each bucket, in place of one all-reduce.
        rule: Asked once the counts of all ranks are known, before the first bucket.
        in_order: A bucket goes out with the gradient that completes it, and waits for the counts: other collectives
            come in backward, and the order of all may not depend on when the counts are there.
        deferred: They go out at the end.
        weighted: The gradients are weighted already.

    Attributes:
        logbook: What it sends and waits for.
        marks: Those of all ranks where the host knows the counts.
        total: Samples of all ranks; -1 before they are counted. NaN where the host goes on without knowing them (they
            are summed on a GPU), and where a rank has failed, which counts NaN: its next call is an error on all.
        active_ranks: The ranks that still have data, once counted.
    """

    def __init__(
        self,
        lane: Lane,
        buckets: TravellingBuckets,
        own: OwnGradients,
        samples: float,
        mark: float,
        used: Sequence[bool],
        hook: RegisteredHook | None = None,
        rule: Rule | None = None,
        in_order: bool = False,
        *,
        deferred: bool = False,
        weighted: bool = False,
    ) -> None:
        self._lane, self._buckets, self._own, self._comm = lane, buckets, own, lane.comm
        self.samples, self.mark, self._used = samples, mark, used
        self._hook, self._rule, self._in_order = hook, rule, in_order
        self._deferred, self._weighted = deferred, weighted
        self.logbook = Logbook(lane.comm.clock)
        self.total, self._shrink, self._is_void = -1.0, 1.0, False  # _shrink: the rule's factor; void: no samples
        self.marks: list[float] | None = None
        self.active_ranks: list[int] = []
        self._counts: list[float] = []
        self._weight: Array | None = None
        self._pending = [len(bucket.entries) for bucket in buckets.plan.buckets]
        self._works: list[Waitable] = []
        self._ready_order: list[int] = []
        self._sends = self._in_hook = self._is_booked = False
        self._began_s = self._over_s = -1.0

    # ------------------------------------------------------------------------------------------------- the start

    def start(self, unannounced: Iterable[int]) -> None:
        """Launch the counts.

        Args:
            unannounced: The parameters of which no `complete` will tell.
        """
        row = [0.0] * self._comm.world_size
        row[self._comm.rank] = self.mark
        began_s = self.logbook.now_s()
        try:
            self._counting = self._lane.count([self.samples, *row, *map(float, self._used)], self._buckets.id)
        except DistributedError as error:
            raise named(error, self._buckets.plan, None) from error
        self.logbook.called(self._counting, began_s)
        self._began_s = self._comm.clock.now_s()
        self._lane.booked.logbook = self.logbook
        for i in unannounced:
            self._take(self._buckets.of[i])

    def _know(self, wait: bool) -> bool:
        """Whether the counts of all ranks are known, as far as the host has to; with wait=True they are."""
        try:
            if self._rule is None and self._lane.is_ordered(self._counting):
                self.total, self.active_ranks = float("nan"), list(range(self._comm.world_size))
                return True
            if not wait and not self.logbook.done(self._counting):
                return False
            self._read()
        except DistributedError as error:
            raise named(error, self._buckets.plan, None) from error
        self.total, self._is_void = self._counts[0], self._own.mean and self._counts[0] == 0.0
        self.active_ranks = [rank for rank, mark in enumerate(self.marks or ()) if mark]
        if self._rule is not None:
            self._shrink = self._rule(self.active_ranks)
        return True

    def _read(self) -> list[float]:
        """The counts, on the host; waits for them."""
        if not self._counts:
            self._counts = self._lane.counts(self._counting, self.logbook)
            self.marks = self._counts[1 : 1 + self._comm.world_size]
        return self._counts

    # ----------------------------------------------------------------------------------------------- the buckets

    def _take(self, bucket: int) -> None:
        self._pending[bucket] -= 1
        if self._pending[bucket] == 0:
            self._ready_order.append(bucket)

    def complete(self, bucket: int) -> None:
        """One more gradient of a bucket is complete: launch what is ready now."""
        self._take(bucket)
        if not self._deferred:
            self._launch_ready(self._in_order)

    def settle(self) -> None:
        """Launch what is ready now, since collectives of others come next, which may not depend on timing."""
        if not self._deferred and not self._in_hook:
            self._launch_ready(wait=True)

    def hold(self) -> None:
        """Launch nothing more: it will end by an error."""
        self._deferred = True

    def has_taken(self, bucket: int) -> bool:
        """Whether a bucket is complete, so that it may have gone out; no comm hook runs that has to see it."""
        return self._pending[bucket] == 0 and not self._in_hook

    def _launch_ready(self, wait: bool, until: int | None = None) -> None:
        """Launch the next buckets, in order, as long as all of their gradients are complete."""
        until = len(self._pending) if until is None else until
        while len(self._works) < until and self._pending[len(self._works)] == 0:
            if self.total < 0.0 and not self._know(wait):
                return
            if self._is_void:  # combined gradients then stay as they are
                return
            bucket = self._buckets.plan.buckets[len(self._works)]
            try:
                with self._lane.launching():
                    self._launch(bucket)
            except DistributedError as error:
                raise named(error, self._buckets.plan, bucket.index) from error

    def _launch(self, bucket: Bucket) -> None:
        self._sends = True
        buckets = self._buckets
        if not self.samples and not self._weighted:
            self._own.drop_weightless(buckets.layout.params_of(bucket), self.mark > 0.0)
        gradients = buckets.layout.filled(bucket)
        if not self._works and self._own.mean and not self._weighted:
            self._weight = self._lane.weight(self.samples, weight_of(self.samples, self.total) * self._shrink)
        if self._hook is not None:  # its collectives are booked when it calls them
            self._in_hook = self._is_booked = True
            self._works.append(self._hook.launch(buckets.shown(bucket, self._weight, self.samples), self._lane.booked))
            self._in_hook = False
            return
        began_s = self.logbook.now_s()
        if buckets.is_plain(bucket):
            work = self._comm.weighted_all_reduce(gradients, self._weight, f"{buckets.id} bucket {bucket.index}")
            nbytes = bucket.nbytes
        else:
            shown = buckets.shown(bucket, self._weight, self.samples)
            work = shown.all_reduce(self._comm)
            nbytes = shown.sent_bytes
        self._works.append(work)
        self.logbook.called(work, began_s, nbytes)

    def send_one_by_one(self) -> None:
        """Launch the buckets, which are all complete, each once the one before is over."""
        self._stand()
        for bucket in range(len(self._pending)):
            self._launch_ready(wait=True, until=bucket + 1)
            if len(self._works) > bucket:
                self._wait_for(bucket)

    # ------------------------------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """Launch what is left, wait for all, and take over the combined gradients.

        Raises:
            UnreducedGradientError: a bucket is not complete.
        """
        self._stand()
        if self.total < 0.0:
            self._know(wait=True)
        plan = self._buckets.plan
        if self.active_ranks or self.total > 0.0:  # who has no data any more may have accumulated alone
            self._launch_ready(wait=True)
            if len(self._works) < len(plan.buckets) and not self._is_void:
                raise unreduced(f"rank {self._comm.rank}", plan, plan.buckets[len(self._works)].entries)
            self._wait()
        self._adopt()

    def _stand(self) -> None:
        self._lane.stand(True)
        if self._over_s < 0.0:
            self._over_s = self._comm.clock.now_s()

    def _wait(self) -> None:
        with self._lane.waiting():
            for bucket in range(len(self._works)):
                self._wait_for(bucket)

    def _wait_for(self, bucket: int) -> None:
        try:
            if self._is_booked:
                self._works[bucket].wait()
            else:
                self.logbook.wait(self._works[bucket])
        except DistributedError as error:
            raise named(error, self._buckets.plan, bucket) from error

    def _adopt(self) -> None:
        counts = self._read()[1 + self._comm.world_size :] if self._used else None
        layout, reduced = self._buckets.layout, [i for i in self._buckets.of if counts is None or counts[i] > 0.0]
        if self._is_void:
            params = [layout.params[i] for i in reduced]
            self._own.drop(params)
            fill_missing(params)
        if self.active_ranks or self._works:
            adopt_gradients([layout.params[i] for i in reduced])
        self._sent, self._sent_bytes = self.logbook.sent, self.logbook.nbytes  # what follows is not the gradients'

    def add_to(self, stats: Stats, company: Iterable[Pass]) -> None:
        """Add what this pass took to the statistics: it is over, and all that followed it.

        Args:
            company: The passes of other wrappers in the same backward that end after this one.
        """
        self._lane.booked.logbook = None
        self._lane.stand(False)
        times = self._began_s, self._over_s, [other.logbook for other in company]
        stats.passes += 1
        stats.bytes_sent += self._sent_bytes
        stats.calls += self._sent
        stats.ready_order = self._ready_order
        self._lane.add_times(stats, self.logbook, *times)

    def fail(self, reason: str) -> None:
        """End it by an error, and let the other ranks know, which wait for it.

        While this rank has launched no bucket, all go on where all fail alike.
        """
        self._lane.booked.logbook = None
        if self._sends and not self._is_over():
            self._comm.abort(reason)
        else:
            self._comm.give_up(reason)

    def _is_over(self) -> bool:
        """Whether all that was launched is over, and no other rank waits for the rest: so with one rank alone."""
        if self._comm.world_size > 1:
            return False
        try:
            self._wait()
        except Exception:
            return False
        return True
