"""A border around a tensor that is made of its own elements, axis by axis: mirrored, repeated, or going round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigrad.autograd.tape import Node, accumulate, lend
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype, converted
from minigrad.errors import ShapeError
from minigrad.tensor import Tensor, record

BORDERS = ("reflect", "replicate", "circular")


def bordered(who: str, x: Tensor, pairs: Sequence[tuple[int, int]], mode: str) -> Tensor:
    """x with a border of (before, after) elements along each axis, as `pad` has it.

    Raises:
        ShapeError: a border that is wider than what it is a copy of.
    """
    sources = []
    for axis, (before, after) in enumerate(pairs):
        if (before, after) != (0, 0):
            length = x.data.shape[axis]
            kept = length + min(before, 0) + min(after, 0)
            most = {"reflect": length - 1, "replicate": 2**62 * length, "circular": kept}[mode]
            if max(before, after) > most:
                raise ShapeError(
                    f"{who}: expected a {mode} border of at most {max(most, 0)} along axis {axis} of {x.shape}, "
                    f"got {(before, after)}"
                )
            sources.append((axis, length, before, _source(length, before, after, mode)))
    data = x.data
    for axis, _, _, source in sources:
        data = data.take(array_module(data).asarray(source), axis)
    return record(data.copy() if data is x.data else data, _bordered_backward, (x,), tuple(sources))


def _source(length: int, before: int, after: int, mode: str) -> Array:
    """The position in x of each element along an axis of the result."""
    places = np.arange(-before, length + after)
    if mode == "circular":  # what is cut off is not met again
        first, kept = max(-before, 0), length + min(before, 0) + min(after, 0)
        return first + (places - first) % max(kept, 1)
    if mode == "reflect":
        places = length - 1 - abs(length - 1 - abs(places))
    return places.clip(0, max(length - 1, 0))


def _bordered_backward(node: Node, grad: Array) -> None:
    if not node.saved:
        lend(node.inputs[0], grad)
        return
    dtype = grad.dtype
    grad = grad.astype(accumulator_dtype(dtype), copy=False)
    for axis, length, before, source in reversed(node.saved):
        grad = _folded(grad, axis, length, before, source)
    accumulate(node.inputs[0], converted(grad, dtype))


def _folded(
    grad: Array, axis: int, length: int, before: int, source: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Array:
    """A gradient with that of its border added to where the border came from, along an axis."""
    xp, front = array_module(grad), (slice(None),) * axis
    total = xp.zeros((*grad.shape[:axis], length, *grad.shape[axis + 1 :]), grad.dtype)
    start, first = max(before, 0), max(-before, 0)  # where x itself begins in the gradient, and with which element
    stop = start + max(min(length - first, len(source) - start), 0)
    total[front + (slice(first, first + stop - start),)] += grad[front + (slice(start, stop),)]
    for place in (*range(start), *range(stop, len(source))):
        total[front + (int(source[place]),)] += grad[front + (place,)]
    return total
