"""The tape: what a recorded operation remembers, and how backward walks it.

An operation that is recorded leaves a `Node` behind: a sequence number, its backward function, the edges to its
inputs and what it saved. An edge is the Node that made the input, the input itself where it is a leaf, or None
where no gradient is wanted. Outputs point to inputs and never back, so a dropped loss frees its graph by reference
counting alone. The order of recording is a topological order: backward sorts integers instead of walking depth first.

Data that a node saved was changed since exactly when the number in its stamp is larger than the node's; see `stamp`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from minigrad.autograd.before import before_walk, current_watcher
from minigrad.backend.device import array_module, device_of
from minigrad.backend.dtypes import Array
from minigrad.backend.order import in_order
from minigrad.errors import AutogradError, DtypeError
from minigrad.kept import gradient_changed, keep_given
from minigrad.stamp import Stamp

_under_way: ContextVar[tuple[Reached, ...]] = ContextVar("minigrad_backwards", default=())
backwards_under_way = _under_way.get  # what backwards reach, outermost first


class Variable:
    """The half of a tensor that the tape sees; `Tensor` adds what a user sees.

    grad_array is the gradient so far, None before the first contribution. grad_owned says that nobody else can see
    that array, so it may be added to in place. grad_view, on parameters with a flat layout, is where the gradient
    has to live: the first contribution is written or copied there, later ones are added, and `grad` is a tensor on
    that memory. grad_given is set once somebody has read `grad`: the array that the tensors handed out lie on, and
    their stamp. Before that memory takes the next gradient, `keep_given` copies the old values for those tensors that
    somebody still holds: after `grad = None` they keep their numbers.
    taken, on views alone, is the number of the last recorded change of the memory when it was viewed.
    """

    __slots__ = (
        *("data", "requires_grad", "node", "listeners", "stamp", "taken"),
        *("grad_array", "grad_owned", "grad_view", "grad_given"),
    )
    data: Array
    requires_grad: bool
    node: Node | None
    stamp: Stamp | None
    taken: int
    grad_array: Array | None
    grad_owned: bool
    grad_view: Array | None
    grad_given: tuple[Array, Stamp] | None
    listeners: tuple[BackwardListener, ...]
    grad_by_hand: bool = False  # whether somebody set the gradient; False elsewhere than on parameters in a flat layout

    def _rebind(self, data: Array) -> None:
        self.data = data


class Node:
    """One recorded operation.

    `saved` is what backward needs: arrays, tensors (whose later change is then noticed) and plain values. Between
    forward and backward it may be set to None and put back: that is all that recomputation needs.
    """

    __slots__ = ("seq", "backward", "inputs", "saved", "output_stamp", "grad_array", "grad_owned")
    seq: int
    backward: Callable[[Node, Array], None]
    inputs: list[Edge]
    saved: Any  # a tuple; None while dropped
    output_stamp: Stamp | None
    grad_array: Array | None
    grad_owned: bool
    grad_view: Array | None = None  # only leaves have one
    grad_given: tuple[Array, Stamp] | None = None

    def free(self) -> None:
        """Let go of what a backward needed, after it."""
        self.backward, self.saved, self.inputs, self.output_stamp = freed, (), [], None


Edge = Node | Variable | None


class Reached(list[Any]):
    """The leaves that a backward will reach.

    Attributes:
        numbers: Those of the nodes that it will walk, in ascending order.
    """

    def __init__(self, leaves: Iterable[Any], numbers: list[int]) -> None:
        super().__init__(leaves)
        self.numbers = numbers


class BackwardListener(Protocol):
    """What hears of a backward that reaches a leaf it listens to."""

    def begin(self, leaves: Reached) -> None:
        """Backward starts, and will reach these leaves (all of them, also those of other listeners)."""

    def leaf(self, leaf: Any) -> None:
        """The gradient of this leaf is complete: None where all that used it gave it nothing. Called once for each."""

    def end(self, error: BaseException | None) -> None:
        """Backward is over; error is what ended it early, or None."""


def freed(node: Node, grad: Array) -> None:
    """The backward function of a node that a backward has freed: an error."""
    raise AutogradError(
        f"backward: expected the graph behind a gradient of shape {grad.shape}, got one that an earlier backward() "
        "freed: call the first one with retain_graph=True, or run the forward pass again"
    )


# ------------------------------------------------------------------------------------------------- accumulation


def accumulate(edge: Edge, grad: Array) -> None:
    """Add a gradient that the caller just computed, and that nobody else holds, to what the edge has so far."""
    if edge is None:
        return
    held = edge.grad_array
    if held is None:
        view = edge.grad_view
        if view is None:
            edge.grad_array = np.asarray(grad) if isinstance(grad, np.generic) else grad
        else:
            if edge.grad_given is not None:
                keep_given(edge)
            if grad is not view:
                view[...] = grad
            edge.grad_array = view
        edge.grad_owned = True
    elif edge.grad_owned:
        held += grad
        if edge.grad_given is not None:
            gradient_changed(edge)
    else:
        total = in_order("add", held, grad)
        edge.grad_array = np.asarray(total) if isinstance(total, np.generic) else total
        edge.grad_owned = True


def lend(edge: Edge, grad: Array) -> None:
    """Like `accumulate`, for an array that others hold too, or a view of one: it will be read, never written."""
    if edge is None:
        return
    if edge.grad_array is None and isinstance(edge, Node):
        edge.grad_array = np.asarray(grad) if isinstance(grad, np.generic) else grad
        edge.grad_owned = False
    elif edge.grad_array is None and edge.grad_view is None:
        accumulate(edge, grad.copy())  # a leaf keeps its gradient, so it has to be its own
    else:
        accumulate(edge, grad)


def accumulate_at(edge: Edge, shape: tuple[int, ...], index: Any, grad: Array) -> None:
    """Add a gradient to a part of an edge of the given shape; the index must not name an element twice."""
    if edge is not None:
        own_gradient(edge, shape, grad)[index] += grad


def own_gradient(edge: Node | Variable, shape: tuple[int, ...], like: Array) -> Array:
    """The gradient so far as an array that may be added to in place: zeros like another's where there is none."""
    if edge.grad_array is None or not edge.grad_owned:
        accumulate(edge, array_module(like).zeros(shape, like.dtype))
    return edge.grad_array


