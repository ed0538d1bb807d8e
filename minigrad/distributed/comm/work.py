"""Collectives under way: those that are over already, those around another, those that travel in another dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minigrad.backend.dtypes import Array, is_half
from minigrad.backend.fused.grad_scale import Widened, scale_
from minigrad.distributed.comm.protocol import Communicator, Work

Span = tuple[float, float]


class DoneWork:
    """The work of a collective that was over when its call returned.

    Args:
        span: See `Work.span`.
    """

    def __init__(self, span: Span | None = None) -> None:
        self.span = span

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self, host: bool = False) -> None:
        """Nothing to wait for."""


OVER = DoneWork()  # of whatever was over, and does not tell when it ran


def over(spans: Sequence[Span | None]) -> DoneWork:
    """What is left to wait for of calls that are all over: nothing.

    Args:
        spans: Of each, in order; at least one.
    """
    first, last = spans[0], spans[-1]
    return DoneWork((first[0], last[1]) if first and last else None)


class WorkAround:
    """A work around another; a subclass overrides what it changes.

    Args:
        inner: The other work.
    """

    def __init__(self, inner: Work) -> None:
        self.inner = inner

    @property
    def span(self) -> Span | None:
        """See `Work.span`."""
        return self.inner.span

    def done(self) -> bool:
        """Whether the result is there, without waiting."""
        return self.inner.done()

    def wait(self, host: bool = False) -> None:
        """Order or block as `Work.wait` does."""
        self.inner.wait(host)


class DeliveringWork(WorkAround):
    """A work whose result is brought to where the caller wants it by who waits.

    Args:
        inner: The collective.
        deliver: Called once it is over, or ordered before the current stream.
    """

    def __init__(self, inner: Work, deliver: Callable[[], None] | None = None) -> None:
        super().__init__(inner)
        self._deliver = deliver

    def wait(self, host: bool = False) -> None:
        """Order or block as `Work.wait` does; the result is there then."""
        self.inner.wait(host)
        if self._deliver is not None:
            deliver, self._deliver = self._deliver, None
            deliver()


class WideWork(WorkAround):
    """The weighted sum of a 16-bit array, which travels as float32; waiting rounds it.

    Args:
        widened: The array, and room for it in float32.
        weight, layout: See `Communicator.weighted_all_reduce`.
        nonfinite: Is set where an element is not finite.
    """

    def __init__(
        self,
        comm: Communicator,
        widened: Widened,
        weight: Array | None,
        layout: str,
        nonfinite: Array | None = None,
    ) -> None:
        widened.fill(weight, nonfinite)
        super().__init__(comm.all_reduce(widened.wide, layout=layout))
        self._widened: Widened | None = widened

    def wait(self, host: bool = False) -> None:
        """Order or block as `Work.wait` does, then leave the sum in the array."""
        self.inner.wait(host)
        if self._widened is not None:
            self._widened.round()
            self._widened = None


def weighted_first(comm: Communicator, array: Array, weight: Array | None, layout: str) -> Work:
    """A weighted sum by `all_reduce`: of an array that is weighted in place, or of 16-bit floats as float32.

    Args:
        array, weight, layout: See `Communicator.weighted_all_reduce`.
    """
    flat = array.reshape(-1)
    with comm.device.current() as xp:
        if is_half(array.dtype):
            return WideWork(comm, Widened(flat, xp.empty(flat.size, np.float32)), weight, layout)
        if weight is not None:
            scale_(flat, weight)
    return comm.all_reduce(array, layout=layout)
