"""MyTorch's Accelerator: one all-reduce for each gradient, after backward.

Source: github.com/priyammaz/MyTorch at 228c061 of 2025-11-22, mytorch/accelerate.py, `Accelerator`; what stood there
before 0815814 of 2025-11-09 is `AcceleratorBefore`. Read, not run: it needs CuPy and NCCL on GPUs.

It says: `prepare` broadcasts parameters; `backward(loss)` counts micro-batches, and where there are enough of them it
all-reduces the gradient of each parameter that has one; a loss that is NaN or infinite skips the backward; before
clipping the squared norm is added up over the ranks; what is saved is the parameters.

Since 0815814 the all-reduce is given `grad / world_size` twice, as what it reads and as what it writes into. Each is a
new array, the second of which is dropped: gradients stay each rank's own. Before, the sum was divided and copied back.

Left out here: mixed precision (float16 models with float32 copies) and the data loader. The number of micro-batches is
given when it is made, here always one, so the checks of accumulation do not apply.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import Tensor, nn
from minigrad.distributed import Communicator
from peers.replicas import PeerReplica, gradient_of


class Accelerator:
    """As it is since 2025-11-09. It calls the model too, which MyTorch's users do themselves."""

    def __init__(self, model: nn.Module, comm: Communicator) -> None:
        self.model, self.comm = model, comm
        for parameter in model.parameters():
            comm.broadcast(parameter.data).wait()

    def __call__(self, *inputs: Tensor) -> Any:
        """The model's forward."""
        return self.model(*inputs)

    def backward(self, loss: Tensor) -> None:
        """Backward, and the gradients of those parameters that have one."""
        if not np.isfinite(loss.data).all():
            return
        loss.backward()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                self._average(gradient_of(parameter))

    def _average(self, gradient: Any) -> None:
        self.comm.all_reduce(gradient / self.comm.world_size).wait()

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Clip to a norm whose square is added up over the ranks; return it."""
        gradients = [gradient_of(p) for p in self.model.parameters() if p.grad is not None]
        square = np.array([sum(float((gradient**2).sum()) for gradient in gradients)])
        self.comm.all_reduce(square).wait()
        norm = float(np.sqrt(square[0]))
        if max_norm / (norm + 1e-6) < 1.0:
            for gradient in gradients:
                gradient *= max_norm / (norm + 1e-6)
        return norm

    def saved(self) -> dict[str, Tensor]:
        """What `save_state` writes of the model."""
        return dict(self.model.named_parameters())


class AcceleratorBefore(Accelerator):
    """As it was until 2025-11-09."""

    def _average(self, gradient: Any) -> None:
        self.comm.all_reduce(gradient).wait()
        gradient /= self.comm.world_size


class AcceleratorReplica(PeerReplica):
    """A `Replica` of the Accelerator, which makes the backward itself."""

    def backward(self, batch: Any, *, samples: float | None = None, scale: float = 1.0, sync: bool = True) -> None:
        """See `Replica`."""
        if not sync:
            raise NotImplementedError("micro-batches are counted: how many there are is said when it is made")
        super().backward(batch, samples=samples, scale=scale)

    def _backward(self, loss: Tensor) -> None:
        self.peer.backward(loss)

    def backward_within(self, outer: Any, inner: Any) -> None:
        """See `Extras`."""
        raise NotImplementedError("backward is the Accelerator's own, and no hook of MyTorch runs in it")

    def scaled_step(self, batch: Any, init_scale: float) -> None:
        """See `Extras`."""
        raise NotImplementedError("mixed precision is of float16 models on GPUs, and left out here")

    def clip(self, max_norm: float) -> float:
        """See `Replica`."""
        norm: float = self.peer.clip_grad_norm_(max_norm)
        return norm

    def state(self) -> dict[str, Any]:
        """See `Replica`."""
        return {name: value.data.copy() for name, value in self.peer.saved().items()}