def destination(edge: Edge) -> Array | None:
    """Where the first contribution to an edge can be written by `out=`; None where a new array is needed."""
    if edge is None or edge.grad_array is not None:
        return None
    if edge.grad_given is not None:
        keep_given(edge)
    return edge.grad_view


def spare(node: Node, grad: Array) -> Array | None:
    """The gradient that came to a node, for its backward to write over; None where others hold it, and on a GPU."""
    return grad if node.grad_owned and grad.__class__ is np.ndarray and grad.flags.writeable else None


# ----------------------------------------------------------------------------------------------------- backward


def run_backward(
    root: Edge, grad: Array, retain_graph: bool = False, on_leaf: Callable[[Any], None] | None = None
) -> None:
    """Send a gradient from the root to every leaf that it reaches; the device of the root is current.

    Args:
        root: The node of the tensor to differentiate, or that tensor where it is a leaf.
        grad: Gradient of the root, of its shape; lent.
        retain_graph: Keep the graph for another backward.
        on_leaf: Called with each leaf once its gradient is complete, before those who listen to it.
    """
    nodes, leaves = reach(root)
    reached = Reached([leaf for leaf, _ in leaves.values()], sorted(nodes))
    before_walk(nodes, reached)
    listeners, watcher = _listeners(reached), current_watcher()
    first = [] if on_leaf is None else [on_leaf]
    if watcher is not None:
        listeners, first = [watcher, *listeners], [watcher.leaf, *first]
    begun: list[BackwardListener] = []
    token = _under_way.set((*_under_way.get(), reached))
    try:
        for listener in listeners:
            begun.append(listener)
            listener.begin(reached)
        lend(root, grad)
        watched = leaves if listeners or first else None
        if watched and not nodes:
            _announce([root], watched, first)
        here = None if grad.__class__ is np.ndarray else grad.device.id
        walk(nodes, reached.numbers, watched, retain_graph, first, here)
    except BaseException as error:
        for node in nodes.values():
            node.grad_array = None
        _end(begun, error, watcher)
        raise
    finally:
        _under_way.reset(token)
    _end(begun, None, watcher)


