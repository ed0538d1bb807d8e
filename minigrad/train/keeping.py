"""Which checkpoints there are to be: their names, when the next is due, which to load, which to remove; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

UNITS = ("step", "epoch")
END = 10**10  # of numbers, which have ten digits in a name
_NAME = re.compile(r"(step|epoch)-([0-9]{10})\.safetensors")


def name_of(unit: str, number: int) -> str:
    """The name of the file of a checkpoint; names sort as their numbers do.

    Args:
        unit: "step" or "epoch", of which number have been made; 0 <= number < 10**10.

    Example:
        >>> name_of("step", 300)
        'step-0000000300.safetensors'
    """
    return f"{unit}-{number:010d}.safetensors"


def named(name: str) -> tuple[str, int] | None:
    """The unit and the number in a name; None of a file that is no checkpoint."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def numbers_in(unit: str, names: Iterable[str]) -> list[int]:
    """The numbers of the checkpoints by this unit, in order."""
    return sorted(found[1] for found in map(named, names) if found is not None and found[0] == unit)


def is_due(number: int, last: int, every: int | None) -> bool:
    """Whether a multiple of every was reached since the last checkpoint; with rounds of several steps also passed.

    Args:
        number, last: Steps, or epochs, made so far, and up to the last checkpoint, 0 before the first.
        every: None for never.

    Example:
        >>> [n for n in (3, 6, 9, 12, 15) if is_due(n, n - 3, 5)]
        [6, 12, 15]
    """
    return every is not None and number // every > last // every


def newest_whole(numbers: Iterable[int], is_whole: Callable[[int], bool]) -> tuple[int | None, list[int]]:
    """The newest checkpoint that is whole, None where there is none; and the newer ones, which are not.

    Example:
        >>> newest_whole([5, 10, 15, 20], lambda number: number <= 10)
        (10, [20, 15])
    """
    broken: list[int] = []
    for number in sorted(numbers, reverse=True):
        if is_whole(number):
            return number, broken
        broken.append(number)
    return None, broken


def removable(numbers: Iterable[int], new: int, keep: int | None, broken: Collection[int] = ()) -> list[int]:
    """Those to remove once `new` is there: all but it and the newest before it, so that `keep` remain.

    Args:
        numbers: Of all there are.
        keep: None for all of them.
        broken: Those that are not whole, and so count for nothing: they go.

    Example:
        >>> removable([5, 10, 15, 20], 20, keep=2, broken=[15])
        [5, 15]
    """
    whole = sorted({*numbers, new} - ({*broken} - {new}))
    stay = whole if keep is None else whole[-keep:]
    return sorted({*numbers} - {*stay, new})
