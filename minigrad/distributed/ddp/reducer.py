"""The reducer: hears the three events of one backward, counts samples, refuses, and tells the pass under way.

At *begin* it checks what backward will reach, and starts a pass. Of each *leaf* whose gradient is complete it tells
the pass. *end* lets the pass finish: when `backward()` returns, every gradient is the combined one. What becomes of
the buckets in between is the pass's business; see `ddp.passes`. By `Alike` it has ranks compared at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from minigrad.autograd.tape import Reached, backwards_under_way
from minigrad.distributed.comm.forks import in_a_child, tell_children
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.ddp.alike import Alike
from minigrad.distributed.ddp.buckets import BucketPlan, check_plan, plan_buckets
from minigrad.distributed.ddp.hooks import CommHook, RegisteredHook
from minigrad.distributed.ddp.lanes import lane_of
from minigrad.distributed.ddp.layout import Layout, Named, give_names
from minigrad.distributed.ddp.own import OwnGradients
from minigrad.distributed.ddp.passes import Pass, Rule, TravellingBuckets
from minigrad.distributed.ddp.refusals import (
    change_in,
    check_frozen,
    check_summed_once,
    nested,
    unreduced,
    wrapper_name,
)
from minigrad.distributed.ddp.stats import Stats
from minigrad.errors import ArgumentError, AutogradError, DistributedError

_UNFINISHED = "of a backward that is under way: do it when that is over"
_HOW_TO_GO_ON = ": every later call raises too; to go on, make a new communicator, unwrap() the wrapper, wrap again"


class Options(NamedTuple):
    """How a reducer combines.

    Attributes:
        cap_bytes, first_cap_bytes: See `plan_buckets`.
        find_unused: Let a syncing backward leave parameters out; they count as zero, and those that no rank used
            keep no gradient at all.
        mean: Weight each rank by its samples; False adds the gradients as they are.
        track_nonfinite: Look for infinite and NaN gradients while they are weighted.
        plan: A plan to use instead of a new one.
    """

    cap_bytes: int
    first_cap_bytes: int
    find_unused: bool = False
    mean: bool = True
    track_nonfinite: bool = False
    plan: BucketPlan | None = None


class Begun(NamedTuple):
    """A backward, or a synchronisation without one, that has begun and is not over.

    Attributes:
        what: In words, such as "its backward", of a rank.
        combines: Whether it is combined with those of other ranks, which then wait for it.
        hosts: Whether local backwards are a part of it.
        samples, weighed: See `OwnGradients`, as they were when it began.
    """

    what: str
    combines: bool
    hosts: bool
    samples: float
    weighed: bool


class UnderWay:
    """What has begun and is not over: one pass at a time; backwards that stay local may lie within each other.

    Attributes:
        refusal: What was refused within the outermost one, which must not end as if nothing had been; None else.
    """

    def __init__(self, rank: int) -> None:
        self._rank, self._begun = rank, list[Begun]()
        self.refusal: AutogradError | None = None

    def enter(self, begun: Begun) -> str:
        """Let another one begin; `leave` has to follow in any case.

        Returns:
            What is said from now on to who would use a gradient too early.

        Raises:
            AutogradError: one is under way already, and not both are local.
        """
        outer = self._begun[-1] if self._begun else None
        self._begun.append(begun)
        if outer is not None and (begun.combines or (outer.combines and not outer.hosts)):
            self.refusal = self.refusal or nested(self._rank, begun.what, outer.what)
            raise self.refusal
        return _UNFINISHED

    def leave(self) -> tuple[Begun, str]:
        """The innermost one is over; what is said from now on to who would use a gradient too early."""
        begun = self._begun.pop()
        return begun, _UNFINISHED if self._begun else ""

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def innermost(self) -> Begun:
        """What began last."""
        return self._begun[-1]

    def check_idle(self, what: str) -> None:
        """Raise an AutogradError while anything is under way, in which this must not happen."""
        if self._begun:
            raise nested(self._rank, what, self.innermost.what)


class Reducer:
    """A backward listener that combines the gradients of one rank with those of the others.

    Args:
        comm: The ranks.
        named: The parameters in order of registration, frozen ones too, each once.
        options: How they are combined.
        kind: The class of the module, for messages.

    Attributes:
        name: The wrapper in messages: its number on this communicator, and the class of the module.
        own: The gradients of this rank that are not combined, and what they weigh.
        alike: What all ranks must have alike beside the model; its marks are compared in each pass.
        buckets: Those of the plan in force.
        syncing: Whether the next backward synchronises; what counts is its value when backward begins.
        in_order: Other collectives run in backward, as SyncBatchNorm's: buckets must not depend on timing.
        last_active, joining: The ranks that had data in the last pass in which one had; whether that is in a `join`.
        after_pass: Called at the end of each pass in which a rank had data, on every rank, with those that had.
        unfinished: In errors, why a gradient is not whole yet, for a step say; empty while nothing is under way.
    """

    reduces = True  # so that no second wrapper combines these parameters

    def __init__(self, comm: Communicator, named: Named, options: Options, kind: str = "parameters") -> None:
        self.lane = lane_of(comm)
        self.comm, self.options = comm, options
        self.name = wrapper_name(kind, comm)
        self.layout = Layout(named)
        give_names(named)
        self.alike, self.own = Alike(self.layout), OwnGradients(self.layout, options.mean, comm.rank)
        self.stats = Stats()
        self._set_plan(self.layout.trainable())
        for buffer in self.layout.buffers:
            buffer.rebind_grad(comm.empty(buffer.count, buffer.dtype))
        for param in self.layout.params:
            param.listeners += (self,)
        self.syncing, self.in_order = True, False
        self.hook: RegisteredHook | None = None
        self.last_active, self.joining = list[int](), False
        self.after_pass: Callable[[list[int]], None] | None = None
        self._rule: Rule | None = None
        self._pass: Pass | None = None
        self.under_way, self._company = UnderWay(comm.rank), set[Reducer]()
        self.unfinished, self._began_s = "", 0.0
        self._inherited: DistributedError | None = None
        tell_children(self)

    def forked(self) -> None:
        """See `Inherited`: what is added up here would be no rank's gradients."""
        self._inherited = in_a_child() if self.comm.world_size > 1 else None

    def detach(self) -> None:
        """Stop listening: backward is local again."""
        self.under_way.check_idle("unwrap")
        for param in self.layout.params:
            param.listeners = tuple(kept for kept in param.listeners if kept is not self)

    def before_saving(self) -> None:
        """The parameters are about to be kept: raise where ranks have parted; see `Communicator.check_same`."""
        self.comm.check_same("state_dict")

    def register_hook(self, state: Any, hook: CommHook) -> None:
        """Let a hook add up each bucket; see `DistributedDataParallel.register_comm_hook`."""
        self.under_way.check_idle("register_comm_hook")
        if self.hook is not None:
            raise ArgumentError("register_comm_hook: expected no hook yet, got one registered before")
        self.hook = RegisteredHook(state, hook, self.comm)

    # --------------------------------------------------------------------------------------------- the plan

    def prepare(self) -> None:
        """Check that the parameters are in their place, and plan anew where others require a gradient now."""
        self.layout.check()
        trainable = self.layout.trainable()
        if trainable != self._trainable:
            check_frozen(self.comm.rank, self.layout, self._trainable, self.under_way.innermost.weighed)
            self._set_plan(trainable, change_in(self.layout.names, self._trainable, trainable))

    def _set_plan(self, trainable: list[bool], change: str = "") -> None:
        entries, self._trainable, options = self.layout.entries(), trainable, self.options
        if options.plan is not None:
            check_plan(options.plan, entries)
        plan = options.plan or plan_buckets(entries, options.cap_bytes, options.first_cap_bytes)
        self.buckets = TravellingBuckets(self.comm, self.layout, plan, self.name + change, options.track_nonfinite)
        self.stats.bucket_bytes = [bucket.nbytes for bucket in plan.buckets]
        self.comm.check_headers(self.buckets.id)

    # -------------------------------------------------------------------------------------------- events

    @property
    def loss_weight(self) -> float:
        """How much this rank's loss counts in the backward under way, up to a factor that all ranks share."""
        return self.own.samples if self.own.mean else 1.0

    def begin(self, leaves: Reached) -> None:
        """Backward starts: check what it will reach, and start a pass."""
        own, under_way = self.own, self.under_way
        self.unfinished = under_way.enter(Begun("its backward", self.syncing, False, own.samples, own.weighed))
        if self.syncing and len(backwards_under_way()) > 1:
            _settle(backwards_under_way()[:-1])
        if self._inherited is not None:
            raise type(self._inherited)(f"rank {self.comm.rank}: backward: {self._inherited}")
        self.own.take_backward(leaves.numbers)
        self._began_s = self.comm.clock.now_s()
        if not self.syncing:
            return
        self._company = reducers_of([leaves]) - {self}  # other wrappers it reaches: one's buckets after another's
        number, find_unused = self.layout.number, self.options.find_unused
        reached = {number[id(leaf)] for leaf in leaves if id(leaf) in number}
        deferred = self.in_order and find_unused or bool(self._company)
        self._start(reached, not find_unused, deferred=deferred)

    def leaf(self, leaf: Any) -> None:
        """A gradient is complete: tell the pass. None came where an operation, or a hook, left it out: as if unused."""
        number = self.layout.number[id(leaf)]
        if self._pass is not None and number in self.buckets.of:
            if leaf.grad_array is None and not self.options.find_unused:
                raise unreduced(f"rank {self.comm.rank}", self.buckets.plan, [number])
            self._pass.complete(self.buckets.of[number])

    def end(self, error: BaseException | None) -> None:
        """Backward is over: let the pass finish; or, after an error, let the other ranks know."""
        if error is not None:
            self._fail(error)
            return
        one = self._pass
        try:
            if self.under_way.refusal is not None and len(self.under_way) == 1:
                raise self.under_way.refusal  # whoever caught it would lose a gradient
            if one is not None:
                one.finish()
        except BaseException as caught:
            self._fail(caught)
            raise
        _, self.unfinished = self.under_way.leave()
        self._pass = None
        if one is None:
            self.stats.backward_s += self.comm.clock.now_s() - self._began_s
            return
        # every rank does the same from here on, so an error is one on all
        if one.active_ranks:
            self.last_active = one.active_ranks
            if self.after_pass is not None:
                self.after_pass(one.active_ranks)
        one.add_to(self.stats, [other._pass for other in self._company if other._pass is not None])
        self.own.settle()
        self.alike.end_pass(self.name, self.comm, self.buckets.id, one.mark, one.marks, idle=not one.samples)

    def combine(
        self,
        who: str,
        *,
        strict: bool = False,
        one_by_one: bool = False,
        has_data: bool = True,
        weighted: bool = False,
        samples: float | None = None,
    ) -> Pass:
        """Combine what is there, without a backward.

        Args:
            who: Who asks for it.
            strict: Refuse trainable parameters without gradient; else they count as zero.
            one_by_one: Wait for each bucket before the next is launched; the same bits.
            has_data: Whether this rank still has any; see `DistributedDataParallel.join`.
            weighted: The gradients are weighted already, and none of them is a combined one.
            samples: What they weigh, in place of what is known.
        """
        with self._failing(who):
            with self.own.saying(self.own.said if samples is None else samples):
                self.own.take_present(self.buckets.of, has_data, weighted)
            present = {i for i, param in enumerate(self.layout.params) if param.grad_array is not None}
            one = self._start(present if strict else set(), strict, True, has_data=has_data, weighted=weighted)
            if one_by_one:
                one.send_one_by_one()
        self.end(None)
        return one

    def _start(
        self, reached: set[int], strict: bool, whole: bool = False, *, has_data: bool = True, **manner: bool
    ) -> Pass:
        """Start a pass.

        Args:
            reached: The parameters that backward reaches, or that have a gradient: all of them, if strict.
            whole: Nothing is to come: no gradient is announced.
            manner: See `Pass`.
        """
        self.prepare()
        if has_data and self.own.combined and not self.own.mean:
            check_summed_once(self.layout.params)
        missing = [i for i in self.buckets.of if i not in reached]
        if missing and strict:
            raise unreduced(f"rank {self.comm.rank}", self.buckets.plan, missing)
        mark = self.alike.mark() if has_data and self.comm.world_size > 1 else float(has_data)
        gives, params = has_data or self.own.weighed, self.layout.params
        used: list[bool] = []
        if self.options.find_unused:
            used = [gives and (i in reached or p.grad_array is not None) for i, p in enumerate(params)]
        samples, hook, rule = self.own.samples, self.hook, self._rule
        one = Pass(self.lane, self.buckets, self.own, samples, mark, used, hook, rule, self.in_order, **manner)
        one.start(self.buckets.of if whole else missing)
        self._pass = one
        return one

    # -------------------------------------------------------------------------------- what others may ask for

    @contextmanager
    def quiet(self, samples: float | None = None) -> Iterator[None]:
        """Backwards inside stay local; where samples are given, each of them counts so many."""
        before, self.syncing = self.syncing, False
        try:
            with self.own.saying(self.own.said if samples is None else samples):
                yield
        finally:
            self.syncing = before

    @contextmanager
    def on_counts(self, rule: Rule) -> Iterator[None]:
        """Ask a rule in each pass inside, once the counts of all ranks are known, before the first bucket."""
        before = self._rule
        self._rule = rule if before is None else lambda active: min(before(active), rule(active))
        try:
            yield
        finally:
            self._rule = before

    @contextmanager
    def hosting(self, who: str) -> Iterator[None]:
        """Around local backwards whose gradients are combined afterwards, by what is not a backward itself."""
        with self._failing(who, hosts=True):
            yield
            if self.under_way.refusal is not None:
                raise self.under_way.refusal
        _, self.unfinished = self.under_way.leave()

    def holds_gradient(self, leaf: Any) -> bool:
        """Whether the gradient of a leaf may be under way to the other ranks; comm hooks see it all the same."""
        bucket = self.buckets.of.get(self.layout.number[id(leaf)])
        return bucket is not None and self._pass is not None and self._pass.has_taken(bucket)

    def settle(self) -> None:
        """Let the pass under way send what is ready, since others send now."""
        if self._pass is not None:
            self._pass.settle()

    @contextmanager
    def _failing(self, what: str, hosts: bool = False) -> Iterator[None]:
        """Around what begins, and is no backward: its errors are told to the other ranks."""
        try:
            self.unfinished = self.under_way.enter(Begun(what, True, hosts, self.own.samples, self.own.weighed))
            _settle(backwards_under_way())
            yield
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """What began last is over, by an error, which this rank raises, and the others hear of if they wait for it.

        Where it has launched no bucket it makes two calls: the counts, unless they are out already, as NaN, so that
        nobody takes them for real; and one that says that it gives up. If all ranks fail alike both calls agree: none
        has failed the world, and training can go on. A rank that sends a bucket instead meets the second call: it
        raises RankFailedError, then and in every later call, and its gradients may be NaN. Where this rank has launched
        one it tells at once, and so do they.
        """
        begun, self.unfinished = self.under_way.leave()
        one, refused = self._pass, self.under_way.refusal is not None
        self.own.samples, self.own.weighed = begun.samples, begun.weighed
        if self.under_way or self._inherited is not None:
            if one is not None and refused:
                one.hold()
            return  # the outermost one tells, and a child of a fork tells nobody
        self.under_way.refusal = self._pass = None
        self.own.spoilt = self.own.spoilt or one is not None or not begun.combines
        if not begun.combines and not refused:
            return
        if one is None and not begun.hosts:
            used = [False] * len(self.layout.params) if self.options.find_unused else []
            one = Pass(self.lane, self.buckets, self.own, float("nan"), 1.0, used)
            with suppress(DistributedError):  # it has failed already, which every later call says
                one.start(())  # counts such as no pass that goes on can have
        reason = f"{begun.what} raised {type(error).__name__}: {error}{_HOW_TO_GO_ON}"
        if one is not None:
            one.fail(reason)
        else:
            self.comm.give_up(reason)


def _settle(backwards: Iterable[Reached]) -> None:
    """Let the passes of these backwards send what is ready, since others send now."""
    for reducer in reducers_of(backwards):
        reducer.settle()


def reducers_of(backwards: Iterable[Iterable[Any]]) -> set[Reducer]:
    """Those that hear of these backwards."""
    heard = {listener for leaves in backwards for leaf in leaves for listener in leaf.listeners}
    return {listener for listener in heard if isinstance(listener, Reducer)}
