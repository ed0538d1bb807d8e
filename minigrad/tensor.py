"""Tensor: an array that can remember how it was computed. Its operators are bound by `ops`, see bound.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from minigrad.arguments import check_switch, is_integer
from minigrad.autograd.tape import Edge, Node, Variable, backwards_under_way, lend, run_backward
from minigrad.backend.device import CPU, Device, array_module, device_of, to_host
from minigrad.backend.dtypes import Array, as_dtype, is_float
from minigrad.backend.flags import raise_found
from minigrad.backend.memory import duplicate, one_like
from minigrad.bound import BoundMethods
from minigrad.errors import AutogradError, DeviceError, DtypeError, ShapeError
from minigrad.kept import check_at_rest, drop_gradient, give_gradient
from minigrad.recording import is_grad_enabled
from minigrad.removal import Removal
from minigrad.stamp import (
    check_taken,
    mark_changed,
    mark_rerecorded,
    next_number,
    save_watched,
    shared_stamp,
    view_memory,
)

_new = object.__new__


class Tensor(BoundMethods["Tensor", "Selection"]):
    """An n-dimensional array that can remember how it was computed.

    `minigrad.tensor(data)` makes one from Python data and copies it; `Tensor(array)` wraps an array of NumPy or CuPy
    as it is. The dtype is the array's own. `.data` is that array: the memory itself, not a copy, so it shows every
    later change of it.

    Args:
        data: An ndarray of NumPy or CuPy, any shape, of a dtype that a tensor can have.
        requires_grad: Collect a gradient in `.grad`; float dtypes only.

    Raises:
        DtypeError: data is no array, its dtype is unknown, or an integer tensor is to get a gradient.
    """

    __slots__ = ("__weakref__",)
    __array_ufunc__ = None  # so that array + tensor calls our operator

    def __init__(self, data: Array, requires_grad: bool = False) -> None:
        array_module(data)
        self.data = np.asarray(data) if isinstance(data, np.generic) else data
        as_dtype(self.data.dtype)
        _make_leaf(self)
        if self.data.ndim > 3 and not self.data.flags.c_contiguous:
            shared_stamp(self).viewed = True  # whose array it is, we do not know: `view` leaves it where it lies
        if requires_grad is not False:
            self.requires_grad_(requires_grad)

    # ------------------------------------------------------------------------------------------- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.data.shape  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.data.ndim  # type: ignore[no-any-return]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.data.dtype  # type: ignore[no-any-return]

    @property
    def device(self) -> Device:
        """Where the data lives."""
        return device_of(self.data)

    @property
    def is_leaf(self) -> bool:
        """Whether it was made by a user rather than by a recorded operation."""
        return self.node is None

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the length of one axis.

        Raises:
            ShapeError: the axis is out of range.
        """
        if dim is None:
            return self.shape
        if not is_integer(dim) or not -self.ndim <= dim < self.ndim:
            raise ShapeError(f"size: expected an axis of shape {self.shape}, got {dim!r}")
        return self.shape[dim]

    def dim(self) -> int:
        """Number of axes."""
        return self.ndim

    def numel(self) -> int:
        """Number of elements."""
        return int(self.data.size)

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("len: expected a tensor with at least one axis, got shape ()")
        return self.shape[0]

    def __repr__(self) -> str:
        body = np.array2string(to_host(self.data), separator=", ", prefix="tensor(", threshold=1000, edgeitems=3)
        extra = ", requires_grad=True" if self.requires_grad else ""
        return f"tensor({body}, dtype={self.dtype.name}, device={str(self.device)!r}{extra})"

    __hash__ = object.__hash__

    # ------------------------------------------------------------------------------------ to the outside world

    def numpy(self) -> np.ndarray[Any, Any]:
        """The data as a NumPy array that shares its memory, and shows every later change of it, as `.data` does.

        The memory of a gradient may be used again for the next one: copy what has to outlive `zero_grad()`.

        Raises:
            AutogradError: the tensor wants a gradient: use `.detach().numpy()`.
            DeviceError: the data is on a GPU: use `.cpu().numpy()`.
        """
        if self.requires_grad:
            raise AutogradError("numpy: expected a tensor without gradient, got requires_grad=True: use .detach()")
        if self.device != CPU:
            raise DeviceError(f"numpy: expected a tensor on cpu, got one on {self.device}: use .cpu() first")
        return self.data  # type: ignore[no-any-return]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:
            raise AutogradError("dlpack: expected a tensor without gradient, got requires_grad=True: use .detach()")
        return _exported(self.data, options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()  # type: ignore[no-any-return]

    def item(self) -> Any:
        """The only element as a Python number; waits for a GPU.

        Raises:
            ShapeError: there is not exactly one element.
        """
        if self.data.size != 1:
            raise ShapeError(f"item: expected a tensor of one element, got shape {self.shape}")
        raise_found(self.data)
        return to_host(self.data).item()

    def tolist(self) -> Any:
        """The data as nested Python lists; waits for a GPU.

        Raises:
            IndexRangeError: that GPU found a label or an index out of range; item() and cpu() raise it too.
        """
        raise_found(self.data)
        return to_host(self.data).tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if is_float(self.dtype):
            raise DtypeError(f"index: expected an integer tensor, got {self.dtype.name}")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec or not self.shape else repr(self)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    # ---------------------------------------------------------------------------------------------- gradients

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward collected, or None; a tensor on the same memory.

        What is done to that tensor, by `x.grad.data = ...` too, is done to the gradient, and what is added later shows
        in it. Once the gradient was set to None, as `zero_grad()` does, the tensor, its views and `detach()` keep their
        numbers, whatever the next backward brings.

        Raises:
            AutogradError: the tensor is the output of a recorded operation, which keeps no gradient unless
                `retain_grad()` said so; or a wrapper sends the gradient to other ranks just now.
        """
        if self.node is not None and not self.retains_grad:
            raise _no_leaf("grad", self, ": call retain_grad() on it before backward()")
        if backwards_under_way():
            check_at_rest(self)
        return None if self.grad_array is None else give_gradient(self, _gradient)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if backwards_under_way():
            check_at_rest(self)
        if value is None:
            if hasattr(self, "grad_array"):
                drop_gradient(self)
            return
        self._check_like("grad", value)
        if self.node is not None:
            raise _no_leaf("grad", self)
        if value.data is self.grad_array:
            return  # changed in place, as by x.grad *= 2: all that is known of it holds
        self.requires_grad_()
        drop_gradient(self)
        with self.device.current():
            lend(self, value.data)
        if self.grad_view is not None:
            self.grad_by_hand = True

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Start or stop collecting a gradient, in place; returns the tensor.

        Raises:
            DtypeError: an integer tensor can't have a gradient.
            ArgumentError: requires_grad is no bool.
            AutogradError: stopping on the output of a recorded operation: use `.detach()`.
        """
        check_switch("requires_grad_", requires_grad=requires_grad)
        if self.node is not None:
            if not requires_grad:
                raise AutogradError("requires_grad_: expected a leaf, got the output of an operation: use .detach()")
            return self
        if requires_grad and not is_float(self.dtype):
            raise DtypeError(f"requires_grad_: expected a float dtype, got {self.dtype.name}")
        self.requires_grad = requires_grad
        return self

    def detach(self) -> Tensor:
        """The same memory, outside the graph. An in-place change through either is noticed by the graph."""
        out = Tensor(self.data)
        view_memory(out, self)
        return out

    def backward(
        self,
        gradient: Tensor | None = None,
        *,
        retain_graph: bool = False,
        create_graph: bool = False,
        on_leaf: Callable[[Tensor], None] | None = None,
    ) -> None:
        """Add the gradient of this tensor to the `.grad` of every leaf that it depends on.

        Args:
            gradient: Of this tensor, of its shape and dtype; may be left out for a scalar.
            retain_graph: Keep the graph, for another backward through it.
            create_graph: Must be False: only first derivatives are supported.
            on_leaf: Called with each leaf once its gradient is complete, the last layers first.

        Raises:
            AutogradError: nothing to differentiate, a freed graph, data changed since it was saved, or create_graph.
            ShapeError: not a scalar and no gradient, or one of another shape.
            DtypeError: a gradient of another dtype.
        """
        check_switch("backward", retain_graph=retain_graph, create_graph=create_graph)
        if create_graph:
            raise AutogradError("backward: expected create_graph=False, got True: only first derivatives are supported")
        if not self.requires_grad:
            raise AutogradError(
                f"backward: expected a tensor that requires grad, got {self.dtype.name} {self.shape} that does not: "
                "was it computed under no_grad(), or from data alone?"
            )
        if self.data.__class__ is np.ndarray:
            run_backward(self.node or self, self._seed(gradient), retain_graph, on_leaf)
        else:
            with self.device.current():  # a net, for a thread that is on another one
                run_backward(self.node or self, self._seed(gradient), retain_graph, on_leaf)

    def _seed(self, grad: Tensor | None) -> Array:
        if grad is None:
            if self.data.size != 1:
                raise ShapeError(
                    f"backward: expected a scalar, got shape {self.shape}: reduce it with .sum(), or pass gradient="
                )
            return one_like(self.data)
        self._check_like("backward", grad)
        # a gradient may be overwritten, by this backward perhaps
        return duplicate(grad.data) if grad.stamp is not None and grad.stamp.viewers is not None else grad.data

    def _check_like(self, who: str, grad: Any) -> None:
        """Refuse a gradient that does not fit this tensor."""
        if not isinstance(grad, Tensor):
            raise DtypeError(f"{who}: expected a gradient that is a Tensor, got {type(grad).__name__}")
        if grad.shape != self.shape:
            raise ShapeError(f"{who}: expected a gradient of shape {self.shape}, got {grad.shape}")
        if grad.dtype != self.dtype:
            raise DtypeError(f"{who}: expected a gradient of {self.dtype.name}, got {grad.dtype.name}")
        if grad.device != self.device:
            raise DeviceError(f"{who}: expected a gradient on {self.device}, got one on {grad.device}")

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> Removal:
        """Call hook(self) in each backward once the gradient of this leaf is complete.

        Hooks are called in the order of their registration, and before a data-parallel wrapper sends the gradient:
        what they make of it is what is combined.

        Returns:
            What removes the hook, by `.remove()`.

        Raises:
            AutogradError: not a leaf that requires grad.
        """
        if self.node is not None or not self.requires_grad:
            raise AutogradError("hook: expected a leaf that requires grad, got another tensor")
        listener = LeafHook(hook)
        hooks = tuple(heard for heard in self.listeners if isinstance(heard, LeafHook))
        self.listeners = (*hooks, listener, *(heard for heard in self.listeners if heard not in hooks))

        def remove() -> None:
            self.listeners = tuple(kept for kept in self.listeners if kept is not listener)

        return Removal(remove)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self.node is not None:
            raise AutogradError("deepcopy: expected a leaf, got the output of an operation: use .detach().clone()")
        copy = memo[id(self)] = _new(type(self))
        Tensor.__init__(copy, duplicate(self.data), self.requires_grad)
        return copy


_memory: Any = Variable.__dict__["data"]


class Gradient(Tensor):
    """What `x.grad` gives, anew each time: so what is assigned to its data goes into the memory of the gradient."""

    __slots__ = ()

    def _rebind(self, data: Array) -> None:
        _memory.__set__(self, data)

    def _assign(self, value: Any) -> None:
        if value is not self.data:
            value = value if isinstance(value, Tensor) else Tensor(value)
            self._check_like("grad.data", value)
            with self.device.current():
                self.data[...] = value.data
        mark_changed(self)

    data = property(_memory.__get__, _assign)

    def __copy__(self) -> Tensor:
        return self.detach()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copy = memo[id(self)] = Tensor(duplicate(self.data))
        return copy


def _gradient(array: Array) -> Tensor:
    out = Tensor(array)
    out.__class__ = Gradient
    return out


class Selection(NamedTuple):
    """What `max`, `sort`, `topk` and their kin find along an axis: the values, and the index of each (int64)."""

    values: Tensor
    indices: Tensor


class LeafHook:
    """A function as a listener to one leaf."""

    def __init__(self, hook: Callable[[Tensor], None]) -> None:
        self.leaf = hook

    def begin(self, leaves: list[Tensor]) -> None:
        """Nothing to prepare."""

    def end(self, error: BaseException | None) -> None:
        """Nothing to finish."""


def _no_leaf(who: str, x: Tensor, what_to_do: str = "") -> AutogradError:
    return AutogradError(f"{who}: expected a leaf, got the output of an operation, of shape {x.shape}{what_to_do}")


def _exported(array: Array, options: dict[str, Any]) -> Any:
    """The memory of an array for another library, in DLPack's form."""
    try:
        return array.__dlpack__(**options)
    except BufferError as error:  # NumPy's of bfloat16, and of read-only memory
        raise DtypeError(f"dlpack: expected data that DLPack carries, got {array.dtype.name}: {error}") from error


def _make_leaf(x: Tensor) -> None:
    x.requires_grad = x.grad_owned = False
    x.node = x.stamp = x.grad_array = x.grad_view = x.grad_given = None
    x.listeners = ()


def record(
    data: Array,
    backward: Callable[[Node, Array], None],
    inputs: tuple[Tensor, ...],
    saved: tuple[Any, ...] = (),
    *,
    saves_output: bool = False,
    view_of: Tensor | None = None,
) -> Tensor:
    """The output of an operation, on the tape where one of the inputs requires grad.

    Args:
        data: What the operation computed.
        backward: backward(node, grad) gives each edge of node.inputs its gradient, by `accumulate` and its kin.
        inputs: The tensors it computed from, in the order of node.inputs.
        saved: What backward needs, as node.saved: tensors, arrays, plain values.
        saves_output: `data` itself is among the saved; a later change of the output is then noticed.
        view_of: The input whose memory the output shares, if it does.
    """
    out = _new(Tensor)
    out.data = np.asarray(data) if isinstance(data, np.generic) else data
    edges: list[Edge] = []
    wanted = False
    if is_grad_enabled():
        for x in inputs:
            stamp = x.stamp
            if stamp is not None:
                if stamp.recorded:
                    check_taken(x)
                if stamp.savers is not None:
                    saved = save_watched(x, saved)
            if x.requires_grad:
                wanted = True
                edges.append(x.node or x)
            elif x.node is None:
                edges.append(None)
            else:
                raise AutogradError(
                    f"requires_grad: expected True of the output of an operation, got False for one of shape "
                    f"{x.shape}: write x.detach()"
                )
    if wanted:
        out.node = node = _new(Node)
        out.requires_grad = True
        out.stamp = node.output_stamp = node.grad_array = None
        node.seq, node.backward, node.inputs, node.saved = next_number(), backward, edges, saved
    else:
        _make_leaf(out)
    if view_of is not None:
        out.taken = view_memory(out, view_of).recorded
    if saves_output and wanted:
        node.output_stamp = shared_stamp(out)
    return out


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for field in value:
            yield from tensors_in(field)
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))


def rerecord(x: Tensor, node: Node | None) -> None:
    """Say that the data of x was changed in place by what the tape holds as this node; None where it ends there."""
    if node is None:
        stamp = x.stamp
        _make_leaf(x)
        x.stamp = stamp
    else:
        kept = x.retains_grad
        if x.node is None:
            del x.grad_array  # a leaf no more
        x.requires_grad, x.node = True, node
        if kept:
            del x.grad_array
            x.retain_grad()
    mark_rerecorded(x)
