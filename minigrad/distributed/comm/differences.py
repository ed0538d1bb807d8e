"""What must be alike on all ranks, compared: one way to do it, and one wording of the first difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minigrad.distributed.comm.protocol import Communicator
from minigrad.errors import ReplicaMismatchError
from minigrad.nn.module import Module

Facts = Mapping[str, Any]  # how something is, by name


def describe(module: Module) -> Facts:
    """Name, kind, shape, dtype and requires_grad of each parameter and buffer, in order."""
    params = [
        f"parameter {name!r} {p.dtype.name} {tuple(p.shape)}{'' if p.requires_grad else ', frozen'}"
        for name, p in module.named_parameters()
    ]
    buffers = [f"buffer {name!r} {b.dtype.name} {tuple(b.shape)}" for name, b in module.named_buffers()]
    return {f"entry {i}": words for i, words in enumerate(params + buffers)}


def in_words(thing: Any) -> str:
    """An option in words that are the same where it is: of an object that has none of its own, what is in it.

    Example:
        >>> class Rate:
        ...     def __init__(self):
        ...         self.lr = 0.1
        >>> in_words(Rate()), in_words(3)
        ("Rate {'lr': 0.1}", '3')
    """
    has_words = repr(thing) != object.__repr__(thing)
    return str(thing) if has_words else f"{type(thing).__name__} {getattr(thing, '__dict__', '')}"


def difference(mine: Any, theirs: Any, rank: int, other: int) -> str:
    """The first fact that is another one on the other rank, in words; empty where all are alike.

    Args:
        mine, theirs: Facts, or a value each.

    Example:
        >>> difference({"lr": 0.1, "steps": 3}, {"lr": 0.1, "steps": 4}, 0, 2)
        'steps is 3 on rank 0 and 4 on rank 2'
    """
    if not isinstance(mine, Mapping):
        return f"{mine} on rank {rank} and {theirs} on rank {other}" if mine != theirs else ""
    for name in {**mine, **theirs}:
        here, there = mine.get(name, "missing"), theirs.get(name, "missing")
        if here != there:
            return f"{name} is {here} on rank {rank} and {there} on rank {other}"
    return ""


def check_alike(
    who: str,
    what: str,
    found: Mapping[int, Any],
    advice: str = "",
    differ: Callable[[Any, Any, int, int], str] = difference,
) -> None:
    """Refuse ranks that differ from the first of them.

    Args:
        who, what: For the message, such as "options".
        found: What each rank has: facts, or what `differ` compares.
        advice: What to do about it.
        differ: Says of two ranks what differs first.

    Raises:
        ReplicaMismatchError: it names the first difference.
    """
    first, *others = found
    for rank in others:
        words = differ(found[first], found[rank], first, rank)
        if words:
            todo = f": {advice}" if advice else ""
            raise ReplicaMismatchError(f"{who}: expected equal {what} on all ranks, got {words}{todo}")


def gather_alike(who: str, what: str, comm: Communicator, mine: Any, more: Any = None) -> list[Any]:
    """Exchange what has to be alike on all ranks, and something more.

    Args:
        who, what: See `check_alike`.
        mine: Facts, of which each counts by its str; or plain data.
        more: Plain data.

    Returns:
        The latter, of each rank.

    Raises:
        ReplicaMismatchError: on all ranks; it names the first difference.
    """
    told = {name: str(value) for name, value in mine.items()} if isinstance(mine, Mapping) else mine
    found = comm.all_gather_object([told, more])
    check_alike(f"rank {comm.rank}: {who}", what, {rank: facts for rank, (facts, _) in enumerate(found)})
    return [each for _, each in found]
