"""Starting a run: its place calls a rank's engine, beside the caller."""

from __future__ import annotations

from typing import Any

from minigrad.backend.memory import keep_freed_memory
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.record.listening import overheard
from minigrad.errors import ArgumentError
from minigrad.train.run.alike import options_of
from minigrad.train.run.apart import train_apart
from minigrad.train.run.config import WHO, RunConfig
from minigrad.train.run.gradients_in_step import GradientsInStep
from minigrad.train.run.handle import Run, TrainedState
from minigrad.train.run.in_step import Engine
from minigrad.train.run.parameters_in_step import ParametersInStep
from minigrad.train.run.places import Place, place_of
from minigrad.train.run.processes import living_rank
from minigrad.train.run.rank import Worker


def start(config: RunConfig) -> Run:
    """Begin a run; see `Trainer.start`."""
    if config.keep_memory and not keep_freed_memory():
        raise ArgumentError(f"{WHO}: expected keep_memory=True where the C library is glibc, got it on another")
    is_apart = config.combination.engine == "coordinated"
    living = living_rank(config) if is_apart else None
    place: Any = place_of(config) if living is None else living
    if config.has_drawn_seed and not place.has_all_ranks:
        config = config.by_drawn(place.common_seed(config.seed))

    def body(run: Run) -> TrainedState:
        run.expect(config.epochs * len(config.dataset))
        if is_apart:
            return train_apart(config, place, run)
        try:
            found: TrainedState = place.run(lambda comm: train_rank(config, comm, run))
            return found
        finally:
            run.trace = place.trace

    run = Run(place, config.progress, body)
    run.begin()
    return run


def train_rank(config: RunConfig, comm: Communicator, run: Run) -> TrainedState:
    """What each rank does."""
    heard = overheard(WHO, config.timeline, comm)
    gather_alike(WHO, "options", heard, options_of(config))
    worker = Worker(config, heard)
    run.own(worker.model)
    return engine_of(worker, run).train()


def engine_of(worker: Worker, run: Run) -> Engine:
    """What a rank does, as the options say."""
    if worker.config.average == "gradients":
        return GradientsInStep(worker, run)
    return ParametersInStep(worker, run)


__all__ = ["Place", "start"]
