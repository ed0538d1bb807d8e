"""Parameter and Buffer: the tensors that a Module registers when they are assigned to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minigrad.arguments import check_switch
from minigrad.autograd.tape import backwards_under_way
from minigrad.backend.capturing import current_capture
from minigrad.backend.device import CPU, Device
from minigrad.backend.dtypes import Array, DtypeLike, as_dtype
from minigrad.backend.memory import duplicate
from minigrad.errors import ArgumentError, DtypeError
from minigrad.kept import check_at_rest, drop_gradient, gradient_changed
from minigrad.stamp import view_memory, watch
from minigrad.tensor import Tensor

__all__ = ["Buffer", "Parameter"]


class _Owned(Tensor):
    """What Parameter and Buffer share: they take over memory, can be copied, and are not pickled."""

    __slots__ = ()

    def __init__(self, data: Tensor | Array, requires_grad: bool = False) -> None:
        super().__init__(data.data if isinstance(data, Tensor) else data, requires_grad)
        if isinstance(data, Tensor):
            view_memory(self, data)

    def _copied_data(self) -> Array:
        return duplicate(self.data)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ArgumentError(
            f"pickle: expected plain data, got a {type(self).__name__} of shape {self.shape}: "
            "save it with nn.save_file, or copy it with copy.deepcopy"
        )


class Parameter(_Owned):
    """A tensor that a Module owns and an optimizer changes.

    Args:
        data: A Tensor, whose memory it takes, or an array; a float dtype.
        requires_grad: Whether it is trained.

    Attributes:
        name: Its first dotted name in the module that flattened or wrapped it, for messages; None before.
        flat: The `nn.flat.FlatBuffer` in which it lies, None before there is one.

    Raises:
        DtypeError: requires_grad with an integer dtype.
    """

    __slots__ = ("flat", "name", "grad_by_hand")

    def __init__(self, data: Tensor | Array, requires_grad: bool = True) -> None:
        super().__init__(data, requires_grad)
        self.flat: Any = None
        self.name: str | None = None
        self.grad_by_hand = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copy = Parameter(self._copied_data(), self.requires_grad)
        copy.name = self.name
        memo[id(self)] = copy
        return copy


class Buffer(_Owned):
    """A tensor that belongs to a Module's state but is not trained, such as running statistics.

    Args:
        data: A Tensor, whose memory it takes, or an array.
        persistent: Whether it is part of the module's state_dict.
    """

    __slots__ = ("persistent",)

    def __init__(self, data: Tensor | Array, persistent: bool = True) -> None:
        super().__init__(data)
        check_switch("Buffer", persistent=persistent)
        watch(self)
        self.persistent = persistent

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        copy = Buffer(self._copied_data(), self.persistent)
        memo[id(self)] = copy
        return copy


def at_least_one(who: str, params: Iterable[Any]) -> list[Any]:
    """What is to be worked on as a list; ArgumentError where there is nothing, as after an iterator's end."""
    found = list(params)
    if not found:
        raise ArgumentError(
            f"{who}: expected at least one parameter, got none: an iterator such as model.parameters() gives them once"
        )
    return found


def distinct_parameters(who: str, params: Iterable[Parameter]) -> list[Parameter]:
    """Each parameter once, in the order of its first place.

    Raises:
        ArgumentError: params is no iterable, or has none. DtypeError: something in it is no Parameter.
    """
    if isinstance(params, Tensor) or not isinstance(params, Iterable):
        raise ArgumentError(f"{who}: expected an iterable of parameters, got {type(params).__name__}")
    distinct = list({id(param): param for param in at_least_one(who, params)}.values())
    for param in distinct:
        if not isinstance(param, Parameter):
            raise DtypeError(f"{who}: expected parameters, got {type(param).__name__}")
    return distinct


def zero_gradients(who: str, params: Iterable[Parameter], set_to_none: bool) -> None:
    """Forget the gradients; with set_to_none=False fill those present with zeros instead."""
    check_switch(who, set_to_none=set_to_none)
    if backwards_under_way():
        params = list(params)
        for param in params:
            check_at_rest(param)
    if (capture := current_capture()) is not None:
        params = list(params)
        capture.dropped.update(map(id, params))
    for param in params:
        if set_to_none:
            param.grad_array = None
            if param.grad_given is not None:
                drop_gradient(param)
        elif param.grad_array is not None:
            with param.device.current():
                param.grad_array[...] = 0
            gradient_changed(param)


def zero_parameter(shape: tuple[int, ...], device: Device | str | None, dtype: DtypeLike | None) -> Parameter:
    """A parameter for a layer to initialise: zeros, on the CPU and float32 unless told otherwise."""
    return Parameter(_zeros(shape, device, dtype))


def zero_buffer(shape: tuple[int, ...], device: Device | str | None, dtype: DtypeLike | None) -> Buffer:
    """A buffer of zeros, on the CPU and float32 unless told otherwise."""
    return Buffer(_zeros(shape, device, dtype))


def _zeros(shape: tuple[int, ...], device: Device | str | None, dtype: DtypeLike | None) -> Array:
    with (CPU if device is None else Device(device)).current() as xp:
        return xp.zeros(shape, as_dtype(float if dtype is None else dtype))
