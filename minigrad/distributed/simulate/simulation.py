"""Running a training script on a virtual cluster, with true numbers; or only its cost, for very many ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.arguments import as_integer
from minigrad.autograd.before import watching_backwards
from minigrad.backend.dtypes import Array
from minigrad.distributed.balance.strategy import BalanceFunction, Strategy, as_strategy, ask, check_sizes, name_of
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.threads import ThreadWorld
from minigrad.distributed.run import run_world
from minigrad.distributed.simulate.clock import VirtualClock
from minigrad.distributed.simulate.cluster import Cluster, check_cluster
from minigrad.distributed.simulate.trace import Recorder, Trace
from minigrad.distributed.simulate.wire import VirtualCommunicator, Wire
from minigrad.errors import ArgumentError, ShapeError
from minigrad.nn.watch import watching_calls


def run(fn: Callable[..., Any], cluster: Cluster, *args: Any, timeout_s: float | None = None) -> Trace:
    """Call fn(comm, *args) on every rank of a virtual cluster.

    The ranks are threads that compute true numbers; `comm.clock` is virtual. `distributed.init()` inside gives the
    same communicator, so a script that calls it runs unchanged. One seed gives one trace.

    The outermost call of a module that has parameters is charged by the length of its first tensor (a DDP wrapper says
    what it counts): forward and backward, and under `no_grad` the forward part. Backward passes as leaves get their
    gradients, whoever listens. What else costs time is told by `comm.clock.compute(samples)` or `advance(seconds)`.

    Args:
        timeout_s: Real seconds that a collective waits for a rank, as in `distributed.run`.

    Raises:
        ArgumentError: fn is no function, or cluster no cluster.
        Exception: what the first failing rank raised.

    Example:
        >>> trace = run(lambda comm: comm.clock.compute(32) or comm.barrier(), Cluster.of_speeds([2, 1]))
        >>> [round(rank.steps[0].idle_s, 6) for rank in trace.ranks]
        [0.016, 0.0]
    """
    check_cluster("simulate.run", cluster)
    world = ThreadWorld(cluster.world_size, timeout_s=timeout_s)
    wire = Wire(cluster.link, cluster.world_size)
    recorders = [Recorder() for _ in cluster.ranks]
    communicators = [
        VirtualCommunicator(comm, VirtualClock(cluster, comm.rank, recorder), wire, recorder)
        for comm, recorder in zip(world.communicators(), recorders)
    ]
    return Trace.of(recorders, run_world(fn, world, communicators, *args, around=_on_its_clock))


@contextmanager
def _on_its_clock(comm: Communicator) -> Iterator[None]:
    """Let a rank's clock hear of what this thread computes."""
    clock = comm.clock
    assert isinstance(clock, VirtualClock)
    with watching_calls(clock), watching_backwards(clock):
        yield


@dataclass(frozen=True)
class Forecast:
    """Costs of a run without numbers.

    Attributes:
        step_s: (steps,) seconds of each step: the slowest rank, then the all-reduce.
        idle_fraction: (steps,) the part of all ranks' computing time that went into waiting for the slowest.
        samples: (world_size,) of each rank in the last step.
    """

    step_s: Array
    idle_fraction: Array
    samples: Array


def forecast(
    cluster: Cluster,
    samples: Sequence[float] | Array,
    steps: int,
    *,
    strategy: Strategy | BalanceFunction | None = None,
    gradient_bytes: int = 0,
    first_step: int = 0,
) -> Forecast:
    """What steps of a cluster take when each rank computes on so many samples; no thread, no number of a model.

    Args:
        samples: (world_size,) samples of each rank in the first step, >= 0; a rank without any takes no time.
        steps: Number of steps, >= 0.
        strategy: Divides the batch anew after each step, as that of a `Balancer` does: a function
            (state, batch_size, readings) -> (state, sizes, reason), or (batch_size, throughputs) -> sizes. Its state
            may be anything here. By default the samples stay.
        gradient_bytes: What is all-reduced at the end of a step, >= 0; nothing of it is hidden.
        first_step: The number of the first step, >= 0, for jitter and slowdowns.

    Raises:
        ArgumentError: an argument out of its range, or what the strategy did is no decision.
        ShapeError: not one number a rank.

    Example:
        >>> from minigrad.distributed import compute_shard_sizes, rebalance
        >>> def by_speed(batch_size, throughputs):
        ...     return compute_shard_sizes(batch_size, rebalance(throughputs))
        >>> result = forecast(Cluster.of_speeds([3, 2, 1]), [40, 40, 40], 2, strategy=by_speed)
        >>> result.samples.tolist(), [round(float(s), 6) for s in result.step_s]
        ([60.0, 40.0, 20.0], [0.04, 0.02])
    """
    check_cluster("forecast", cluster)
    as_integer("forecast", "steps", steps, 0)
    as_integer("forecast", "first_step", first_step, 0)
    decide = None if strategy is None else as_strategy("forecast", strategy)
    shard, state = _each_rank(samples, cluster), None
    reduce_s = cluster.link.cost_s("all_reduce", gradient_bytes, cluster.world_size, local_steps=1)
    step_s, idle = np.empty(steps), np.empty(steps)
    for i in range(steps):
        compute_s = cluster.compute_all_s(shard, first_step + i)
        slowest = float(compute_s.max())
        step_s[i] = slowest + reduce_s
        idle[i] = 1.0 - float(compute_s.mean()) / slowest if slowest else 0.0
        if decide is not None and i + 1 < steps:
            state, shard = _next_shares(decide, state, shard, compute_s)
    return Forecast(step_s, idle, shard)


def _next_shares(strategy: Strategy, state: Any, shard: Array, compute_s: Array) -> tuple[Any, Array]:
    total = math.fsum(shard)
    if total % 1.0:
        raise ArgumentError(f"forecast: expected a whole batch for a strategy to divide, got {total} samples")
    state, sizes, _ = ask(strategy, state, int(total), list(zip(shard.tolist(), compute_s.tolist())))
    return state, np.array(check_sizes(name_of(strategy), sizes, int(total), len(shard)), np.float64)


def _each_rank(samples: Sequence[float] | Array, cluster: Cluster) -> Array:
    try:
        shard = np.asarray(samples, np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"forecast: expected samples as numbers, got {samples!r:.100}") from error
    if shard.shape != (cluster.world_size,):
        raise ShapeError(f"forecast: expected samples of shape ({cluster.world_size},), got {shard.shape}")
    if not (np.isfinite(shard) & (shard >= 0.0)).all():
        raise ArgumentError(f"forecast: expected finite samples >= 0, got {samples!r:.100}")
    return shard
