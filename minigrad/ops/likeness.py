"""What takes a dtype, a device or a shape from another tensor: new_zeros, view_as, type_as and their kin."""

from __future__ import annotations

from typing import Any

from minigrad.backend.dtypes import DtypeLike, as_dtype
from minigrad.errors import DtypeError
from minigrad.ops.convert import to
from minigrad.ops.creation import DeviceLike, empty, full, like_options, ones, tensor, zeros
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand
from minigrad.ops.shape import reshape, view
from minigrad.tensor import Tensor


@method
def new_zeros(
    x: Tensor, *size: Any, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Zeros of a shape, in x's dtype and on its device, unless others are given.

    Raises:
        ShapeError, DtypeError: lengths that are negative or no integers.
    """
    return zeros(*size, requires_grad=requires_grad, **like_options("new_zeros", x, dtype, device))


@method
def new_ones(
    x: Tensor, *size: Any, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Ones of a shape, in x's dtype and on its device, unless others are given.

    Raises:
        ShapeError, DtypeError: lengths that are negative or no integers.
    """
    return ones(*size, requires_grad=requires_grad, **like_options("new_ones", x, dtype, device))


@method
def new_empty(
    x: Tensor, *size: Any, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of a shape whose values are whatever lay there, in x's dtype and on its device, unless others are given.

    Raises:
        ShapeError, DtypeError: lengths that are negative or no integers.
    """
    return empty(*size, requires_grad=requires_grad, **like_options("new_empty", x, dtype, device))


@method
def new_full(
    x: Tensor,
    size: Any,
    fill_value: Any,
    *,
    dtype: DtypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """One number everywhere, in x's dtype and on its device, unless others are given.

    Raises:
        ShapeError, DtypeError: lengths that are negative or no integers, or a value that does not fit.
    """
    return full(size, fill_value, requires_grad=requires_grad, **like_options("new_full", x, dtype, device))


@method
def new_tensor(
    x: Tensor, data: Any, *, dtype: DtypeLike = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A tensor with a copy of data, in x's dtype and on its device, unless others are given.

    Raises:
        ShapeError, DtypeError: as `tensor`.
    """
    return tensor(data, requires_grad=requires_grad, **like_options("new_tensor", x, dtype, device))


@method
def view_as(x: TensorLike, other: Tensor) -> Tensor:
    """`view` in the shape of other.

    Raises:
        ShapeError: other numbers of elements, or a shape that needs a copy.
    """
    return view(x, as_operand("view_as", other).shape)


@method
def reshape_as(x: TensorLike, other: Tensor) -> Tensor:
    """`reshape` to the shape of other.

    Raises:
        ShapeError: other numbers of elements.
    """
    return reshape(x, as_operand("reshape_as", other).shape)


@method
def type_as(x: TensorLike, other: Tensor) -> Tensor:
    """x in the dtype of other, and on its device.

    Raises:
        DtypeError: other is no tensor.
    """
    if not isinstance(other, Tensor):
        raise DtypeError(f"type_as: expected a Tensor, got {other.__class__.__name__}")
    return to(x, other)


@method
def type(x: TensorLike, dtype: DtypeLike = None) -> Any:
    """x in another dtype; without one, the name of its dtype.

    Raises:
        DtypeError: an unknown dtype.
    """
    x = as_operand("type", x)
    return x.dtype.name if dtype is None else to(x, dtype=as_dtype(dtype))
