"""What the operations over the steps of sequences share: their rows, their arguments, their outputs.

A row is one step of one sequence. The rows of a step lie next to each other, and after those of the step before. Of
sequences with different lengths the longest comes first, so that each step has the rows of the first few sequences,
and no row is made for a step that a sequence has not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from minigrad.arguments import check_switch, is_integer, kind_of
from minigrad.autograd.tape import Node
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, converted, is_float, widened
from minigrad.backend.workspace import empty
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.join import part_backward
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
        outputs: The output as rows.
        h, c: The state of each sequence as a column: the initial ones, that become the last ones.
    """

    rows: Array
    outputs: Array
    h: Array
    c: Array


def arrays_of(steps: Steps, given: dict[str, Tensor], cells: int = 0) -> Arrays:
    """The rows of x, and memory for the outputs; cells is the length of c where there is one."""
    rows = widened(given["x"].data).reshape(steps.rows, given["x"].shape[-1])
    xp, width = array_module(rows), given["weight_hh"].shape[1]
    states = []
    for name, height in (("h", width), ("c", cells)):
        state = xp.zeros((height, steps.sequences), rows.dtype)
        if name in given:
            state[...] = widened(given[name].data).T
        states.append(state)
    return Arrays(rows, empty((steps.rows, width), rows.dtype, rows), *states)


def give_outputs(
    steps: Steps, arrays: Arrays, given: dict[str, Tensor], backward: Callable[[Node, Array], None],
    saved: tuple[Any, ...],
) -> list[Tensor]:
    """Record the call, and its outputs: that of all steps, and the last h and c. One node stands behind them all."""
    x = given["x"]
    found = [arrays.outputs.reshape(*steps.axes, arrays.outputs.shape[1])]
    found += [array_module(state).ascontiguousarray(state.T) for state in arrays[2:] if len(state)]
    joint = record(found[0], backward, tuple(given.values()), (steps, tuple(given), *saved))
    return [record(narrowed(one, x), _output_backward, (joint,), (i,)) for i, one in enumerate(found)]


def _output_backward(node: Node, grad: Array) -> None:
    """The gradient of one of the outputs waits in the node of the call, which comes after them all."""
    call: Any = node.inputs[0]
    if call is not None:
        i = node.saved[0]
        if call.grad_array is None:
            call.grad_array, call.grad_owned = grad, {}
        waiting = call.grad_owned
        waiting[i] = waiting[i] + grad if i in waiting else grad


def given_gradients(steps: Steps, node: Node, width: int, cells: int = 0) -> tuple[Array, Array, Array]:
    """What came to the outputs of a call: as rows, and of h and c as columns, which may be written; zeros for nothing.

    The last that the node saved is an array of the dtype that it computes with.
    """
    came: Any = node.grad_owned
    node.grad_owned = False
    xp, wide = array_module(node.saved[-1]), node.saved[-1].dtype
    states = []
    for i, height in ((1, width), (2, cells)):
        state = xp.zeros((height, steps.sequences), wide)
        if i in came:
            state[...] = widened(came[i]).T
        states.append(state)
    rows = widened(came[0]).reshape(-1, width) if 0 in came else xp.zeros((steps.rows, width), wide)
    return rows, states[0], states[1]


def narrowed(array: Array, like: Tensor) -> Array:
    """An array in the dtype of a tensor."""
    return array if array.dtype == like.dtype else converted(array, like.dtype)
