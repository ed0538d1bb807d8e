"""Gradients that a call returns, rather than adds to `.grad`, and backward from several tensors at once.

`grad` walks the nodes between outputs and inputs and no others. While the backward function of one runs, an edge that
leads to no input is None, so that it leaves that gradient out, and one to an input that is a leaf is a node of its own,
where what comes is collected: no leaf is touched, and nobody who listens to one hears of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.arguments import check_switch, kind_of
from minigrad.autograd.tape import Edge, Node, freed, lend, reach, run_backward, walk
from minigrad.backend.device import device_of
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import duplicate
from minigrad.errors import ArgumentError, AutogradError, DtypeError, ShapeError
from minigrad.ops.hooks import Hooked, hooks_of
from minigrad.stamp import next_number
from minigrad.tensor import Tensor

__all__ = ["backward", "grad"]

Tensors = Tensor | Sequence[Tensor]


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """The gradients of the sum of outputs with respect to inputs, leaves or not, as a tuple; no `.grad` is touched.

    A data-parallel wrapper does not hear of it: what it gives is the gradient of this rank's own loss. Hooks of
    `register_hook` on the tensors between are called, and those of the inputs, whose gradient is what they return.

    Args:
        outputs: Tensors that require grad.
        inputs: Tensors that require grad, which the outputs depend on.
        grad_outputs: For each output a gradient of its shape and dtype; None for one of a single element.
        retain_graph: Keep the graph between them, for another backward through it.
        create_graph: Must be False: there are first derivatives only.
        only_inputs: Must be True.
        allow_unused: Give None for an input that the outputs do not depend on.
        is_grads_batched: Must be False.
        materialize_grads: Give zeros for it.

    Returns:
        A tensor for each input, or None.

    Raises:
        AutogradError: an output or an input that does not require grad, an input that is not used, a freed graph, data
            changed since it was saved, or create_graph.
        ArgumentError: another number of grad_outputs, is_grads_batched, only_inputs=False, or a switch that is none.
        ShapeError, DtypeError, DeviceError: a grad_output that does not fit; no tensor.

    Example:
        >>> import minigrad
        >>> x = minigrad.tensor([1.0, 2.0], requires_grad=True)
        >>> minigrad.autograd.grad((x * x).sum(), x)[0].tolist(), x.grad
        ([2.0, 4.0], None)
    """
    _check_order("grad", retain_graph, create_graph)
    _check_batched("grad", is_grads_batched)
    if only_inputs is not True:
        raise ArgumentError(f"grad: expected only_inputs=True, got {only_inputs!r:.100}: write backward()")
    check_switch("grad", materialize_grads=materialize_grads)
    if allow_unused is not None:
        check_switch("grad", allow_unused=allow_unused)
    if allow_unused is False and materialize_grads:
        raise ArgumentError("grad: expected allow_unused=True or None with materialize_grads=True, got False")
    roots, wanted = _tensors("grad", "outputs", outputs), _tensors("grad", "inputs", inputs)
    seeds = _seeds("grad", roots, grad_outputs)
    if not wanted:
        raise ArgumentError("grad: expected at least one input, got none")
    between = _Between(roots, wanted)
    _check_used(between, wanted, [between.reaches(x) for x in wanted], allow_unused or materialize_grads)
    with roots[0].device.current():
        found = between.walk(seeds, retain_graph is True)
    _check_used(between, wanted, [gradient is not None for gradient in found], allow_unused or materialize_grads)
    return tuple(_given(x, gradient, materialize_grads) for x, gradient in zip(wanted, found))


def backward(
    tensors: Tensors,
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: None = None,
) -> None:
    """Add the gradient of the sum of tensors to the `.grad` of every leaf: one backward, as of their sum.

    Args:
        tensors: Tensors that require grad.
        grad_tensors: For each a gradient of its shape and dtype; None for one of a single element.
        retain_graph: Keep the graph, for another backward through it.
        create_graph: Must be False: there are first derivatives only.
        inputs: Must be None.

    Raises:
        AutogradError, ArgumentError, ShapeError, DtypeError, DeviceError: as `grad`, and as `Tensor.backward`.

    Example:
        >>> import minigrad
        >>> x = minigrad.tensor([1.0, 2.0], requires_grad=True)
        >>> minigrad.autograd.backward([x.sum(), (x * x).sum()])
        >>> x.grad.tolist()
        [3.0, 5.0]
    """
    _check_order("backward", retain_graph, create_graph)
    if inputs is not None:
        raise ArgumentError(
            "backward: expected no inputs, got some: write grad(tensors, inputs), which gives their gradients"
        )
    roots = _tensors("backward", "tensors", tensors)
    seeds = _seeds("backward", roots, grad_tensors)
    joint = Node()
    joint.seq, joint.backward, joint.saved = next_number(), _spread, tuple(seeds)
    joint.inputs, joint.output_stamp, joint.grad_array = [x.node or x for x in roots], None, None
    with roots[0].device.current():
        run_backward(joint, seeds[0], retain_graph is True)


def _spread(node: Node, grad: Array) -> None:
    for edge, seed in zip(node.inputs, node.saved):
        with device_of(seed).current():  # a leaf has a copy
            lend(edge, seed)


# ------------------------------------------------------------------------------------------------- what is asked


def _check_order(who: str, retain_graph: bool | None, create_graph: bool) -> None:
    check_switch(who, create_graph=create_graph)
    if retain_graph is not None:
        check_switch(who, retain_graph=retain_graph)
    if create_graph:
        raise AutogradError(f"{who}: expected create_graph=False, got True: only first derivatives are supported")


def _check_batched(who: str, is_grads_batched: bool) -> None:
    if is_grads_batched is not False:
        raise ArgumentError(
            f"{who}: expected is_grads_batched=False, got {is_grads_batched!r:.100}: call it for one gradient after "
            "the other, with retain_graph=True"
        )


def _tensors(who: str, name: str, given: Any) -> list[Tensor]:
    """Tensors that require grad, as a list."""
    found = [given] if isinstance(given, Tensor) else list(given) if hasattr(given, "__iter__") else [given]
    for i, x in enumerate(found):
        if not isinstance(x, Tensor):
            raise DtypeError(f"{who}: expected {name} as tensors, got {kind_of(x)}")
        if not x.requires_grad:
            raise AutogradError(
                f"{who}: expected {name} that require grad, got number {i}, {x.dtype.name} {x.shape}, that does not"
            )
    if not found:
        raise ArgumentError(f"{who}: expected {name}, got none")
    return found


def _seeds(who: str, roots: list[Tensor], given: Any) -> list[Array]:
    """The gradient of each output."""
    grads = [None] * len(roots) if given is None else [given] if isinstance(given, Tensor) else list(given)
    if len(grads) != len(roots):
        raise ArgumentError(f"{who}: expected a gradient for each of {len(roots)} tensors, got {len(grads)}")
    seeds = []
    for x, one in zip(roots, grads):
        if one is not None:
            x._check_like(who, one)
        elif x.numel() != 1:
            raise ShapeError(f"{who}: expected a gradient for an output of shape {x.shape}, got None: give one of ones")
        with x.device.current():
            seeds.append(x._seed(one))
    return seeds


def _given(x: Tensor, gradient: Array | None, materialize: bool) -> Tensor | None:
    if gradient is None and materialize:
        with x.device.current() as xp:
            gradient = xp.zeros(x.shape, x.dtype)
    return None if gradient is None else Tensor(gradient)


def _check_used(between: _Between, wanted: list[Tensor], used: list[bool], lenient: bool) -> None:
    """Refuse inputs that the outputs do not depend on, and a graph of which that can't be said any more."""
    if between.was_freed and not all(used):
        raise AutogradError(
            "grad: expected the graph between outputs and inputs, got one that an earlier backward() or grad() freed: "
            "call that with retain_graph=True, or run the forward pass again"
        )
    if not (lenient or all(used)):
        i = used.index(False)
        raise AutogradError(
            f"grad: expected inputs that the outputs depend on, got input {i} of shape {wanted[i].shape}, on which "
            "none does: write allow_unused=True for None, or materialize_grads=True for zeros"
        )


