"""Products of a given number of axes, sums of them, and distances: mm to baddbmm, cross, addcmul, cdist, dist.

A Linear layer and matmul for any shape are in linalg.py, any other contraction is in einsum.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.arguments import as_real, check_choice, is_number
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import is_float
from minigrad.errors import DtypeError, ShapeError
from minigrad.ops.arithmetic import add, broadcast_error, div, mul, sub
from minigrad.ops.axes import normalize_axis
from minigrad.ops.linalg import matmul
from minigrad.ops.mask import where
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, operands, same_device
from minigrad.ops.precision import autocasts
from minigrad.ops.reduce import norm
from minigrad.ops.shape import broadcast_to, roll, unsqueeze
from minigrad.tensor import Tensor

_MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
__all__ = ["addcdiv", "addcmul", "addmm", "baddbmm", "bmm", "cdist", "cross", "dist", "dot", "mm", "mv", "outer"]


@method
@autocasts("low")
def mm(x: TensorLike, mat2: TensorLike) -> Tensor:
    """The product of two matrices, x @ mat2, without broadcasting. dx = g @ mat2ᵀ, dmat2 = xᵀ @ g.

    Shapes:
        (N, K), (K, M) -> (N, M)

    Raises:
        ShapeError: other shapes.
    """
    return matmul(*_factors("mm", x, mat2, "(N, K) and (K, M)", 2, 2))


@method
@autocasts("low")
def bmm(x: TensorLike, mat2: TensorLike) -> Tensor:
    """The products of as many matrices, x[b] @ mat2[b], without broadcasting. dx = g @ mat2ᵀ, dmat2 = xᵀ @ g.

    Shapes:
        (B, N, K), (B, K, M) -> (B, N, M)

    Raises:
        ShapeError: other shapes.
    """
    return matmul(*_factors("bmm", x, mat2, "(B, N, K) and (B, K, M)", 3, 3))


@method
@autocasts("low")
def mv(x: TensorLike, vec: TensorLike) -> Tensor:
    """The product of a matrix and a vector, x @ vec. dx = g·vecᵀ, dvec = xᵀ @ g.

    Shapes:
        (N, K), (K,) -> (N,)

    Raises:
        ShapeError: other shapes.
    """
    return matmul(*_factors("mv", x, vec, "(N, K) and (K,)", 2, 1))


@method
@autocasts("low")
def dot(x: TensorLike, tensor: TensorLike) -> Tensor:
    """The sum of the products of two vectors' elements. dx = g·tensor, dtensor = g·x.

    Shapes:
        (K,), (K,) -> ()

    Raises:
        ShapeError: other shapes: `matmul` takes matrices.
    """
    return matmul(*_factors("dot", x, tensor, "(K,) and (K,)", 1, 1))


@method
def outer(x: TensorLike, vec2: TensorLike) -> Tensor:
    """The product of each pair of two vectors' elements: z[i, j] = x[i]·vec2[j]. dx = g @ vec2, dvec2 = gᵀ @ x.

    Shapes:
        (N,), (M,) -> (N, M)

    Raises:
        ShapeError: other shapes.
    """
    x, vec2 = operands("outer", x, vec2)
    if x.ndim != 1 or vec2.ndim != 1:
        raise ShapeError(f"outer: expected shapes (N,) and (M,), got {x.shape} and {vec2.shape}")
    return mul(unsqueeze(x, 1), vec2)


@method
def cross(x: TensorLike, y: TensorLike, dim: int | None = None) -> Tensor:
    """The vector products x × y of the vectors along an axis of length 3, broadcasting. dx = y × g, dy = g × x.

    Args:
        dim: By default the first axis of this length.

    Raises:
        ShapeError: an axis of another length, or shapes that do not broadcast.
    """
    x, y = operands("cross", x, y)
    try:
        shape = np.broadcast_shapes(x.data.shape, y.data.shape)
    except ValueError as error:
        raise broadcast_error("cross", x, y) from error
    axis = normalize_axis("cross", dim if dim is not None else shape.index(3) if 3 in shape else -1, len(shape))
    if not shape or shape[axis] != 3:
        raise ShapeError(f"cross: expected an axis of length 3, got {x.shape} and {y.shape}, dim={dim}")
    x, y = broadcast_to(x, shape), broadcast_to(y, shape)
    return sub(mul(roll(x, -1, axis), roll(y, -2, axis)), mul(roll(x, -2, axis), roll(y, -1, axis)))


def dist(x: TensorLike, y: TensorLike, p: float = 2) -> Tensor:
    """The p-norm of x - y, broadcasting; see `norm`.

    Raises:
        ArgumentError: p is no number.
        ShapeError: the shapes do not broadcast.
    """
    return norm(sub(*operands("dist", x, y)), as_real("dist", "p", p))


def _factors(who: str, x: TensorLike, y: TensorLike, wanted: str, x_ndim: int, y_ndim: int) -> tuple[Tensor, Tensor]:
    """Both factors of a product, which have as many axes as wanted."""
    x, y = operands(who, x, y)
    fit = x.ndim == x_ndim and y.ndim == y_ndim and x.shape[-1] == y.shape[-min(y_ndim, 2)]
    if not fit or (x_ndim == 3 and x.shape[0] != y.shape[0]):
        raise ShapeError(f"{who}: expected shapes {wanted}, got {x.shape} and {y.shape}")
    return x, y


# ------------------------------------------------------------------------------------------------ sums of products


@method
@autocasts("low")
def addmm(x: TensorLike, mat1: TensorLike, mat2: TensorLike, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta·x + alpha·(mat1 @ mat2), where x broadcasts to the product; x counts for nothing where beta is 0.

    dx = beta·g, dmat1 = alpha·g @ mat2ᵀ, dmat2 = alpha·mat1ᵀ @ g.

    Shapes:
        x: to (N, M), mat1: (N, K), mat2: (K, M) -> (N, M)

    Raises:
        ShapeError: other shapes.
        ArgumentError: beta or alpha is no number.
    """
    return _added("addmm", x, _factors("addmm", mat1, mat2, "(N, K) and (K, M)", 2, 2), beta, alpha)


