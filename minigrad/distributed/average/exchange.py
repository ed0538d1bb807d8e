"""The report of divergence on ranks: numbers of each travel behind the combination, and are read when asked for."""

from __future__ import annotations

import numpy as np

from minigrad.arguments import as_integer
from minigrad.backend.device import to_host
from minigrad.backend.dtypes import Array
from minigrad.backend.stream import CommStream
from minigrad.distributed.balance.divergence import SUMS, Divergence, divergence_of
from minigrad.distributed.comm.protocol import Communicator, Work, check_is_communicator
from minigrad.errors import ArgumentError


class DivergenceExchange:
    """Tells each rank the three sums of all, by one all-gather of four numbers a rank.

    On a GPU it runs on a stream of its own: no step waits for it, and who reads waits for it alone, not for what the
    step has queued since.

    Args:
        comm: The ranks that combine.

    Example:
        >>> from minigrad.distributed import SoloCommunicator
        >>> exchange = DivergenceExchange(SoloCommunicator())
        >>> exchange.start(np.array([9.0, 25.0, 16.0]), steps=4)
        >>> exchange.read()
        Divergence(relative=(0.75,), cosine=(0.8,), magnitude=(0.25,), steps=4)
    """

    def __init__(self, comm: Communicator) -> None:
        check_is_communicator("DivergenceExchange", comm)
        self._comm, self._side = comm, CommStream(comm.device)
        with self._side.current():
            self._row = comm.empty(SUMS + 1, np.float64)
            self._rows = comm.empty((SUMS + 1) * comm.world_size, np.float64)
        self._work: Work | None = None

    def start(self, sums: Array | None, steps: int = 1) -> None:
        """Send this rank's sums, on all ranks at one place; what was sent before and not read is gone.

        Args:
            sums: As `divergence.add_sums` makes them, where the arrays live; None of a rank without samples.
            steps: This rank's since it combined last, >= 0; the report holds the largest of all ranks, at least 1.
        """
        steps = as_integer("DivergenceExchange.start", "steps", steps, 0)
        if self._work is not None:
            self._wait(host=False)
        self._side.follow()
        with self._side.current():
            self._row[:SUMS] = 0.0 if sums is None else sums
            self._row[SUMS:] = float(steps)
            self._work = self._comm.all_gather(self._rows, self._row)

    @property
    def is_ready(self) -> bool:
        """Whether there is a report that `read` need not wait for."""
        return self._work is not None and self._work.done()

    def read(self) -> Divergence:
        """The report of the last start, equal on all ranks; waits for it.

        Raises:
            ArgumentError: nothing was sent, or it was read.
        """
        if self._work is None:
            raise ArgumentError("DivergenceExchange: expected start() before read(), got none")
        self._wait(host=True)
        with self._side.current():
            rows = to_host(self._rows).reshape(self._comm.world_size, SUMS + 1).tolist()
        self._work = None
        return divergence_of([row[:SUMS] for row in rows], max(1, *(int(row[SUMS]) for row in rows)))

    def _wait(self, host: bool) -> None:
        with self._side.current():
            self._work.wait(host)  # type: ignore[union-attr]
