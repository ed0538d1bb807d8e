"""What all ranks of a step learn of each other: the mean loss, the samples, and what some of them wish."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.backend.device import to_host
from minigrad.backend.flags import raise_found
from minigrad.distributed.comm.protocol import Communicator


class StepAgreement:
    """One small sum over all ranks a step, in the same memory each time.

    Args:
        comm: The ranks.
        flags: How many wishes there are.
    """

    def __init__(self, comm: Communicator, flags: int) -> None:
        self._comm, self._flags = comm, flags
        self._totals: Any = None

    def meet(self, loss_sum: Any, samples: float, *flags: bool) -> tuple[float, float, list[int]]:
        """The mean loss over the samples of all ranks, these, and how many raised each flag; waits for the device.

        Args:
            loss_sum: Σ n·loss of this rank, a float or an array where it was computed.
            samples: Σ n of this rank.
        """
        with self._comm.device.current():
            if self._totals is None:
                self._totals = self._comm.empty(2 + self._flags, np.dtype(np.float64))
            totals = self._totals
            for place, value in enumerate((loss_sum, samples, *map(float, flags))):
                totals[place] = value
            self._comm.all_reduce(totals).wait()
        raise_found(totals)
        loss, everyones, *raised = map(float, to_host(totals))
        return loss / everyones if everyones else math.nan, everyones, [int(count) for count in raised]
