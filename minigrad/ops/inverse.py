"""Square matrices: inverse, determinant and systems of linear equations. `minigrad.linalg` has them by other names too.

Half precision is computed in float32. A singular matrix is an error on a CPU; a GPU does not say, and gives NaN or
infinity. Of a matrix with such elements comes what the library of linear algebra makes of it.
"""

from __future__ import annotations

import numpy as np

from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, converted, is_half, widened
from minigrad.errors import ArgumentError, ShapeError
from minigrad.ops.axes import unbroadcast
from minigrad.ops.linalg import product
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, check_float, operands
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = ["det", "inverse"]


@method
@autocasts("high")
def inverse(x: TensorLike) -> Tensor:
    """The inverse of square matrices. dx = -x⁻ᵀ @ g @ x⁻ᵀ.

    Shapes:
        (..., N, N) -> the same

    Raises:
        ShapeError: no square matrices. DtypeError: integers.
        ArgumentError: a singular matrix, on a CPU.
    """
    x = _square("inverse", x)
    found = _inverse("inverse", widened(x.data))
    return record(_narrowed(found, x), _inverse_backward, (x,), (found,), saves_output=not is_half(x.data.dtype))


def _inverse_backward(node: Node, grad: Array) -> None:
    (found,) = node.saved
    turned = found.swapaxes(-1, -2)
    dx = product(turned, product(widened(grad), turned))
    accumulate(node.inputs[0], (-dx).astype(grad.dtype, copy=False))


@method
@autocasts("high")
def det(x: TensorLike) -> Tensor:
    """The determinants of square matrices. dx = g·det(x)·x⁻ᵀ, which needs matrices that are not singular.

    Shapes:
        (..., N, N) -> (...)

    Raises:
        ShapeError: no square matrices. DtypeError: integers.
        ArgumentError: in backward, a singular matrix, on a CPU.
    """
    x = _square("det", x)
    found = array_module(x.data).linalg.det(widened(x.data))
    return record(_narrowed(found, x), _det_backward, (x,), (x, found), saves_output=not is_half(x.data.dtype))


def _det_backward(node: Node, grad: Array) -> None:
    x, found = node.saved
    turned = _inverse("det", widened(x.data)).swapaxes(-1, -2)
    dx = (widened(grad) * found)[..., None, None] * turned
    accumulate(node.inputs[0], dx.astype(grad.dtype, copy=False))


@autocasts("high")
def solve(x: TensorLike, b: TensorLike) -> Tensor:
    """The z with x @ z = b. db = x⁻ᵀ @ g, dx = -db @ zᵀ.

    Shapes:
        x: (..., N, N), b: (..., N, K), or (N,) or (..., N) with the batch axes of x -> as b; batch axes broadcast

    Raises:
        ShapeError: other shapes. DtypeError: integers.
        ArgumentError: a singular matrix, on a CPU.
    """
    x, b = operands("solve", x, b)
    x = _square("solve", x)
    vector = b.ndim == 1 or (b.ndim == x.ndim - 1 and b.shape == x.shape[:-1])
    right = b.data[..., None] if vector else b.data
    try:
        batch = np.broadcast_shapes(x.shape[:-2], right.shape[:-2])
    except ValueError:
        batch = None
    if batch is None or right.ndim < 2 or right.shape[-2] != x.shape[-1]:
        raise ShapeError(f"solve: expected shapes (..., N, N) and (..., N, K), got {x.shape} and {b.shape}")
    found = _solved("solve", widened(x.data), widened(right), batch)
    data = _narrowed(found[..., 0] if vector else found, x)
    saved = (x, found, vector, right.shape, b.data.shape)
    return record(data, _solve_backward, (x, b), saved, saves_output=not is_half(x.data.dtype))


def _solve_backward(node: Node, grad: Array) -> None:
    x, found, vector, shape, b_shape = node.saved
    dx, db = node.inputs
    wide = widened(grad)[..., None] if vector else widened(grad)
    back = _solved("solve", widened(x.data).swapaxes(-1, -2), wide, found.shape[:-2])
    if db is not None:
        accumulate(db, unbroadcast(back, shape).reshape(b_shape).astype(grad.dtype, copy=False))
    if dx is not None:
        slope = -product(back, found.swapaxes(-1, -2))
        accumulate(dx, unbroadcast(slope, x.data.shape).astype(grad.dtype, copy=False))


def _square(who: str, x: TensorLike) -> Tensor:
    matrices = as_operand(who, x)
    check_float(who, matrices)
    if matrices.ndim < 2 or matrices.shape[-1] != matrices.shape[-2]:
        raise ShapeError(f"{who}: expected square matrices (..., N, N), got {matrices.shape}")
    return matrices


def _inverse(who: str, x: Array) -> Array:
    try:
        return array_module(x).linalg.inv(x)
    except np.linalg.LinAlgError as error:
        raise ArgumentError(f"{who}: expected matrices that are not singular, got one of {x.shape} that is") from error


def _solved(who: str, x: Array, b: Array, batch: tuple[int, ...]) -> Array:
    xp = array_module(x)
    left = xp.broadcast_to(x, (*batch, *x.shape[-2:]))
    right = xp.broadcast_to(b, (*batch, *b.shape[-2:]))
    try:
        return xp.linalg.solve(left, right)
    except np.linalg.LinAlgError as error:
        raise ArgumentError(f"{who}: expected matrices that are not singular, got one of {x.shape} that is") from error


def _narrowed(found: Array, x: Tensor) -> Array:
    return converted(found, x.data.dtype) if is_half(x.data.dtype) else found
