"""How far ranks are apart where they combine: three sums of products of each rank, and what follows from them. Pure.

With p what a rank brings and a what all go on from, Σ(p - a)², Σp² and Σa² are all that a report needs. They are added
up in float64 in blocks that stay in the cache, where a combination has just touched them, so the report costs no
second pass over memory; and three numbers of each rank are all that travels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, as_list, is_real
from minigrad.backend.device import array_module, device_of
from minigrad.backend.dtypes import Array, is_float
from minigrad.distributed.record.spans import table_of
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.linalg import product

SUMS = 3  # of each rank: of (p - a)², p² and a²

_HOST_BLOCK = 8192  # elements: three of float64 stay in the cache, and BLAS adds them up on one thread
_GPU_BLOCK = 2**21


@dataclass(frozen=True)
class Divergence:
    """How far each rank was from what all went on from, when they combined.

    A rank that had no samples brought nothing, and is told as one that was where the average is. There is no NaN but
    where a rank's values, or the average, held one, or an infinity.

    Attributes:
        relative: ‖p - a‖ / ‖a‖ of each rank; where the average is zero, 0 for a rank that is zero too, else infinite.
        cosine: Of the angle between p and a, in [-1, 1]; where both are zero 1, where one is 0.
        magnitude: ‖p‖ / ‖a‖ - 1, how much longer the rank's values were; where the average is zero as in `relative`.
        steps: The most steps that a rank made since they combined last, >= 1.

    Raises:
        ArgumentError: not one number of each kind for each rank, at least one; or steps is no integer >= 1.

    Example:
        >>> apart = divergence_of([(9.0, 25.0, 16.0), (0.0, 16.0, 16.0)])
        >>> apart.relative, apart.cosine, apart.magnitude
        ((0.75, 0.0), (0.8, 1.0), (0.25, 0.0))
    """

    relative: tuple[float, ...]
    cosine: tuple[float, ...]
    magnitude: tuple[float, ...]
    steps: int = 1

    def __post_init__(self) -> None:
        for name in ("relative", "cosine", "magnitude"):
            values = as_list("Divergence", name, getattr(self, name))
            if not values or len(values) != len(self.relative) or not all(map(is_real, values)):
                raise ArgumentError(
                    f"Divergence: expected {name} as a number of each rank, as many as of relative, got {values!r:.100}"
                )
            object.__setattr__(self, name, tuple(map(float, values)))
        object.__setattr__(self, "steps", as_integer("Divergence", "steps", self.steps, 1))

    def __str__(self) -> str:
        rows = [["rank", "relative", "cosine", "magnitude"]]
        for rank, figures in enumerate(zip(self.relative, self.cosine, self.magnitude)):
            rows.append([str(rank), *(f"{figure:{form}}" for figure, form in zip(figures, (".4f", ".4f", "+.4f")))])
        return table_of(rows)

    @property
    def farthest(self) -> tuple[float, int]:
        """The largest relative difference, and whose it is; NaN where any is."""
        rank = next((r for r, each in enumerate(self.relative) if math.isnan(each)), None)
        if rank is None:
            rank = max(range(len(self.relative)), key=self.relative.__getitem__)
        return self.relative[rank], rank

    def to_data(self) -> dict[str, Any]:
        """All of it as plain data, for JSON; `from_data` takes it."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Divergence:
        """What `to_data` told.

        Raises:
            ArgumentError: it is no such data.
        """
        try:
            return Divergence(**data)
        except TypeError as error:
            raise ArgumentError(f"Divergence: expected what to_data() returned, got {data!r:.100}") from error


def divergence_of(rows: Sequence[Sequence[float]], steps: int = 1) -> Divergence:
    """The report of three sums of each rank, as `add_sums` makes them; zeros for a rank that brought nothing.

    Raises:
        ArgumentError: not three of each, or of no rank; or steps is no integer >= 1.
    """
    for rank, row in enumerate(rows):
        if len(row) != 3:
            raise ArgumentError(f"divergence_of: expected three sums of each rank, got {len(row)} of rank {rank}")
    told = [_of_rank(*map(float, row)) for row in rows]
    relative, cosine, magnitude = zip(*told) if told else ((), (), ())
    return Divergence(relative, cosine, magnitude, steps)


