"""The reducer: turns the events of one backward into the all-reduces of its buckets.

At *begin* one float64 collective adds up the samples of all ranks. A bucket is launched once its last gradient is
complete, the earlier buckets are launched, and that sum is there: its range of the flat gradient is scaled by
n_r / Σn and summed in place, so that the result is the gradient of the mean over all samples of the global batch.
16-bit gradients are weighted and summed in float32, and rounded once.
Buckets go out in order of their index on every rank, whatever the order in which gradients became ready. *end*
waits for all of them: when `backward()` returns, every gradient is the combined one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any

from minigrad.autograd import Reached, next_number
from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.base import Communicator, check_headers
from minigrad.distributed.comm.forks import in_a_child, tell_children
from minigrad.distributed.ddp.alike import Alike
from minigrad.distributed.ddp.booked import Booked
from minigrad.distributed.ddp.buckets import Bucket, BucketPlan, check_plan, plan_buckets
from minigrad.distributed.ddp.engine import Engine, engine_of
from minigrad.distributed.ddp.finite import NonFiniteFlags
from minigrad.distributed.ddp.hooks import CommHook, GradBucket, RegisteredHook
from minigrad.distributed.ddp.layout import Layout, Named, adopt, fill_missing, give_names
from minigrad.distributed.ddp.naming import Naming, change_in, wrapper_name
from minigrad.distributed.ddp.passes import Pass
from minigrad.distributed.ddp.stats import Stats
from minigrad.errors import ArgumentError, AutogradError, DistributedError, UnreducedGradientError


_MOST_FORWARDS = 65536  # remembered at once: those that no backward has reached, evaluations say, never go else


class Reducer:
    """A backward listener that combines the gradients of one rank with those of the others.

    Args:
        comm: The ranks.
        named: The parameters in order of registration, frozen ones too, each once.
        cap_bytes, first_cap_bytes: See `plan_buckets`.
        find_unused: Let a syncing backward leave parameters out; they count as zero, and those that no rank used
            keep no gradient at all.
        mean: Weight each rank by its samples; False adds the gradients as they are.
        track_nonfinite: Look for infinite and NaN gradients while they are weighted.
        plan: A plan to use instead of a new one.
        kind: The class of the module, for messages.
        engine: Runs the passes; what fits the communicator's device by default.

    Attributes:
        name: The wrapper in messages: its number on this communicator, and the class of the module.
        syncing: Whether the next backward synchronises; what counts is its value when backward begins.
        override: Samples to count instead of the length of the batch, or None.
        booked: The communicator, with what is sent in a pass in its ledger: for what else takes part in it.
        nonfinite: What was found of that; None where nobody looks.
        alike: What all ranks must have alike beside the model; its marks are compared in each pass.
        active: Whether this rank still has data; see `DistributedDataParallel.join`.
        last_active: The ranks that had data in the last pass in which one had.
        before_launch: Called in each pass once the counts of all ranks are known, before the first bucket.
        after_pass: Called at the end of each pass in which a rank had data, on every rank.
    """

    def __init__(
        self,
        comm: Communicator,
        named: Named,
        *,
        cap_bytes: int,
        first_cap_bytes: int,
        find_unused: bool = False,
        mean: bool = True,
        track_nonfinite: bool = False,
        kind: str = "parameters",
        plan: BucketPlan | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.engine = engine if engine is not None else engine_of(comm)
        self.comm, self.find_unused, self.mean = comm, find_unused, mean
        self.booked = Booked(comm)
        self.caps = (cap_bytes, first_cap_bytes)
        self.name = wrapper_name(kind, comm)
        self.layout = Layout(named)
        give_names(named)
        self.alike = Alike(self.layout)
        self.buffers = self.layout.buffers
        self._params, self._names = self.layout.params, self.layout.names
        self._index = {id(p): i for i, p in enumerate(self._params)}
        self._forced, self._tracks = plan, track_nonfinite
        self.stats = Stats()
        self._trainable = self.layout.trainable()
        self._set_plan()
        for buffer in self.buffers:
            buffer.rebind_grad(comm.empty(buffer.count, buffer.dtype))
        for param in self._params:
            param.listeners += (self,)
        self.syncing = self.active = True
        self.in_order = False  # other collectives run in backward: buckets must not depend on timing
        self.hook: RegisteredHook | None = None
        self.override: float | None = None
        self.last_active: list[int] = []
        self.before_launch: Callable[[Pass], None] = _nothing
        self.after_pass: Callable[[Pass], None] = _nothing
        self._forwards = deque[tuple[int, int, float]](maxlen=_MOST_FORWARDS)  # first and last number, samples
        self._forward_samples = 0.0
        self._samples = self._samples_before = self._began_s = 0.0
        self._combined = self._deferred = False
        self._pass: Pass | None = None
        self._inherited: DistributedError | None = None
        tell_children(self)

    @property
    def reduces(self) -> bool:
        """Gradients are combined here, and nowhere else."""
        return True

    def forked(self) -> None:
        """See `Inherited`: what is added up here would be no rank's gradients."""
        self._inherited = in_a_child() if self.comm.world_size > 1 else None

    def detach(self) -> None:
        """Stop listening: backward is local again."""
        for param in self._params:
            param.listeners = tuple(kept for kept in param.listeners if kept is not self)

    def register_hook(self, state: Any, hook: CommHook) -> None:
        """Let a hook add up each bucket; see `DistributedDataParallel.register_comm_hook`."""
        if self.hook is not None or self._pass is not None:
            found = "a backward under way" if self.hook is None else "one registered before"
            raise ArgumentError(f"register_comm_hook: expected no hook and no backward yet, got {found}")
        self.hook = RegisteredHook(state, hook, self.comm)

    # --------------------------------------------------------------------------------------------- the plan

    def _set_plan(self) -> None:
        trainable = self.layout.trainable()
        change = change_in(self._names, self._trainable, trainable)
        self._trainable = trainable
        entries = self.layout.entries()
        if self._forced is not None:
            check_plan(self._forced, entries)
        self.plan = self._forced or plan_buckets(entries, *self.caps)
        self._bucket_of = {i: bucket.index for bucket in self.plan.buckets for i in bucket.entries}
        self._grad_buckets: dict[int, tuple[Array, GradBucket]] = {}  # with the flat gradients that they lie in
        self.nonfinite = NonFiniteFlags(self.comm, self.plan) if self._tracks else None
        self.stats.bucket_bytes = [bucket.nbytes for bucket in self.plan.buckets]
        self._layout_id = f"{self.name}{change}, plan {self.plan.id}"  # what headers say
        check_headers(self.comm, self._layout_id)

    # -------------------------------------------------------------------------------------------- samples

    def add_forward(self, samples: float, began: int) -> None:
        """Say how many samples a forward pass took that is over now.

        Args:
            began: What `next_number` gave before it: all nodes that it recorded have higher numbers.
        """
        self._forwards.append((began, next_number(), samples))
        self._forward_samples += samples

    def _samples_behind(self, numbers: list[int]) -> list[float]:
        """The samples of each forward of which these nodes, in ascending order, hold a part."""
        found = []
        for began, ended, samples in reversed(self._forwards):
            if not numbers or ended < numbers[0]:
                break
            after = bisect_right(numbers, began)
            if after < len(numbers) and numbers[after] < ended:
                found.append(samples)
        return found

    def _take_samples(self) -> None:
        """The samples of what comes now join those since the last synchronisation, unless their gradients are gone."""
        if (self._samples or not self.mean) and all(param.grad_array is None for param in self._params):
            self._samples, self._combined = 0.0, False
        self._samples_before = self._samples
        self._samples += self._forward_samples if self.override is None else self.override
        self._forward_samples = 0.0

    @property
    def loss_weight(self) -> float:
        """How much this rank's loss counts in the backward under way, up to a factor that all ranks share."""
        return self._samples if self.mean else 1.0

    # --------------------------------------------------------------------------------------------- events

    def begin(self, leaves: Reached) -> None:
        """Backward starts: check what it will reach, and launch the sum of the samples."""
        if self._inherited is not None:
            raise type(self._inherited)(f"rank {self.comm.rank}: backward: {self._inherited}")
        samples = self._samples_behind(leaves.numbers)
        if not samples:
            self._check_counted()
        self._forward_samples = sum(samples)
        self._take_samples()
        self._began_s = self.comm.clock.now_s()
        if not self.syncing:
            return
        self._deferred = self.in_order and self.find_unused or self._has_company(leaves)
        reached = {self._index[id(leaf)] for leaf in leaves if id(leaf) in self._index}
        self._start(reached, strict=not self.find_unused)

    def leaf(self, leaf: Any) -> None:
        """A gradient is complete: launch what is ready now."""
        if self._pass is not None:
            bucket = self._bucket_of.get(self._index[id(leaf)])
            if bucket is not None and self._pass.complete(bucket) and not self._deferred:
                self._launch_ready(wait=self.in_order)

    def end(self, error: BaseException | None) -> None:
        """Backward is over: launch the rest and wait for all; or, after an error, let the other ranks know."""
        one = self._pass
        if error is not None:
            self._samples = self._samples_before
        if one is None:
            if error is None:
                self.stats.backward_s += self.comm.clock.now_s() - self._began_s
            return
        if error is not None:
            self._pass = self.booked.ledger = None
            self.comm.abort(f"its backward raised {type(error).__name__}: {error}")
            return
        try:
            self._combine(one)
        except BaseException as caught:
            self.end(caught)
            raise
        self._pass = None
        self._finish(one)

    def synchronize(self, *, strict: bool, one_by_one: bool = False, weighted: bool = False) -> Pass:
        """Combine what is there, without a backward.

        Args:
            strict: Refuse trainable parameters without gradient; else they count as zero.
            one_by_one: Wait for each bucket before the next is launched; the same bits.
            weighted: The gradients are weighted already, and none of them is a combined one.
        """
        self._take_samples()
        self._combined = self._combined and not weighted
        present = {i for i, p in enumerate(self._params) if p.grad_array is not None}
        self._start(present if strict else set(), strict)
        one = self._pass
        assert one is not None
        one.backward_over()
        one.weighted = weighted
        for i in self._bucket_of:
            if i in one.reached:
                one.complete(self._bucket_of[i])
        try:
            while one_by_one and self._launch_ready(wait=True, most=1):
                one.wait_for(len(one.works) - 1)
        except BaseException as error:
            self.end(error)
            raise
        self.end(None)
        return one

    # -------------------------------------------------------------------------------------------- one pass

    def prepare(self) -> None:
        """Check that the parameters are in their place, and plan anew where others require a gradient now."""
        self.layout.check()
        if self.layout.trainable() != self._trainable:
            self._check_frozen()
            self._set_plan()

    def _check_frozen(self) -> None:
        """Refuse a frozen parameter with a gradient of passes that were not combined: it would stay this rank's own."""
        own = [
            name
            for name, param, trained in zip(self._names, self._params, self._trainable)
            if trained and not param.requires_grad and param.grad_array is not None
        ]
        if own and self._samples_before:
            error = AutogradError(
                f"rank {self.comm.rank}: DistributedDataParallel: expected gradients to be combined before their "
                f"parameters are frozen, got accumulated ones of {', '.join(own)}: call flush() or zero_grad() first"
            )
            self.comm.abort(str(error))
            raise error

    def _start(self, reached: set[int], strict: bool) -> None:
        self.prepare()
        self._check_not_combined_twice()
        missing = [i for i in self._bucket_of if i not in reached]
        if missing and strict:
            error = self._unreduced(missing)
            self.comm.abort(str(error))
            raise error
        exact = self.before_launch is not _nothing
        used = self._used(reached) if self.find_unused else []
        mark = self.alike.mark() if self.active and self.comm.world_size > 1 else float(self.active)
        self._pass = one = self.engine.begin(self.plan, self._layout_id, self._samples, mark, used, exact)
        one.reached, self.booked.ledger = reached, one.ledger
        for i in missing:
            one.complete(self._bucket_of[i])

    def _used(self, reached: set[int]) -> list[bool]:
        """For each parameter whether this rank has a gradient to give for it, or will have."""
        return [self.active and (i in reached or p.grad_array is not None) for i, p in enumerate(self._params)]

    def _has_company(self, leaves: Reached) -> bool:
        """Whether another wrapper synchronises in the same backward: buckets then go out wrapper by wrapper."""
        return any(isinstance(heard, Reducer) and heard is not self for leaf in leaves for heard in leaf.listeners)

    def _check_counted(self) -> None:
        """Refuse a backward whose samples nobody counted: its gradients would have a wrong weight, or stay local."""
        if self.mean and self.override is None:
            error = AutogradError(
                f"rank {self.comm.rank}: DistributedDataParallel: expected a forward through the wrapper before "
                "backward, got none: call the wrapper, not its module, or say with samples(n) what the loss counts"
            )
            self.comm.abort(str(error))
            raise error

    def _check_not_combined_twice(self) -> None:
        if not self.mean and self._combined and any(p.grad_array is not None for p in self._params):
            raise AutogradError(
                "DistributedDataParallel: expected no combined gradients before a backward with reduce='sum', "
                "got some, which would be added up again: call zero_grad() first"
            )

    def _unreduced(self, missing: list[int]) -> UnreducedGradientError:
        listed = ", ".join(f"{self._names[i]} (bucket {self._bucket_of[i]})" for i in missing)
        return UnreducedGradientError(
            f"rank {self.comm.rank}: expected a gradient for every trainable parameter, got none for {listed}: "
            "set find_unused_parameters=True, freeze them, or call flush() where the loss reaches none"
        )

    def _launch_ready(self, wait: bool, most: int | None = None) -> int:
        """Launch the next buckets that are ready, in order; the number of those launched."""
        one = self._pass
        assert one is not None
        launched = 0
        while launched != most and one.next_is_ready() and self._counted(one, wait) and not self._is_void(one):
            self._launch(self.plan.buckets[len(one.works)], one)
            launched += 1
        return launched

    def _counted(self, one: Pass, wait: bool) -> bool:
        first = one.total < 0.0
        known = one.counted(wait)
        if first and known:
            self.before_launch(one)
        return known

    def _is_void(self, one: Pass) -> bool:
        """Whether no rank had a sample: combined gradients then stay as they are."""
        return self.mean and one.total == 0.0

    def _launch(self, bucket: Bucket, one: Pass) -> None:
        with Naming(self.plan, bucket.index), one.launching():
            fill_missing(self.layout.params_of(bucket))
            shown = self._shown(bucket)
            weight = one.weight_in_memory() if self.mean and not one.weighted else None
            shown.begin(weight, self.nonfinite.of(bucket.index) if self.nonfinite is not None else None)
            if self.hook is not None:
                one.handed_over(self.hook.launch(shown, self.booked))
                return
            began_s = one.ledger.now_s()
            work = shown.all_reduce(self.comm)
            one.launched(work, began_s, shown.sent_bytes)

    def _shown(self, bucket: Bucket) -> GradBucket:
        """A bucket as hooks see it, made anew only where its gradients have moved."""
        flat = self.buffers[bucket.buffer].grad
        kept = self._grad_buckets.get(bucket.index)
        if kept is None or kept[0] is not flat:
            last = bucket.index == len(self.plan.buckets) - 1
            layout = f"{self._layout_id} bucket {bucket.index}"
            params, array = self.layout.params_of(bucket), self.layout.gradients(bucket)
            kept = flat, GradBucket(bucket.index, array, params, last, layout)
            self._grad_buckets[bucket.index] = kept
        return kept[1]

    def _combine(self, one: Pass) -> None:
        """Launch what is left, and wait for all."""
        one.backward_over()
        self._counted(one, wait=True)
        if one.active_ranks:
            self._launch_ready(wait=True)
            one.wait()

    def _finish(self, one: Pass) -> None:
        """Take over the combined gradients; every rank does the same, so an error here is an error on all."""
        reduced = [self._params[i] for i in self._bucket_of if one.used(i)]
        if self._is_void(one):
            fill_missing(reduced)
        if one.active_ranks:
            self.last_active = one.active_ranks
            for param in reduced:
                adopt(param)
            self.after_pass(one)
        self.booked.ledger = None
        one.add_to(self.stats)
        self._samples, self._combined = 0.0, True
        told = check_headers(self.comm, self._layout_id, one.mark)
        marks = one.marks or told or self.comm.all_gather_object(one.mark)
        self.alike.check(self.name, self.comm, marks, idle=not one.samples)


def _nothing(one: Pass) -> None:
    """What happens where nobody asked for anything."""
