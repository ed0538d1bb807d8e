"""The checks of what users pass: one wording, one place, so that a mistake shows where it was made.

`as_...` gives the value as the plain Python type that the rest of the library works with; `check_...` only refuses.
NumPy's numbers count as Python's; a bool is no number, and a text is never read as one.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from minigrad.errors import ArgumentError

Pair = Any  # an int, or a pair of ints for height and width

MOST_PIXELS = 2**31  # along an axis, and more than any image has
_SHARES_TOLERANCE = 1e-6
PYTHON_NUMBERS = (float, int, bool)  # asked first: a look into the registry of an ABC costs 0.2 µs


def kind_of(value: object) -> str:
    """The type of a value, for messages; of another library's tensor also what makes it one of ours."""
    kind = type(value)
    library = kind.__module__.split(".")[0]
    if not hasattr(kind, "__dlpack__") or library in ("numpy", "cupy", "minigrad"):
        return kind.__name__
    return f"{library}.{kind.__name__}: take it in by minigrad.as_tensor(x)"


def is_number(value: object) -> bool:
    """Whether a value is a Python or NumPy real scalar, a bool included."""
    return value.__class__ in PYTHON_NUMBERS or isinstance(value, (numbers.Real, np.bool_))


def is_real(value: object) -> bool:
    """Whether a value is a Python or NumPy real scalar, and no bool."""
    return is_number(value) and not isinstance(value, (bool, np.bool_))


