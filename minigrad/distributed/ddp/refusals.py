"""In which words: what is refused since a gradient would get lost, count twice or stay one rank's own.

And what wrappers, buckets and parameters are called there, and in headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from minigrad.autograd.tape import backwards_under_way
from minigrad.distributed.comm.failure import retold
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.wrappers import innermost
from minigrad.distributed.ddp.buckets import BucketPlan
from minigrad.distributed.ddp.layout import Layout
from minigrad.errors import AutogradError, DistributedError, UnreducedGradientError
from minigrad.kept import check_undivided
from minigrad.nn.parameter import Parameter

_WHO = "DistributedDataParallel"
_MOST_NAMES = 8
_MOST_RUNS, _MOST_LETTERS = 3, 160  # of a change in a header
_made: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # how many wrappers each communicator has


# -------------------------------------------------------------------------------------------------------------- refused


def check_complete(who: str, params: Iterable[Parameter]) -> None:
    """Refuse to combine gradients while a backward is under way that adds to them.

    Raises:
        AutogradError: one is.
    """
    for leaves in backwards_under_way():
        reached = {id(leaf) for leaf in leaves}
        for param in params:
            if id(param) in reached:
                raise AutogradError(
                    f"{who}: expected no backward under way, got one that reaches {param.name or 'a parameter'}: "
                    "call it when that is over"
                )


def check_to_average(who: str, params: Sequence[Parameter]) -> None:
    """Refuse gradients that are not whole: a backward adds to them, or ranks have divided them.

    Raises:
        AutogradError: there are such.
    """
    check_complete(who, params)
    for param in params:
        check_undivided(param)


def nested(rank: int, what: str, outer: str) -> AutogradError:
    """The error of a pass within a pass, both of which are given in words such as "its backward"."""
    what, outer = what.removeprefix("its "), outer.removeprefix("its ")
    return AutogradError(
        f"rank {rank}: {_WHO}: expected one pass at a time, got {what}() inside {outer}() of the same wrapper: call it "
        "when the outer one is over, or add the losses up and call backward() once"
    )


def uncounted(rank: int) -> AutogradError:
    """The error of a backward behind which is no forward: its gradients would have a wrong weight, or stay local."""
    return AutogradError(
        f"rank {rank}: {_WHO}: expected a forward through the wrapper before backward, got none: call the wrapper, not "
        "its module, or say with samples(n) what the loss counts"
    )


def unweighed(rank: int, names: Iterable[str]) -> AutogradError:
    """The error of gradients of which nobody has said what they weigh: they would be dropped, or stay local."""
    return AutogradError(
        f"rank {rank}: {_WHO}: expected gradients that a backward through the wrapper made since the last "
        f"synchronisation, got others, such as set by hand, of {', '.join(names)}: say what they weigh, with "
        "samples(n) around this call, change combined ones in place, or zero_grad()"
    )


def check_frozen(rank: int, layout: Layout, trained: Sequence[bool], weighed: bool) -> None:
    """Refuse a parameter that was frozen with a gradient that was not combined: it would stay this rank's own.

    Args:
        trained: Which parameters got a gradient before.
        weighed: Whether there were counted gradients before the pass under way.

    Raises:
        AutogradError: there is one.
    """
    own = [
        name
        for name, param, was_trained in zip(layout.names, layout.params, trained)
        if was_trained and not param.requires_grad and param.grad_array is not None
        if weighed or param.grad_by_hand
    ]
    if own:
        raise AutogradError(
            f"rank {rank}: {_WHO}: expected gradients to be combined before their parameters are frozen, got "
            f"accumulated ones of {', '.join(own)}: call flush() or zero_grad() first"
        )


def check_summed_once(params: Iterable[Parameter]) -> None:
    """Refuse to add up once more gradients that are a sum already, but for those set by hand.

    Raises:
        AutogradError: there are some.
    """
    if not all(param.grad_by_hand for param in params if param.grad_array is not None):
        raise AutogradError(
            f"{_WHO}: expected no combined gradients before a backward with reduce='sum', got some, which would be "
            "added up again: call zero_grad() first"
        )


def unreduced(who: str, plan: BucketPlan, missing: Iterable[int]) -> UnreducedGradientError:
    """The error where these parameters of the plan have no gradient."""
    bucket_of = {i: bucket.index for bucket in plan.buckets for i in bucket.entries}
    listed = ", ".join(f"{plan.names[i]} (bucket {bucket_of[i]})" for i in missing)
    return UnreducedGradientError(
        f"{who}: expected a gradient for every trainable parameter, got none for {listed}: "
        "set find_unused_parameters=True, freeze them, or call flush() where the loss reaches none"
    )


# --------------------------------------------------------------------------------------------------------------- called


def named(error: DistributedError, plan: BucketPlan, bucket: int | None) -> DistributedError:
    """The same kind of error, which also says which buckets it is about, and which parameters are in these.

    Args:
        plan: The plan that this rank follows.
        bucket: Which bucket this rank launched or waited for; None while it counted samples. Where a call of another
            rank is cited that has another bucket of this plan, that one is meant too, and in place of it.
    """
    message = str(error)
    cited = [each.index for each in plan.buckets if f"{plan.id} bucket {each.index})" in message]
    where = "" if bucket is not None or cited else "counting samples before "
    meant = [each for each in plan.buckets if each.index in (cited or [bucket or 0])]
    about = tuple((each.index, tuple(plan.names[i] for i in each.entries)) for each in meant)
    listed = "; ".join(f"bucket {i}: {_listed(names)}" for i, names in about)
    told = retold(error, f"{message} ({where}{listed})")
    told.buckets = about
    return told


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def wrapper_name(kind: str, comm: Communicator) -> str:
    """What a wrapper of a module of this class is called in messages; all ranks make it together.

    Wrappers are numbered in the order in which they are made on a communicator; rank 0 counts.
    """
    base = innermost(comm)
    _made[base] = _made.get(base, 0) + 1
    number = comm.all_gather_object(_made[base])[0]
    return f"DDP {number} of {kind[:_MOST_LETTERS]}"


def change_in(names: Sequence[str], before: Sequence[bool], now: Sequence[bool]) -> str:
    """Which parameters are frozen, or trained again, since before; in words, with a space in front; short.

    Args:
        names: In the order of the layout.
        before, now: Which of them get a gradient.
    """
    words = ""
    for trained, said in ((True, "frozen since"), (False, "trained again")):
        changed = [i for i, (was, is_) in enumerate(zip(before, now)) if was != is_ and was == trained]
        if changed:
            words += f" ({said}: {_runs(names, changed)})"
    return words


def _runs(names: Sequence[str], indexes: list[int]) -> str:
    """Names of neighbours as the first and the last of them, in order of registration."""
    starts = [i for i in indexes if i - 1 not in indexes]
    stops = [i for i in indexes if i + 1 not in indexes]
    runs = [names[a] if a == b else f"{names[b]} .. {names[a]}" for a, b in zip(starts, stops)]
    more = f" and {len(runs) - _MOST_RUNS} more" if len(runs) > _MOST_RUNS else ""
    return ", ".join(runs[:_MOST_RUNS])[:_MOST_LETTERS] + more
