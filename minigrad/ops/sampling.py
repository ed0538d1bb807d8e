"""New tensors at random, drawn on the host: one seed gives the same values on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, check_generator, is_integer
from minigrad.backend.dtypes import Array, DtypeLike, as_dtype, is_float
from minigrad.backend.random import noise_generator
from minigrad.errors import ArgumentError, DtypeError
from minigrad.ops.creation import DeviceLike, lengths_of, like_options, upload
from minigrad.ops.shape import MOST_ELEMENTS
from minigrad.tensor import Tensor

__all__ = ["rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm"]


def randn(
    *size: Any,
    rng: np.random.Generator | None = None,
    dtype: DtypeLike = float,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal numbers of a shape.

    Args:
        rng: Where they come from; this context's noise stream by default.

    Raises:
        ShapeError: negative lengths.
        DtypeError: not a float dtype.
        ArgumentError: rng is no generator.
    """
    draw = _source("randn", rng).standard_normal
    return _drawn("randn", draw, size, as_dtype(dtype), device, requires_grad)


def rand(
    *size: Any,
    rng: np.random.Generator | None = None,
    dtype: DtypeLike = float,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers of a shape drawn uniformly from [0, 1).

    Args:
        rng: Where they come from; this context's noise stream by default.

    Raises:
        ShapeError: negative lengths.
        DtypeError: not a float dtype.
        ArgumentError: rng is no generator.
    """
    draw = _source("rand", rng).random
    return _drawn("rand", draw, size, as_dtype(dtype), device, requires_grad)


def _source(who: str, rng: np.random.Generator | None) -> np.random.Generator:
    check_generator(who, rng)
    return noise_generator() if rng is None else rng


def _drawn(
    who: str,
    draw: Callable[..., Array],
    size: tuple[Any, ...],
    dtype: np.dtype[Any],
    device: DeviceLike,
    requires_grad: bool,
) -> Tensor:
    """Floats from a generator's method, which draws float64 or float32; half floats are rounded from the latter."""
    if not is_float(dtype):
        raise DtypeError(f"{who}: expected a float dtype, got {dtype.name}")
    values = draw(lengths_of(who, size), dtype=np.float64 if dtype == np.float64 else np.float32)
    return upload(np.asarray(values), dtype, device, requires_grad)


def randint(
    low: int,
    high: int | None = None,
    size: Any = None,
    *,
    rng: np.random.Generator | None = None,
    dtype: DtypeLike = int,
    device: DeviceLike = None,
) -> Tensor:
    """Integers drawn uniformly from [low, high): `randint(2, 10, (3, 4))`, `randint(10, size=(3, 4))` from [0, 10).

    Args:
        size: A shape.
        rng: Where they come from; this context's noise stream by default.

    Raises:
        ArgumentError: an empty range, one that does not fit into dtype, no size, or rng is no generator.
    """
    if isinstance(high, (tuple, list)) and size is None:
        high, size = None, high
    low, high = (0, low) if high is None else (low, high)
    if size is None:
        raise ArgumentError(f"randint: expected a size, got low {low}, high {high} and none")
    if not (is_integer(low) and is_integer(high)) or low >= high:
        raise ArgumentError(f"randint: expected integers low < high, got {low!r} and {high!r}")
    found = as_dtype(dtype)
    limits = np.iinfo(found if found.kind in "iu" else np.int64)
    if low < limits.min or high - 1 > limits.max:
        raise ArgumentError(f"randint: expected a range that fits into {limits.dtype.name}, got [{low}, {high})")
    drawn = _source("randint", rng).integers(low, high, lengths_of("randint", (size,)))
    return upload(np.asarray(drawn), found, device, False)


def randint_like(
    x: Tensor,
    low: int,
    high: int | None = None,
    *,
    rng: np.random.Generator | None = None,
    dtype: DtypeLike = None,
    device: DeviceLike = None,
) -> Tensor:
    """Integers uniform in [low, high), or [0, low), in x's shape, dtype and device, unless others are given."""
    options = like_options("randint_like", x, dtype, device)
    return randint(low, high, x.shape, rng=rng, **options)


def randperm(n: int, *, rng: np.random.Generator | None = None, device: DeviceLike = None) -> Tensor:
    """0 ... n - 1 in random order, as int64.

    Args:
        rng: Where the order comes from; this context's noise stream by default.

    Raises:
        ArgumentError: n is negative, too large or no integer, or rng is no generator.
    """
    n = as_integer("randperm", "n", n, 0, MOST_ELEMENTS)
    return upload(_source("randperm", rng).permutation(n), as_dtype(int), device, False)


def randn_like(
    x: Tensor,
    *,
    rng: np.random.Generator | None = None,
    dtype: DtypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal numbers in x's shape, dtype and device, unless others are given."""
    options = like_options("randn_like", x, dtype, device)
    return randn(x.shape, rng=rng, requires_grad=requires_grad, **options)


def rand_like(
    x: Tensor,
    *,
    rng: np.random.Generator | None = None,
    dtype: DtypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers uniform in [0, 1) in x's shape, dtype and device, unless others are given."""
    options = like_options("rand_like", x, dtype, device)
    return rand(x.shape, rng=rng, requires_grad=requires_grad, **options)
