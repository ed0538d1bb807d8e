"""What becomes of an inner optimizer's state where parameters are averaged over ranks.

Momentum and the averages of squares are of the way that a rank has gone by itself. They are

- kept: each rank goes on with its own, at other parameters than they were made at;
- averaged: Σ w_r·state_r with w_r = n_r / Σ n, so that all ranks have one state again. It costs as much traffic as
  the parameters do for each kind of state. With one step between two combinations it makes SGD with momentum the
  data-parallel one, to rounding;
- reset to what a new optimizer has. Each round then begins as the first did.

Sources: Wang et al., "SlowMo", ICLR 2020, line 2 of algorithm 1, has all three; Douillard et al., "DiLoCo", 2023,
keeps.
Wide copies of half-precision parameters (`master_weights`) go along. Where one does not round to the parameter that a
combination has made, the optimizer makes it anew from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from minigrad.backend.dtypes import Array
from minigrad.distributed.average.buffers import weight_of
from minigrad.distributed.comm.differences import check_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.nn.companions import number_of
from minigrad.optim.optimizer import Optimizer, settled_parts
from minigrad.optim.part import Part

_ADVICE = 'average after equally many steps, or say optimizer_state="keep" or "reset"'


def reset_moments(optimizer: Optimizer) -> None:
    """Give an optimizer the state of a new one; its options stay.

    Example:
        >>> from minigrad import nn, optim
        >>> layer = nn.Linear(2, 1)
        >>> optimizer = optim.Adam(layer.parameters())
        >>> layer(minigrad.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> reset_moments(optimizer)
        >>> len(optimizer.state)
        0
    """
    for part in settled_parts(optimizer):
        part.steps = [0] * len(part.steps)
        with part.buffer.device.current():
            for name in part.slots:
                for start, stop in part.all_runs:
                    part.state[name][start:stop] = 0
    optimizer.settle(0)


def average_moments(who: str, optimizer: Optimizer, comm: Communicator, samples: float, total: Array) -> None:
    """Replace the state of an optimizer by the mean over the ranks, weighted by samples; all ranks call it together.

    Ranks with samples have to have made equally many steps of each parameter, for the correction of Adam's bias is one
    for all; a rank without takes over their numbers.

    Args:
        who: For messages.
        samples: n_r, what this rank's state weighs; with 0 it gives nothing, not even NaN.
        total: Σn as float64 (1,) where the communicator's arrays live. Where it is 0 all stays as it is.

    Raises:
        ReplicaMismatchError: numbers of steps that differ, on all ranks; it names the first parameter.
    """
    parts = settled_parts(optimizer)
    steps = _agreed_steps(who, parts, comm, samples)
    if steps is None:
        return
    weight = weight_of(samples, total)
    works = [
        comm.weighted_all_reduce(part.state[name][start:stop], weight, f"state of {optimizer.name}: {name}")
        for part in parts
        for name in part.slots
        for start, stop in part.all_runs
    ]
    for work in works:
        work.wait()
    for part, each in zip(parts, steps):
        part.steps = list(each)
    optimizer.settle(number_of(steps))


def _agreed_steps(who: str, parts: Sequence[Part], comm: Communicator, samples: float) -> list[list[int]] | None:
    """The steps of each parameter, part by part, of all ranks with samples; None where there is none."""
    mine = [part.steps for part in parts] if samples else None
    found: dict[int, Any] = {rank: each for rank, each in enumerate(comm.all_gather_object(mine)) if each is not None}
    if not found:
        return None
    first: list[list[int]] = next(iter(found.values()))
    if any(each != first for each in found.values()):
        params = [param for part in parts for param in part.params]
        names = [f"the steps of {getattr(param, 'name', None) or f'number {i}'}" for i, param in enumerate(params)]
        facts = {rank: dict(zip(names, chain.from_iterable(steps))) for rank, steps in found.items()}
        check_alike(f"rank {comm.rank}: {who}", "optimizers", facts, _ADVICE)
    return first
