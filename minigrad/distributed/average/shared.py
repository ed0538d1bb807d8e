"""What ranks share while their own values differ: for an evaluation, or a checkpoint of the model that is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from minigrad.distributed.average.travelling import TravellingFragment
from minigrad.errors import ArgumentError
from minigrad.stamp import shared_stamp


@contextmanager
def shared_values(who: str, outer: object, fragments: Sequence[TravellingFragment]) -> Iterator[None]:
    """Put what an outer optimizer has as "global" in the place of the parameters; gives them back their own.

    Args:
        who, outer: For messages.

    Raises:
        ArgumentError: there is none; or a parameter was changed inside, which is lost.
    """
    if not fragments or not all("global" in state for each in fragments for state in each.states):
        raise ArgumentError(
            f"{who}: expected an outer optimizer that keeps values which ranks share, such as EASGD or DiLoCo, got "
            f"{outer}: with others the parameters themselves are alike after a combination"
        )
    own = [each.swap([state["global"] for state in each.states]) for each in fragments]
    params = [param for each in fragments for param in each.params]
    before = [shared_stamp(param).changed for param in params]
    try:
        yield
    finally:
        changed = [param.name for param, stamp in zip(params, before) if shared_stamp(param).changed != stamp]
        for each, values in zip(fragments, own):
            each.swap(values)
    if changed:
        raise ArgumentError(
            f"{who}: expected parameters that stay as they are inside, got a change of {changed[0]}, which is lost: "
            "train outside, where each rank has its own values"
        )