@method
@autocasts("low")
def baddbmm(x: TensorLike, batch1: TensorLike, batch2: TensorLike, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta·x + alpha·(batch1 @ batch2), where x broadcasts to the products; x counts for nothing where beta is 0.

    dx = beta·g, dbatch1 = alpha·g @ batch2ᵀ, dbatch2 = alpha·batch1ᵀ @ g.

    Shapes:
        x: to (B, N, M), batch1: (B, N, K), batch2: (B, K, M) -> (B, N, M)

    Raises:
        ShapeError: other shapes.
        ArgumentError: beta or alpha is no number.
    """
    return _added("baddbmm", x, _factors("baddbmm", batch1, batch2, "(B, N, K) and (B, K, M)", 3, 3), beta, alpha)


def _added(who: str, x: TensorLike, factors: tuple[Tensor, Tensor], beta: float, alpha: float) -> Tensor:
    x = as_operand(who, x)
    same_device(who, x, *factors)
    product = matmul(*factors)
    if x.ndim > product.ndim or any(n not in (1, m) for n, m in zip(x.shape[::-1], product.shape[::-1])):
        raise ShapeError(f"{who}: expected x that broadcasts to {product.shape}, got {x.shape}")
    product = _times(who, "alpha", product, alpha)
    if beta != 0:
        return add(_times(who, "beta", x, beta), product)
    return where(Tensor(array_module(product.data).zeros((), bool)), x, product) if x.requires_grad else product


def _times(who: str, name: str, x: Tensor, factor: float) -> Tensor:
    if not is_float(x.data.dtype) and not as_real(who, name, factor).is_integer():
        raise DtypeError(f"{who}: expected {name} that fits into {x.dtype.name}, got {factor!r}")
    return x if as_real(who, name, factor) == 1 else mul(x, factor if is_float(x.data.dtype) else int(factor))


@method
def addcmul(x: TensorLike, tensor1: TensorLike, tensor2: TensorLike, *, value: float = 1) -> Tensor:
    """x + value·tensor1·tensor2, broadcasting. dx = g, dtensor1 = value·g·tensor2, dtensor2 = value·g·tensor1.

    Raises:
        ArgumentError: value is no number.
        ShapeError: the shapes do not broadcast.
    """
    _check_tensors("addcmul", x, tensor1, tensor2)
    return add(x, _times("addcmul", "value", mul(tensor1, tensor2), value))


@method
def addcdiv(x: TensorLike, tensor1: TensorLike, tensor2: TensorLike, *, value: float = 1) -> Tensor:
    """x + value·tensor1/tensor2, broadcasting. dx = g, dtensor1 = value·g/tensor2, dtensor2 = -value·g·t1/t2².

    Raises:
        ArgumentError: value is no number.
        ShapeError: the shapes do not broadcast.
    """
    _check_tensors("addcdiv", x, tensor1, tensor2)
    return add(x, _times("addcdiv", "value", div(tensor1, tensor2), value))


def _check_tensors(who: str, x: TensorLike, *tensors: Any) -> None:
    """Refuse numbers, as PyTorch does: the third positional argument of an older form was one; and two devices."""
    for tensor in tensors:
        if is_number(tensor):
            raise DtypeError(f"{who}: expected tensors, got the number {tensor!r}: write value={tensor!r}")
    same_device(who, *(as_operand(who, tensor) for tensor in (x, *tensors)))


@autocasts("high")
def cdist(x1: TensorLike, x2: TensorLike, p: float = 2.0, compute_mode: str = _MODES[0]) -> Tensor:
    """The distance of each vector of x1 from each of x2, by the p-norm. Nothing flows back where it is 0.

    p=0 counts the differences, NaN as one.

    Args:
        compute_mode: One of PyTorch's. Whether a product may take the place of differences, which here none does.

    Shapes:
        x1: (..., N, D), x2: (..., M, D) -> (..., N, M); batch axes broadcast

    Raises:
        ShapeError: other shapes.
        DtypeError: integer tensors.
        ArgumentError: p is no number >= 0, or another compute_mode.
    """
    check_choice("cdist", _MODES, compute_mode=compute_mode)
    x1, x2 = operands("cdist", x1, x2)
    if min(x1.ndim, x2.ndim) < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"cdist: expected shapes (..., N, D) and (..., M, D), got {x1.shape} and {x2.shape}")
    try:
        np.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    except ValueError as error:
        raise ShapeError(f"cdist: expected batch axes that broadcast, got {x1.shape} and {x2.shape}") from error
    return norm(sub(unsqueeze(x1, -2), unsqueeze(x2, -3)), as_real("cdist", "p", p, 0.0), -1)
