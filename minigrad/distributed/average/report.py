"""What a combination did, as `ParameterAverager.step` tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from minigrad.backend.device import to_host
from minigrad.backend.dtypes import Array
from minigrad.distributed.average.exchange import DivergenceExchange
from minigrad.distributed.balance.divergence import Divergence
from minigrad.errors import ArgumentError


class Hears(Protocol):
    """What is told when this rank's samples are on their way, and when they are combined: a `SampleLedger`."""

    keeps_pending: bool

    def sent(self, weight: float | None = None) -> None:
        """What was dealt to this rank is on its way."""

    def combined(self, weight: float | None = None) -> None:
        """What was sent is combined, or what was dealt."""


class Arrived(NamedTuple):
    """What a combination has brought.

    Attributes:
        total: Samples of all ranks, float64 (1,) where the arrays live.
        finished: How many ranks have no more data, float64 (1,).
        nbytes: Of parameters or gradients that this rank has sent.
        samples: What these weighed.
    """

    total: Array
    finished: Array
    nbytes: int
    samples: float


def number_in(array: Array) -> float:
    """The number in an array of one; waits for its device."""
    return float(to_host(array)[0])


@dataclass(frozen=True)
class AverageReport:
    """A combination: why it was made, what it took, and how far the ranks had come apart.

    Numbers of a GPU are read when they are asked for, and that waits for the device.

    Attributes:
        number: Of this combination, from 1.
        reason: Of the policy.
        fragment: Which part of the parameters was combined, from 0.
        nbytes: Bytes of parameters or gradients that this rank has sent.
    """

    number: int
    reason: str
    fragment: int
    nbytes: int
    _total: Array = field(repr=False)
    _told: "Told | None" = field(repr=False)

    def __str__(self) -> str:
        told = f"combination {self.number}: {self.samples:g} samples, {self.nbytes} bytes sent: {self.reason}"
        if self._told is None or self._told.is_gone:
            return told
        return f"{told}\n{self._told.read()}"

    @property
    def samples(self) -> float:
        """What all ranks together brought; where it is 0, nothing was changed."""
        return number_in(self._total)

    @property
    def divergence(self) -> Divergence | None:
        """How far each rank was from the mean, which is the same on all ranks; None of gradients.

        The values are those that it had when the mean was there: with a delay, of steps that were made since it sent.

        Raises:
            ArgumentError: on a GPU, where the next combination has been made since.
        """
        return None if self._told is None else self._told.read()


class Told:
    """The divergence of one combination, which is read once, and kept.

    Args:
        exchange: What brings it; None of no combination.
        keeps: Whether it is read before the next one comes at the latest: it has long been there, but a GPU would be
            waited for.
    """

    def __init__(self, exchange: DivergenceExchange | None = None, keeps: bool = False) -> None:
        self._exchange, self._keeps = exchange, keeps
        self._found: Divergence | None = None

    @property
    def is_gone(self) -> bool:
        """Whether it was not read in time."""
        return self._found is None and self._exchange is None

    def read(self) -> Divergence:
        """See `AverageReport.divergence`."""
        if self._found is None:
            if self._exchange is None:
                raise ArgumentError(
                    "AverageReport.divergence: expected to be read before the next combination, got it later"
                )
            self._found, self._exchange = self._exchange.read(), None
        return self._found

    def end(self) -> None:
        """The next combination comes: what is not kept is gone."""
        if self._keeps and self._exchange is not None:
            self.read()
        self._exchange = None
