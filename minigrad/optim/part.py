"""Part: what of an optimizer's group lies in one flat buffer, with its state and its counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.backend.memory import aligned_zeros
from minigrad.nn.flat import FlatBuffer
from minigrad.nn.parameter import Parameter
from minigrad.optim.loose import Loose
from minigrad.optim.run import FlatRun
from minigrad.stamp import mark_changed
from minigrad.tensor import Tensor


AnyBuffer = FlatBuffer | Loose | FlatRun


def buffer_of(param: Tensor) -> AnyBuffer:
    """Where a parameter lies: its flat buffer, which it has already, or one of its own for a bare tensor."""
    found: AnyBuffer = param.flat if isinstance(param, Parameter) else Loose(param)
    return found


class Part:
    """The parameters of one group that lie in one flat buffer.

    Attributes:
        params: In the order of the layout.
        steps: How often each was updated.
        updates: A number for which were when, or would have been but for a GPU that skipped it; see `Optimizer.mark`.
        slots: Names of the state arrays that the group needs.
        state: The state arrays of the buffer by name, of its length; shared with the other groups. Those not there
            yet are made; narrow floats get float32 state.
    """

    def __init__(
        self, buffer: AnyBuffer, params: list[Parameter], slots: tuple[str, ...], state: dict[str, Array]
    ):
        self.buffer, self.slots, self.state = buffer, slots, state
        self.params = sorted(params, key=lambda param: buffer.position[id(param)])
        self.steps = [0] * len(params)
        self.updates = 0
        self.all_runs = buffer.runs(params)
        with buffer.device.current() as xp:
            for name in slots:
                if name not in state:
                    state[name] = aligned_zeros(buffer.count, np.promote_types(buffer.dtype, np.float32), xp)

    def take_due(self, limit: int) -> Iterator[tuple[int, list[Parameter], list[tuple[int, int]]]]:
        """Count a step of each parameter that has a gradient, and say that it will change.

        Yields:
            A step, such parameters that are at it, and the maximal ranges [start, stop) that they lie in.
        """
        by_step: dict[int, list[Parameter]] = {}
        for i, param in enumerate(self.params):
            if param.grad_array is not None:
                by_step.setdefault(self._count(i, limit), []).append(param)
        for step, params in by_step.items():
            runs = self.all_runs if len(params) == len(self.params) else self.buffer.runs(params)
            self.updates = hash((self.updates, step, *runs))
            mark_changed(*params)
            yield step, params, runs

    def count_again(self, numbers: Sequence[int], runs: list[tuple[int, int]], limit: int) -> set[int]:
        """Count one more step of parameters, by their numbers, which the device makes by itself; the steps it is."""
        steps = {self._count(i, limit) for i in numbers}
        mark_changed(*[self.params[i] for i in numbers])
        self.updates = hash((self.updates, *steps, *runs))
        return steps

    def _count(self, i: int, limit: int) -> int:
        step = self.steps[i] = min(self.steps[i] + 1, limit)
        return step
