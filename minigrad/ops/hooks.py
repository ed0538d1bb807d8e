"""Hooks on tensors: functions that see a gradient, or replace it, on its way through a backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import duplicate
from minigrad.errors import AutogradError
from minigrad.ops.methods import method, method_as
from minigrad.removal import Removal
from minigrad.tensor import LeafHook, Tensor

__all__: list[str] = []

Hook = Callable[[Tensor], Tensor | None]


class Hooked:
    """The backward function of a node whose output has hooks; it dies with the graph."""

    def __init__(self, backward: Callable[[Node, Array], None]) -> None:
        self.backward, self.__name__ = backward, backward.__name__
        self.hooks: dict[object, Hook] = {}
        self.keeper: ref[Tensor] | None = None  # whose `grad` is to be kept

    def __call__(self, node: Node, grad: Array) -> None:
        self.backward(node, self.heard(node, grad))

    def heard(self, node: Any, grad: Array) -> Array:
        """What the hooks make of a gradient that came to the node, which is kept where `retain_grad` asked for it."""
        grad = _passed(self.hooks, grad)
        keeper = None if self.keeper is None else self.keeper()
        if keeper is not None and keeper.node is node:
            accumulate(keeper, duplicate(grad))
        return grad


def hooks_of(x: Node | Tensor) -> Hooked | LeafHooks | None:
    """What calls the hooks of a node's output, or of a leaf; None where it has none."""
    if isinstance(x, Node):
        return x.backward if isinstance(x.backward, Hooked) else None
    return next((heard for heard in x.listeners if isinstance(heard, LeafHooks)), None)


_Place = tuple[Array | None, Array | None, bool, Any]  # where a gradient is: its array, view, owned and given


class LeafHooks(LeafHook):
    """The hooks of a leaf, as one listener; in a backward its gradient so far is set aside, for them to see what comes.

    It stays where its last hook was removed: that may happen within a backward.
    """

    makes_gradient = True  # so it hears of a leaf before all others

    def __init__(self, leaf: Tensor) -> None:
        self.hooks: dict[object, Hook] = {}
        self._of = ref(leaf)
        self._aside: list[_Place | None] = []  # of each backward under way, the innermost last; None once it is back

    def heard(self, leaf: Any, grad: Array) -> Array:
        """What the hooks make of a gradient of the leaf."""
        return _passed(self.hooks, grad)

    def begin(self, leaves: list[Tensor]) -> None:
        """Set the gradient so far aside; zeros show that there is one."""
        leaf = self._of()
        if leaf is None or not self.hooks:
            self._aside.append(None)
            return
        with leaf.device.current() as xp:
            empty = None if leaf.grad_array is None else xp.zeros_like(leaf.grad_array)
        self._aside.append(_put(leaf, (empty, None, True, None)))

    def leaf(self, leaf: Tensor) -> None:
        """Put it back, and add what the hooks make of what came; within other backwards it is added to the first's."""
        place = self._aside[-1] if self._aside else None
        if place is None:  # its first hook came within this backward
            return
        self._aside[-1] = None
        came, *_ = _put(leaf, place)
        if came is None:
            return
        with leaf.device.current():
            came = self.heard(leaf, came)
            first = next((i for i, outer in enumerate(self._aside) if outer is not None), None)
            if first is None:
                accumulate(leaf, came)
                return
            here = _put(leaf, self._aside[first])
            accumulate(leaf, came)
            self._aside[first] = _put(leaf, here)

    def end(self, error: BaseException | None) -> None:
        """Put back what is aside still, after an error; what somebody dropped since stays so."""
        leaf, place = self._of(), self._aside.pop()
        if leaf is not None and place is not None:
            _put(leaf, place if leaf.grad_array is not None else (None, *place[1:]))


def _put(leaf: Tensor, place: _Place | None) -> _Place:
    """Let the gradient of a leaf be in another place; the place where it was."""
    assert place is not None
    was = leaf.grad_array, leaf.grad_view, leaf.grad_owned, leaf.grad_given
    leaf.grad_array, leaf.grad_view, leaf.grad_owned, leaf.grad_given = place
    return was


def _passed(hooks: dict[object, Hook], grad: Array) -> Array:
    """What all hooks make of a gradient, one after the other."""
    for hook in list(hooks.values()):
        grad = _replaced(hook, grad)
    return grad


def _replaced(hook: Hook, grad: Array) -> Array:
    """What a hook makes of a gradient: what it returns, or its own copy, which it may have changed."""
    given = Tensor(duplicate(grad))
    found = hook(given)
    if found is None:
        found = given
    given._check_like("register_hook", found)
    return duplicate(found.data)


def _hooked(who: str, x: Tensor) -> Hooked | None:
    """The backward function of x, as one with hooks; None for a leaf."""
    if not x.requires_grad:
        raise AutogradError(f"{who}: expected a tensor that requires grad, got one of shape {x.shape} that does not")
    if x.node is None:
        return None
    if not isinstance(x.node.backward, Hooked):
        x.node.backward = Hooked(x.node.backward)
    return x.node.backward


@method
def register_hook(x: Tensor, hook: Hook) -> Removal:
    """Call hook(grad) in each backward with the gradient of this tensor; a tensor that it returns takes its place.

    On a leaf the gradient is what that backward adds, all of it, and the hook comes before those of
    `register_post_accumulate_grad_hook` and before a data-parallel wrapper sends the gradient. Elsewhere it comes
    before the gradient goes on to what the tensor was computed from. The gradient is a copy; a hook that changes it in
    place may return None.

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
    heard, key = _hooked("register_hook", x) or _leaf_hooks(x), object()
    heard.hooks[key] = hook
    return Removal(lambda: heard.hooks.pop(key, None))


def _leaf_hooks(x: Tensor) -> LeafHooks:
    """What calls the hooks of a leaf, before all others who listen to it."""
    heard = hooks_of(x)
    if not isinstance(heard, LeafHooks):
        heard = LeafHooks(x)
        x.listeners = (heard, *x.listeners)
    return heard


@method
def retain_grad(x: Tensor) -> None:
    """Keep the gradient of this tensor in `.grad`, though it is the output of an operation; nothing for a leaf.

    Raises:
        AutogradError: the tensor does not require grad.
    """
    hooked = _hooked("retain_grad", x)
    if hooked is not None and not x.retains_grad:
        hooked.keeper = ref(x)
        x.grad_array = x.grad_view = x.grad_given = None
        x.grad_owned = False
        x.listeners = ()


def _retains_grad(x: Tensor) -> bool:
    """Whether `retain_grad` keeps the gradient of this tensor, which is no leaf."""
    return x.node is not None and hasattr(x, "grad_array")


method_as("retains_grad")(property(_retains_grad))
