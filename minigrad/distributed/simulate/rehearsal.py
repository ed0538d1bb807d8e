"""Training with true numbers on ranks that fail: a `Course`, done with a replica for each rank, one after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.random import manual_seed
from minigrad.distributed.collectives import ReduceOp, all_reduce
from minigrad.distributed.simulate.goodput import Course, Happened
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.recording import no_grad


class LossPoint(NamedTuple):
    """The mean loss of those that made a step, and when on the clock it was over."""

    at_s: float
    step: int
    loss: float


class Rehearsal:
    """Replicas that train as a course says; `run` does it.

    Args:
        course: What happens; not iterated over yet.
        make_model: Makes a replica; with the same seed for each rank.
        make_optimizer: make_optimizer(params) makes its optimizer.
        train_fn: train_fn(model, rank, step) gives the loss of a rank in a step: a mean over as many samples for each.
        world_size: Ranks of the course.
        seed: Of the weights.

    Attributes:
        models: The replica of each rank.
        losses: A `LossPoint` for each step, and for the last step of each round.
        is_there: (world_size,) whether each rank had a part in what happened last: the replicas of those are bit-equal.

    Raises:
        ArgumentError: the course is of another number of ranks.
    """

    def __init__(
        self,
        course: Course,
        make_model: Callable[[], Module],
        make_optimizer: Callable[[list[Any]], Any],
        train_fn: Callable[[Module, int, int], Any],
        world_size: int,
        seed: int = 0,
    ) -> None:
        if course.world_size != world_size:
            raise ArgumentError(f"Rehearsal: expected world_size {course.world_size} of the course, got {world_size!r}")
        self._course, self._train_fn = course, train_fn
        self.models: list[Module] = []
        self._optimizers: list[Any] = []
        for _ in range(world_size):
            manual_seed(seed)
            self.models.append(make_model())
            self._optimizers.append(make_optimizer(list(self.models[-1].parameters())))
        self._first = self._kept = self._state_of(0)
        self.losses = list[LossPoint]()
        self.is_there = np.ones(world_size, bool)

    def run(self) -> Rehearsal:
        """Do all that happens; itself."""
        for happened in self._course:
            getattr(self, f"_{happened.kind}")(happened)
            self.is_there = happened.present
        return self

    def _state_of(self, rank: int) -> Any:
        return copy.deepcopy((self.models[rank].state_dict(), self._optimizers[rank].state_dict()))

    def _give(self, ranks: Any, state: Any) -> None:
        for rank in np.flatnonzero(ranks):
            self.models[rank].load_state_dict(state[0])
            self._optimizers[rank].load_state_dict(state[1])

    def _backward(self, rank: int, step: int) -> float:
        self._optimizers[rank].zero_grad()
        loss = self._train_fn(self.models[rank], rank, step)
        loss.backward()
        return float(loss.item())

    def _step(self, happened: Happened) -> None:
        ranks = np.flatnonzero(happened.present).tolist()
        losses = [self._backward(rank, happened.step) for rank in ranks]
        for params in zip(*(self.models[rank].parameters() for rank in ranks)):
            all_reduce([param.grad.data for param in params], ReduceOp.AVG)
        for rank in ranks:
            self._optimizers[rank].step()
        self.losses.append(LossPoint(happened.at_s, happened.step, sum(losses) / len(losses)))

    def _round(self, happened: Happened) -> None:
        losses: dict[int, float] = {}
        for rank in np.flatnonzero(happened.started).tolist():
            for step in range(happened.step, happened.step + happened.steps):
                losses[rank] = self._backward(rank, step)
                self._optimizers[rank].step()
        ranks = np.flatnonzero(happened.present).tolist()
        with no_grad():
            for params in zip(*(self.models[rank].parameters() for rank in ranks)):
                means = [param.data.copy() for param in params]
                all_reduce(means, ReduceOp.AVG)
                for param, mean in zip(params, means):
                    param.copy_(type(param.detach())(mean))
        mean_loss = sum(losses[rank] for rank in ranks) / len(ranks)
        self.losses.append(LossPoint(happened.at_s, happened.step + happened.steps - 1, mean_loss))

    def _save(self, happened: Happened) -> None:
        self._kept = self._state_of(0)

    def _restore(self, happened: Happened) -> None:
        self._give(happened.present, self._kept)

    def _lost(self, happened: Happened) -> None:
        self._give(happened.present, self._first)

    def _join(self, happened: Happened) -> None:
        source = int(np.flatnonzero(happened.started)[0])
        self._give(happened.present & ~happened.started, self._state_of(source))
