"""What the operations over the steps of sequences share: their rows, their arguments, their outputs.

A row is one step of one sequence. The rows of a step lie next to each other, and after those of the step before. Of
sequences with different lengths the longest comes first, so that each step has the rows of the first few sequences,
and no row is made for a step that a sequence has not.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from minigrad.arguments import check_switch, is_integer, kind_of
from minigrad.autograd.tape import Edge, Node, accumulate, accumulate_at, destination
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, converted, is_float, widened
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.axes import column_sum
from minigrad.ops.join import part_backward
from minigrad.ops.linalg import product
from minigrad.ops.operands import same_device
from minigrad.tensor import Tensor, record


class Steps(NamedTuple):
    """The steps of a call.

    Attributes:
        spans: The rows of each step, and how many sequences have it, in the order in which steps are taken.
        sequences: Their number.
        axes: The lengths of the output's axes before its last.
    """

    spans: list[tuple[slice, int]]
    sequences: int
    axes: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Their number, over all steps."""
        return math.prod(self.axes)


def steps_of(who: str, x: Any, reverse: bool, batch_sizes: Any) -> Steps:
    """The steps of x (L, N, features), or of rows (R, features) of which batch_sizes says how many a step has.

    Raises:
        DtypeError: x is no tensor. ShapeError: x has other axes, or no step. ArgumentError: batch_sizes that grow, that
            are no integers >= 1, or that do not add up to the rows; reverse is no bool.
    """
    check_switch(who, reverse=reverse)
    if not isinstance(x, Tensor):
        raise DtypeError(f"{who}: expected a tensor, got {kind_of(x)}")
    axes = x.shape[:-1]
    if x.ndim != (3 if batch_sizes is None else 2):
        form = "(steps, sequences, features)" if batch_sizes is None else "(rows, features), with batch_sizes"
        raise ShapeError(f"{who}: expected x of shape {form}, got {x.shape}")
    sizes = [axes[1]] * axes[0] if batch_sizes is None else sizes_of_steps(who, batch_sizes, axes[0])
    if not sizes:
        raise ShapeError(f"{who}: expected at least one step, got x of shape {x.shape}")
    ends = list(itertools.accumulate(sizes))
    spans = [(slice(end - size, end), size) for end, size in zip(ends, sizes)]
    return Steps(spans[::-1] if reverse else spans, sizes[0], axes)


def sizes_of_steps(who: str, batch_sizes: Any, rows: int) -> list[int]:
    """How many sequences each step has, as a list.

    Raises:
        ArgumentError: they grow, are no integers >= 1, or do not add up to the rows.
    """
    listed = batch_sizes.tolist() if hasattr(batch_sizes, "tolist") else batch_sizes
    if not isinstance(listed, (list, tuple)) or not all(is_integer(size) and size > 0 for size in listed):
        raise ArgumentError(f"{who}: expected batch_sizes to be integers >= 1, got {listed!r:.100}")
    if sum(listed) != rows or any(later > size for size, later in zip(listed, listed[1:])):
        raise ArgumentError(
            f"{who}: expected batch_sizes that never grow and add up to {rows} rows, got {listed!r:.100}"
        )
    return [int(size) for size in listed]


def pick_rows(x: Tensor, index: tuple[Array, Array]) -> Tensor:
    """x[index], for two arrays of NumPy that fit its first axes and name no row twice."""
    with x.device.current() as xp:
        places = tuple([xp.asarray(part) for part in index])
        return record(x.data[places], part_backward, (x,), (x.data.shape, places))


def pair_of(who: str, hx: Any) -> tuple[Any, Any]:
    """The initial h and c; None and None for zeros.

    Raises:
        ArgumentError: no pair.
    """
    if hx is None:
        return None, None
    if not isinstance(hx, (tuple, list)) or len(hx) != 2:
        raise ArgumentError(f"{who}: expected hx to be a pair of tensors, h and c, got {kind_of(hx)}")
    return hx[0], hx[1]