def is_integer(value: object) -> bool:
    """Whether a value is a Python or NumPy integer, and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_real(
    who: str,
    name: str,
    value: Any,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float | None = None,
    below: float | None = None,
    finite: bool = False,
) -> float:
    """A number in [least, most] as a float; greater than `above`, less than `below` and finite where they say so.

    Raises:
        ArgumentError: another type, NaN, or out of range.
    """
    number = value if value.__class__ is float else _real(value)
    fits = least <= number <= most and (above is None or number > above) and (below is None or number < below)
    if not fits or (finite and math.isinf(number)):
        wanted = "a number" if math.isfinite(most) or below is not None or not finite else "a finite number"
        hint = ": write .item(), which reads its number" if hasattr(value, "item") and not is_number(value) else ""
        raise ArgumentError(
            f"{who}: expected {name} to be {wanted}{_range(least, most, above, below)}, got {value!r:.100}{hint}"
        )
    return number


def _real(value: Any) -> float:
    """A number as a float; NaN for what is none, which no range holds."""
    if not is_real(value):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _range(least: float, most: float, above: float | None, below: float | None) -> str:
    """A range in words, with a space before it; nothing where there is no bound."""
    lower, closed = (least, "[") if above is None else (above, "(")
    upper, end = (most, "]") if below is None else (below, ")")
    if math.isfinite(upper):
        return f" in {closed}{lower:g}, {upper:g}{end}"
    return f" {'>=' if closed == '[' else '>'} {lower:g}" if math.isfinite(lower) else ""


def as_amount(who: str, name: str, value: Any) -> float:
    """A finite number >= 0 as a float.

    Raises:
        ArgumentError: another type, NaN, infinite or negative.
    """
    if value.__class__ is float and 0.0 <= value < math.inf:  # as in every step of an optimizer
        return value
    return as_real(who, name, value, 0.0, finite=True)


def as_samples(who: str, samples: Any, limit: float = 1e300) -> float:
    """A number of samples, tokens or weights, >= 0, as a float; a tensor or an array of one element is read.

    Args:
        limit: What it may be at most, and 1 / limit at least where it is not 0: sums and products of others are wrong.

    Raises:
        ArgumentError: it is no finite number >= 0, or out of these bounds.
    """
    value = samples
    if not is_number(samples) and hasattr(samples, "item"):
        try:
            value = samples.item()
        except ValueError:  # of several elements
            value = None
    number = value if value.__class__ is float else _real(value)
    if not 0.0 <= number < math.inf:
        raise ArgumentError(f"{who}: expected a finite number of samples >= 0, got {samples!r:.100}")
    if number and not 1.0 / limit <= number <= limit:
        raise ArgumentError(
            f"{who}: expected 0 samples, or {1.0 / limit:.1e} to {limit:.1e}, with which sums keep their digits, got "
            f"{samples!r:.100}"
        )
    return number


def as_integer(who: str, name: str, value: Any, least: int | None = None, end: int | None = None) -> int:
    """An integer of at least `least`, and below `end`.

    Raises:
        ArgumentError: another type, or out of range.
    """
    if not is_integer(value) or (least is not None and value < least) or (end is not None and value >= end):
        bounds = "" if least is None else f" >= {least}" if end is None else f" in [{least}, {_limit(end)})"
        raise ArgumentError(f"{who}: expected {name} to be an integer{bounds}, got {value!r:.100}")
    return int(value)


def _limit(end: int) -> str:
    return f"2**{end.bit_length() - 1}" if end >= 2**31 and not end & (end - 1) else str(end)


def as_pair(who: str, name: str, value: Pair, least: int, axes: int = 2) -> tuple[int, int]:
    """An argument for height and width: one integer for both, or two.

    Args:
        axes: 1 for what has a width only, which is one integer, or a sequence of one: its height is `least`.

    Raises:
        ArgumentError: something else, a value below `least`, or one beyond any image.
    """
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes
    if len(values) != axes or not all(is_integer(v) and least <= v < MOST_PIXELS for v in values):
        several = ", or two of them" if axes == 2 else ""
        raise ArgumentError(
            f"{who}: expected {name} to be an integer >= {least} and < 2**31{several}, got {value!r:.100}"
        )
    return (int(values[0]) if axes == 2 else least), int(values[-1])


def as_sequence(who: str, name: str, value: Any) -> Sequence[Any]:
    """A list or a tuple as it is.

    Raises:
        ArgumentError: something else.
    """
    if not isinstance(value, (list, tuple)):
        raise ArgumentError(f"{who}: expected {name} to be a list or a tuple, got {value!r:.100}")
    return value


def as_list(who: str, what: str, values: Any) -> list[Any]:
    """Values for each rank as a list.

    Raises:
        ArgumentError: they are no values one after the other.
    """
    unordered = isinstance(values, (str, bytes, Mapping, Set))
    if unordered or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise ArgumentError(f"{who}: expected {what} as a sequence with a value for each rank, got {values!r:.100}")
    return list(values)


def keep_as(config: Any, check: Callable[..., Any], *names: str, optional: bool = False, **bounds: Any) -> None:
    """Put what an `as_...` made of them in the place of attributes, also of a frozen dataclass.

    Args:
        optional: None stays.

    Raises:
        ArgumentError: see the check.
    """
    for name in names:
        value = getattr(config, name)
        if value is not None or not optional:
            object.__setattr__(config, name, check(type(config).__name__, name, value, **bounds))


def check_generator(who: str, rng: Any) -> None:
    """Refuse a source of random numbers that is neither a NumPy generator nor None.

    Raises:
        ArgumentError: it is something else.
    """
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise ArgumentError(f"{who}: expected rng to be a numpy.random.Generator, got {type(rng).__name__}")


def check_counts(who: str, least: int = 1, **counts: Any) -> None:
    """Refuse anything but integers of at least `least`; the keywords name them.

    Raises:
        ArgumentError: another type, or too small.
    """
    for name, count in counts.items():
        as_integer(who, name, count, least)


def check_sizes(who: str, least: int = 1, **sizes: Any) -> None:
    """Refuse anything but integers, or tuples of them, of at least `least`; the keywords name them.

    Raises:
        ArgumentError: another type, or too small.
    """
    for name, size in sizes.items():
        values = size if isinstance(size, (tuple, list)) else (size,)
        if not values or not all(is_integer(value) and value >= least for value in values):
            raise ArgumentError(f"{who}: expected {name} of at least {least}, got {size!r:.100}")


def check_real(who: str, least: float = -math.inf, most: float = math.inf, **values: Any) -> None:
    """Refuse anything but a finite number in [least, most]; the keywords name them.

    Raises:
        ArgumentError: another type, or out of range.
    """
    for name, value in values.items():
        as_real(who, name, value, least, most, finite=True)


def check_choice(who: str, choices: tuple[str, ...], **values: Any) -> None:
    """Refuse anything but one of the choices; the keywords name them.

    Raises:
        ArgumentError: something else; the choices are listed.
    """
    for name, value in values.items():
        if not isinstance(value, str) or value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise ArgumentError(f"{who}: expected {name} to be one of {listed}, got {value!r:.100}")


def check_text(who: str, **values: Any) -> None:
    """Refuse anything but text; the keywords name it.

    Raises:
        ArgumentError: something else.
    """
    for name, value in values.items():
        if not isinstance(value, str):
            raise ArgumentError(f"{who}: expected {name} as text, got {value!r:.100}")


def check_shares(who: str, shares: Any) -> None:
    """Refuse shares that are not finite fractions >= 0 of sum 1.

    Raises:
        ArgumentError: they are not; the message holds them.
    """
    given: list[float] = as_list(who, "shares", shares)
    good = all(0.0 <= _real(share) < math.inf for share in given)
    if not good or not abs(math.fsum(given) - 1.0) <= _SHARES_TOLERANCE:
        total = f" of sum {math.fsum(given):.9g}" if good else ""
        raise ArgumentError(f"{who}: expected shares as finite numbers >= 0 of sum 1, got {given!r}{total}")


def check_switch(who: str, **values: Any) -> None:
    """Refuse anything but True and False; the keywords name them.

    Raises:
        ArgumentError: something else.
    """
    for name, value in values.items():
        if value is not True and value is not False:
            raise ArgumentError(f"{who}: expected {name} to be True or False, got {value!r:.100}")
