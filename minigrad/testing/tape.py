"""What the tape holds of a forward, in bytes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

from minigrad.autograd.function import FunctionCtx
from minigrad.autograd.recompute import Redone
from minigrad.autograd.tape import Node, Variable, reach
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import address_of
from minigrad.errors import AutogradError
from minigrad.ops.hooks import Hooked
from minigrad.tensor import Tensor


def saved_bytes(loss: Tensor, apart: Iterable[Tensor] = ()) -> int:
    """The bytes that the tape behind a loss holds for backward; each memory once, and whole where a part is held.

    Those of the leaves that backward reaches, parameters say, do not count.

    Args:
        apart: Other tensors whose memory does not count, such as inputs and labels.

    Raises:
        AutogradError: the loss has no tape.

    Example:
        >>> import minigrad
        >>> x = minigrad.ones(4, requires_grad=True)
        >>> saved_bytes((x.exp() * x).sum())  # exp and the product save one output of four float32
        16
    """
    if loss.node is None:
        raise AutogradError(f"saved_bytes: expected the output of an operation, got a leaf of shape {loss.shape}")
    nodes, leaves = reach(loss.node)
    held = _memories(part for node in nodes.values() for part in (node.saved, node.backward))
    for known in _memories([leaf for leaf, _ in leaves.values()] + list(apart)):
        held.pop(known, None)
    return sum(held.values())


def _memories(values: Iterable[Any]) -> dict[int, int]:
    """Address -> bytes of all memory that is held by values."""
    found = dict[int, int]()
    for array in _arrays(list(values)):
        base = array
        while base.__class__ is array.__class__:
            array, base = base, base.base
        found[address_of(array)] = max(int(array.nbytes), found.get(address_of(array), 0))
    return found


def _arrays(value: Any) -> Iterator[Array]:
    """The arrays in what the tape holds."""
    if isinstance(value, Variable):
        yield value.data
    elif hasattr(value, "nbytes") and hasattr(value, "shape"):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _arrays(part)
    elif isinstance(value, Mapping):
        yield from _arrays(list(value.values()))
    elif isinstance(value, FunctionCtx):
        yield from _arrays(list(vars(value).values()))
    elif isinstance(value, Hooked):
        yield from _arrays(value.backward)
    elif isinstance(value, Redone):
        yield from _arrays([value.stretch.function, value.stretch.args, value.stretch.kwargs, value.lent])
    elif isinstance(value, functools.partial):
        yield from _arrays([value.func, value.args, value.keywords])
    elif isinstance(value, FunctionType):
        yield from _arrays(list(inspect.getclosurevars(value).nonlocals.values()))
    elif isinstance(value, Node):
        yield from _arrays(value.saved)