def _of_rank(apart: float, own: float, common: float) -> tuple[float, float, float]:
    """Relative difference, cosine and change of length from the three sums of squares of a rank."""
    if not (own or common):
        return 0.0, 1.0, 0.0
    if not common:
        return math.inf * own, 0.0, math.inf * own
    if not own:
        return math.sqrt(apart / common), 0.0, -1.0
    cosine = (own + common - apart) / 2.0 / (math.sqrt(own) * math.sqrt(common))
    if abs(cosine) > 1.0:  # by rounding
        cosine = math.copysign(1.0, cosine)
    return math.sqrt(apart / common), cosine, math.sqrt(own / common) - 1.0


def no_sums(like: Array) -> Array:
    """float64 (3,) of zeros where an array lives: what a rank without samples sends."""
    with device_of(like).current() as xp:
        return xp.zeros(SUMS, np.float64)


def add_sums(sums: Array, own: Array, common: Array) -> None:
    """Add the three sums of products of a part to those of the parts before it. No wait for a GPU.

    Args:
        sums: float64 (3,) on the device of the arrays, as `no_sums` makes them.
        own, common: What this rank brings, and what all ranks go on from: 1-D, of one float dtype, one device and one
            length. Halves are read as they are, and added up in float64.

    Raises:
        ShapeError, DtypeError: arrays that do not fit.
    """
    for start, stop in _blocks("add_sums", own, common):
        _add_block(sums, own[start:stop], common[start:stop])


def add_sums_and_adopt(sums: Array, own: Array, common: Array) -> None:
    """`add_sums`, and overwrite own by common, block by block: one pass over memory for both.

    Raises:
        ShapeError, DtypeError: arrays that do not fit.
    """
    for start, stop in _blocks("add_sums_and_adopt", own, common):
        _add_block(sums, own[start:stop], common[start:stop])
        own[start:stop] = common[start:stop]


def divide_and_add_sums(sums: Array | None, own: Array, total: Array, divisor: Array) -> None:
    """Make a sum over ranks their mean, in place, and add up the three sums of products in the same pass over memory.

    Args:
        sums: As for `add_sums`; None where only the mean is wanted.
        own: What this rank brings.
        total: The sum; is divided.
        divisor: (1,) of its dtype, on its device.

    Raises:
        ShapeError, DtypeError: arrays that do not fit.
    """
    if sums is None:
        total /= divisor
        return
    for start, stop in _blocks("divide_and_add_sums", own, total):
        block = total[start:stop]
        block /= divisor
        _add_block(sums, own[start:stop], block)


def sums_of(parts: Iterable[tuple[Array, Array]]) -> Array:
    """The three sums of pairs (own, common) that are the parts of one rank's values, all on one device.

    Raises:
        ArgumentError: there is no part. ShapeError, DtypeError: arrays that do not fit.
    """
    pairs = list(parts)
    if not pairs:
        raise ArgumentError("sums_of: expected at least one pair of arrays, got none")
    sums = no_sums(pairs[0][0])
    for own, common in pairs:
        add_sums(sums, own, common)
    return sums


def _blocks(who: str, own: Array, common: Array) -> list[tuple[int, int]]:
    module = array_module(own)
    if array_module(common) is not module or own.dtype != common.dtype or not is_float(own.dtype):
        raise DtypeError(f"{who}: expected two arrays of one float dtype, got {own.dtype.name} and {common.dtype.name}")
    if own.ndim != 1 or own.shape != common.shape:
        raise ShapeError(f"{who}: expected two arrays (n,) of one length, got {own.shape} and {common.shape}")
    size = _HOST_BLOCK if module is np else _GPU_BLOCK
    return [(start, min(start + size, own.size)) for start in range(0, own.size, size)]


def _add_block(sums: Array, own: Array, common: Array) -> None:
    with device_of(own).current():
        p, a = own.astype(np.float64), common.astype(np.float64)
        sums[1] += product(p, p)
        sums[2] += product(a, a)
        p -= a
        sums[0] += product(p, p)
