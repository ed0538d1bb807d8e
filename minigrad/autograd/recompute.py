"""Checkpointing: a stretch of the tape drops what it saved, and computes it again when backward first comes there.

The nodes stay where they are, so what hears of leaves sees no difference (Chen et al., "Training deep nets with
sublinear memory cost", 2016). Each gets a backward function that has the stretch run once more, with recording on, the
noise of the first time and the modes of that context; the nodes made then lend it what they saved. They are compared
with the old ones, and thrown away as backward goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from typing import Any
from weakref import ref

import numpy as np

from minigrad.arguments import check_switch, kind_of
from minigrad.autograd.tape import Node, Variable, walk
from minigrad.backend.device import CPU
from minigrad.backend.dtypes import Array
from minigrad.backend.random import current_streams, replay_from
from minigrad.errors import ArgumentError, AutogradError
from minigrad.ops.hooks import Hooked
from minigrad.ops.precision import convert_anew
from minigrad.recording import is_grad_enabled, recomputing
from minigrad.stamp import Stamp, next_number, shared_stamp
from minigrad.tensor import Tensor, tensors_in

__all__ = ["checkpoint"]

_ADVICE = "compute the same, from the arguments, as the first time"


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = False,
    preserve_rng_state: bool = True,
    context_fn: None = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """function(*args, **kwargs), of which the tape keeps the arguments alone: backward runs it again for the rest.

    The gradients have the bits that they have without it. The second run takes the same noise (but of a generator of
    your own), autocast and other modes. It is no new forward: nothing is counted, the running statistics of a batch
    norm stay as they are, and hooks on tensors are those of the first. Hooks on modules are called again. It may not
    change its arguments in place, nor depend on what changes between forward and backward: a changed argument or
    parameter is an error, as is another course of operations. What else it reads should be an argument. Buffers of
    your own that it moves are moved again, which is an error where an operation saved them.

    Args:
        function: Returns a tensor, or tensors in tuples, lists and mappings.
        args, kwargs: Its arguments; tensors may be nested in the same way.
        use_reentrant: Must be False, or None.
        preserve_rng_state: False draws new noise in the second run, for a function that draws none.
        context_fn, determinism_check, debug: Must be None, "default" and False.
        early_stop: Either: the function runs to its end.

    Raises:
        ArgumentError: no function, another option, or no tensor in what it returns.
        AutogradError: an argument was changed in place inside. In backward: what it was computed from was changed
            since, or in the second run, or it computes something else.

    Example:
        >>> import minigrad
        >>> from minigrad.utils.checkpoint import checkpoint
        >>> x = minigrad.tensor([1.0, 2.0], requires_grad=True)
        >>> y = checkpoint(lambda x: (x * x).exp().log(), x)
        >>> y.sum().backward()
        >>> [round(g, 3) for g in x.grad.tolist()]
        [2.0, 4.0]
    """
    if not callable(function):
        raise ArgumentError(f"checkpoint: expected a function, got {kind_of(function)}")
    check_options("checkpoint", use_reentrant, preserve_rng_state, context_fn, determinism_check, debug, early_stop)
    if not is_grad_enabled():
        return function(*args, **kwargs)
    stretch = _Stretch(function, args, kwargs, preserve_rng_state)
    output = function(*args, **kwargs)
    stretch.end(output)
    return output


def check_options(
    who: str, use_reentrant: Any, preserve: Any, context_fn: Any, determinism: Any, debug: Any, early_stop: Any
) -> None:
    """Refuse the options of PyTorch's that ask for something else."""
    check_switch(who, preserve_rng_state=preserve, early_stop=early_stop)
    if use_reentrant not in (None, False):
        raise ArgumentError(
            f"{who}: expected use_reentrant=False, got {use_reentrant!r:.100}: write that, the gradients are the same"
        )
    if context_fn is not None:
        raise ArgumentError(f"{who}: expected no context_fn, got one: enter the context inside the function")
    if determinism != "default":
        raise ArgumentError(f"{who}: expected determinism_check='default', got {determinism!r:.100}: it always is")
    if debug is not False:
        raise ArgumentError(f"{who}: expected debug=False, got {debug!r:.100}: an error names what differs anyway")


