"""Matrix products: matmul for any batch shape, and the fused affine map of a Linear layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.arguments import kind_of
from minigrad.autograd.tape import Edge, Node, accumulate, destination
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype, is_float, is_half
from minigrad.backend.fused.activation import is_activated
from minigrad.backend.fused.bias import add_bias
from minigrad.backend.gemm import bmm
from minigrad.backend.workspace import LEAST_BYTES, empty
from minigrad.errors import DtypeError, ShapeError
from minigrad.ops.axes import column_sum, unbroadcast
from minigrad.ops.methods import method, method_as
from minigrad.ops.operands import TensorLike, operands, same_device
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = ["linear", "matmul"]


@method
@method_as("__matmul__")
@autocasts("low")
def matmul(x: TensorLike, y: TensorLike) -> Tensor:
    """x @ y with NumPy's rules: vectors are rows on the left and columns on the right, batch axes broadcast.

    dx = g @ yᵀ, dy = xᵀ @ g.

    Shapes:
        (..., N, K) @ (..., K, M) -> (..., N, M); (K,) @ (K,) -> ()

    Raises:
        ShapeError: a scalar operand, inner lengths that differ, or batch axes that do not broadcast.
    """
    x, y = operands("matmul", x, y)
    a, b = x.data, y.data
    if not (a.ndim and b.ndim):
        raise ShapeError(f"matmul: expected operands with at least one axis, got {a.shape} and {b.shape}: use *")
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ShapeError(f"matmul: expected equal inner lengths, got {a.shape} @ {b.shape}")
    try:
        return record(product(a, b), _matmul_backward, (x, y), (x, y))
    except ValueError as error:
        raise ShapeError(f"matmul: expected batch axes that broadcast, got {a.shape} @ {b.shape}") from error


@method_as("__rmatmul__")
def rmatmul(y: Tensor, x: TensorLike) -> Tensor:
    """x @ y, called on y: the form for an array x."""
    return matmul(x, y)


def product(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b on arrays, in their dtype; `dot` has less overhead than `matmul` on two matrices of the host."""
    matrices = a.ndim == 2 and b.ndim == 2
    if a.__class__ is not np.ndarray:
        if is_float(a.dtype):
            return bmm(a, b, out) if matrices else _batched(a, b, out)
    elif is_half(a.dtype):
        return _batched(a, b, out)
    elif matrices:
        return a.dot(b, out if out is not None or a.dtype is not b.dtype else _room(a, b))
    return array_module(a).matmul(a, b, out=out)


def _room(a: Array, b: Array) -> Array | None:
    """Where a large product goes that is like its factors; None for a small one."""
    rows, columns = a.shape[0], b.shape[1]
    return empty((rows, columns), a.dtype, a) if rows * columns * a.dtype.itemsize >= LEAST_BYTES else None


def wide_product(a: Array, b: Array) -> Array:
    """a @ b on arrays of matrices, in the dtype that it is summed in: float32 for half precision."""
    if not is_half(a.dtype):
        return product(a, b)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = array_module(a).empty((*batch, a.shape[-2], b.shape[-1]), accumulator_dtype(a.dtype))
    return bmm(a, b, out)


def _batched(a: Array, b: Array, out: Array | None) -> Array:
    """`bmm`, also of vectors."""
    rows = a if a.ndim > 1 else a[None, :]
    columns = b if b.ndim > 1 else b[:, None]
    found = bmm(rows, columns, out)
    if a.ndim > 1 and b.ndim > 1:
        return found
    shape = found.shape if a.ndim > 1 else found.shape[:-2] + found.shape[-1:]
    return found.reshape(shape if b.ndim > 1 else shape[:-1])


