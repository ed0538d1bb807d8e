"""What is combined beside the parameters: the inner optimizer's moments, and buffers."""

from __future__ import annotations

from minigrad.distributed.average.buffers import average_buffers
from minigrad.distributed.average.moments import average_moments, reset_moments
from minigrad.distributed.average.options import AverageOptions
from minigrad.distributed.average.report import Arrived
from minigrad.distributed.comm.protocol import Communicator
from minigrad.nn.module import Module


def combine_beside(who: str, module: Module, options: AverageOptions, comm: Communicator, arrived: Arrived) -> None:
    """Do with moments and buffers as was asked, after a combination; all ranks call it.

    Nothing where the host knows that no rank had samples; where a GPU knows, only a reset is made.

    Raises:
        ReplicaMismatchError: optimizers have made different numbers of steps, or integers differ; on all ranks.
    """
    if comm.device.type == "cpu" and not arrived.total[0]:
        return
    if options.optimizer is not None and options.optimizer_state == "average":
        average_moments(who, options.optimizer, comm, arrived.samples, arrived.total)
    elif options.optimizer is not None and options.optimizer_state == "reset":
        reset_moments(options.optimizer)
    if options.buffers == "merge":
        average_buffers(who, module, comm, arrived.samples, arrived.total, options.integer_buffers)
