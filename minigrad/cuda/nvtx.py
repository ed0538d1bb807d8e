"""What a profiler such as Nsight Systems shows beside kernels: which module, node, bucket or step they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minigrad.arguments import check_switch
from minigrad.backend.nvtx import emitting_nvtx
from minigrad.nn.watch import naming_calls

__all__ = ["emit_nvtx"]


@contextmanager
def emit_nvtx(enabled: bool = True) -> Iterator[None]:
    """Tell NVIDIA's profilers what the host does inside the block, in this context: a range for each

    - call of a module, by its class, those of its parts within it;
    - node of backward, by its operation;
    - bucket of DistributedDataParallel, from its weighting to the launch of its collective;
    - step of an optimizer, and call of a captured step, in which the graph is launched as a whole.

    A range ends where an error leaves it. Outside of the block nothing is done for it.

    Args:
        enabled: False tells nothing.

    Raises:
        DeviceError: CuPy is not installed. MissingPackageError: it finds no NVTX.
        ArgumentError: enabled is no bool.

    Example: `with minigrad.autograd.profiler.emit_nvtx(): train_step(x)` under `nsys profile python train.py`
    """
    check_switch("emit_nvtx", enabled=enabled)
    if not enabled:
        yield
        return
    with emitting_nvtx(), naming_calls():
        yield
