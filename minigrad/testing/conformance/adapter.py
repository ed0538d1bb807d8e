"""What a data-parallel wrapper has to offer to be put to the checks: a few functions on NumPy values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from minigrad.backend.dtypes import Array

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Setup:
    """What one rank wraps: a model of named parameters, and the options that the checks need.

    The model is linear, so that a batch prescribes the gradients. A batch maps names of parameters to arrays of shape
    (n, *shape of the parameter); the output for sample i is Σ over those names of <parameter, array[i]>, and the loss
    is its mean over i. The gradient of a parameter is then the mean of its array over the samples.

    Attributes:
        params: Initial values, in order of registration.
        buffers: State that is not trained.
        frozen: Names of the parameters that want no gradient.
        tied: A second name for a parameter: {second: first}. Batches use both.
        bucket_bytes: Largest bucket; None for the default.
        unused: Whether a backward may leave out parameters, which then count as zero.
        lr, weight_decay: Of plain gradient descent: p -= lr·(grad + weight_decay·p).
        optimizer_first: Make the optimizer before wrapping, not after.
    """

    params: Arrays
    buffers: Arrays = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    bucket_bytes: int | None = None
    unused: bool = False
    lr: float = 0.1
    weight_decay: float = 0.0
    optimizer_first: bool = False


class Replica(Protocol):
    """One rank's wrapped model with its optimizer. Arrays that it returns are copies; `Extras` are what it may have."""

    def backward(
        self, batch: Arrays, *, samples: float | None = None, scale: float = 1.0, sync: bool = True
    ) -> None:
        """Forward and backward of scale · loss; gradients add up.

        Args:
            batch: See `Setup`; its order is that of the terms in the loss. Without entry, the loss is a constant.
            samples: What the loss is a mean over; given only where that is not the length of the batch.
            sync: False: keep the gradients local, for the next synchronising backward to combine.
        """

    def gradients(self) -> dict[str, Array | None]:
        """The gradient of each parameter, None where there is none; names as in `Setup.params`."""

    def zero_grad(self) -> None:
        """Drop all gradients."""

    def clip(self, max_norm: float) -> float:
        """Clip the gradients as one vector to a 2-norm, and return what that was."""

    def step(self) -> None:
        """One step of the optimizer."""

    def values(self) -> dict[str, Array]:
        """Each parameter; names as in `Setup.params`."""

    def buffers(self) -> dict[str, Array]:
        """Each buffer."""

    def set_buffers(self, values: Arrays) -> None:
        """Overwrite buffers of this rank, in place."""

    def state(self) -> dict[str, Array]:
        """What would be saved."""

    def evaluate(self, batch: Arrays) -> Array:
        """Outputs of a forward through the wrapper that records no gradients, shape (n,)."""

    def join(self) -> AbstractContextManager[Any]:
        """Around the backwards of ranks that make different numbers of them."""


class Extras(Protocol):
    """What a `Replica` may have beside; a method that it leaves out counts as one that raises NotImplementedError."""

    def backward_within(self, outer: Arrays, inner: Arrays) -> None:
        """Forward of both batches, then the backward of outer, in which a hook runs that of inner.

        The hook comes when the gradient of a parameter is complete, the first one whose is.
        """

    def set_gradients(self, values: Arrays) -> None:
        """Give these parameters a gradient by hand, in place of what they have."""

    def scaled_step(self, batch: Arrays, init_scale: float) -> None:
        """A step of mixed precision: gradients of the loss times a scale are divided by it before the optimizer's step.

        Args:
            init_scale: What this rank's scaler is made with at the first such step.
        """

    def sharded_step(self, batch: Arrays, rule: str) -> None:
        """Drop all gradients, a backward, and a step of an optimizer whose state is shared out over the ranks.

        It is made at the first such step.

        Args:
            rule: "momentum": v = 0.9·v + gradient; p -= lr·v. "muon": as `optim.muon.muon_update`, without weight
                decay; each parameter is a matrix.
        """

    def state_bytes(self) -> int:
        """Bytes of what the optimizer of `sharded_step` keeps on this rank for elements of parameters."""


class Adapter(Protocol):
    """Puts a data-parallel wrapper to the checks. What it does not have raises NotImplementedError.

    A run that lasts longer than `timeout_s`, where the adapter has that attribute, else a minute, is left to itself; a
    rank that has not come to its end by then is out of time. Before a fault, the steps without it are made `controls`
    times, where the adapter has that attribute, else twice: what can be wrapped, or can make a step, only once raises
    of that, and a fault that is refused is told from it by a second time.
    """

    def run(self, body: Callable[..., Any], world_size: int, *args: Any) -> Any:
        """Call body(place, *args) on each rank, as a thread or a process of this host, and come back when all ended.

        `place` is the adapter's own, apart from its attribute `rank`. body is a function of a module, and args can
        be pickled, with the adapter among them, so ranks may be processes: `Processes` is such a runner. What becomes
        of a rank is written down in it, so it does not matter what this returns or raises; but a rank that raises has
        to end, as it would in a script.
        """

    def wrap(self, place: Any, setup: Setup) -> Replica:
        """Wrap this rank's model; all ranks call it at the same time."""


Check = Callable[[Adapter], None]