class _Stretch:
    """What was recorded in one run of a function, and the means to run it again.

    Made before the first run; `end` comes after it.
    """

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any, keeps_noise: bool) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self._noise = current_streams().position() if keeps_noise else None
        self._context = copy_context()
        self._context.run(convert_anew)
        self._began = self._ended = next_number()
        self._sources: list[tuple[Stamp, tuple[int, ...]]] = []  # of what it is computed from, with the shape
        self._looks: list[_Look] = []
        self._waiting: list[ref[Redone]] = []

    def end(self, output: Any) -> None:
        """Drop what the nodes behind the output have saved since it was made."""
        given = list(tensors_in([self.args, self.kwargs]))
        for x in given:
            if x.stamp is not None and x.stamp.changed > self._began:
                raise AutogradError(
                    f"checkpoint: expected a function that leaves its arguments as they are, got one of {x.shape} "
                    "changed in place: write inplace=False, or change a clone()"
                )
        found = list(tensors_in(output))
        if not found and output is not None:
            raise ArgumentError(
                f"checkpoint: expected tensors in what the function returns, in tuples, lists or mappings, got "
                f"{kind_of(output)}"
            )
        self._ended = next_number()
        nodes = _nodes_since(found, self._began)
        self._looks = [_look(node) for node in nodes]
        self._sources = [(shared_stamp(x), x.data.shape) for x in _sources(given, nodes)] if nodes else []
        for node in nodes:
            hooked = node.backward if isinstance(node.backward, Hooked) else None
            redone = Redone(self, hooked.backward if hooked is not None else node.backward)
            self._waiting.append(ref(redone))
            if node.saved or isinstance(redone.replaces, Redone):
                (node if hooked is None else hooked).backward = redone
                node.saved, node.output_stamp = (), None
            redone.replaces = None

    def again(self) -> None:
        """Run once more, and hand what is saved to the backward functions that wait for it."""
        self._check_sources(self._ended, "since: change it after backward(), or change a copy")
        began = next_number()
        with next((x.device for x in tensors_in([self.args, self.kwargs])), CPU).current():  # as it was in forward
            output = self._context.copy().run(self._run)
        self._check_sources(began, "by the second run: change it outside of the function")
        nodes = _nodes_since(tensors_in(output), began)
        _check_same(self._looks, [_look(node) for node in nodes])
        for waiting, node in zip(self._waiting, nodes):
            redone = waiting()
            node.inputs = []
            if redone is not None:
                if isinstance(node.backward, Hooked):
                    node.backward = node.backward.backward
                redone.lent = node

    def _check_sources(self, began: int, how: str) -> None:
        for stamp, shape in self._sources:
            if stamp.changed > began:
                raise AutogradError(
                    f"checkpoint: expected what the function read to be as it was, got a tensor of shape {shape} "
                    f"changed in place {how}"
                )

    def _run(self) -> Any:
        if self._noise is not None:
            replay_from(self._noise)
        with recomputing():
            return self.function(*self.args, **self.kwargs)


class Redone:
    """The backward function of a node in a stretch.

    Attributes:
        stretch: Where it is.
        lent: The node of the second run, until it is used.
    """

    __slots__ = ("stretch", "lent", "replaces", "__name__", "__weakref__")

    def __init__(self, stretch: _Stretch, replaces: Any) -> None:
        self.stretch, self.replaces, self.__name__ = stretch, replaces, replaces.__name__
        self.lent: Node | None = None

    def __call__(self, node: Node, grad: Array) -> None:
        if self.lent is None:
            self.stretch.again()
        lent, self.lent = self.lent, None
        assert lent is not None
        lent.inputs, lent.grad_array, lent.grad_owned = node.inputs, grad, node.grad_owned
        node.grad_owned = False
        here = None if grad.__class__ is np.ndarray else grad.device.id
        walk({lent.seq: lent}, [lent.seq], None, False, [], here)


# ------------------------------------------------------------------------------------------------- what is compared

_Look = tuple[str, tuple[bool, ...], tuple[Any, ...]]  # name, edges wanted, what is saved


def _look(node: Node) -> _Look:
    """What a node that is made again has to be like."""
    return node.backward.__name__, tuple([edge is not None for edge in node.inputs]), tuple(_parts(node.saved))


def _parts(saved: Iterable[Any]) -> Iterator[Any]:
    """Shape and dtype of arrays, and switches; those of a tuple among them too."""
    for x in saved:
        array = x.data if isinstance(x, Variable) else x
        if isinstance(x, bool):
            yield x
        elif isinstance(x, tuple):
            yield from _parts(x)
        elif hasattr(array, "shape") and hasattr(array, "dtype"):
            yield array.shape, array.dtype


def _check_same(before: list[_Look], now: list[_Look]) -> None:
    for i, (old, new) in enumerate(zip(before, now)):
        if old != new:
            raise AutogradError(
                f"checkpoint: expected operation {i} of {len(before)} to be {_told(old)} again, got {_told(new)}: "
                f"{_ADVICE}"
            )
    if len(before) != len(now):
        more = before if len(before) > len(now) else now
        i = min(len(before), len(now))
        raise AutogradError(
            f"checkpoint: expected {len(before)} operations again, got {len(now)}, of which "
            f"{'the first too many is' if more is now else 'the first that is missing is'} {_told(more[i])}: {_ADVICE}"
        )


def _told(look: _Look) -> str:
    name, wanted, parts = look
    saved = ", ".join(str(part) if isinstance(part, bool) else f"{part[1].name} {part[0]}" for part in parts)
    name = name.strip("_").removesuffix("_backward")
    return f"{name} with {saved or 'nothing'} saved for {sum(wanted)} of {len(wanted)} inputs"


def _nodes_since(outputs: Iterable[Tensor], began: int) -> list[Node]:
    """The nodes behind tensors that were recorded since, in order."""
    found = dict[int, Node]()
    stack: list[Any] = [x.node for x in outputs]
    while stack:
        node = stack.pop()
        if isinstance(node, Node) and node.seq > began and node.seq not in found:
            found[node.seq] = node
            stack += node.inputs
    return [found[number] for number in sorted(found)]


def _sources(given: list[Tensor], nodes: list[Node]) -> Iterable[Variable]:
    """The tensors that nodes were computed from: what was given, the leaves behind them and what they saved of others.

    A tensor that was made inside may be among them; nobody else can change it.
    """
    first = nodes[0].seq
    found: dict[int, Variable] = {id(x): x for x in given}
    for node in nodes:
        for x in (*node.inputs, *node.saved):
            if isinstance(x, Variable) and (x.node is None or x.node.seq < first):
                found[id(x)] = x
    return found.values()
