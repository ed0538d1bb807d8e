"""How far a tensor is from what one process gets, in ulps, and how far it may be: pure.

An ulp is here that of the largest number which was added up for the tensor, in its dtype: sums round by that much,
whatever is left of them. A tensor may be off by some ulps, and by some times as much as the twin in the tensor's dtype
is from the twin in float64, since whoever adds up in another order rounds otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minigrad.backend.dtypes import finfo

Floats = np.ndarray[Any, Any]  # of float64
_TIMES = 8.0  # so many times the twin's own rounding


@dataclass(frozen=True)
class Difference:
    """A tensor that is not what one process gets.

    Attributes:
        kind, name: "gradient", "parameter" or "buffer", and its name in the module.
        rank: Whose it is.
        index: Of the element that is furthest off.
        got, expected: That element, and what the twin has there.
        ulps: How far it is off, and `allowed_ulps` how far it may be.
        elements, of: How many elements are off by more, of how many.
    """

    kind: str
    name: str
    rank: int
    index: tuple[int, ...]
    got: float
    expected: float
    ulps: float
    allowed_ulps: float
    elements: int
    of: int

    def __str__(self) -> str:
        where = f" at {list(self.index)}" if self.index else ""
        buffer = f"rank {self.rank}'s " if self.kind == "buffer" else "the "
        return (
            f"{buffer}{self.kind} {self.name} is {self.got:.9g}{where}, where one process gets {self.expected:.9g}: "
            f"{self.ulps:.3g} ulps off, of which {self.allowed_ulps:.3g} may be rounding; {self.elements} of its "
            f"{self.of} elements are"
        )


@dataclass(frozen=True)
class TwinReport:
    """What a twin found in a step; print it.

    Attributes:
        step: Number of the step, from 1.
        differences: Of gradients, then parameters, then buffers, each in order of registration.
        compared: How many tensors were.
        largest_ulps: The furthest that one of them is off.
        fault: What would explain the first difference, in words; "" where nothing usual does.
        apart: Other ranks that do not hold the parameters of rank 0.
        notes: What was not compared, and why.
    """

    step: int
    differences: tuple[Difference, ...] = ()
    compared: int = 0
    largest_ulps: float = 0.0
    fault: str = ""
    apart: tuple[int, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return not self.differences and not self.apart

    @property
    def first(self) -> Difference | None:
        """The first tensor that differs."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        alike = f"as on one process: {self.compared} tensors, at most {self.largest_ulps:.3g} ulps off"
        lines = [f"step {self.step}: {alike}"]
        if self.differences:
            others = len(self.differences) - 1
            more = f"; {others} more of {self.compared} tensors differ" if others else ""
            lines = [f"step {self.step}: {self.differences[0]}{more}"]
            lines.append(f"what would explain it: {self.fault or 'none of the usual faults'}")
        if self.apart:
            listed = ", ".join(map(str, self.apart))
            lines[0] = lines[0] if self.differences else f"step {self.step}: rank 0 is as one process"
            lines.append(f"the parameters of rank {listed} are not those of rank 0")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class Expected:
    """What one process gets for a tensor.

    Attributes:
        twin: In the tensor's dtype, as float64.
        exact: In float64; None where that could not be computed.
        largest: The largest number that was added up for it.
        dtype: The tensor's.
    """

    twin: Floats
    exact: Floats | None
    largest: float
    dtype: np.dtype[Any]

    @property
    def ulp(self) -> float:
        """See the head of this file."""
        numbers = finfo(self.dtype)
        size = max(self.largest, _largest(self.twin), float(numbers.tiny))
        return math.ldexp(float(numbers.eps), math.frexp(size)[1] - 1)

    def less(self, values: Floats) -> Expected:
        """The same, less these values."""
        exact = None if self.exact is None else self.exact - values
        return Expected(self.twin - values, exact, self.largest, self.dtype)

    def allowed_ulps(self, ulps: float) -> float:
        """How far what is compared with it may be off, where so many ulps are for the order of sums."""
        own = 0.0 if self.exact is None else _largest(_minus(self.exact, self.twin)) / self.ulp
        return ulps + _TIMES * own


def ulps_off(got: Floats, expected: Expected) -> Floats:
    """How far each element is off; infinite where one is a number and the other is none, or another infinity."""
    with np.errstate(invalid="ignore"):
        off = np.abs(got - expected.twin) / expected.ulp
    same = (got == expected.twin) | (np.isnan(got) & np.isnan(expected.twin))
    found: Floats = np.where(same, 0.0, np.where(np.isnan(off), math.inf, off))
    return found


def difference(kind: str, name: str, rank: int, got: Floats, expected: Expected, ulps: float) -> Difference | None:
    """The difference of a tensor from what one process gets; None where it is rounding."""
    off, allowed = ulps_off(got, expected), expected.allowed_ulps(ulps)
    beyond = off > allowed
    if not beyond.any():
        return None
    index = np.unravel_index(int(np.argmax(off)), off.shape)
    place = tuple(int(i) for i in index)
    values = (float(got[place]), float(expected.twin[place]), float(off[place]))
    return Difference(kind, name, rank, place, *values, allowed, int(beyond.sum()), off.size)


def _largest(values: Floats) -> float:
    found = np.abs(values)
    return float(np.max(found, initial=0.0, where=np.isfinite(found)))


def _minus(a: Floats, b: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        difference: Floats = a - b
        return difference
