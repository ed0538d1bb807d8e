"""Collectives as functions of a list of arrays, element r being rank r's. No rank, clock or thread in here.

Sums go over the ranks in one fixed pairwise order: neighbours first, then pairs of pairs; an odd one out waits for
its turn. The result therefore depends neither on timing nor on how a gradient is cut into buckets, and for powers of
two a rank that adds up its own consecutive shards in the same order fits into the larger tree bit for bit.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.absent import LackingMembers
from minigrad.arguments import as_integer
from minigrad.backend.device import array_module, device_of
from minigrad.backend.dtypes import Array, is_float, is_half
from minigrad.backend.fused.grad_scale import Widened, scale_
from minigrad.backend.fused.replicas import MOST_REPLICAS, reduce_replicas_
from minigrad.backend.kernels import kernels_for
from minigrad.errors import ArgumentError, DtypeError, ShapeError


class ReduceOp(enum.Enum, metaclass=LackingMembers):
    """How a reduction combines the values of the ranks; the names are NCCL's."""

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    PROD = "prod"
    PRODUCT = "prod"  # PyTorch's name of it

    __hash__ = object.__hash__  # that of Enum is a function in Python


_UFUNCS = {
    ReduceOp.SUM: "add",
    ReduceOp.AVG: "add",
    ReduceOp.MIN: "minimum",
    ReduceOp.MAX: "maximum",
    ReduceOp.PROD: "multiply",
}


def all_reduce(arrays: Sequence[Array], op: ReduceOp = ReduceOp.SUM) -> None:
    """Overwrite every array by the reduction of all of them; each then holds the same bits.

    float16 and bfloat16 are combined in float32 and rounded once. No array may overlap another.

    Args:
        arrays: One a rank, of equal shape and dtype.
        op: AVG needs a float dtype.

    Raises:
        ArgumentError: no array at all.
        ShapeError, DtypeError: arrays of different shapes or dtypes, or AVG of integers.
    """
    check_combinable("all_reduce", arrays)
    combine(arrays, op)


def weighted_all_reduce(
    arrays: Sequence[Array],
    weights: Sequence[Array | None],
    add_up: Callable[[Sequence[Array]], None] = all_reduce,
) -> None:
    """Overwrite every array by the sum of array · weight over all of them.

    float16 and bfloat16 are weighted and added up in float32, and rounded once.

    Args:
        arrays: One a rank, as for `all_reduce`; contiguous and float.
        weights: Of each, float64 (1,) where the array lives; None for 1. A weight of 0 takes nothing over, not NaN.
        add_up: Overwrites every array of a list by their sum.
    """
    check_combinable("weighted_all_reduce", arrays)
    if not is_half(arrays[0].dtype):
        for array, weight in zip(arrays, weights):
            if weight is not None:
                with device_of(array).current():
                    scale_(array.reshape(-1), weight)
        add_up(arrays)
        return
    widened = []
    for array, weight in zip(arrays, weights):
        with device_of(array).current() as xp:
            widened.append(Widened(array.reshape(-1), xp.empty(array.size, np.float32)))
            widened[-1].fill(weight)
    add_up([each.wide for each in widened])
    for array, each in zip(arrays, widened):
        with device_of(array).current():
            each.round()


def combine(arrays: Sequence[Array], op: ReduceOp) -> None:
    """`all_reduce` of arrays that are known to fit together, block after block of larger ones say."""
    if op is ReduceOp.SUM and _has_kernel(arrays):
        with device_of(arrays[0]).current():
            reduce_replicas_(arrays)  # in the order of `pairwise`, as is what follows
        return
    total = reduced(arrays, op)
    for array in arrays:
        if array is not total:
            array[...] = total


def _has_kernel(arrays: Sequence[Array]) -> bool:
    """Whether one pass of a kernel adds up all of them."""
    first = arrays[0]
    if kernels_for(first) is None or not is_float(first.dtype) or len(arrays) > MOST_REPLICAS:
        return False
    device = device_of(first)
    return all(array.flags.c_contiguous and device_of(array) == device for array in arrays)