# ---------------------------------------------------------------------------------------------------- the walk


class _Between:
    """What lies between outputs and inputs."""

    def __init__(self, roots: list[Tensor], wanted: list[Tensor]) -> None:
        self._roots, self._wanted = roots, wanted
        self._nodes: dict[int, Node] = {}
        for x in roots:
            self._nodes.update(reach(x.node or x)[0])
        self._nodes = dict(sorted(self._nodes.items()))
        self.was_freed = any(node.backward is freed for node in self._nodes.values())  # what was behind, nobody knows
        self._ends = {id(x): _collector() for x in wanted if x.node is None}
        self._inner = {x.node.seq for x in wanted if x.node is not None}
        self._leads = set[int]()  # the nodes with an edge that leads to an input
        self._met = {id(x) for x in roots}  # outputs, and leaves among the inputs that an output depends on
        for number, node in self._nodes.items():
            if any(self._edge(edge) is not None for edge in node.inputs):
                self._leads.add(number)
                self._met.update(id(edge) for edge in node.inputs)

    def _edge(self, edge: Edge) -> Edge:
        """An edge while the walk lasts."""
        if isinstance(edge, Node):
            return edge if edge.seq in self._leads or edge.seq in self._inner else None
        return self._ends.get(id(edge))

    def reaches(self, x: Tensor) -> bool:
        """Whether an output depends on an input, or is that input."""
        return id(x) in self._met if x.node is None else x.node.seq in self._nodes

    def walk(self, seeds: list[Array], retain: bool) -> list[Array | None]:
        """The gradient of each input; None where none came.

        A backward through the same nodes may be under way, from a hook of which this was called: what has come to them
        there is set aside.
        """
        walked = {number: node for number, node in self._nodes.items() if self._edge(node) is not None}
        before = [(node, node.grad_array, getattr(node, "grad_owned", False)) for node in walked.values()]
        found: dict[int, Array | None] = {}
        try:
            for node in walked.values():
                node.grad_array = None
            for x, seed in zip(self._roots, seeds):
                with device_of(seed).current():
                    lend(self._edge(x.node or x), seed)
            for number in reversed(walked):
                node = walked[number]
                grad = _heard(node, node)
                if number in self._inner:
                    found[number] = None if grad is None else duplicate(grad)
                if number in self._leads and grad is not None:
                    self._send(node, retain)
            for x in self._wanted:
                if x.node is None and id(x) not in found:
                    grad = _heard(self._ends[id(x)], x)
                    found[id(x)] = None if grad is None else duplicate(grad)
        finally:
            for node, came, owned in before:
                node.grad_array, node.grad_owned = came, owned
        return [found.get(id(x) if x.node is None else x.node.seq) for x in self._wanted]

    def _send(self, node: Node, retain: bool) -> None:
        """Send the gradient of a node on along the edges that lead to an input; its hooks have heard of it."""
        hooks, inputs = hooks_of(node), node.inputs
        if isinstance(hooks, Hooked):
            node.backward = hooks.backward
        node.inputs = [self._edge(edge) for edge in inputs]
        try:
            here = None if node.grad_array.__class__ is np.ndarray else -1  # walk enters the device of its gradient
            walk({node.seq: node}, [node.seq], None, retain, [], here)
        finally:
            if node.inputs:  # it was not freed
                node.inputs = inputs
            if isinstance(hooks, Hooked) and node.backward is hooks.backward:
                node.backward = hooks


def _collector() -> Node:
    """A node in the place of a leaf."""
    node = Node()
    node.seq, node.inputs, node.saved, node.grad_array = 0, [], (), None
    return node


def _heard(node: Node, of: Node | Tensor) -> Array | None:
    """The gradient that came to a node, which becomes what the hooks of that node, or of a leaf, make of it."""
    grad, hooks = node.grad_array, hooks_of(of)
    if grad is not None and hooks is not None:
        with device_of(grad).current():
            node.grad_array = grad = hooks.heard(of, grad)
    return grad