def _end(listeners: list[BackwardListener], error: BaseException | None, last: BackwardListener | None) -> None:
    """Tell every listener that backward is over, also when one of them raises; the first such error is raised."""
    failure: BaseException | None = None
    if last is not None:
        listeners = [*(heard for heard in listeners if heard is not last), last]
    try:
        for listener in listeners:
            try:
                listener.end(error or failure)
            except BaseException as caught:
                failure = failure or caught
        if failure is not None:
            raise failure
    finally:
        error = failure = None  # a traceback holds this frame, which must not hold the error in turn


_Leaves = dict[int, list[Any]]  # id -> [leaf, contributions still to come]
_First = list[Callable[[Any], None]]  # what hears of a leaf before those who listen to it


def reach(root: Edge) -> tuple[dict[int, Node], _Leaves]:
    """All nodes by number and all leaves that the root depends on."""
    if not isinstance(root, Node):
        return {}, {id(root): [root, 1]}
    nodes, leaves = {root.seq: root}, dict[int, list[Any]]()
    stack = [root]
    while stack:
        for edge in stack.pop().inputs:
            if isinstance(edge, Node):
                if edge.seq not in nodes:
                    nodes[edge.seq] = edge
                    stack.append(edge)
            elif edge is None:
                continue
            elif id(edge) in leaves:
                leaves[id(edge)][1] += 1
            else:
                if edge.data.dtype.kind in "biu":
                    raise DtypeError(f"requires_grad: expected floats, got {edge.data.dtype.name} {edge.data.shape}")
                leaves[id(edge)] = [edge, 1]
    return nodes, leaves


def leaves_of(root: Node | Variable) -> list[Any]:
    """The leaves that a backward from here would reach."""
    return [leaf for leaf, _ in reach(root)[1].values()]


def walk(
    nodes: dict[int, Node], numbers: list[int], leaves: _Leaves | None, retain: bool, first: _First, here: int | None
) -> None:
    """Run the backward functions, the latest first, each with the device of its gradient current.

    Args:
        leaves: None where nobody listens.
        here: The GPU that is current, that of the root; None where the root is in host memory.
    """
    for seq in reversed(numbers):
        node = nodes.pop(seq)
        grad, node.grad_array = node.grad_array, None
        if grad is not None:
            if node.saved is None:
                raise AutogradError(f"backward: expected the saved data of {_name(node)}, got none: it was dropped")
            for saved in node.saved:
                if isinstance(saved, Variable) and saved.stamp is not None and saved.stamp.changed > seq:
                    raise _changed(node, f"its input of shape {saved.data.shape}")
            if node.output_stamp is not None and node.output_stamp.changed > seq:
                raise _changed(node, f"its output of shape {grad.shape}")
            if grad.__class__ is np.ndarray or grad.device.id == here:
                node.backward(node, grad)
            else:
                with device_of(grad).current():
                    node.backward(node, grad)
        if leaves is not None:
            _announce(node.inputs, leaves, first)
        if not retain:  # the arrays of the forward pass die as early as possible
            node.free()


def _changed(node: Node, what: str) -> AutogradError:
    return AutogradError(
        f"backward: expected the data that {_name(node)} saved, got data changed in place since, {what}: "
        "change it after backward(), or change a copy"
    )


def _name(node: Node) -> str:
    return node.backward.__name__.strip("_").removesuffix("_backward")


def _listeners(leaves: list[Any]) -> list[BackwardListener]:
    """Each listener once, in the order in which the leaves were reached."""
    return list({id(listener): listener for leaf in leaves for listener in leaf.listeners}.values())


def _announce(edges: list[Edge], leaves: _Leaves, first: _First) -> None:
    """Count a contribution to each leaf among the edges; the last is told to hooks that make its gradient, which stand
    before its other listeners, to those in first, then to its listeners."""
    for edge in edges:
        if edge is None or isinstance(edge, Node):
            continue
        entry = leaves[id(edge)]
        entry[1] -= 1
        if entry[1] == 0:
            leaf = entry[0]
            told = leaf.listeners
            if first:
                made = sum(getattr(listener, "makes_gradient", False) for listener in told)
                for listener in told[:made]:
                    listener.leaf(leaf)
                for hears in first:
                    hears(leaf)
                told = told[made:]
            for listener in told:
                listener.leaf(leaf)