def check_combinable(who: str, arrays: Sequence[Array]) -> None:
    """Refuse arrays that ranks can't combine.

    Raises:
        ArgumentError: no array at all.
        ShapeError, DtypeError: different shapes, different dtypes, or something that is no array.
    """
    if not arrays:
        raise ArgumentError(f"{who}: expected at least one array, got none")
    for array in arrays:
        array_module(array)
    shapes, dtypes = dict.fromkeys([a.shape for a in arrays]), dict.fromkeys([a.dtype for a in arrays])
    if len(shapes) > 1:
        raise ShapeError(f"{who}: expected arrays of one shape, got {' and '.join(map(str, shapes))}")
    if len(dtypes) > 1:
        raise DtypeError(f"{who}: expected arrays of one dtype, got {' and '.join(dtype.name for dtype in dtypes)}")


def _check_parts(who: str, wholes: Sequence[Array], parts: Sequence[Array]) -> None:
    """Refuse wholes that are not as many and as long as all parts together."""
    check_combinable(who, wholes)
    check_combinable(who, parts)
    if len(wholes) != len(parts) or wholes[0].size != len(parts) * parts[0].size:
        raise ShapeError(
            f"{who}: expected {len(parts)} arrays of {len(parts)} times the elements of {parts[0].shape}, "
            f"got {len(wholes)} of {wholes[0].shape}"
        )
    check_combinable(who, [wholes[0].reshape(-1)[:0], parts[0].reshape(-1)[:0]])


def reduced(arrays: Sequence[Array], op: ReduceOp) -> Array:
    """The reduction of all arrays, not yet rounded to their dtype; the arrays may be overwritten on the way.

    Raises:
        DtypeError: AVG of integers.
    """
    dtype = arrays[0].dtype
    if op is ReduceOp.AVG and not is_float(dtype):
        raise DtypeError(f"all_reduce: expected a float dtype for AVG, got {dtype.name}")
    wide = [a.astype(np.float32) for a in arrays] if is_half(dtype) else list(arrays)
    total = pairwise(wide, _combine(op, array_module(arrays[0])))
    if op is ReduceOp.AVG:
        total /= len(arrays)
    return total


def _combine(op: ReduceOp, xp: Any) -> Callable[[Array, Array], None]:
    """A function that folds its second argument into its first."""
    ufunc = getattr(xp, _UFUNCS[op])

    def fold(into: Array, other: Array) -> None:
        ufunc(into, other, out=into)

    return fold


def pairwise(values: Sequence[Any], fold: Callable[[Any, Any], None]) -> Any:
    """Fold all values into the first in the fixed pairwise order, and return it.

    Args:
        values: At least one; all but the first are left in an unspecified state.
        fold: fold(a, b) combines b into a.
    """
    stride = 1
    while stride < len(values):
        for i in range(0, len(values) - stride, 2 * stride):
            fold(values[i], values[i + stride])
        stride *= 2
    return values[0]


def broadcast(arrays: Sequence[Array], root: int) -> None:
    """Overwrite every array by the root's.

    Raises:
        ArgumentError: no array at all, or root is none of them.
        ShapeError, DtypeError: arrays of different shapes or dtypes.
    """
    check_combinable("broadcast", arrays)
    as_integer("broadcast", "root", root, 0, len(arrays))
    for array in arrays:
        if array is not arrays[root]:
            array[...] = arrays[root]


def reduce_scatter(outputs: Sequence[Array], inputs: Sequence[Array], op: ReduceOp = ReduceOp.SUM) -> None:
    """Give rank r part r of the reduction of all inputs; the inputs may be overwritten.

    Shapes:
        inputs: (world_size * n,) each, outputs: (n,) each

    Raises:
        ArgumentError, ShapeError, DtypeError: no arrays, or some that do not fit as above.
    """
    _check_parts("reduce_scatter", inputs, outputs)
    total = reduced(inputs, op)
    for output, part in zip(outputs, total.reshape(len(inputs), -1)):
        output[...] = part.reshape(output.shape)


def all_gather(outputs: Sequence[Array], inputs: Sequence[Array]) -> None:
    """Give every rank the inputs of all ranks, in order of rank.

    Shapes:
        inputs: (n,) each, outputs: (world_size * n,) each

    Raises:
        ArgumentError, ShapeError, DtypeError: no arrays, or some that do not fit as above.
    """
    _check_parts("all_gather", outputs, inputs)
    parts = [part.reshape(-1) for part in inputs]
    for output in outputs:
        flat = output.reshape(len(parts), -1)
        for i, part in enumerate(parts):
            flat[i] = part
