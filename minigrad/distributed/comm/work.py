"""Collectives under way: those that are over already, those around another, those that travel in another dtype."""

from __future__ import annotations

from minigrad.backend.dtypes import Array
from minigrad.backend.fused.grad_scale import Widened
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
