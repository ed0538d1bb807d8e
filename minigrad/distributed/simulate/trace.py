"""What a simulation saw: computing, waiting and communication of every rank, and every decision with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Step:
    """One step of one rank: some computing, then the collectives after it, up to the next computing.

    Attributes:
        begin_s, end_s: In virtual time.
        compute_s: Forward and backward.
        idle_s: Waiting for a slower rank to come.
        exposed_s: Waiting for communication itself, that nothing hid.
        samples: Computed on.
    """

    begin_s: float
    end_s: float
    compute_s: float = 0.0
    idle_s: float = 0.0
    exposed_s: float = 0.0
    samples: float = 0.0


@dataclass
class RankTrace:
    """The steps and decisions of one rank."""

    steps: list[Step] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    _waited: bool = True

    def compute(self, now_s: float, seconds: float, samples: float) -> None:
        """The rank computes; a new step where it has waited for a collective since it last did."""
        if self._waited:
            self.steps.append(Step(now_s, now_s))
            self._waited = False
        step = self.steps[-1]
        step.compute_s += seconds
        step.samples += samples
        step.end_s = now_s + seconds

    def wait(self, now_s: float, idle_s: float, until_s: float, kind: str) -> None:
        """The rank waits for a collective: first for the others, then for the network."""
        if not self.steps:
            return  # setting up
        step = self.steps[-1]
        step.idle_s += idle_s
        step.exposed_s += until_s - now_s - idle_s
        step.end_s = until_s
        self._waited = True

    def called(self) -> None:
        """The rank has called a collective, whether it has to wait or not: the next computing is a new step."""
        self._waited = True


@dataclass
class Trace:
    """The outcome of `simulate.run`.

    Attributes:
        ranks: What each rank saw.
        results: What fn returned on each rank.
    """

    ranks: list[RankTrace]
    results: list[Any]

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decisions that rank 0 took or heard of, each with its reason, in order."""
        return self.ranks[0].decisions

    def steps(self) -> int:
        """Steps that every rank made."""
        return min(len(rank.steps) for rank in self.ranks)

    def step_times_s(self) -> list[float]:
        """Seconds of each step, from the first rank that began to the last that ended."""
        spans = zip(*(rank.steps for rank in self.ranks))
        return [max(s.end_s for s in span) - min(s.begin_s for s in span) for span in spans]

    def slowest_s(self) -> list[float]:
        """Seconds that the slowest rank computed in each step: the step's time, communication aside."""
        return [max(step.compute_s for step in span) for span in zip(*(rank.steps for rank in self.ranks))]

    def idle_fraction(self, first: int = 0, last: int | None = None) -> float:
        """The part of all ranks' time, over steps [first, last), that went into waiting for slower ranks."""
        chosen = [step for rank in self.ranks for step in rank.steps[first:last]]
        whole = sum(step.end_s - step.begin_s for step in chosen)
        return sum(step.idle_s for step in chosen) / whole if whole else 0.0

    def throughput(self, first: int = 0, last: int | None = None) -> float:
        """Samples in a second of virtual time, over steps [first, last)."""
        chosen = [step for rank in self.ranks for step in rank.steps[first:last]]
        if not chosen:
            return 0.0
        seconds = max(step.end_s for step in chosen) - min(step.begin_s for step in chosen)
        return sum(step.samples for step in chosen) / seconds if seconds else float("inf")
