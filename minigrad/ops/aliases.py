"""Second names that PyTorch has for operations, and those that are another one with an argument given."""

from __future__ import annotations

from minigrad.arguments import as_integer
from minigrad.errors import IndexRangeError, ShapeError
from minigrad.ops.arithmetic import div, mul, neg, sub
from minigrad.ops.arrange import movedim
from minigrad.ops.axes import normalize_axis
from minigrad.ops.compare import ge, gt, le, lt, ne
from minigrad.ops.elementwise import abs, clamp
from minigrad.ops.functions import trunc
from minigrad.ops.join import narrow
from minigrad.ops.mask import where
from minigrad.ops.methods import method, method_as
from minigrad.ops.operands import TensorLike, as_operand
from minigrad.ops.shape import reshape, squeeze, transpose
from minigrad.tensor import Tensor

__all__ = [
    "absolute", "clamp_max", "clamp_min", "divide", "fix", "greater", "greater_equal", "less", "less_equal",
    "moveaxis", "multiply", "negative", "not_equal", "ravel", "select", "subtract", "swapdims", "true_divide",
]

absolute, divide, fix, greater, greater_equal, less, less_equal = abs, div, trunc, gt, ge, lt, le
moveaxis, multiply, negative, not_equal, subtract, swapdims, true_divide = movedim, mul, neg, ne, sub, transpose, div

method_as("absolute")(abs)
method_as("divide", "true_divide")(div)
method_as("fix")(trunc)
method_as("greater")(gt)
method_as("greater_equal")(ge)
method_as("less")(lt)
method_as("less_equal")(le)
method_as("moveaxis")(movedim)
method_as("multiply")(mul)
method_as("negative")(neg)
method_as("not_equal")(ne)
method_as("subtract")(sub)
method_as("swapdims")(transpose)


@method
def clamp_min(x: TensorLike, min: TensorLike) -> Tensor:
    """`clamp` from below alone.

    Raises:
        ArgumentError, DtypeError, ShapeError: as `clamp`.
    """
    return clamp(x, min=min)


@method
def clamp_max(x: TensorLike, max: TensorLike) -> Tensor:
    """`clamp` from above alone.

    Raises:
        ArgumentError, DtypeError, ShapeError: as `clamp`.
    """
    return clamp(x, max=max)


@method
def ravel(x: TensorLike) -> Tensor:
    """All elements along one axis, in row order; a view where that is possible."""
    return reshape(x, -1)


@method
def select(x: TensorLike, dim: int, index: int) -> Tensor:
    """The slice at an index along an axis, without that axis, as a view.

    Raises:
        ShapeError: the axis is out of range, or there is none.
        IndexRangeError: the index is out of range.
    """
    x = as_operand("select", x)
    axis = normalize_axis("select", dim, x.ndim)
    if not x.ndim:
        raise ShapeError("select: expected a tensor with at least one axis, got shape ()")
    place, length = as_integer("select", "index", index), x.data.shape[axis]
    if not -length <= place < length:
        raise IndexRangeError(f"select: expected an index in axis {dim} of {x.shape}, got {index}")
    return squeeze(narrow(x, axis, place % length, 1), axis)


@method_as("where")
def where_method(x: TensorLike, condition: TensorLike, y: TensorLike) -> Tensor:
    """x where condition holds, else y; see `where`."""
    return where(condition, x, y)
