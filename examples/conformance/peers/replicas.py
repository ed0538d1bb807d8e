"""What the peers share: how the checks drive a wrapper that its user's loop has to help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad import Tensor
from minigrad.backend.dtypes import Array
from minigrad.testing import WrapperAdapter
from minigrad.testing.conformance import Setup
from minigrad.testing.conformance.adapter import Arrays
from minigrad.testing.grading.adapter import WrapperReplica

TIMEOUT_S = 4.0  # of a run; a rank that has not ended by then hangs


class PeerReplica(WrapperReplica):
    """A `Replica` of a peer, whose users write `loss.mean()`, also where a rank has no samples."""

    def backward(
        self, batch: Arrays, *, samples: float | None = None, scale: float = 1.0, sync: bool = True
    ) -> None:
        """See `Replica`."""
        if samples is not None:
            raise NotImplementedError("ranks are not weighted: there is nothing to tell a number of samples to")
        if not batch:
            raise NotImplementedError("a backward that reaches no parameter is not provided for")
        self._syncs = sync
        if sync:
            self._backward(self._outputs(batch).mean() * scale)
        else:
            with self._offered("no_sync")():
                self._backward(self._outputs(batch).mean() * scale)

    def scaled_step(self, batch: Arrays, init_scale: float) -> None:
        """See `Extras`."""
        raise NotImplementedError("there is no scaler: users train in bfloat16 or float32")

    @property
    def peer(self) -> Any:
        """What the wrapper made."""
        return self._ddp

    def _backward(self, loss: Tensor) -> None:
        """What the user's loop does with a loss."""
        loss.backward()
        self._finish()


class PeerAdapter(WrapperAdapter):
    """A peer on threads.

    Args:
        wrapper: The peer.
        replica: What drives it: replica(wrapper, comm, setup).
    """

    def __init__(self, wrapper: Callable[..., Any], replica: Callable[..., PeerReplica] = PeerReplica) -> None:
        super().__init__(wrapper, timeout_s=TIMEOUT_S)
        self.replica = replica

    def wrap(self, place: Any, setup: Setup) -> PeerReplica:
        """Wrap the model of a setup; `place` is a communicator."""
        return self.replica(self.wrapper, place, setup)


def gradient_of(parameter: Tensor) -> Array:
    """The array of a gradient.

    Raises:
        TypeError: there is none, as PyTorch's collectives say it of None.
    """
    if parameter.grad is None:
        raise TypeError("all_reduce: expected a tensor, got None")
    return parameter.grad.data
