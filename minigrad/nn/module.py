"""Module: a tree of parameters, buffers and other modules that computes something."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from minigrad.absent import tell_lacking
from minigrad.arguments import check_switch
from minigrad.backend.device import Device, as_gpu
from minigrad.backend.dtypes import DtypeLike, is_float
from minigrad.errors import ArgumentError, DtypeError
from minigrad.nn.parameter import zero_gradients
from minigrad.nn.state import IncompatibleKeys, State, load_state, move_state
from minigrad.nn.tree import ModuleTree
from minigrad.nn.watch import call_watched, current_watcher, register_full_backward_hook
from minigrad.ops.convert import read_target
from minigrad.removal import Removal
from minigrad.tensor import Tensor, tensors_in

__all__ = ["Module"]

Self = TypeVar("Self", bound="Module")
Hook = Callable[..., Any]
_next_hook = itertools.count().__next__


class Module(ModuleTree["Module"]):
    """Base of all layers and networks: assign parameters, buffers and modules to it, and define `forward`.

    What is assigned is found again by its name, in the order of assignment: `net.fc.weight` is "fc.weight" in
    `named_parameters()` and in `state_dict()`.

    Attributes:
        training: Whether layers such as Dropout behave as in training.

    Example:
        >>> from minigrad import nn
        >>> class Net(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.fc = nn.Linear(3, 2)
        ...     def forward(self, x):
        ...         return self.fc(x)
        >>> [name for name, _ in Net().named_parameters()]
        ['fc.weight', 'fc.bias']
    """

    training: bool
    _forward_pre_hooks: dict[int, Hook]
    _forward_hooks: dict[int, Hook]

    def __init__(self) -> None:
        super().__init__()
        self.training = True
        self._forward_pre_hooks, self._forward_hooks = {}, {}

    # --------------------------------------------------------------------------------------------------- running

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` with the hooks around it; `input=` means our first argument, x."""
        if kwargs and "input" in kwargs:
            kwargs = _with_our_name(self.forward, kwargs)
        if current_watcher() is not None:
            return self._call_watched(args, kwargs)
        if self._forward_hooks or self._forward_pre_hooks:
            return self._call_with_hooks(args, kwargs)
        return self.forward(*args, **kwargs)

    def _no_forward(self, *args: Any, **kwargs: Any) -> Any:
        raise ArgumentError(f"{self._who()}: expected a module that defines forward(), got one that can't be called")

    forward: Callable[..., Any] = _no_forward

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for hook in tuple(self._forward_pre_hooks.values()):
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        output = self.forward(*args, **kwargs)
        for hook in tuple(self._forward_hooks.values()):
            changed = hook(self, args, output)
            output = output if changed is None else changed
        return output

    def _call_watched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Tell the watcher of this call."""
        return call_watched(self, args, kwargs)

    def _count_samples(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        """The samples of a call: the length of its first tensor that has an axis, in lists and mappings too; or 0."""
        return next((float(x.shape[0]) for x in tensors_in((*args, *kwargs.values())) if x.ndim), 0.0)

    def register_forward_pre_hook(self, hook: Hook) -> Removal:
        """Call hook(module, args) before each forward; what it returns, if not None, replaces the arguments.

        Returns:
            What removes the hook, by `.remove()`.
        """
        return _add_hook(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Hook) -> Removal:
        """Call hook(module, args, output) after each forward; what it returns, if not None, replaces the output.

        Returns:
            What removes the hook, by `.remove()`.
        """
        return _add_hook(self._forward_hooks, hook)

    register_full_backward_hook = register_full_backward_hook

    # ---------------------------------------------------------------------------------------------------- state

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Parameters and persistent buffers by dotted name, a shared one under each of its names.

        The tensors are detached and share the memory of the module: copy what has to outlive a training step.

        Raises:
            CollectiveMismatchError, ReplicaMismatchError: it is trained on several ranks, and these have parted.
        """
        found = self._state(prefix)
        for listener in {id(heard): heard for x in found.values() for heard in x.listeners}.values():
            if hasattr(listener, "before_saving"):
                listener.before_saving()
        return {name: x.detach() for name, x in found.items()}

    def _state(self, prefix: str = "") -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for path, module in self._walk(prefix.removesuffix(".")):
            dot = f"{path}." if path else ""
            found.update((dot + name, p) for name, p in module._parameters.items() if p is not None)
            found.update((dot + name, b) for name, b in module._buffers.items() if b is not None and b.persistent)
        return found

    def load_state_dict(self, state_dict: State, strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Copy values into the parameters and buffers, in place: flat layouts and optimizers stay valid.

        Args:
            state_dict: Tensors or arrays by dotted name, on any device: such as PyTorch's `state_dict()` as it is.
            strict: Whether the names must be exactly those of `state_dict()`; shapes and dtypes always have to fit.
            assign: False: values are copied, and never take the place of the parameters.

        Returns:
            The names that are missing in state_dict, and those that the module does not have.

        Raises:
            StateDictError: names, shapes or dtypes do not fit; all are listed, and the module is as before.
            ArgumentError: assign is not False.
        """
        return load_state(f"{self._who()}.load_state_dict", self, state_dict, strict, assign)

    def to(self: Self, *target: Any, dtype: DtypeLike = None, device: Device | str | None = None) -> Self:
        """Move parameters, gradients and buffers to a device, or to a float dtype; in place, returns the module.

        Args:
            target: A device, a dtype, both in any order, or a tensor to be like. Integer buffers keep their dtype.

        Raises:
            LayoutError: a parameter that would move lies in a flat layout already.
            DtypeError: no float dtype.
            DeviceError: a device that is not there.
        """
        wanted_dtype, wanted_device = read_target(target, dtype, device)
        if wanted_dtype is not None and not is_float(wanted_dtype):
            raise DtypeError(f"{self._who()}.to: expected a float dtype, got {wanted_dtype.name}")
        own = dict(itertools.chain(self.named_parameters(), self.named_buffers()))
        move_state(f"{self._who()}.to", own, wanted_device, wanted_dtype)
        return self

    def float(self: Self) -> Self:
        """Make float parameters and buffers float32."""
        return self.to(dtype="float32")

    def double(self: Self) -> Self:
        """Make float parameters and buffers float64."""
        return self.to(dtype="float64")

    def half(self: Self) -> Self:
        """Make float parameters and buffers float16."""
        return self.to(dtype="float16")

    def bfloat16(self: Self) -> Self:
        """Make float parameters and buffers bfloat16."""
        return self.to(dtype="bfloat16")

    def cpu(self: Self) -> Self:
        """Move everything to the CPU."""
        return self.to(Device("cpu"))

    def cuda(self: Self, device: int | Device | str | None = None) -> Self:
        """Move everything to a GPU; the first one by default."""
        return self.to(as_gpu(f"{self._who()}.cuda", device))

    def train(self: Self, mode: bool = True) -> Self:
        """Set `training`, here and below; returns the module. ArgumentError where mode is no bool."""
        check_switch(f"{self._who()}.train", mode=mode)
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self: Self) -> Self:
        """The same as train(False)."""
        return self.train(False)

    def apply(self: Self, function: Callable[[Module], object]) -> Self:
        """Call function(module) on every module, children first; returns the module."""
        for child in tuple(self.children()):
            child.apply(function)
        function(self)
        return self

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Start or stop training every parameter; returns the module."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every gradient; with set_to_none=False fill those present with zeros instead."""
        zero_gradients(f"{self._who()}.zero_grad", self.parameters(), set_to_none)

    # ------------------------------------------------------------------------------------------- text and copies

    def extra_repr(self) -> str:
        """What `repr` shows between the brackets; for subclasses to define."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = [extra] if extra and self._modules else []
        lines += [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self._modules.items()]
        body = "\n  " + "\n  ".join(lines) + "\n" if lines else extra
        return f"{self._who()}({body})"

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ArgumentError(
            f"pickle: expected plain data, got a {self._who()}: save its state_dict() with nn.save_file, "
            "or copy it with copy.deepcopy"
        )


tell_lacking("Module", Module)


def _add_hook(hooks: dict[int, Hook], hook: Hook) -> Removal:
    if not callable(hook):
        raise DtypeError(f"hook: expected a function, got {type(hook).__name__}")
    key = _next_hook()
    hooks[key] = hook
    return Removal(lambda: hooks.pop(key, None))


def _with_our_name(forward: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = inspect.signature(forward).parameters
    if "input" in names or "x" not in names:
        return kwargs
    return {"x" if name == "input" else name: value for name, value in kwargs.items()}
