"""Hooks that see the gradients of a module's inputs and outputs: an operation of one's own at either end of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.autograd.function import Function
from minigrad.errors import ArgumentError, DtypeError
from minigrad.removal import Removal
from minigrad.tensor import Tensor

Grads = tuple[Tensor | None, ...]
Hook = Callable[[Any, Grads, Grads], Any]


class _Call:
    """One call of a module: what its backward is told.

    Args:
        hooks: Those of the module.
        count: How many arguments it has.
        places: Which of them get a gradient.
    """

    def __init__(self, module: Any, hooks: dict[object, Hook], count: int, places: list[int]) -> None:
        self._module, self._hooks, self._count, self.places = module, hooks, count, places
        self.of_output: Grads = ()

    def tell(self, of_inputs: Grads) -> Grads:
        """Call the hooks with the gradients of all arguments; what they make of those of the tensors that get one."""
        given: list[Tensor | None] = [None] * self._count
        for i, grad in zip(self.places, of_inputs):
            given[i] = grad
        for hook in list(self._hooks.values()):
            found = hook(self._module, tuple(given), self.of_output)
            if found is None:
                continue
            given = list(found) if isinstance(found, tuple) else [found]
            if len(given) != self._count:
                raise ArgumentError(
                    f"register_full_backward_hook: expected None or a gradient for each of {self._count} arguments, "
                    f"got {len(given)} from the hook"
                )
        return tuple(given[i] for i in self.places)


class _Entrance(Function):
    """The inputs as they are; in backward, the hook."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The inputs."""
        ctx.call = call
        ctx.set_materialize_grads(False)
        return inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """What the hook makes of their gradients."""
        return (None, *ctx.call.tell(grads))


class _Exit(Function):
    """The outputs as they are; in backward their gradients are noted."""

    @staticmethod
    def forward(ctx: Any, call: _Call, places: list[int], count: int, *outputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs."""
        ctx.call, ctx.places, ctx.count = call, places, count
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """The same gradients."""
        noted: list[Tensor | None] = [None] * ctx.count
        for i, grad in zip(ctx.places, grads):
            noted[i] = grad
        ctx.call.of_output = tuple(noted)
        if not ctx.call.places:  # no input whose gradient comes later
            ctx.call.tell(())
        return (None, None, None, *grads)


class _Ends:
    """The hooks of a module, and its calls that have begun, the innermost last."""

    def __init__(self) -> None:
        self.hooks: dict[object, Hook] = {}
        self._calls: list[_Call] = []

    def enter(self, module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Before forward: the arguments."""
        places = _with_gradient(args) if self.hooks else []
        self._calls.append(_Call(module, self.hooks, len(args), places))
        return _through(_Entrance, (self._calls[-1],), args, places)

    def leave(self, module: Any, args: tuple[Any, ...], output: Any) -> Any:
        """After it: the output."""
        call, alone = self._calls.pop(), isinstance(output, Tensor)
        if not self.hooks:
            return output
        if not alone and not isinstance(output, (tuple, list)):
            raise DtypeError(
                "register_full_backward_hook: expected a module that returns a tensor, or a tuple or list of them, got "
                f"{type(output).__name__}"
            )
        outputs = (output,) if alone else tuple(output)
        places = _with_gradient(outputs)
        outputs = _through(_Exit, (call, places, len(outputs)), outputs, places)
        if alone:
            return outputs[0]
        return type(output)(*outputs) if hasattr(output, "_fields") else type(output)(outputs)


def listen(module: Any, hook: Hook) -> Removal:
    """See `Module.register_full_backward_hook`."""
    if not callable(hook):
        raise DtypeError(f"register_full_backward_hook: expected a function, got {type(hook).__name__}")
    heard = (getattr(known, "__self__", None) for known in module._forward_pre_hooks.values())
    ends = next((ends for ends in heard if isinstance(ends, _Ends)), None)
    if ends is None:
        ends = _Ends()
        module.register_forward_pre_hook(ends.enter)
        module.register_forward_hook(ends.leave)
    hooks, key = ends.hooks, object()
    hooks[key] = hook
    return Removal(lambda: hooks.pop(key, None))


def _with_gradient(values: Any) -> list[int]:
    """Which values are tensors that require grad."""
    return [i for i, x in enumerate(values) if isinstance(x, Tensor) and x.requires_grad]


def _through(function: type[Function], first: tuple[Any, ...], values: Any, places: list[int]) -> tuple[Any, ...]:
    """Values, of which those in these places have gone through a function."""
    found = list(values)
    if places:
        for i, x in zip(places, function.apply(*first, *(values[i] for i in places))):
            found[i] = x
    return tuple(found)
