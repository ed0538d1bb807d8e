"""Linear algebra under the names of `torch.linalg`: norms, products, and square matrices."""

from __future__ import annotations

import typing

from minigrad import ops as _ops
from minigrad.absent import absent as _absent
from minigrad.arguments import as_real as _as_real
from minigrad.backend.dtypes import DtypeLike
from minigrad.bound import Dim
from minigrad.errors import ArgumentError as _ArgumentError
from minigrad.foreign import offer_operations as _offer_operations, spoken as _spoken
from minigrad.ops import det as det, inverse as inv, matmul as matmul
from minigrad.ops.inverse import solve as solve
from minigrad.tensor import Tensor


@_spoken
def norm(
    x: Tensor,
    ord: float | str | None = None,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: DtypeLike = None,
) -> Tensor:
    """The 2-norm of all elements or over axes; with ord that of vectors, or "fro" of matrices.

    Args:
        ord: The p of a p-norm, over one axis, or of a vector; None and "fro" are 2.
        dtype: Convert x to it first.

    Raises:
        ArgumentError: another norm of matrices: they take singular values.
    """
    x = _ops.to(x, dtype=dtype)
    axes = tuple(range(x.ndim)) if dim is None else tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    if ord is not None and ord != "fro" and len(axes) != 1:
        raise _ArgumentError(
            f"norm: expected ord None or 'fro' for matrices, got {ord!r} for {x.shape} over {axes}: "
            "write vector_norm, or numpy.linalg.norm on x.numpy()"
        )
    return _ops.norm(x, "fro" if ord is None else ord, dim, keepdim)


@_spoken
def vector_norm(
    x: Tensor, ord: float = 2, dim: Dim = None, keepdim: bool = False, *, dtype: DtypeLike = None
) -> Tensor:
    """The p-norm of all elements, or over axes.

    Args:
        ord: p.
        dtype: Convert x to it first.

    Raises:
        ArgumentError: ord is no number.
    """
    return _ops.norm(_ops.to(x, dtype=dtype), _as_real("vector_norm", "ord", ord), dim, keepdim)


__all__ = ["det", "inv", "matmul", "norm", "solve", "vector_norm"]

if not typing.TYPE_CHECKING:
    _offer_operations(globals())

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
