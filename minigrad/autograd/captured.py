"""The gradients of a captured step: each replay has to begin with them as the captured one did, and leaves them so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from minigrad.backend.capturing import Capture, refuse_in_capture
from minigrad.kept import keep_given

_ADVICE = "call zero_grad() in the step, before backward()"


class CapturedGradients:
    """What is known of the leaves that backwards of a captured step reach.

    A gradient that the step does not drop would be added to in the captured step and not in others, or the other way
    round, for the graph does what it did once.
    """

    def __init__(self, capture: Capture) -> None:
        self._began, self._dropped, self._seen = capture.began, capture.dropped, set[int]()
        self._leaves, self._fresh = list[ref[Any]](), list[ref[Any]]()
        self._left: list[tuple[Any, Any]] = []  # leaves with the gradients that each replay leaves
        capture.ends.append(self._end)
        capture.counts.append(self._count)

    def reach(self, numbers: Sequence[int], leaves: Sequence[Any]) -> None:
        """A backward begins.

        Args:
            numbers: Of its nodes, in ascending order.
            leaves: That it will reach.
        """
        if numbers and numbers[0] < self._began:
            refuse_in_capture("backward", "one of what was recorded before the step", "run forward in the step, too")
        for leaf in leaves:
            if id(leaf) in self._seen:
                continue
            self._seen.add(id(leaf))
            self._leaves.append(ref(leaf))
            if id(leaf) not in self._dropped:
                if leaf.grad_array is not None:
                    refuse_in_capture("backward", f"a gradient of {_named(leaf)} from before the step", _ADVICE)
                self._fresh.append(ref(leaf))

    def _end(self) -> None:
        for leaf in _alive(self._fresh):
            if leaf.grad_array is not None:
                refuse_in_capture("backward", f"a gradient of {_named(leaf)} that the step never drops", _ADVICE)
        self._left = [(leaf, leaf.grad_array) for leaf in _alive(self._leaves)]

    def _count(self) -> None:
        for leaf, grad in self._left:
            if leaf.grad_given is not None:
                keep_given(leaf)
            leaf.grad_array = grad


def _alive(references: list[ref[Any]]) -> list[Any]:
    return [leaf for leaf in (reference() for reference in references) if leaf is not None]


def _named(leaf: Any) -> str:
    return getattr(leaf, "name", None) or f"a leaf of shape {leaf.data.shape}"


def gradients_of(capture: Capture) -> CapturedGradients:
    """What is known of the gradients of a captured step."""
    return capture.part(CapturedGradients, lambda: CapturedGradients(capture))
