"""Ranks that fail and come back, on the clock of a virtual cluster, and what is left of the throughput. Pure.

Each rank works for a time that is drawn, exponential with mean `mtbf_s`, then it fails; `repair_s` later it is there
again. What the others do meanwhile is a strategy:

    Restart     all wait until it is back, load the last checkpoint, and make the steps since then again
    Shrink      the others make the step again without it, at once; it joins again between two steps
    LocalSteps  each rank makes k steps on its own; the round goes on without it, and its own steps of that are lost

Goodput is what counts in the end over what the cluster would have trained in that time without failures: the samples
that came into the model, each once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Union

import numpy as np

from minigrad.arguments import as_amount, as_integer, as_real, keep_as
from minigrad.backend.dtypes import Array
from minigrad.distributed.simulate.cluster import Cluster, check_cluster
from minigrad.distributed.simulate.failures import FailureTimes, Lives
from minigrad.errors import ArgumentError


@dataclass(frozen=True)
class Restart:
    """All wait for the one that failed, and go back to the last checkpoint.

    Attributes:
        every: Steps from one checkpoint to the next, >= 1.
        save_s, load_s: What all wait for a checkpoint to be written, and to be read, >= 0.

    Raises:
        ArgumentError: a number out of its range.
    """

    every: int
    save_s: float = 0.0
    load_s: float = 0.0

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "every", least=1)
        keep_as(self, as_amount, "save_s", "load_s")


@dataclass(frozen=True)
class Shrink:
    """The others go on without the one that failed.

    Attributes:
        detect_s: From a failure until the others know of it and begin the step again, >= 0.
        join_s: What a step begins later where ranks join again, whose state they are given first, >= 0.

    Raises:
        ArgumentError: a number out of its range.
    """

    detect_s: float = 0.0
    join_s: float = 0.0

    def __post_init__(self) -> None:
        keep_as(self, as_amount, "detect_s", "join_s")


@dataclass(frozen=True)
class LocalSteps:
    """Ranks make k steps on their own, then those that are there take the mean of their parameters.

    Attributes:
        k: >= 1.
        detect_s: What a round takes longer in which a rank failed, >= 0.
        join_s: What a round begins later where ranks join again, >= 0.

    Raises:
        ArgumentError: a number out of its range.
    """

    k: int
    detect_s: float = 0.0
    join_s: float = 0.0

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "k", least=1)
        keep_as(self, as_amount, "detect_s", "join_s")


Strategy = Union[Restart, Shrink, LocalSteps]


class Happened(NamedTuple):
    """What ranks did next, in the order in which it is to be done with true numbers.

    Attributes:
        kind: "step": those present stepped by their combined gradient. "round": each of `started` made k steps, and
            those present took the mean of their parameters. "save", "restore": a checkpoint was written, or all went
            back to it. "join": those present that were not there before begin with the state of the others. "lost":
            nobody was left, so those present begin anew.
        at_s: When it was over.
        present: (world_size,) whether each rank has a part in it.
        started: (world_size,) who began it; for a "join" who was there before.
        step: The number of the first step in it, from 0; after a "restore" it goes back.
        steps: How many there are in it: k in a round.
    """

    kind: Literal["step", "round", "save", "restore", "join", "lost"]
    at_s: float
    present: Array
    started: Array
    step: int
    steps: int = 1


class Course:
    """What happens on a cluster whose ranks fail, up to some time: iterate over it, once.

    Args:
        cluster: What computing and the link cost.
        failures: Of its ranks.
        strategy: What is done when one fails.
        samples: That a rank takes in a step, >= 1.
        nbytes: Of what is combined, >= 0.
        horizon_s: How long it goes on, > 0 and finite; what is not over by then is left out.

    Attributes:
        world_size: Ranks of the cluster.
        counted: Samples in the model so far.
        lost: Samples of steps that were made and are not in the model.
        failed: How often ranks have failed.

    Raises:
        ArgumentError: failures of another number of ranks, no strategy, or a number out of its range.
    """

    def __init__(
        self,
        cluster: Cluster,
        failures: FailureTimes,
        strategy: Strategy,
        samples: int,
        nbytes: float,
        horizon_s: float,
    ) -> None:
        check_cluster("Course", cluster)
        if not isinstance(failures, FailureTimes) or failures.world_size != cluster.world_size:
            raise ArgumentError(f"Course: expected the failures of {cluster.world_size} ranks, got {failures!r:.100}")
        if not isinstance(strategy, (Restart, Shrink, LocalSteps)):
            raise ArgumentError(f"Course: expected Restart, Shrink or LocalSteps, got {strategy!r:.100}")
        self._cluster, self._strategy, self._lives = cluster, strategy, Lives(failures)
        self.world_size = cluster.world_size
        self._samples = as_integer("Course", "samples", samples, 1)
        self._nbytes = as_amount("Course", "nbytes", nbytes)
        self._horizon_s = as_real("Course", "horizon_s", horizon_s, above=0.0, finite=True)
        self._given = np.full(cluster.world_size, float(self._samples))
        self._steady_s = cluster.compute_all_s(self._given, 0) if cluster.is_steady else None
        self._now_s, self._step = 0.0, 0
        self.counted, self.lost = 0, 0

    @property
    def failed(self) -> int:
        """How often ranks have failed."""
        return self._lives.count

    def __iter__(self) -> Iterator[Happened]:
        if isinstance(self._strategy, Restart):
            return self._restarting(self._strategy)
        return self._going_on(self._strategy)

    def _takes_s(self, present: Array, steps: int = 1) -> float:
        """Seconds of so many steps of the ranks that are there, and of combining what they have."""
        compute_s = sum(self._compute_s(self._step + i) for i in range(steps))
        link = self._cluster.link
        ranks = np.flatnonzero(present).tolist() if link.topology == "hierarchical" else ()
        combine_s = link.cost_s("all_reduce", self._nbytes, int(present.sum()), ranks, steps - 1)
        return float(np.max(compute_s, where=present, initial=0.0)) + combine_s

    def _compute_s(self, step: int) -> Array:
        """Seconds that each rank computes in a step."""
        return self._cluster.compute_all_s(self._given, step) if self._steady_s is None else self._steady_s

    def _give_up(self, samples: int) -> None:
        self.counted, self.lost = self.counted - samples, self.lost + samples

    def _happened(self, kind: Any, present: Array, started: Array | None = None, steps: int = 1) -> Happened:
        return Happened(kind, self._now_s, present, present if started is None else started, self._step, steps)

    # ------------------------------------------------------------------------------------------------ strategies

    def _restarting(self, strategy: Restart) -> Iterator[Happened]:
        everybody, kept = np.ones(self._cluster.world_size, bool), 0
        each = self._samples * self._cluster.world_size
        while True:
            is_due = self._step + 1 - kept == strategy.every
            over_s = self._now_s + self._takes_s(everybody) + strategy.save_s * is_due
            failing_s = float(self._lives.fails_at.min())
            if min(over_s, failing_s) > self._horizon_s:
                return
            if failing_s < over_s:
                self._give_up((self._step - kept) * each)
                self._step = kept
                if not self._all_are_back(strategy.load_s):
                    return
                yield self._happened("restore", everybody)
                continue
            self._now_s, self.counted = over_s, self.counted + each
            yield self._happened("step", everybody)
            self._step += 1
            if is_due:
                kept = self._step
                yield self._happened("save", everybody)

    def _all_are_back(self, load_s: float) -> bool:
        """Wait until all ranks are there and have loaded a checkpoint; whether that is before the horizon."""
        ready_s = 0.0
        while ready_s <= self._horizon_s:
            self._lives.fail(self._lives.fails_at <= max(ready_s, self._lives.fails_at.min()))
            ready_s = self._lives.all_back_s() + load_s
            if self._lives.fails_at.min() > ready_s:
                break
        self._now_s = ready_s
        return ready_s <= self._horizon_s

    def _going_on(self, strategy: Shrink | LocalSteps) -> Iterator[Happened]:
        steps = strategy.k if isinstance(strategy, LocalSteps) else 1
        before = self._lives.present(0.0)
        while True:
            present = self._lives.present(self._now_s)
            if not (before & present).any():
                yield from self._nobody_is_left()
                present = before = self._lives.present(self._now_s)
            elif (present & ~before).any():
                self._now_s += strategy.join_s
                yield self._happened("join", present, before & present)
            if self._now_s > self._horizon_s:
                return
            over_s = self._now_s + self._takes_s(present, steps)
            failing = present & (self._lives.fails_at < over_s)
            if failing.any() and isinstance(strategy, Shrink):
                known_s = float(self._lives.fails_at[failing].min()) + strategy.detect_s
                gone = present & (self._lives.fails_at <= known_s)
                self._now_s, before = known_s, present & ~gone
                self._lives.fail(gone)
                continue
            if failing.any():
                over_s += strategy.detect_s
                failing = present & (self._lives.fails_at < over_s)
            if over_s > self._horizon_s:
                return
            self._lives.fail(failing)
            before = present & ~failing
            self._now_s = over_s
            self.counted += steps * self._samples * int(before.sum())
            self.lost += steps * self._samples * int(failing.sum())
            if before.any():
                yield self._happened("round" if isinstance(strategy, LocalSteps) else "step", before, present, steps)
            self._step += steps

    def _nobody_is_left(self) -> Iterator[Happened]:
        """All have failed, and with them what they had trained: those that come back first begin anew."""
        self._give_up(self.counted)
        here = self._lives.present(self._now_s)
        if not here.any():
            self._now_s = self._lives.next_back_s(self._now_s)
            here = self._lives.present(self._now_s)
        if self._now_s <= self._horizon_s:
            yield self._happened("lost", here)


class Goodput(NamedTuple):
    """What is left of the throughput.

    Attributes:
        goodput_ratio: Samples in the model in the end, over those that plain steps without failures would have
            brought there; above 1 where local steps save more than failures cost.
        counted, lost: Samples in the model, and of steps that were made and are not.
        failed: How often ranks failed.
    """

    goodput_ratio: float
    counted: int
    lost: int
    failed: int


def goodput(
    cluster: Cluster, failures: FailureTimes, strategy: Strategy, *, samples: int, nbytes: float, horizon_s: float
) -> Goodput:
    """What a strategy leaves of the throughput of a cluster whose ranks fail; see `Course` for the arguments.

    Raises:
        ArgumentError: see `Course`; or the horizon is shorter than a step.

    Example:
        >>> cluster = Cluster.of_speeds([1.0] * 4, per_sample_s=1.0)
        >>> failures = cluster.failures(mtbf_s=200.0, repair_s=50.0, seed=0)
        >>> found = goodput(cluster, failures, Shrink(), samples=1, nbytes=0.0, horizon_s=1000.0)
        >>> found.failed, round(found.goodput_ratio, 3)
        (18, 0.774)
    """
    course = Course(cluster, failures, strategy, samples, nbytes, horizon_s)
    for _ in course:
        pass
    unfailing = FailureTimes(cluster.world_size, math.inf, 0.0)
    ideal = Course(cluster, unfailing, Shrink(), samples, nbytes, horizon_s)
    for _ in ideal:
        pass
    if not ideal.counted:
        raise ArgumentError(f"goodput: expected a horizon of a step at least, got {horizon_s!r} s: make it longer")
    return Goodput(course.counted / ideal.counted, course.counted, course.lost, course.failed)
