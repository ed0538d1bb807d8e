"""What wrappers, buckets and parameters are called in messages and headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.wrappers import innermost
from minigrad.distributed.ddp.buckets import BucketPlan
from minigrad.errors import DistributedError

_MOST_NAMES = 8
_MOST_RUNS, _MOST_LETTERS = 3, 160  # of a change in a header
_made: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # how many wrappers each communicator has


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
    told = type(error)(f"{message} ({where}{listed})")
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
