"""Steps about which a GPU decides: until somebody asks, only it knows which of them it skipped."""

from __future__ import annotations

from collections.abc import Mapping

from minigrad.backend.device import Device, to_host
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.optimizer import SKIP, SKIPPED_STEPS
from minigrad.optim.part import Part

Controls = Mapping[Device, Array]  # by device what `fused.optimizer.settle_step` fills


def has_skipped(control: Array) -> bool:
    """Whether the step does not count; waits for the device that decided it."""
    return bool(control[SKIP])


Due = list[list[bool]]  # of each part, whether each of its parameters takes part


def due_of(parts: list[Part]) -> Due:
    """The parameters with a gradient."""
    return [[param.grad_array is not None for param in part.params] for part in parts]


class Attempts:
    """The attempts at a step whose outcome was not asked for yet.

    `Part.steps` counts attempts meanwhile; the kernels take off the number that control says was skipped. That number
    is one for all parameters, so it has to be asked for when others take part than before. The usual training, where
    every parameter gets a gradient in every step, never asks.
    """

    def __init__(self) -> None:
        self._controls: Controls = {}
        self._due: Due = []  # of each part, the parameters that took part

    def begin(self, parts: list[Part], controls: Controls, limit: int, due: Due | None = None) -> None:
        """Say that the parameters with a gradient will take part in one more attempt.

        Args:
            controls: By device what decides; empty where the host does.
            due: Those that will, where it is known already.
        """
        if not controls:
            if self._controls:
                self.settle(parts, limit)
            return
        due = due_of(parts) if due is None else due
        if self._controls is not controls or self._due != due:
            self.settle(parts, limit)
        self._controls, self._due = controls, due

    def settle(self, parts: list[Part], limit: int) -> None:
        """Take what was skipped off the counts; waits for a GPU that decided about attempts.

        Args:
            parts: At least those at the last attempt, in the same order.
            limit: Where counts stop.
        """
        skipped = {device: int(to_host(control)[SKIPPED_STEPS]) for device, control in self._controls.items()}
        for part, due in zip(parts, self._due):
            less = skipped.get(part.buffer.device, 0)
            part.steps = [min(step - less, limit) if took else step for step, took in zip(part.steps, due)]
        for device, control in self._controls.items():
            with device.current():
                control[SKIPPED_STEPS] = 0.0
        self._controls, self._due = {}, []
