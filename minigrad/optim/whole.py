"""Optimizers whose step needs each parameter whole: its norm, or the matrix that it is."""

from __future__ import annotations

from typing import Any

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.errors import LayoutError
from minigrad.optim.attempts import Controls
from minigrad.optim.captured import CapturedUpdates
from minigrad.optim.optimizer import Optimizer, all_parts, state_arrays
from minigrad.optim.part import Part
from minigrad.optim.state import MASTER


class WholeOptimizer(Optimizer):
    """Base class: `update` gets the arrays of one parameter at a time, in its shape.

    State stays in the flat layout, of which each array is a view. A bucket of gradients holds whole parameters, so
    training on many ranks gives a step what it needs; a layout that has only a part of a parameter is refused.
    """

    def step_unless_skipped(self, controls: Controls) -> None:
        """See `Optimizer`; every parameter has to be whole before one is changed.

        Raises:
            LayoutError: also where the layout has only a part of a parameter.
        """
        for part in all_parts(self):
            check_whole(self.name, part)
        super().step_unless_skipped(controls)

    def _make_parts(self, group: dict[str, Any]) -> list[Part]:
        parts = super()._make_parts(group)
        for part in parts:
            check_whole(self.name, part)
        return parts

    def _step_part(self, group: dict[str, Any], part: Part, captured: CapturedUpdates | None) -> None:
        buffer, master = part.buffer, part.state.get(MASTER)
        state = state_arrays(self, group, part)
        with buffer.device.current():
            for step, params, _ in part.take_due(self.step_limit):
                for param in params:
                    at, shape = slice(*buffer.span(param)), param.shape
                    if at.start == at.stop:  # another rank has it
                        continue
                    self.master = None if master is None else master[at].reshape(shape)
                    arrays: list[Array] = [array[at].reshape(shape) for array in (buffer.data, buffer.grad, *state)]
                    self._update_block(group, step, arrays[0], arrays[1], arrays[2:])


def norm(x: Array) -> Array:
    """‖x‖ of all elements, as float64, which holds the squares of float32; it stays on the device."""
    xp = array_module(x)
    return xp.sqrt(xp.sum(xp.square(x.astype("float64"))))


def check_whole(who: str, part: Part) -> None:
    """Refuse a layout that has some elements of a parameter, but not all, as where ranks share one.

    Raises:
        LayoutError: it names the first such parameter.
    """
    for param in part.params:
        start, stop = part.buffer.span(param)
        if stop - start not in (0, param.numel()):
            raise LayoutError(
                f"{who}: expected whole parameters, got {stop - start} of the {param.numel()} elements of "
                f"{getattr(param, 'name', None) or 'one'} of shape {param.shape}: leave it in one piece, or give it to "
                "an optimizer that updates element by element, such as AdamW"
            )
