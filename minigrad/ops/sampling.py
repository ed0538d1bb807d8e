"""New tensors at random, drawn on the host: one seed gives the same values on every device.

bernoulli and multinomial draw by the probabilities that a tensor holds, where that is. The noise for them comes from
the host too, so one seed draws the same on every device, but for probabilities that a sum rounds differently there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, as_real, check_generator, check_switch, is_integer
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module, device_of, to_device
from minigrad.backend.dtypes import Array, DtypeLike, as_dtype, is_float
from minigrad.backend.flags import check_range
from minigrad.backend.random import noise_generator
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.creation import DeviceLike, lengths_of, like_options, upload
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, check_float
from minigrad.ops.shape import MOST_ELEMENTS
from minigrad.ops.sorting import order_along
from minigrad.tensor import Tensor, record

__all__ = [
    "bernoulli", "multinomial", "normal", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like",
    "randperm",
]


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


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    rng: np.random.Generator | None = None,
    dtype: DtypeLike = float,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal numbers of a mean and a standard deviation: numbers with a size, or tensors, one number for each element.

    Args:
        size: A shape; with a tensor it is left out.
        rng: Where they come from; this context's noise stream by default.

    Raises:
        ArgumentError: numbers without a size, a size with a tensor, or a negative std.
        DtypeError: not a float dtype.
        ShapeError: a mean and a std that do not broadcast.
    """
    tensors = [x for x in (mean, std) if isinstance(x, Tensor)]
    if bool(tensors) == (size is not None):
        raise ArgumentError(f"normal: expected a size, or a tensor for mean or std, got size {size!r:.100}")
    if not isinstance(std, Tensor):
        as_real("normal", "std", std, 0.0, finite=True)
    if not tensors:
        draw = _source("normal", rng).standard_normal
        out = _drawn("normal", draw, (size,), as_dtype(dtype), device, False)
        return Tensor((out * std + mean).data, requires_grad)
    try:
        shape = np.broadcast_shapes(*(x.data.shape for x in tensors))
    except ValueError as error:
        listed = " and ".join(str(x.shape) for x in tensors)
        raise ShapeError(f"normal: expected shapes that broadcast, got {listed}") from error
    out = randn(shape, rng=rng, dtype=tensors[0].dtype, device=tensors[0].device)
    return Tensor((out * std + mean).data, requires_grad)


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


# ------------------------------------------------------------------------------------ by the probabilities of a tensor


@method
def bernoulli(x: TensorLike, p: float | None = None, *, rng: np.random.Generator | None = None) -> Tensor:
    """1 with the probability that each element of x is, else 0, in the dtype of x. Its gradient is zero.

    Args:
        p: One probability for all elements, of which x then gives shape and dtype alone.
        rng: Source of the noise; this context's noise stream by default.

    Raises:
        DtypeError: probabilities that are no floats.
        ArgumentError: p or, on a CPU, an element outside [0, 1], or rng is no generator.
        IndexRangeError: an element outside [0, 1] on a GPU, when the host next reads from it.
    """
    x = as_operand("bernoulli", x)
    chances = x if p is None else Tensor(np.asarray(as_real("bernoulli", "p", p, 0.0, 1.0)))
    return record(tossed("bernoulli", x, chances, rng), _bernoulli_backward, (x,))


def _bernoulli_backward(node: Node, grad: Array) -> None:
    accumulate(node.inputs[0], array_module(grad).zeros_like(grad))


def tossed(who: str, x: Tensor, chances: Tensor, rng: np.random.Generator | None) -> Array:
    """Ones and zeros in the shape and dtype of x, by probabilities that broadcast to it."""
    check_float(who, chances)
    source = _source(who, rng)
    good = (chances.data >= 0) & (chances.data <= 1)
    if not isinstance(chances.data, np.ndarray):
        check_range(who, "marks of probabilities outside [0, 1]", (~good).astype(np.uint8), 0, 1)
    elif not good.all():
        got = f"{chances.dtype.name} in [{float(chances.data.min()):g}, {float(chances.data.max()):g}]"
        raise ArgumentError(f"{who}: expected probabilities in [0, 1], got {got}")
    noise = to_device(np.asarray(source.random(x.data.shape)), device_of(x.data))
    return (noise < to_device(chances.data.astype(np.float64), device_of(x.data))).astype(x.data.dtype)


