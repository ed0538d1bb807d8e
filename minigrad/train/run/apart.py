"""The engine of ranks that are not in step, as a run starts it: who directs them, and where they live."""

from __future__ import annotations

import warnings
from typing import Any

from minigrad.backend.device import CPU, Device
from minigrad.data.dispatch import Dispatch
from minigrad.distributed.comm.checks import default_timeout_s
from minigrad.distributed.run import be_rank
from minigrad.train import coordinator as c
from minigrad.train.run.apart_rank import ApartCommunicator, SharedRun, train_directed
from minigrad.train.run.apart_saving import saved_states, with_seed_of
from minigrad.train.run.config import WHO, RunConfig
from minigrad.train.run.directed import Directed, teller
from minigrad.train.run.handle import Run, RunsRanks, TrainedState
from minigrad.train.run.letters import Letters
from minigrad.train.run.processes import LivingRank, run_directed
from minigrad.train.run.rank import Worker
from minigrad.train.run.same_run import PLAIN
from minigrad.train.run.simulated import Simulated

_SOON_S = 0.1  # after which a wish to stop is seen


def train_apart(config: RunConfig, place: RunsRanks, run: Run) -> TrainedState:
    """Train with ranks that a coordinator directs; what those have come to that live.

    Raises:
        Exception: what the first rank that failed has raised, where the run ends because of that.
    """
    timeout_s = place.timeout_s if isinstance(place, LivingRank) else default_timeout_s(config.timeout_s)
    world_size = place.world_size
    shared, saved = SharedRun(run), saved_states(config)
    config = with_seed_of(config, saved)
    devices = [CPU] * world_size if config.devices is None else list(map(Device, config.devices))

    def body(rank: int, letters: Letters) -> TrainedState:
        here = ApartCommunicator(rank, world_size, devices[rank], letters)
        be_rank(here)
        worker = Worker(config, here)
        run.own(worker.model)
        return train_directed(worker, letters, shared, directions.bound, timeout_s / 4, saved)

    directions = coordinator_config(config, world_size, timeout_s)
    desk: dict[str, Any] = {
        "state": None if saved is None else saved[1][0][PLAIN]["coordinator"],
        "wishes": lambda: "run.stop()" if run.wants_stop else "",
        "most_rounds": config.max_steps,
        "event": teller(config.timeline),
    }
    if isinstance(place, LivingRank):
        devices[place.line.rank] = place.device
        return run_directed(place.line, directions, body, longest_s=_SOON_S, **desk)
    if config.on_failure == "shrink":
        desk["lost"] = _tell_lost  # of processes the launcher tells it
    ranks: Directed
    if config.cluster is not None:
        ranks = Simulated(directions, body, config.cluster, timeout_s=timeout_s, **desk)
    else:
        ranks = Directed(directions, body, timeout_s=timeout_s, devices=devices, longest_s=_SOON_S, **desk)
    try:
        state = ranks.run()
    finally:
        if isinstance(ranks, Simulated):
            run.trace = ranks.trace
    found: TrainedState = ranks.results[state.living[0]]
    return found


def coordinator_config(config: RunConfig, world_size: int, timeout_s: float) -> c.CoordinatorConfig:
    """What the coordinator of a run is told; ranks wait for each other less long than it does for them."""
    pool = Worker.pool_of(config)
    limits = (config.max_overshoot, config.max_batch_diff, config.epochs)
    dispatch = Dispatch(pool, world_size, config.dispatch, config.shares, *limits)  # type: ignore[arg-type]
    by_shares = config.shares is not None and config.average == "gradients" and not config.when.measures
    return c.CoordinatorConfig(
        dispatch, config.when, config.on_failure, 1.25 * timeout_s, rounds_by_shares=by_shares
    )


def _tell_lost(rank: int, error: str) -> None:
    warnings.warn(f"{WHO}: rank {rank} is left behind: {error}", RuntimeWarning, stacklevel=2)
