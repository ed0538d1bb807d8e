"""Run: what `Trainer.start` gives back, by which a caller sees a run, ends it and takes what it has trained."""

from __future__ import annotations

import math
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tqdm import tqdm

from minigrad.backend.thread import new_thread
from minigrad.errors import ArgumentError, RankFailedError
from minigrad.nn.module import Module
from minigrad.tensor import Tensor
from minigrad.train.epoch import EpochMetrics


@dataclass(frozen=True)
class TrainedState:
    """What a run has trained: copies on the CPU, the same on all ranks, but for buffers under `Async`.

    Attributes:
        params, buffers: By name; `model.load_state_dict({**params, **buffers})` takes them.
    """

    params: dict[str, Tensor]
    buffers: dict[str, Tensor]

    @classmethod
    def of(cls, model: Module) -> TrainedState:
        """That of a replica."""
        params = {name: _copied(param) for name, param in model.named_parameters()}
        return cls(params, {name: _copied(buffer) for name, buffer in model.named_buffers()})


def _copied(x: Tensor) -> Tensor:
    return Tensor(x.detach().cpu().numpy().copy())


class RunsRanks(Protocol):
    """Where ranks live; see `Place`.

    Attributes:
        world_size: How many there are, of this process and of others.
        leader: The rank of this process that tells the caller of epochs.
        has_all_ranks: Whether there are none in other processes.
    """

    world_size: int
    leader: int
    has_all_ranks: bool


class Run:
    """A run that goes on beside its caller.

    `for metrics in run.metrics(): ...` sees each epoch when it is over, `run.join()` waits for the end. While either
    waits, Ctrl-C is `run.stop()`; a second one leaves the run to itself and raises.

    Attributes:
        world_size: Number of its ranks.
        leader: The rank that tells of epochs in this process.
        has_all_ranks: Whether there are none in other processes.
        history: The metrics of the epochs that are over; of a run that was resumed those before that too.
        trace: What the ranks did on a virtual cluster, after the end; None elsewhere.
    """

    def __init__(
        self, place: RunsRanks, shows_progress: bool | None, body: Callable[[Run], TrainedState]
    ) -> None:
        self.world_size, self.leader, self.has_all_ranks = place.world_size, place.leader, place.has_all_ranks
        self.history: list[EpochMetrics] = []
        self._first = 0  # of those that are over in this run, not in one that it goes on with
        self.trace: Any = None
        self._changed = threading.Condition()
        self._shows = shows_progress
        self._bar: Any = None
        self._body = body
        self._state: TrainedState | None = None
        self._error: BaseException | None = None
        self._replicas: list[weakref.ref[Module]] = []  # of the ranks of this process
        self._is_over = self._wants_stop = self._is_told = False
        self._furthest, self._end = 0, math.inf  # rounds that a rank of this process has begun, and that all make
        self._thread = new_thread(self._train, name="minigrad-run")
        self._thread.daemon = False  # a program that does not wait ends when the run does

    # ------------------------------------------------------------------------------------------------ for callers

    def metrics(self) -> Iterator[EpochMetrics]:
        """The figures of each epoch from the first on, each as soon as it is over, until the run is.

        Of a run that was resumed these are the epochs that it ends itself.

        Raises:
            Exception: what `join` raises, after the last one.
        """
        number = 0
        while True:
            self._wait(lambda: len(self.history) > self._first + number or self._is_over)
            if len(self.history) <= self._first + number:
                break
            yield self.history[self._first + number]
            number += 1
        self._raise()

    def join(self) -> TrainedState:
        """Wait for the end.

        Returns:
            What was trained, the same on all ranks.

        Raises:
            Exception: what the first rank that failed has raised.
        """
        self._wait(lambda: self._is_over)
        self._raise()
        assert self._state is not None
        return self._state

    def stop(self) -> None:
        """Let the run end as soon as all ranks can: see `wants_stop`; returns at once."""
        self._wants_stop = True

    @property
    def is_over(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._is_over

    def _wait(self, until: Callable[[], bool]) -> None:
        """Wait, where the first interrupt asks the run to stop."""
        try:
            with self._changed:
                self._changed.wait_for(until)
        except KeyboardInterrupt:
            self.stop()
            with self._changed:
                self._changed.wait_for(until)

    def _raise(self) -> None:
        self._is_told = True
        if self._error is not None:
            raise self._error

    # ------------------------------------------------------------------------------------------------- for engines

    @property
    def wants_stop(self) -> bool:
        """Whether somebody has asked for the end; ranks ask this between two steps, and agree."""
        return self._wants_stop

    def may_begin(self, number: int) -> bool:
        """Whether ranks of this process make the round of this number, from 1; the same for all of them.

        For a run whose ranks are all in this process and do not meet in each round: where it is to stop they end behind
        the last round that one of them has begun.
        """
        with self._changed:
            if self._wants_stop and self._end == math.inf:
                self._end = self._furthest
            self._furthest = max(self._furthest, number) if number <= self._end else self._furthest
            return number <= self._end

    def own(self, model: Module) -> None:
        """A rank of this process has this replica, and no other one has any of it.

        Raises:
            ArgumentError: another one has.
        """
        mine = set(map(id, model.parameters()))
        with self._changed:
            for other in filter(None, (each() for each in self._replicas)):
                if not mine.isdisjoint(map(id, other.parameters())):
                    raise ArgumentError(
                        "Trainer.start: expected make_model(device) to make a model in each call, got parameters that "
                        "another rank has: each rank trains a replica of its own"
                    )
            self._replicas.append(weakref.ref(model))

    def begin(self) -> None:
        """Start."""
        self._thread.start()

    def expect(self, samples: int) -> None:
        """Ranks will train on so many samples in all."""
        is_wanted = sys.stderr.isatty() if self._shows is None else self._shows
        if is_wanted and not self.leader:
            self._bar = tqdm(total=samples, leave=False, unit="sample")

    def resumed(self, history: list[EpochMetrics], samples: int) -> None:
        """The run goes on where these epochs are over, and so many samples were trained on; the leader says so."""
        with self._changed:
            self.history[:] = history
            self._first = len(history)
        self.advance(samples, None)

    @property
    def shows_progress(self) -> bool:
        """Whether there is a progress bar here."""
        return self._bar is not None

    def advance(self, samples: float, loss: float | None) -> None:
        """A step on so many samples is over; the leader says so."""
        if self._bar is None:
            return
        if loss is not None:
            self._bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
        self._bar.update(samples)

    def epoch(self, metrics: EpochMetrics, samples: int = 0) -> None:
        """An epoch is over, and the samples of all until now are at least so many; the leader says so."""
        if self._bar is not None and samples > self._bar.n:
            self._bar.update(samples - self._bar.n)
        with self._changed:
            self.history.append(metrics)
            self._changed.notify_all()

    def _train(self) -> None:
        try:
            self._state = self._body(self)
            if self._state is None:  # a rank that ends by exit() gives nothing
                raise RankFailedError("Trainer.start: expected ranks that train to the end, got exit() in one of them")
        except BaseException as error:
            self._error = error
        finally:
            if self._bar is not None:
                self._bar.close()
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def __del__(self) -> None:
        error = getattr(self, "_error", None)
        if error is not None and not self._is_told:
            warnings.warn(f"a run failed, and nobody has asked: {type(error).__name__}: {error}", RuntimeWarning)