@method
def multinomial(
    x: TensorLike, num_samples: int, replacement: bool = False, *, rng: np.random.Generator | None = None
) -> Tensor:
    """Indices of categories, drawn with probabilities in proportion to the weights in each row of x, as int64.

    Without replacement no category is drawn twice: the smallest of e_i / x_i come first, with e standard exponential
    (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006). Nothing flows back.

    Args:
        x: Weights >= 0, of any sum.
        num_samples: How many to draw from each row.
        rng: Source of the noise; this context's noise stream by default.

    Shapes:
        (C,) -> (num_samples,); (N, C) -> (N, num_samples)

    Raises:
        ShapeError: another number of axes, or no categories.
        DtypeError: integer weights.
        ArgumentError: num_samples is no integer >= 1, replacement no bool, rng no generator; on a CPU also weights that
            are negative or not finite, and too few that are above 0.
        IndexRangeError: such weights on a GPU, when the host next reads from it.

    Example:
        >>> import minigrad
        >>> minigrad.multinomial(minigrad.tensor([0.0, 3.0, 0.0, 1.0]), 2).sort().values.tolist()
        [1, 3]
    """
    x = as_operand("multinomial", x)
    check_float("multinomial", x)
    check_switch("multinomial", replacement=replacement)
    count = as_integer("multinomial", "num_samples", num_samples, 1, MOST_ELEMENTS)
    if x.ndim not in (1, 2) or not x.shape[-1]:
        raise ShapeError(f"multinomial: expected weights of shape (C,) or (N, C) with C >= 1, got {x.shape}")
    draw = _with_replacement if replacement else _without_replacement
    weights = x.data.astype(np.float64).reshape(-1, x.shape[-1])
    _check_weights(weights, 1 if replacement else count)
    return Tensor(draw(weights, count, _source("multinomial", rng)).reshape(*x.shape[:-1], count))


def _check_weights(weights: Array, least: int) -> None:
    """Refuse rows that do not have so many weights above 0, or one that is negative or not finite."""
    xp, categories = array_module(weights), weights.shape[1]
    good = (weights >= 0) & (weights < np.inf)
    found = xp.where(good.all(axis=1), (weights > 0).sum(axis=1), xp.zeros((), np.int64))
    if not isinstance(found, np.ndarray):
        check_range("multinomial", "numbers of weights above 0 in rows of good ones", found, least, categories + 1)
    elif found.min(initial=least) < least:
        row = weights[int(np.argmin(found))]
        raise ArgumentError(
            f"multinomial: expected finite weights >= 0, at least {least} of them above 0 in each row, "
            f"got {np.count_nonzero(row > 0)} of {categories} in [{row.min():g}, {row.max():g}]"
        )


def _without_replacement(weights: Array, count: int, rng: np.random.Generator) -> Array:
    noise = rng.standard_exponential(weights.shape)
    keys = weights / to_device(np.maximum(noise, 1e-300), device_of(weights))
    return order_along(keys, 1, descending=True)[:, :count]


def _with_replacement(weights: Array, count: int, rng: np.random.Generator) -> Array:
    """Rows as one ascending line, row i from i to i + 1, in which each number finds the category that it falls into."""
    xp, (rows, categories) = array_module(weights), weights.shape
    sums = weights.cumsum(axis=1)
    first = xp.arange(rows)[:, None]
    noise = to_device(rng.random((rows, count)), device_of(weights))
    line = sums / sums[:, -1:] + first
    found = xp.searchsorted(line.reshape(-1), (noise + first).reshape(-1), side="right").reshape(rows, count)
    last = categories - 1 - xp.flip(weights > 0, 1).argmax(axis=1)[:, None]  # what rounding leads beyond
    return xp.minimum(found - first * categories, last)
