"""Hooks on tensors: functions that see a gradient, or replace it, on its way through a backward."""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

from minigrad.autograd import Node, accumulate
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import duplicate
from minigrad.errors import AutogradError
from minigrad.kept import gradient_changed
from minigrad.ops.methods import method
from minigrad.removal import Removal
from minigrad.tensor import LeafHook, Tensor

__all__: list[str] = []

Hook = Callable[[Tensor], Tensor | None]


class _Hooked:
    """The backward function of a node whose output has hooks; it dies with the graph."""

    def __init__(self, backward: Callable[[Node, Array], None]) -> None:
        self.backward, self.__name__ = backward, backward.__name__
        self.hooks: dict[object, Hook] = {}
        self.keeper: ref[Tensor] | None = None  # whose `grad` is to be kept

    def __call__(self, node: Node, grad: Array) -> None:
        for hook in list(self.hooks.values()):
            grad = _replaced(hook, grad)
        keeper = None if self.keeper is None else self.keeper()
        if keeper is not None and keeper.node is node:
            accumulate(keeper, duplicate(grad))
        self.backward(node, grad)


class _GradientHook(LeafHook):
    """A hook on a leaf: it gets what this backward adds to the gradient of that leaf."""

    def __init__(self, hook: Hook) -> None:
        super().__init__(self._leaf)
        self.hook = hook
        self.before: Array | None = None  # the gradient as this backward began

    def begin(self, leaves: list[Tensor]) -> None:
        """Remember the gradient so far."""
        leaf = next(leaf for leaf in leaves if any(listener is self for listener in leaf.listeners))
        self.before = None if leaf.grad_array is None else duplicate(leaf.grad_array)

    def _leaf(self, leaf: Tensor) -> None:
        before, self.before = self.before, None
        if leaf.grad_array is None:
            return
        added = leaf.grad_array if before is None else leaf.grad_array - before
        found = _replaced(self.hook, added)
        if found is not added:
            leaf.grad_array[...] = found if before is None else before + found
            gradient_changed(leaf)


def _replaced(hook: Hook, grad: Array) -> Array:
    """What a hook makes of a gradient; the same array where it returns None."""
    given = Tensor(duplicate(grad))
    found = hook(given)
    if found is None:
        return grad
    given._check_like("register_hook", found)
    return duplicate(found.data)


def _hooked(who: str, x: Tensor) -> _Hooked | None:
    """The backward function of x, as one with hooks; None for a leaf."""
    if not x.requires_grad:
        raise AutogradError(f"{who}: expected a tensor that requires grad, got one of shape {x.shape} that does not")
    if x.node is None:
        return None
    if not isinstance(x.node.backward, _Hooked):
        x.node.backward = _Hooked(x.node.backward)
    return x.node.backward


@method
def register_hook(x: Tensor, hook: Hook) -> Removal:
    """Call hook(grad) in each backward with the gradient of this tensor; a tensor that it returns takes its place.

    On a leaf the gradient is what that backward adds, all of it, and the hook comes before those of
    `register_post_accumulate_grad_hook` and before a data-parallel wrapper sends the gradient. Elsewhere it comes
    before the gradient goes on to what the tensor was computed from. The gradient is a copy.

    Returns:
        What removes the hook, by `.remove()`.

    Raises:
        AutogradError: the tensor does not require grad.
        DtypeError, ShapeError, DeviceError: in backward, of a gradient that the hook returned and that does not fit.

    Example:
        >>> import minigrad
        >>> w = minigrad.tensor([1.0, 2.0], requires_grad=True)
        >>> handle = w.register_hook(lambda grad: grad * 2)
        >>> (w * 3).sum().backward()
        >>> w.grad.tolist()
        [6.0, 6.0]
    """
    hooked = _hooked("register_hook", x)
    if hooked is not None:
        hooks, key = hooked.hooks, object()
        hooks[key] = hook
        return Removal(lambda: hooks.pop(key, None))
    listener, others = _GradientHook(hook), x.listeners
    first = tuple(heard for heard in others if isinstance(heard, _GradientHook))
    x.listeners = (*first, listener, *(heard for heard in others if heard not in first))

    def remove() -> None:
        x.listeners = tuple(kept for kept in x.listeners if kept is not listener)

    return Removal(remove)


@method
def retain_grad(x: Tensor) -> None:
    """Keep the gradient of this tensor in `.grad`, though it is the output of an operation; nothing for a leaf.

    Raises:
        AutogradError: the tensor does not require grad.
    """
    hooked = _hooked("retain_grad", x)
    if hooked is not None and hooked.keeper is None:
        hooked.keeper = ref(x)
        x.grad_array = x.grad_view = x.grad_given = None
        x.grad_owned = False
        x.listeners = ()
