"""What a simulation saw: computing, waiting and communication of every rank, and every decision with its reason."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any


@dataclass
class Times:
    """The virtual times of one collective, or message.

    Attributes:
        started_s: When all ranks had called it, or it was sent.
        done_s: When it was over, or there.
    """

    started_s: float = 0.0
    done_s: float = 0.0


@dataclass
class Step:
    """One step of one rank: some computing, then the collectives after it, up to the next computing of any rank.

    Those of a group of ranks are collectives too; of messages, all that follow each other count as one.

    Attributes:
        begin_s, end_s: In virtual time.
        compute_s: Forward and backward; 0 for a rank that only took part in the collectives.
        idle_s: Waiting for a slower rank to come.
        exposed_s: Waiting for communication itself, that nothing hid.
        hidden_s: What the network did for this step else.
        samples: Computed on.
        sent_bytes: What the rank handed in to collectives, and sent.
    """

    begin_s: float
    end_s: float
    compute_s: float = 0.0
    idle_s: float = 0.0
    exposed_s: float = 0.0
    samples: float = 0.0
    hidden_s: float = 0.0
    sent_bytes: int = 0

    @property
    def communication_s(self) -> float:
        """How long the network worked for this step, once all ranks had called a collective."""
        return self.exposed_s + self.hidden_s

    def add(self, later: Step) -> None:
        """One more stretch of it, after the others."""
        self.compute_s += later.compute_s
        self.idle_s += later.idle_s
        self.exposed_s += later.exposed_s
        self.samples += later.samples
        took_s = later.compute_s + later.idle_s + later.exposed_s
        self.end_s = max(self.end_s, later.begin_s) + took_s  # a backward may be under way


@dataclass(frozen=True)
class RankTrace:
    """The steps and decisions of one rank.

    Attributes:
        uncharged_backwards: How many backwards cost no time, since no call of a module, and no `clock.compute`, had
            been charged for what they went through.
    """

    steps: list[Step]
    decisions: list[dict[str, Any]]
    uncharged_backwards: int = 0


class Recorder:
    """Takes the notes of one rank.

    The ranks call the same collectives in the same order, so their numbers say which stretches are of one step, also
    where a rank has nothing to compute. Where groups are split off, that holds as long as each rank is in as many.

    Attributes:
        decisions: So far.
        starts: How many collectives had been called whenever the rank began to compute.
        uncharged_backwards: So far; see `RankTrace`.
    """

    def __init__(self) -> None:
        self.decisions: list[dict[str, Any]] = []
        self.starts: set[int] = set()
        self.uncharged_backwards = 0
        self._calls = 0
        self._is_messaging = False  # since it computed, or called a collective
        self._sent: list[tuple[int, int]] = []  # bytes, with the number of the collective before which they were
        self._stretches: list[tuple[int, Step]] = []  # with the number of the collective before which they began
        self._carried: list[tuple[int, Times]] = []  # with the number of each

    def compute(self, now_s: float, seconds: float, samples: float) -> None:
        """The rank computes."""
        self._is_messaging = False
        self.starts.add(self._calls)
        self._stretches.append((self._calls, Step(now_s, now_s + seconds, compute_s=seconds, samples=samples)))

    def compute_again(self, now_s: float, seconds: float) -> None:
        """The rank computes once more what it did in this step: for a checkpoint, in backward."""
        self._stretches.append((self._number, Step(now_s, now_s + seconds, compute_s=seconds)))

    @property
    def _number(self) -> int:
        """What the step under way is noted under."""
        return self._calls if self._calls in self.starts else self._calls - 1

    def called(self, times: Times | None = None, nbytes: int = 0) -> None:
        """The rank has called a collective: the next computing is a new step.

        Args:
            times: Of the collective, known once it is over; None for one that takes none.
            nbytes: What the rank handed in.
        """
        if times is not None:
            self._carried.append((self._calls, times))
        self._sent.append((self._calls, nbytes))
        self._calls += 1
        self._is_messaging = False

    def messaged(self, times: Times | None, nbytes: int) -> None:
        """The rank has sent a message, or asks for one: the next computing is a new step.

        Args:
            times: Of one that it asks for, known once it is there.
            nbytes: Of one that it sends.
        """
        if not self._is_messaging:
            self.called()
            self._is_messaging = True
        if times is not None:
            self._carried.append((self._calls - 1, times))
        self._sent.append((self._calls - 1, nbytes))

    def wait(self, now_s: float, idle_s: float, exposed_s: float) -> None:
        """The rank waits: first for the others, then for the network."""
        stretch = Step(now_s, now_s + idle_s + exposed_s, idle_s=idle_s, exposed_s=exposed_s)
        self._stretches.append((self._number, stretch))

    def trace(self, starts: Sequence[int]) -> RankTrace:
        """What was seen, in the steps that begin at these numbers; what came before the first is setting up."""
        steps: list[Step] = []
        for number, stretch in sorted(self._stretches, key=itemgetter(0)):
            which = bisect_right(starts, number) - 1
            if which == len(steps) - 1 and steps:
                steps[-1].add(stretch)
            elif which >= 0:
                _pass_over(steps, which)
                steps.append(replace(stretch))
        _pass_over(steps, len(starts))
        for step, carried_s in zip(steps, self._carried_s(starts)):
            step.hidden_s = max(0.0, carried_s - step.exposed_s)
        for number, nbytes in self._sent:
            which = bisect_right(starts, number) - 1
            if which >= 0:
                steps[which].sent_bytes += nbytes
        return RankTrace(steps, self.decisions, self.uncharged_backwards)

    def _carried_s(self, starts: Sequence[int]) -> list[float]:
        """How long the network worked for each step: for one collective after the other."""
        sums, reached_s = [0.0] * len(starts), 0.0
        for number, times in self._carried:
            which = bisect_right(starts, number) - 1
            begin_s = max(times.started_s, reached_s)
            if times.done_s > begin_s:
                reached_s = times.done_s
                if which >= 0:
                    sums[which] += times.done_s - begin_s
        return sums


def _pass_over(steps: list[Step], count: int) -> None:
    """Let the rank do nothing, up to so many steps."""
    end_s = steps[-1].end_s if steps else 0.0
    steps += [Step(end_s, end_s) for _ in range(count - len(steps))]


@dataclass
class Trace:
    """The outcome of `simulate.run`.

    Attributes:
        ranks: What each rank saw; all have the same number of steps.
        results: What fn returned on each rank.
    """

    ranks: list[RankTrace]
    results: list[Any] = field(default_factory=list)

    @staticmethod
    def of(recorders: Sequence[Recorder], results: Sequence[Any] = ()) -> Trace:
        """The notes of all ranks put side by side."""
        starts = sorted(set[int]().union(*(recorder.starts for recorder in recorders)))
        return Trace([recorder.trace(starts) for recorder in recorders], list(results))

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decisions that rank 0 took or heard of, each with its reason, in order."""
        return self.ranks[0].decisions

    @property
    def uncharged_backwards(self) -> int:
        """Backwards of all ranks that cost no time; see `RankTrace`."""
        return sum(rank.uncharged_backwards for rank in self.ranks)

    def steps(self) -> int:
        """Steps that the ranks made."""
        return len(self.ranks[0].steps)

    def step_times_s(self) -> list[float]:
        """Seconds of each step, from the first rank that began to the last that ended."""
        spans = zip(*(rank.steps for rank in self.ranks))
        return [max(s.end_s for s in span) - min(s.begin_s for s in span) for span in spans]

    def slowest_s(self) -> list[float]:
        """Seconds that the slowest rank computed in each step: the step's time, communication aside."""
        return [max(step.compute_s for step in span) for span in zip(*(rank.steps for rank in self.ranks))]

    def idle_fraction(self, first: int = 0, last: int | None = None) -> float:
        """The part of all ranks' time, over steps [first, last), that went into waiting for slower ranks."""
        return self._fraction(lambda step: step.idle_s, first, last)

    def exposed_fraction(self, first: int = 0, last: int | None = None) -> float:
        """The part of all ranks' time, over steps [first, last), that went into waiting for communication itself."""
        return self._fraction(lambda step: step.exposed_s, first, last)

    def throughput(self, first: int = 0, last: int | None = None) -> float:
        """Samples in a second of virtual time, over steps [first, last)."""
        chosen = self._chosen(first, last)
        if not chosen:
            return 0.0
        seconds = max(step.end_s for step in chosen) - min(step.begin_s for step in chosen)
        return sum(step.samples for step in chosen) / seconds if seconds else float("inf")

    def sent_bytes(self, first: int = 0, last: int | None = None) -> int:
        """What all ranks handed in to collectives, and sent, over steps [first, last)."""
        return sum(step.sent_bytes for step in self._chosen(first, last))

    def _fraction(self, part: Callable[[Step], float], first: int, last: int | None) -> float:
        chosen = self._chosen(first, last)
        whole = sum(step.end_s - step.begin_s for step in chosen)
        return sum(map(part, chosen)) / whole if whole else 0.0

    def _chosen(self, first: int, last: int | None) -> list[Step]:
        return [step for rank in self.ranks for step in rank.steps[first:last]]
