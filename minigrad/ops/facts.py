"""What a tensor is: numbers and words about it, under the names that PyTorch has for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.absent import Lacking
from minigrad.arguments import is_integer
from minigrad.autograd.tape import Node
from minigrad.backend.dtypes import is_float
from minigrad.backend.memory import address_of
from minigrad.errors import DtypeError, ShapeError
from minigrad.ops.methods import method, method_as
from minigrad.ops.shape import sizes_of
from minigrad.tensor import Tensor

__all__ = ["broadcast_shapes", "is_complex", "is_floating_point", "is_tensor", "numel"]


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape to which these broadcast; a length alone is a shape of one axis.

    Raises:
        ShapeError: they do not.
        DtypeError: they are no integers, or tuples of them.
    """
    given = [sizes_of("broadcast_shapes", (shape,)) for shape in shapes]
    try:
        return np.broadcast_shapes(*given)
    except ValueError as error:
        listed = " and ".join(map(str, given))
        raise ShapeError(f"broadcast_shapes: expected shapes that broadcast, got {listed}") from error


def is_tensor(x: object) -> bool:
    """Whether something is a tensor."""
    return isinstance(x, Tensor)


def _tensor(who: str, x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        raise DtypeError(f"{who}: expected a Tensor, got {type(x).__name__}")
    return x


@method_as("nelement")
def numel(x: Tensor) -> int:
    """Number of elements.

    Raises:
        DtypeError: x is no tensor.
    """
    return _tensor("numel", x).numel()


@method_as("ndimension")
def ndimension(x: Tensor) -> int:
    """Number of axes."""
    return x.ndim


@method
def is_floating_point(x: Tensor) -> bool:
    """Whether the elements are floats, of any width.

    Raises:
        DtypeError: x is no tensor.
    """
    return is_float(_tensor("is_floating_point", x).data.dtype)


@method
def is_complex(x: Tensor) -> bool:
    """False: no tensor is complex.

    Raises:
        DtypeError: x is no tensor.
    """
    return bool(_tensor("is_complex", x).data.dtype.kind == "c")


@method
def element_size(x: Tensor) -> int:
    """Bytes of an element."""
    return int(x.data.dtype.itemsize)


@method
def is_contiguous(x: Tensor) -> bool:
    """Whether the elements lie in row order, without gaps."""
    return bool(x.data.flags.c_contiguous)


@method
def data_ptr(x: Tensor) -> int:
    """The address of the first element, in host or in device memory."""
    return address_of(x.data)


@method
def stride(x: Tensor, dim: int | None = None) -> Any:
    """How many elements the next one along each axis, or along one axis, lies away.

    Raises:
        ShapeError: the axis is out of range.
    """
    steps = tuple(step // x.data.dtype.itemsize for step in x.data.strides)
    if dim is None:
        return steps
    if not is_integer(dim) or not -x.ndim <= dim < x.ndim:
        raise ShapeError(f"stride: expected an axis of shape {x.shape}, got {dim!r}")
    return steps[dim]


@method
def get_device(x: Tensor) -> int:
    """The index of the GPU that x is on, -1 for the CPU."""
    return x.device.index if x.device.type == "cuda" else -1


def _on_gpu(x: Tensor) -> bool:
    """Whether the elements are in the memory of a GPU."""
    return x.device.type == "cuda"


def _itemsize(x: Tensor) -> int:
    """Bytes of an element."""
    return int(x.data.dtype.itemsize)


def _nbytes(x: Tensor) -> int:
    """Bytes of all elements."""
    return int(x.data.nbytes)


def _history(x: Tensor) -> Node | None:
    """The operation on the tape that made the tensor; None for a leaf."""
    return x.node


@method_as("__dir__")
def names_of(x: Tensor) -> list[str]:
    """What a tensor has, without the names that only say what to write."""
    return [name for name in object.__dir__(x) if not isinstance(vars(Tensor).get(name), Lacking)]


method_as("is_cuda")(property(_on_gpu))
method_as("itemsize")(property(_itemsize))
method_as("nbytes")(property(_nbytes))
method_as("grad_fn")(property(_history))
