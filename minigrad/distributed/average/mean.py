"""The parameters of all ranks, averaged once: the plainest form of what `ParameterAverager` does every so often."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from minigrad.arguments import as_samples, check_choice
from minigrad.backend.device import to_host
from minigrad.distributed.average.buffers import INTEGER_BUFFERS, IntegerBuffers, average_buffers
from minigrad.distributed.average.wrapped import unwrapped
from minigrad.distributed.comm.protocol import Communicator, check_is_communicator
from minigrad.errors import ArgumentError
from minigrad.nn.flat import flatten
from minigrad.stamp import mark_changed


def average_parameters(
    module: Any,
    comm: Communicator,
    n: float,
    *,
    buffers: Literal["merge", "keep"] = "merge",
    integer_buffers: IntegerBuffers = "compare",
) -> None:
    """Replace each parameter by Σ n_r·θ_r / Σ n_r over the ranks, in place.

    All ranks call it, as they call `average_gradients`, but after the step. With one step of plain SGD since they were
    equal, that is the same step, to rounding: Σ n_r·(θ - η·g_r) / Σ n_r is θ - η·Σ n_r·g_r / Σ n_r. With other
    optimizers, or several steps, it is another algorithm; `ParameterAverager` makes one of it.

    Args:
        module: A Module, or a wrapper of one. Its trained parameters are averaged, one that two modules share once;
            frozen ones are left alone. They get a flat layout if they have none.
        n: What this rank's values weigh, samples as a rule; finite and >= 0. With n = 0 they add nothing, not even
            NaN, and the rank takes over the others'. Where all have n = 0, all stays as it is.
        buffers: "merge": batch norm's statistics exactly, others as `average.buffers` says. "keep": each rank's stay.
        integer_buffers: What becomes of those that have no mean: "compare", "keep" or "refuse" them.

    Raises:
        ArgumentError: n is no such number, module no module or with nothing to train, comm no communicator.
        LayoutError: the data of a parameter was replaced.
        CollectiveMismatchError: the ranks' parameters differ in number or size, or their options.
        ReplicaMismatchError: their integer buffers differ in value; on all of them.

    Example:
        >>> from minigrad import nn, distributed
        >>> def body(comm):
        ...     model = nn.Linear(1, 1, bias=False)
        ...     model.weight.data[...] = (1.0, 4.0)[comm.rank]
        ...     average_parameters(model, comm, (20, 10)[comm.rank])
        ...     return model.weight.item()
        >>> distributed.run(body, 2)
        [2.0, 2.0]
    """
    samples = as_samples("average_parameters", n)
    check_is_communicator("average_parameters", comm)
    check_choice("average_parameters", ("merge", "keep"), buffers=buffers)
    check_choice("average_parameters", INTEGER_BUFFERS, integer_buffers=integer_buffers)
    model = unwrapped("average_parameters", module)
    params = [param for param in model.parameters() if param.requires_grad]
    if not params:
        raise ArgumentError(
            f"average_parameters: expected a parameter that requires grad, got none in {type(model).__name__}"
        )
    flats = flatten(params)
    for flat in flats:
        flat.check()
    layout = f"average_parameters of {len(params)} parameters of a {type(model).__name__}"
    layout += f", buffers={buffers!r}, integer_buffers={integer_buffers!r}"
    with comm.device.current() as xp:
        total = xp.full(1, samples, np.float64)
        comm.all_reduce(total, layout=layout).wait(host=True)
        whole = float(to_host(total)[0])
        if not whole:
            return
        weight = None if samples == whole else xp.full(1, samples / whole, np.float64)
        runs = [flat.data[a:b] for flat in flats for a, b in flat.runs(p for p in params if p.flat is flat)]
        works = [comm.weighted_all_reduce(run, weight, layout) for run in runs]
        for work in works:
            work.wait()
        if buffers == "merge":
            average_buffers("average_parameters", model, comm, samples, total, integer_buffers)
    for param in params:
        mark_changed(param)
