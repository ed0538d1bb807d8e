"""The updates of an optimizer in a captured step: their number and rate lie on the device, where the graph reads them.

The graph counts by itself. On the host each replay counts too, and where the device has another number or rate than the
host, for a schedule has changed it or a state was loaded, it is written there before the launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from minigrad.backend.capturing import Capture, current_capture, refuse_in_capture
from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.optimizer import move_clock
from minigrad.backend.nvtx import nvtx_range
from minigrad.errors import CaptureError
from minigrad.optim.attempts import Attempts, Due, due_of
from minigrad.optim.part import Part

_ATTEMPT, _RATE = range(2)  # of a clock, as kernels/optimizer.cu reads it


class Captured(Protocol):
    """What is asked of an optimizer here."""

    name: str
    step_limit: int
    takes_control: bool
    defaults: dict[str, Any]
    param_groups: list[dict[str, Any]]
    parts: list[list[Part]]
    _attempts: Attempts

    def check(self, group: dict[str, Any]) -> None:
        """See `Optimizer`."""


@dataclass(eq=False)
class _Clock:
    """The number and rate of an update of parameters that are at one step.

    there is what the device has: nothing yet, or the number that comes next, and the rate.
    """

    group: dict[str, Any]
    options: dict[str, Any]
    part: Part
    numbers: list[int]
    runs: list[tuple[int, int]]
    limit: int
    step: int
    array: Array
    there: list[Any] = field(default_factory=lambda: [None, None])


class CapturedUpdates:
    """All updates of one optimizer in a captured step; of several calls of its `step`, say."""

    def __init__(self, optimizer: Captured, capture: Capture) -> None:
        self._optimizer, self._calls = optimizer, list[list[_Clock]]()
        self._groups, self._trained = list(optimizer.param_groups), _trained(optimizer)
        capture.checks.append(self._check)
        capture.writes.append(self._write)
        capture.ends.append(self._end)
        capture.launched.append(self._moved)

    def begin(self, capture: Capture, controls: Mapping[Device, Array]) -> None:
        """One more step of the optimizer begins."""
        parts = [part for parts in self._optimizer.parts for part in parts]
        for part in parts:
            if part.buffer.device is not capture.device:
                refuse_in_capture(f"{self._optimizer.name}.step", f"parameters on {part.buffer.device}")
        due, clocks = due_of(parts), list[_Clock]()
        self._calls.append(clocks)
        capture.counts.append(lambda: self._count(parts, controls, due, clocks))

    def clock_of(
        self,
        group: dict[str, Any],
        part: Part,
        step: int,
        params: list[Any],
        runs: list[tuple[int, int]],
        limit: int,
    ) -> Array:
        """Where the kernel that updates these parameters reads the number of the step, and the rate.

        Args:
            step: Of this update.
            runs, limit: See `Part.take_due`.
        """
        with part.buffer.device.current() as xp:
            array = xp.empty(2, np.float64)
        due = {id(param) for param in params}
        numbers = [i for i, param in enumerate(part.params) if id(param) in due]
        self._calls[-1].append(_Clock(group, self._options(group), part, numbers, runs, limit, step, array))
        return array

    def _clocks(self) -> list[_Clock]:
        return [clock for clocks in self._calls for clock in clocks]

    def _options(self, group: dict[str, Any]) -> dict[str, Any]:
        return {name: group[name] for name in self._optimizer.defaults if name != "lr"}

    def _check(self) -> None:
        groups = self._optimizer.param_groups
        if len(groups) != len(self._groups) or any(group is not kept for group, kept in zip(groups, self._groups)):
            raise CaptureError(
                f"{self._optimizer.name}: expected the groups with which its step was captured, got others: capture it "
                "again"
            )
        if _trained(self._optimizer) != self._trained:
            raise CaptureError(
                f"{self._optimizer.name}: expected requires_grad of each parameter as when its step was captured, got "
                "another: capture it again"
            )
        for clock in self._clocks():
            self._optimizer.check(clock.group)
            clock.part.buffer.check()
            for name, value in self._options(clock.group).items():
                if value != clock.options[name]:
                    raise CaptureError(
                        f"{self._optimizer.name}: expected options as they were when its step was captured, got "
                        f"{name} {value!r} in place of {clock.options[name]!r}: only lr may change, capture it again"
                    )
            if len({clock.part.steps[i] for i in clock.numbers}) > 1:
                raise CaptureError(
                    f"{self._optimizer.name}: expected parameters that were updated equally often, as when its step "
                    "was captured, got other counts: capture it again"
                )

    def _count(self, parts: list[Part], controls: Mapping[Device, Array], due: Due, clocks: list[_Clock]) -> None:
        self._optimizer._attempts.begin(parts, controls, self._optimizer.step_limit, due)
        for clock in clocks:
            (clock.step,) = clock.part.count_again(clock.numbers, clock.runs, clock.limit)

    def _write(self) -> None:
        for clock in self._clocks():
            wanted = clock.step, clock.group["lr"]
            for i, (there, value) in enumerate(zip(clock.there, wanted)):
                if there is None or (min(there, clock.limit) if i == _ATTEMPT else there) != value:
                    with clock.part.buffer.device.current():
                        clock.array[i] = float(value)
                    clock.there[i] = value

    def _end(self) -> None:
        for clock in self._clocks():
            with clock.part.buffer.device.current():
                move_clock(clock.array, len(self._calls))

    def _moved(self) -> None:
        for clock in self._clocks():
            clock.there[_ATTEMPT] += len(self._calls)


def _trained(optimizer: Captured) -> list[bool]:
    return [param.requires_grad for parts in optimizer.parts for part in parts for param in part.params]


def range_of_step(name: str) -> AbstractContextManager[None]:
    """Around the updates of a step, for a profiler."""
    return nvtx_range(f"{name}.step")


def updates_in_capture(optimizer: Captured, controls: Mapping[Device, Array]) -> CapturedUpdates | None:
    """Where a step is captured, what notes the updates that come next; else None.

    Args:
        controls: See `Attempts.begin`.

    Raises:
        CaptureError: the optimizer gives its kernels the number and rate of a step as the host knows them.
    """
    capture = current_capture()
    if capture is None:
        return None
    if not optimizer.takes_control:
        refuse_in_capture(
            f"{optimizer.name}.step",
            "one whose number and rate the host gives to the device",
            "take SGD, Adam or AdamW, or step outside of what is captured",
        )
    updates = capture.part(("optimizer", id(optimizer)), lambda: CapturedUpdates(optimizer, capture))
    updates.begin(capture, controls)
    return updates
