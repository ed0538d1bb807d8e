"""x += y and its kin, and the operations that write what they compute into their input: add_, clamp_, scatter_, ..."""

from __future__ import annotations

from minigrad.backend.device import array_module
from minigrad.errors import AutogradError, ShapeError
from minigrad.ops import arithmetic, compare, elementwise, linalg, scatter
from minigrad.ops import mask as choice
from minigrad.ops.assign import Same, update
from minigrad.ops.methods import method, method_as
from minigrad.ops.operands import TensorLike
from minigrad.stamp import is_view
from minigrad.tensor import Tensor, rerecord


@method
@method_as("__iadd__")
def add_(x: Same, value: TensorLike, alpha: float = 1.0) -> Same:
    """x += alpha * value; returns x."""
    return update("add_", x, arithmetic.add, value, alpha=alpha)


@method
@method_as("__isub__")
def sub_(x: Same, value: TensorLike, alpha: float = 1.0) -> Same:
    """x -= alpha * value; returns x."""
    return update("sub_", x, arithmetic.sub, value, alpha=alpha)


@method
@method_as("__imul__")
def mul_(x: Same, value: TensorLike) -> Same:
    """x *= value; returns x."""
    return update("mul_", x, arithmetic.mul, value)


@method
@method_as("__itruediv__")
def div_(x: Same, value: TensorLike, *, rounding_mode: str | None = None) -> Same:
    """x /= value; returns x. See `div`.

    Raises:
        DtypeError: x is of integers, which a quotient that is not rounded does not fit into.
    """
    return update("div_", x, arithmetic.div, value, rounding_mode=rounding_mode)


@method
@method_as("__ifloordiv__")
def floor_divide_(x: Same, value: TensorLike) -> Same:
    """x //= value; returns x, through which nothing flows back."""
    return update("floor_divide_", x, arithmetic.floor_divide, value)


@method
@method_as("__imod__")
def remainder_(x: Same, value: TensorLike) -> Same:
    """x %= value; returns x."""
    return update("remainder_", x, arithmetic.remainder, value)


@method
def fmod_(x: Same, value: TensorLike) -> Same:
    """x = fmod(x, value), in place; returns x."""
    return update("fmod_", x, arithmetic.fmod, value)


@method
@method_as("__ipow__")
def pow_(x: Same, value: TensorLike) -> Same:
    """x **= value; returns x."""
    return update("pow_", x, arithmetic.pow, value)


@method_as("__imatmul__")
def matmul_(x: Same, value: TensorLike) -> Same:
    """x @= value, which must not change the shape; returns x."""
    return update("matmul_", x, linalg.matmul, value)


@method
@method_as("__iand__")
def bitwise_and_(x: Same, value: TensorLike) -> Same:
    """x &= value, of bools or integers; returns x."""
    return update("bitwise_and_", x, compare.bitwise_and, value)


@method
@method_as("__ior__")
def bitwise_or_(x: Same, value: TensorLike) -> Same:
    """x |= value, of bools or integers; returns x."""
    return update("bitwise_or_", x, compare.bitwise_or, value)


@method
@method_as("__ixor__")
def bitwise_xor_(x: Same, value: TensorLike) -> Same:
    """x ^= value, of bools or integers; returns x."""
    return update("bitwise_xor_", x, compare.bitwise_xor, value)


@method
@method_as("clip_")
def clamp_(x: Same, min: TensorLike = None, max: TensorLike = None) -> Same:
    """Cut x to [min, max]; returns x. See `clamp`."""
    return update("clamp_", x, elementwise.clamp, min, max)


@method
def lerp_(x: Same, end: TensorLike, weight: TensorLike) -> Same:
    """x += weight * (end - x), as for a moving average; returns x. See `lerp`."""
    return update("lerp_", x, arithmetic.lerp, end, weight)


@method
def masked_fill_(x: Same, mask: TensorLike, value: TensorLike) -> Same:
    """Overwrite x with a number, or a tensor of no axes, where a mask holds; returns x. See `masked_fill`."""
    return update("masked_fill_", x, choice.masked_fill, mask, value)


@method
def scatter_(
    x: Same, dim: int, index: Tensor, src: TensorLike | None = None, *, value: float | None = None
) -> Same:
    """Write src, or a number, to where index says along dim; returns x. See `scatter`."""
    return update("scatter_", x, scatter.scatter, dim, index, src, value=value)


@method
def scatter_add_(x: Same, dim: int, index: Tensor, src: Tensor) -> Same:
    """Add src to where index says along dim; returns x. See `scatter_add`."""
    return update("scatter_add_", x, scatter.scatter_add, dim, index, src)


@method
def index_add_(x: Same, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1.0) -> Same:
    """Add alpha times the slices of source to where index says along dim; returns x. See `index_add`."""
    return update("index_add_", x, scatter.index_add, dim, index, source, alpha=alpha)


@method
def index_fill_(x: Same, dim: int, index: Tensor, value: TensorLike) -> Same:
    """Overwrite the slices that index names along dim with one value; returns x. See `index_fill`."""
    return update("index_fill_", x, scatter.index_fill, dim, index, value)


@method
def index_copy_(x: Same, dim: int, index: Tensor, source: Tensor) -> Same:
    """Overwrite the slices that index names along dim with those of source; returns x. See `index_copy`."""
    return update("index_copy_", x, scatter.index_copy, dim, index, source)


@method
def masked_scatter_(x: Same, mask: TensorLike, source: TensorLike) -> Same:
    """Overwrite x with the elements of source where a mask holds; returns x. See `masked_scatter`."""
    return update("masked_scatter_", x, choice.masked_scatter, mask, source)


@method
def fill_diagonal_(x: Same, fill_value: float) -> Same:
    """Overwrite the main diagonal of a matrix with a number; returns x, of whose gradient 0 is left there.

    Raises:
        ShapeError: x is no matrix.
    """
    if x.ndim != 2:
        raise ShapeError(f"fill_diagonal_: expected a matrix, got shape {x.shape}")
    mask = array_module(x.data).eye(*x.data.shape, dtype=bool)
    return update("fill_diagonal_", x, choice.masked_fill, Tensor(mask), fill_value)


@method
def detach_(x: Same) -> Same:
    """Forget how x was computed: it becomes a leaf that requires no grad; returns x.

    Raises:
        AutogradError: a view, whose base would go on as it was: use `.detach()`.
    """
    if is_view(x):
        raise AutogradError(f"detach_: expected no view, got one of shape {x.shape}: use .detach()")
    rerecord(x, None)
    return x