def _matmul_backward(node: Node, grad: Array) -> None:
    x, y = node.saved
    dx, dy = node.inputs
    a, b = x.data, y.data
    rows = a if a.ndim > 1 else a[None, :]
    columns = b if b.ndim > 1 else b[:, None]
    if a.ndim == 1:
        grad = grad[..., None, :] if b.ndim > 1 else grad[..., None]
    if b.ndim == 1:
        grad = grad[..., None]
    if dx is not None:
        _give_product(dx, grad, columns.swapaxes(-1, -2), a.shape)
    if dy is not None:
        _give_product(dy, rows.swapaxes(-1, -2), grad, b.shape)


def _give_product(edge: Edge, a: Array, b: Array, shape: tuple[int, ...]) -> None:
    """Accumulate a @ b, straight into the flat gradient where that is possible."""
    if a.ndim == b.ndim == len(shape) == 2:
        accumulate(edge, product(a, b, destination(edge)))
        return
    grad = product(a, b)
    if len(shape) == 1:
        grad = grad.reshape(grad.shape[:-2] + shape)
    accumulate(edge, unbroadcast(grad, shape))


@autocasts("low")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The affine map of the last axis: x @ weightᵀ + bias, in one node.

    dx = g @ weight, dweight = gᵀ @ x, dbias = the sum of g over all but the last axis.

    Shapes:
        x: (..., in_features), weight: (out_features, in_features), bias: (out_features,) -> (..., out_features)

    Raises:
        ShapeError: the shapes do not fit as above.
        DtypeError: the dtypes differ.
    """
    inputs = (x, weight) if bias is None else (x, weight, bias)
    check_linear(inputs)
    out = product(matrix_of(x.data), weight.data.T)
    if bias is not None:
        if is_activated(out):
            add_bias(out, bias.data)
        else:
            out += bias.data
    if x.data.ndim != 2:
        out = out.reshape(x.data.shape[:-1] + out.shape[-1:])
    return record(out, _linear_backward, inputs, (x, weight))


def check_linear(inputs: tuple[Any, ...]) -> None:
    """Refuse what is no x, weight and perhaps bias of `linear`, which names the errors."""
    for tensor in inputs:
        if not isinstance(tensor, Tensor):
            raise DtypeError(f"linear: expected tensors, got {kind_of(tensor)}")
    x, weight = inputs[:2]
    if weight.data.ndim != 2 or not x.data.ndim or x.data.shape[-1] != weight.data.shape[1]:
        raise ShapeError(
            f"linear: expected x (..., in_features) and weight (out_features, in_features), "
            f"got x {x.shape} and weight {weight.shape}"
        )
    if len(inputs) == 3 and inputs[2].data.shape != weight.data.shape[:1]:
        raise ShapeError(f"linear: expected bias of shape {weight.shape[:1]}, got {inputs[2].shape}")
    dtype, on_host = x.data.dtype, True
    for tensor in inputs:
        if tensor.data.dtype is not dtype and tensor.data.dtype != dtype:
            raise DtypeError(f"linear: expected one dtype, got {', '.join(t.dtype.name for t in inputs)}")
        on_host &= tensor.data.__class__ is np.ndarray
    if not on_host:
        same_device("linear", *inputs)


def matrix_of(x: Array) -> Array:
    """All but the last axis as one, which may have no elements."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _linear_backward(node: Node, grad: Array) -> None:
    x, weight = node.saved
    rows = matrix_of(grad)
    give_linear(node, rows, x.data, weight.data)
    if len(node.inputs) == 3 and node.inputs[2] is not None:
        accumulate(node.inputs[2], column_sum(rows, destination(node.inputs[2])))


def give_linear(node: Node, rows: Array, x: Array, weight: Array) -> None:
    """The gradients of x and weight, a node's first inputs, from those of the rows of their product."""
    dx, dweight = node.inputs[:2]
    if dweight is not None:
        accumulate(dweight, product(rows.T, matrix_of(x), destination(dweight)))
    if dx is not None:
        found = product(rows, weight)
        accumulate(dx, found if x.ndim == 2 else found.reshape(x.shape))
