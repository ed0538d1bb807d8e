"""How recurrences lie in memory: the numbers of a step as columns, one for each sequence, so that a gate is one block.

A product of a step is weight @ columns, (gates·H, F) @ (F, N), and each gate of its result is contiguous: NumPy takes
half the time for it that a part of each of N rows takes. What only depends on the steps before is computed for a
stretch of steps at once, as long as it stays in a cache; on a GPU, as long as the same sequences have a step.

Weights are folded first: gates of one kind stand together, and those that end in a sigmoid are negated, for it is
1 / (1 + exp(-a)). Their gradients are folded alike, and unfolded at the end. Of a single step of few sequences the
numbers of the gates are folded instead, which are less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minigrad.autograd.tape import Edge, Node, accumulate, destination, lend
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, widened
from minigrad.backend.workspace import empty
from minigrad.ops.linalg import product
from minigrad.ops.steps import Steps, narrowed
from minigrad.tensor import Tensor

_LONGEST = 1 << 16  # elements that a stretch keeps: 256 KiB of float32
_GAP = 16  # elements between rows of columns, lest all begin in one set of the cache

Fold = tuple[tuple[slice, slice, bool], ...]  # (gates of the folded, gates as they were, whether they are negated)
LSTM_FOLD: Fold = (  # i, f, n, o: -i, -f, -o, n
    (slice(0, 2), slice(0, 2), True), (slice(2, 3), slice(3, 4), True), (slice(3, 4), slice(2, 3), False),
)
PLAIN_FOLD: Fold = ((slice(0, 1), slice(0, 1), False),)
GRU_FOLD: Fold = ((slice(0, 2), slice(0, 2), True), (slice(2, 3), slice(2, 3), False))


class Stretch(NamedTuple):
    """Steps, one after the other, of the same sequences.

    Attributes:
        rows: Theirs, in order of time.
        steps: How many.
        size: How many sequences.
        order: The numbers of the steps in the stretch as they are taken.
    """

    rows: slice
    steps: int
    size: int
    order: range

    def of_rows(self, x: Array) -> Array:
        """(R, F) as (steps, F, size), a view."""
        return x[self.rows].reshape(self.steps, self.size, x.shape[1]).transpose(0, 2, 1)

    def of_columns(self, x: Array) -> Array:
        """(F, R) as (steps, F, size), a view."""
        return x[:, self.rows].reshape(len(x), self.steps, self.size).transpose(1, 0, 2)

    def of_kept(self, x: Array, parts: int, units: int) -> Array:
        """Memory of parts · units numbers a row as (steps, parts, units, size)."""
        width = parts * units
        taken = x[width * self.rows.start : width * self.rows.stop]
        return taken.reshape(self.steps, parts, units, self.size)


def stretches(steps: Steps, width: int, on_host: bool) -> Iterator[Stretch]:
    """The stretches of a call as they are taken; width is how many numbers are kept of a row."""
    spans, at = steps.spans, 0
    while at < len(spans):
        size, end = spans[at][1], at + 1
        most = max(1, _LONGEST // max(1, width * size)) if on_host else len(spans)
        while end < len(spans) and end - at < most and spans[end][1] == size:
            end += 1
        count, first, last = end - at, spans[at][0], spans[end - 1][0]
        if first.start <= last.start:
            yield Stretch(slice(first.start, last.stop), count, size, range(count))
        else:
            yield Stretch(slice(last.start, first.stop), count, size, range(count - 1, -1, -1))
        at = end


def empty_columns(like: Array, height: int, rows: int) -> Array:
    """A new matrix (height, rows) of columns."""
    gap = _GAP if like.__class__ is np.ndarray else 0
    return empty((height, rows + gap), like.dtype, like)[:, :rows]


def into(a: Array, b: Array, out: Array) -> None:
    """out = a @ b, wherever out lies."""
    if out.flags.c_contiguous:
        product(a, b, out)
    else:
        out[...] = product(a, b)


def fold_of_weights(steps: Steps, weight_hh: Tensor, fold: Fold) -> Fold:
    """How the weights of a call are folded: PLAIN_FOLD where it is less work to fold the gates of its only step."""
    return PLAIN_FOLD if len(steps.spans) == 1 and steps.rows <= weight_hh.shape[1] else fold


def folded(x: Tensor | None, fold: Fold) -> Any:
    """A weight (gates·H, F) or bias (gates·H,) with its gates folded, a bias as one column; None for none."""
    if x is None:
        return None
    wide = widened(x.data)
    if fold is PLAIN_FOLD:
        return wide if wide.ndim > 1 else wide.copy().reshape(-1, 1)
    return _folded(wide if wide.ndim > 1 else wide.reshape(-1, 1), fold)


def _folded(x: Array, fold: Fold) -> Array:
    gates = fold[-1][0].stop
    parts = x.reshape(gates, len(x) // gates, *x.shape[1:])
    out = empty(parts.shape, x.dtype, x)
    for after, before, negated in fold:
        _move(parts[before], out[after], negated)
    return out.reshape(x.shape)


def fold_gates(x: Array, fold: Fold, of_weights: Fold) -> None:
    """Fold what a step has for its gates, (gates·H, size), unless its weights were folded."""
    if of_weights is not fold:
        x[...] = _folded(x, fold)


def unfold_gates(x: Array, fold: Fold, of_weights: Fold) -> None:
    """The way back, of gradients."""
    if of_weights is not fold:
        x[...] = _unfolded(x, fold)


def _unfolded(x: Array, fold: Fold, out: Array | None = None) -> Array:
    """The way back, of a matrix or of a vector."""
    gates = fold[-1][0].stop
    parts = x.reshape(gates, len(x) // gates, *x.shape[1:])
    found = empty(x.shape, x.dtype, x) if out is None else out
    whole = found.reshape(parts.shape)
    for after, before, negated in fold:
        _move(parts[after], whole[before], negated)
    return found


def _move(x: Array, out: Array, negated: bool) -> None:
    if negated:
        array_module(x).negative(x, out=out)
    else:
        out[...] = x


def sigmoids(x: Array, one: Array) -> None:
    """Overwrite negated arguments of the sigmoid by its values; one is 1, without axes."""
    xp = array_module(x)
    xp.exp(x, out=x)
    x += one
    xp.divide(one, x, out=x)


def slopes(values: Array, out: Array) -> None:
    """Write of values of the sigmoid the derivative by its negated argument: s² - s."""
    array_module(values).multiply(values, values, out=out)
    out -= values


def tanh_slopes(values: Array, one: Array, out: Array) -> None:
    """Write of values of tanh the derivative: 1 - t²."""
    xp = array_module(values)
    xp.multiply(values, values, out=out)
    xp.subtract(one, out, out=out)


# -------------------------------------------------------------------------------------------------- the way back


def give_back(
    node: Node, fold: Fold, weight: Array, before: Array, of_input: Array, of_hidden: Array, states: list[Array]
) -> None:
    """The gradients of what all recurrences have, each weight's as one product over all rows.

    Args:
        node: Of the call; steps, names, x, weight_ih and weight_hh are the first that it saved.
        weight: weight_ih, folded.
        before: What h was before each row, as columns.
        of_input, of_hidden: The gradients of x @ weight_ihᵀ + bias_ih and of h @ weight_hhᵀ + bias_hh, folded, too.
        states: Those of the initial h, and c.
    """
    steps, names, x, weight_ih, weight_hh = node.saved[:5]
    edges = dict(zip(names, node.inputs))
    if edges["x"] is not None:
        accumulate(edges["x"], narrowed(_product(of_input.T, weight), x).reshape(x.shape))
    rows = widened(x.data).reshape(steps.rows, x.shape[-1])
    for name, given, factor, like in (
        ("weight_ih", of_input, rows, weight_ih), ("weight_hh", of_hidden, before.T, weight_hh),
    ):
        if edges[name] is not None:
            _give(edges[name], _product(given, factor), fold, like)
    total: Array = None
    for name, given in (("bias_ih", of_input), ("bias_hh", of_hidden)):
        if edges.get(name) is not None:
            total = _column_total(given) if total is None or given is not of_input else total
            _give(edges[name], total, fold, x)
    for name, state in zip("hc", states):
        accumulate(edges.get(name), narrowed(array_module(state).ascontiguousarray(state.T), x))


def _product(a: Array, b: Array) -> Array:
    """a @ b, of matrices with gaps: those `dot` would copy, and `matmul` does a single column without BLAS."""
    if a.__class__ is not np.ndarray or a.shape[1] == 1:
        return product(a, b)
    return np.matmul(a, b, out=empty((a.shape[0], b.shape[1]), a.dtype, a))


def _column_total(x: Array) -> Array:
    return np.einsum("ij->i", x) if x.__class__ is np.ndarray else x.sum(axis=1)


def _give(edge: Edge, found: Array, fold: Fold, like: Tensor) -> None:
    """Accumulate a folded gradient in the dtype of a tensor, straight into the flat gradient where that is possible."""
    if fold is PLAIN_FOLD:
        lend(edge, narrowed(found, like))  # two biases may have one
    elif found.dtype == like.dtype:
        accumulate(edge, _unfolded(found, fold, destination(edge)))
    else:
        accumulate(edge, narrowed(_unfolded(found, fold), like))
