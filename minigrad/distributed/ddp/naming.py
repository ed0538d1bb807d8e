"""Errors of collectives, which know numbers of buckets, get the names of the parameters in these."""

from __future__ import annotations

import re
from types import TracebackType

from minigrad.distributed.ddp.buckets import BucketPlan
from minigrad.errors import DistributedError

_MOST_NAMES = 8


def named(error: DistributedError, plan: BucketPlan, bucket: int | None) -> DistributedError:
    """The same kind of error, whose message also says which parameters it is about.

    Args:
        plan: The plan that this rank follows.
        bucket: Which bucket this rank launched or waited for; None while it counted samples. Where the message speaks
            of other buckets of this plan, those are named.
    """
    message = str(error)
    spoken_of = sorted({int(number) for number in re.findall(rf"{plan.id} bucket (\d+)", message)})
    where = "" if bucket is not None or spoken_of else "counting samples before "
    indexes = spoken_of or [bucket or 0]
    listed = "; ".join(f"bucket {i}: {_parameters(plan, i)}" for i in indexes if i < len(plan.buckets))
    return type(error)(f"{message} ({where}{listed})")


def _parameters(plan: BucketPlan, index: int) -> str:
    names = [plan.names[i] for i in plan.buckets[index].entries]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


class Naming:
    """A block inside of which errors of collectives get the names of parameters; see `named` for the arguments."""

    __slots__ = ("_plan", "_bucket")

    def __init__(self, plan: BucketPlan, bucket: int | None) -> None:
        self._plan, self._bucket = plan, bucket

    def __enter__(self) -> None:
        """Nothing to do before."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raise the error with names in place of the one without."""
        if isinstance(error, DistributedError):
            raise named(error, self._plan, self._bucket) from error