def check_tensors(who: str, gates: int, steps: Steps, tensors: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors that were given, by name: of the shapes that they have to have, one float dtype and one device.

    Raises:
        DtypeError, ShapeError, DeviceError: they do not fit; the first that does not is named.
    """
    always = ("x", "weight_ih", "weight_hh")
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None or name in always}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise DtypeError(f"{who}: expected {name} to be a tensor, got {kind_of(tensor)}")
    x, weight = given["x"], given["weight_ih"]
    if weight.ndim != 2 or weight.shape[0] % gates or not weight.shape[0]:
        first = "hidden" if gates == 1 else f"{gates}·hidden"
        raise ShapeError(f"{who}: expected weight_ih of shape ({first}, features), got {weight.shape}")
    units = weight.shape[0] // gates
    height = units if "weight_hr" not in given else given["weight_hr"].shape[0]
    fitting = {
        "weight_ih": (gates * units, x.shape[-1]),
        "weight_hh": (gates * units, height),
        "weight_hr": (height, units),
        "bias_ih": (gates * units,),
        "bias_hh": (gates * units,),
        "h": (steps.sequences, height),
        "c": (steps.sequences, units),
    }
    for name, tensor in given.items():
        if name != "x" and tensor.shape != fitting[name]:
            raise ShapeError(f"{who}: expected {name} of shape {fitting[name]} for x {x.shape}, got {tensor.shape}")
    if not is_float(x.dtype) or any(tensor.dtype != x.dtype for tensor in given.values()):
        listed = ", ".join(f"{name} {tensor.dtype.name}" for name, tensor in given.items())
        raise DtypeError(f"{who}: expected one float dtype, got {listed}")
    same_device(who, *given.values())
    return given


class Arrays(NamedTuple):
    """What a call computes with, half precision in float32, and where its outputs go.

    Attributes:
        rows: x as rows.
        states: The memory of all outputs: that of each step, then the last h, then the last c of each sequence.
        outputs, h, c: Parts of it; h and c hold the initial ones.
    """

    rows: Array
    states: Array
    outputs: Array
    h: Array
    c: Array


def arrays_of(steps: Steps, given: dict[str, Tensor], cells: int = 0) -> Arrays:
    """The rows of x, and memory for the outputs; cells is the length of c where there is one."""
    rows = widened(given["x"].data).reshape(steps.rows, given["x"].shape[-1])
    width = given["weight_hh"].shape[1]
    ends = list(itertools.accumulate([steps.rows * width, steps.sequences * width, steps.sequences * cells]))
    states = array_module(rows).empty(ends[-1], rows.dtype)
    outputs = states[: ends[0]].reshape(steps.rows, width)
    h, c = states[ends[0] : ends[1]], states[ends[1] :]
    for part, name in ((h, "h"), (c, "c")):
        part[...] = widened(given[name].data).reshape(-1) if name in given else 0
    return Arrays(rows, states, outputs, h.reshape(-1, width), c.reshape(steps.sequences, cells))


def affine(rows: Array, weight: Tensor, *biases: Tensor | None) -> Array:
    """rows @ weightᵀ + biases, whose sum is added in one pass over the rows."""
    out, given = product(rows, widened(weight.data).T), [widened(bias.data) for bias in biases if bias is not None]
    if given:
        out += functools.reduce(operator.add, given)
    return out


def sigmoid_inplace(x: Array) -> None:
    """Overwrite x by its sigmoid, (1 + tanh(x/2))/2: NumPy's tanh is faster than its exponential."""
    x *= 0.5
    array_module(x).tanh(x, out=x)
    x *= 0.5
    x += 0.5


def give_outputs(
    steps: Steps, arrays: Arrays, given: dict[str, Tensor], backward: Callable[[Node, Array], None],
    saved: tuple[Any, ...],
) -> list[Tensor]:
    """Record the call, and its outputs as parts of what it gave: that of all steps, and the last h and c.

    Where only some of them have a gradient, or several, the parts add up what there is.
    """
    x, states = given["x"], arrays.states
    data = narrowed(states, x)
    whole = record(data, backward, tuple(given.values()), (steps, tuple(given), *saved))
    parts: list[Tensor] = []
    start = 0
    for array in arrays[2:]:
        if array.shape[-1]:
            part = slice(start, start + array.size)
            shape = array.shape if parts else (*steps.axes, array.shape[-1])
            own = data[part].reshape(shape)
            parts.append(record(own.copy() if parts else own, _part_backward, (whole,), (data.shape, part)))
        start += array.size
    return parts


def _part_backward(node: Node, grad: Array) -> None:
    shape, part = node.saved
    accumulate_at(node.inputs[0], shape, part, grad.reshape(-1))


def parted(steps: Steps, grad: Array, width: int, cells: int = 0) -> tuple[Array, Array, Array]:
    """The gradients of the outputs, of the last h and of the last c; the last two may be written."""
    wide, first, second = widened(grad), steps.rows * width, (steps.rows + steps.sequences) * width
    last = wide[first:].copy()
    h, c = last[: second - first], last[second - first :]
    return wide[:first].reshape(-1, width), h.reshape(-1, width), c.reshape(steps.sequences, cells)


def narrowed(array: Array, like: Tensor) -> Array:
    """An array in the dtype of a tensor."""
    return array if array.dtype == like.dtype else converted(array, like.dtype)


def give_product(edge: Edge, a: Array, b: Array, like: Tensor) -> None:
    """Accumulate a @ b in the dtype and shape of a tensor, straight into the flat gradient where that is possible."""
    if edge is None:
        return
    if a.dtype == like.dtype and like.ndim == 2:
        accumulate(edge, product(a, b, destination(edge)))
    else:
        accumulate(edge, narrowed(product(a, b), like).reshape(like.shape))


def _give_sum(edge: Edge, rows: Array, like: Tensor) -> None:
    """Accumulate the sum of the rows in the dtype of a tensor."""
    if edge is not None:
        own = rows.dtype == like.dtype
        accumulate(edge, column_sum(rows, destination(edge)) if own else narrowed(column_sum(rows), like))


def give_back(
    edges: dict[str, Edge], x: Tensor, weight_ih: Tensor, weight_hh: Tensor, before: Array, of_input: Array,
    of_hidden: Array, dh: Array,
) -> None:
    """The gradients of what all recurrences have, each weight's as one product over all rows.

    Args:
        before: What h was before each row.
        of_input, of_hidden: The gradients of x @ weight_ihᵀ + bias_ih and of h @ weight_hhᵀ + bias_hh.
        dh: That of the initial h.
    """
    give_product(edges["x"], of_input, widened(weight_ih.data), x)
    give_product(edges["weight_ih"], of_input.T, widened(x.data).reshape(len(of_input), x.shape[-1]), weight_ih)
    give_product(edges["weight_hh"], of_hidden.T, before, weight_hh)
    _give_sum(edges.get("bias_ih"), of_input, x)
    _give_sum(edges.get("bias_hh"), of_hidden, x)
    accumulate(edges.get("h"), narrowed(dh, x))
