"""The reducer: turns the events of one backward into the all-reduces of its buckets.

At *begin* one float64 collective adds up the samples of all ranks. A bucket is launched once its last gradient is
complete, the earlier buckets are launched, and that sum is there: its range of the flat gradient is scaled by
n_r / Σn and summed in place, so that the result is the gradient of the mean over all samples of the global batch.
16-bit gradients are weighted and summed in float32, and rounded once.
Buckets go out in order of their index on every rank, whatever the order in which gradients became ready. *end*
waits for all of them: when `backward()` returns, every gradient is the combined one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from minigrad.autograd import Reached, backwards_under_way
from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.base import Communicator
from minigrad.distributed.comm.forks import in_a_child, tell_children
from minigrad.distributed.comm.given_up import give_up
from minigrad.distributed.comm.headers import check_headers, check_same
from minigrad.distributed.ddp.alike import Alike
from minigrad.distributed.ddp.booked import Booked
from minigrad.distributed.ddp.buckets import Bucket, BucketPlan, check_plan, plan_buckets
from minigrad.distributed.ddp.engine import Engine, engine_of
from minigrad.distributed.ddp.finite import NonFiniteFlags
from minigrad.distributed.ddp.hooks import CommHook, GradBucket, RegisteredHook
from minigrad.distributed.ddp.layout import Layout, Named, adopt, fill_missing, give_names
from minigrad.distributed.ddp.naming import Naming, change_in, unreduced, wrapper_name
from minigrad.distributed.ddp.nesting import Begun, Nesting
from minigrad.distributed.ddp.own import OwnGradients
from minigrad.distributed.ddp.passes import Pass
from minigrad.distributed.ddp.stats import Stats
from minigrad.errors import ArgumentError, DistributedError

_UNFINISHED = "of a backward that is under way: do it when that is over"
_HOW_TO_GO_ON = ": every later call raises too; to go on, make a new communicator, unwrap() the wrapper, wrap again"


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
        own: The gradients of this rank that are not combined, and samples: what they weigh.
        syncing: Whether the next backward synchronises; what counts is its value when backward begins.
        override: Samples to count instead of the length of the batch, or None.
        booked: The communicator, with what is sent in a pass in its ledger: for what else takes part in it.
        nonfinite: What was found of that; None where nobody looks.
        alike: What all ranks must have alike beside the model; its marks are compared in each pass.
        active: Whether this rank still has data; see `DistributedDataParallel.join`.
        last_active: The ranks that had data in the last pass in which one had.
        before_launch: Called in each pass once the counts of all ranks are known, before the first bucket.
        unfinished: What is said to who would use a gradient too early; empty while nothing is under way.
        after_pass: Called at the end of each pass in which a rank had data, on every rank.
    """

    reduces = True  # gradients are combined here, and nowhere else

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
        self._params = self.layout.params
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
        self.own = OwnGradients(self.layout, mean, comm.rank)
        self.samples = self.own.samples
        self._deferred = False
        self._began_s = 0.0
        self._pass: Pass | None = None
        self._nesting, self._company = Nesting(), set[Reducer]()
        self.unfinished = ""
        self._inherited: DistributedError | None = None
        tell_children(self)

    def forked(self) -> None:
        """See `Inherited`: what is added up here would be no rank's gradients."""
        self._inherited = in_a_child() if self.comm.world_size > 1 else None

    def detach(self) -> None:
        """Stop listening: backward is local again."""
        self.check_idle("unwrap")
        for param in self._params:
            param.listeners = tuple(kept for kept in param.listeners if kept is not self)

    def before_saving(self) -> None:
        """The parameters are about to be kept: raise where ranks have parted; see `comm.headers.check_same`."""
        check_same(self.comm, "state_dict")

    def register_hook(self, state: Any, hook: CommHook) -> None:
        """Let a hook add up each bucket; see `DistributedDataParallel.register_comm_hook`."""
        self.check_idle("register_comm_hook")
        if self.hook is not None:
            raise ArgumentError("register_comm_hook: expected no hook yet, got one registered before")
        self.hook = RegisteredHook(state, hook, self.comm)

    # --------------------------------------------------------------------------------------------- the plan

    def _set_plan(self) -> None:
        trainable = self.layout.trainable()
        change = change_in(self.layout.names, self._trainable, trainable)
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

    # -------------------------------------------------------------------------------------------- events

    @property
    def loss_weight(self) -> float:
        """How much this rank's loss counts in the backward under way, up to a factor that all ranks share."""
        return self.samples.total if self.mean else 1.0

    def begin(self, leaves: Reached) -> None:
        """Backward starts: check what it will reach, and launch the sum of the samples."""
        self._enter(Begun("its backward", self.syncing, self.samples))
        if self.syncing and len(backwards_under_way()) > 1:
            _settle(backwards_under_way()[:-1])
        if self._inherited is not None:
            raise type(self._inherited)(f"rank {self.comm.rank}: backward: {self._inherited}")
        self.own.take(self.own.counted(leaves.numbers) if self.override is None else [self.override])
        self._began_s = self.comm.clock.now_s()
        if not self.syncing:
            return
        self._company = _reducers([leaves]) - {self}  # buckets then go out wrapper by wrapper
        self._deferred = self.in_order and self.find_unused or bool(self._company)
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
        if error is not None:
            self._fail(error)
            return
        try:
            if self._nesting.refusal is not None:
                self._nesting.check_refusal()
            one = self._pass
            if one is not None:
                self._combine(one)
        except BaseException as caught:
            self._fail(caught)
            raise
        self._leave()
        self._pass = None
        if one is not None:
            self._finish(one)
        else:
            self.stats.backward_s += self.comm.clock.now_s() - self._began_s

    def synchronize(self, what: str, *, strict: bool, one_by_one: bool = False, weighted: bool = False) -> Pass:
        """Combine what is there, without a backward.

        Args:
            what: Who asks for it.
            strict: Refuse trainable parameters without gradient; else they count as zero.
            one_by_one: Wait for each bucket before the next is launched; the same bits.
            weighted: The gradients are weighted already, and none of them is a combined one.
        """
        try:
            one = self._launch_present(what, strict, one_by_one, weighted)
        except BaseException as error:
            self._fail(error)
            raise
        self.end(None)
        return one

    def _launch_present(self, what: str, strict: bool, one_by_one: bool, weighted: bool) -> Pass:
        self._enter(Begun(what, True, self.samples))
        _settle(backwards_under_way())
        pending, said = self.samples.pending(), self.override
        self.own.take([] if said is None or not self.active else [said])
        self.own.combined = self.own.combined and not weighted
        self.own.check_weights(self._bucket_of)
        if said is None and self.active:
            self.samples.add(pending)  # of losses that reach nothing; who has no data any more has none of these
        present = {i for i, p in enumerate(self._params) if p.grad_array is not None}
        one = self._start(present if strict else set(), strict)
        one.backward_over()
        one.weighted = weighted
        for i in self._bucket_of:
            if i in one.reached:
                one.complete(self._bucket_of[i])
        while one_by_one and self._launch_ready(wait=True, most=1):
            one.wait_for(len(one.works) - 1)
        return one

    # ---------------------------------------------------------------------------------- a pass within a pass, failure

    def _enter(self, begun: Begun) -> None:
        self.unfinished = _UNFINISHED
        self._nesting.enter(self.comm.rank, begun)

    def _leave(self) -> Begun:
        begun = self._nesting.leave()
        if self._nesting.is_idle:
            self.unfinished = ""
        return begun

    def holds_gradient(self, leaf: Any) -> bool:
        """Whether the gradient of a leaf may be under way to the other ranks; comm hooks see it all the same."""
        bucket = self._bucket_of.get(self._index[id(leaf)])
        return bucket is not None and self._pass is not None and self._pass.has_taken(bucket)

    def settle(self) -> None:
        """Launch what is ready now, since collectives of others come next, which may not depend on timing."""
        if self._pass is not None and not self._deferred and not self._pass.in_hook:
            self._launch_ready(wait=True)

    def check_idle(self, what: str) -> None:
        """Raise an AutogradError while a backward or a pass is under way, in which this must not happen."""
        self._nesting.check_idle(self.comm.rank, what)

    @contextmanager
    def hosting(self, what: str) -> Iterator[None]:
        """Around local backwards whose gradients are combined afterwards, by what is not a backward itself."""
        try:
            self._enter(Begun(what, True, self.samples, hosts=True))
            _settle(backwards_under_way())
            yield
            self._nesting.check_refusal()
        except BaseException as error:
            self._fail(error)
            raise
        self._leave()

    def _fail(self, error: BaseException) -> None:
        """What began last is over, by an error. Where other ranks wait for it, they fail, unless all fail here alike.

        While this rank has launched no bucket that takes two calls, which all ranks make that fail: the counts, and
        one that says so.
        """
        begun = self._leave()
        self.samples.total, self.samples.weighed = begun.total, begun.weighed
        if not self._nesting.is_idle or self._inherited is not None:
            self._deferred = self._deferred or self._nesting.refusal is not None  # no bucket may go out any more
            return  # the outermost one tells, and a child of a fork tells nobody
        refused = self._nesting.take_refusal()
        one, self._pass, self.booked.ledger = self._pass, None, None
        self.own.spoilt = self.own.spoilt or one is not None or not begun.combines
        if not begun.combines and not refused:
            return
        reason = f"{begun.what} raised {type(error).__name__}: {error}{_HOW_TO_GO_ON}"
        if one is not None and one.sends and not self._is_over(one):
            self.comm.abort(reason)
            return
        if one is None and not begun.hosts:
            self._match_counts()
        give_up(self.comm, reason)

    def _is_over(self, one: Pass) -> bool:
        """Whether all that was launched is over, and no other rank waits for the rest: so with one rank alone."""
        if self.comm.world_size > 1:
            return False
        try:
            one.wait()
        except Exception:
            return False
        return True

    def _match_counts(self) -> None:
        """Launch the counts of a pass that was refused before, such as no pass that goes on can have."""
        used = [False] * len(self._params) if self.find_unused else []
        try:
            self.engine.begin(self.plan, self._layout_id, float("nan"), self.active, used, exact=True)
        except DistributedError:
            pass  # it has failed already, which every later call says

    # -------------------------------------------------------------------------------------------- one pass

    def prepare(self) -> None:
        """Check that the parameters are in their place, and plan anew where others require a gradient now."""
        self.layout.check()
        if self.layout.trainable() != self._trainable:
            self.own.check_frozen(self._trainable, self._nesting.weighed_before)
            self._set_plan()

    def _start(self, reached: set[int], strict: bool) -> Pass:
        self.prepare()
        if self.active:
            self.own.check_not_combined_twice()
        missing = [i for i in self._bucket_of if i not in reached]
        if missing and strict:
            raise unreduced(self.comm.rank, self.plan, missing)
        exact = self.before_launch is not _nothing
        used = self._used(reached) if self.find_unused else []
        mark = self.alike.mark() if self.active and self.comm.world_size > 1 else float(self.active)
        self._pass = one = self.engine.begin(self.plan, self._layout_id, self.samples.total, mark, used, exact)
        one.reached, self.booked.ledger = reached, one.ledger
        for i in missing:
            one.complete(self._bucket_of[i])
        return one

    def _used(self, reached: set[int]) -> list[bool]:
        """For each parameter whether this rank has a gradient to give for it, or will have."""
        gives = self.active or self.samples.weighed
        return [gives and (i in reached or p.grad_array is not None) for i, p in enumerate(self._params)]

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
        params = self.layout.params_of(bucket)
        one.sends = True
        with Naming(self.plan, bucket.index), one.launching():
            if not one.samples and not one.weighted:
                self.own.drop_weightless(params, self.active)
            fill_missing(params)
            shown = self._shown(bucket)
            weight = one.weight_in_memory() if self.mean and not one.weighted else None
            shown.begin(weight, self.nonfinite.of(bucket.index) if self.nonfinite is not None else None)
            if self.hook is not None:
                one.in_hook = True
                one.handed_over(self.hook.launch(shown, self.booked))
                one.in_hook = False
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
        if one.active_ranks or one.total > 0.0:  # who has no data any more may have accumulated alone
            self._launch_ready(wait=True)
            if len(one.works) < len(self.plan.buckets) and not self._is_void(one):
                raise unreduced(self.comm.rank, self.plan, self.plan.buckets[len(one.works)].entries)
            one.wait()

    def _finish(self, one: Pass) -> None:
        """Take over the combined gradients; every rank does the same, so an error here is an error on all."""
        reduced = [self._params[i] for i in self._bucket_of if one.used(i)]
        if self._is_void(one):
            self.own.drop(reduced)
            fill_missing(reduced)
        if one.active_ranks or one.works:
            for param in reduced:
                adopt(param)
        if one.active_ranks:
            self.last_active = one.active_ranks
            self.after_pass(one)
        self.booked.ledger = None
        one.add_to(self.stats, [other._pass for other in self._company if other._pass is not None])
        self.own.settle()
        self.alike.end_pass(self.name, self.comm, self._layout_id, one.mark, one.marks, idle=not one.samples)


def _settle(backwards: Iterable[Reached]) -> None:
    """Let the passes of these backwards send what is ready, since others send now."""
    for reducer in _reducers(backwards):
        reducer.settle()


def _reducers(backwards: Iterable[Reached]) -> set[Reducer]:
    """Those that hear of these backwards."""
    heard = {listener for leaves in backwards for leaf in leaves for listener in leaf.listeners}
    return {listener for listener in heard if isinstance(listener, Reducer)}


def _nothing(one: Pass) -> None:
    """What happens where nobody asked for anything."""
