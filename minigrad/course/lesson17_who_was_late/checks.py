"""What is asked of a detector of late ranks: records of runs in which it is known who was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from random import Random
from typing import Any, NamedTuple

import numpy as np

from minigrad import nn, optim
from minigrad.backend.random import manual_seed
from minigrad.course.lesson import Student, expect
from minigrad.course.lesson17_who_was_late.solution import PHASES
from minigrad.distributed import DDP, Communicator, Timeline, Wrapper, simulate
from minigrad.distributed.inspect import RankStep, steps_of
from minigrad.distributed.record.spans import TimeSpan
from minigrad.distributed.simulate import Cluster, Link, RankCost
from minigrad.tensor import Tensor

RANKS, STEPS, SAMPLES = 4, 10, 20
STEP_S = 0.02  # of computing: a third of it forward
_GRADIENT_BYTES = 2 * 8 * 8 * 4
Delays = Mapping[tuple[int, str], Sequence[float]]  # rank and phase -> seconds in each step


class Lateness(NamedTuple):
    """A run, and what is to be said of it.

    Attributes:
        name: In words.
        delays: What passes beside the computing of all ranks.
        late: The answer.
        cluster: Where it runs.
        advice: What is likely to be wrong with another answer.
    """

    name: str
    delays: Delays
    late: tuple[int, str] | None
    cluster: Cluster
    advice: str


def record(delays: Delays, cluster: Cluster) -> Timeline:
    """The timeline of a training on the cluster in which seconds pass in phases of some ranks."""
    timeline = Timeline(depth=0)
    simulate.run(_train, cluster, timeline, delays, timeout_s=5.0)
    return timeline


def foretell(delays: Delays, cluster: Cluster) -> Timeline:
    """The timeline of `record`, worked out without running it: where ranks arrive, and until when they wait."""
    wire_s, of = cluster.link.cost_s("all_reduce", _GRADIENT_BYTES, RANKS), "DDP"
    now_s, spans = [0.0] * RANKS, list[TimeSpan]()
    for step in range(STEPS):
        at = {where: seconds[step] for where, seconds in delays.items()}
        passes, handed_s = [], []
        for rank in range(RANKS):
            begins_s, seconds = [now_s[rank]], cluster.compute_s(rank, SAMPLES, step)
            parts = {"data": 0.0, "forward": seconds / 3, "backward": seconds * 2 / 3, "link": 0.0}
            for phase, base_s in parts.items():
                begins_s.append(begins_s[-1] + base_s + at.get((rank, phase), 0.0))
                kind, figures = ("weighted", _bucket(of, step)) if phase == "link" else (phase, {})
                if phase == "forward":
                    figures = {"forward_s": begins_s[-1] - begins_s[-2]}
                spans.append(TimeSpan(rank, kind, "", begins_s[-2], begins_s[-1], step, figures))
            passes.append((begins_s[2], begins_s[3] - begins_s[2]))
            handed_s.append(begins_s[4])
        met_s = max(handed_s)
        for rank, (began_s, backward_s) in enumerate(passes):
            told = {**_bucket(of, step), "backward_s": backward_s, "idle_s": met_s - handed_s[rank]}
            told |= {"exposed_s": wire_s, "hidden_s": 0.0, "samples": float(SAMPLES), "calls": 2}
            now_s[rank] = met_s + wire_s + at.get((rank, "optimizer"), 0.0)
            spans += [
                TimeSpan(rank, "idle", "", handed_s[rank], met_s, step, _bucket(of, step)),
                TimeSpan(rank, "exposed", "", met_s, met_s + wire_s, step, _bucket(of, step)),
                TimeSpan(rank, "wire", "", met_s, met_s + wire_s, step, _bucket(of, step)),
                TimeSpan(rank, "pass", of, began_s, met_s + wire_s, step, told),
                TimeSpan(rank, "optimizer", "", met_s + wire_s, now_s[rank], step, {}),
            ]
    return Timeline.of(sorted(spans, key=lambda span: (span.began_s, span.ended_s)), [], "virtual")


def _bucket(of: str, step: int) -> dict[str, Any]:
    return {"of": of, "pass": step, "bucket": 0, "nbytes": _GRADIENT_BYTES}


def cluster_of(seed: int, jitter: float = 0.01, bandwidth: float = 1e6) -> Cluster:
    """Equal ranks whose computing varies a little."""
    cost = RankCost(per_sample_s=STEP_S / SAMPLES, jitter_fraction=jitter)
    return Cluster((cost,) * RANKS, Link(1e-5, bandwidth), seed)


class _Delayed:
    """Lets seconds pass on one rank."""

    def __init__(self, comm: Communicator, delays: Delays) -> None:
        self._comm, self._delays, self.step = comm, delays, -1

    def __call__(self, phase: str, parts: int = 1) -> None:
        if self.step >= 0 and (self._comm.rank, phase) in self._delays:
            self._comm.clock.advance(self._delays[self._comm.rank, phase][self.step] / parts)


class _DelayedLayer(nn.Module):
    """Passes on what it gets."""

    def __init__(self, delayed: _Delayed) -> None:
        super().__init__()
        self._delayed = delayed

    def forward(self, x: Tensor) -> Tensor:
        self._delayed("forward")
        if x.requires_grad:
            x.register_hook(lambda grad: self._delayed("backward"))
        return x


class _DelayedLink(Wrapper):
    """Hands in late; a step has a call for the samples, and one for the bucket."""

    delayed: Any = None

    def around(self, call: Any, arrays: Any, make: Any) -> Any:
        if arrays and self.delayed is not None:
            self.delayed("link", 2)
        return make()


def _train(comm: Communicator, timeline: Timeline, delays: Delays) -> None:
    manual_seed(17)
    link = _DelayedLink(comm)
    link.delayed = delayed = _Delayed(comm, delays)
    layers = [nn.Linear(8, 8, bias=False), _DelayedLayer(delayed), nn.Linear(8, 8, bias=False)]
    ddp = DDP(nn.Sequential(*layers), link, timeline=timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=1e-3)
    for delayed.step in range(STEPS):
        with timeline.span("data"):
            delayed("data")
            batch = Tensor(np.ones((SAMPLES, 8), np.float32))
        ddp(batch).square().mean().backward()
        with timeline.span("optimizer"):
            delayed("optimizer")
            optimizer.step()
            optimizer.zero_grad()


# ----------------------------------------------------------------------------------------------------------- who it was


def runs() -> Iterator[Lateness]:
    """Twenty runs with a late rank, drawn, and six without, in turn."""
    drawn, nobody = Random(17), iter(_runs_without())
    for number in range(20):
        rank, phase = drawn.randrange(RANKS), PHASES[number % len(PHASES)]
        how, seconds = _pattern(drawn, number)
        slow = number % 4 == 3
        name = f"rank {rank} {how} in {phase}{', and a slow wire' if slow else ''}"
        advice = "the steps of all ranks are equally long, whoever is late: compare what each did itself, by phase"
        cluster = cluster_of(number, bandwidth=1e5 if slow else 1e6)
        yield Lateness(name, {(rank, phase): seconds}, (rank, phase), cluster, advice)
        if number % 3 == 1:
            yield from [run for run in [next(nobody, None)] if run is not None]


def _pattern(drawn: Random, number: int) -> tuple[str, list[float]]:
    """How late, in words and step by step."""
    most_s = STEP_S * drawn.uniform(0.4, 1.2)
    if number % 3 == 0:
        return f"is late by {1e3 * most_s:.1f} ms", [most_s] * STEPS
    if number % 3 == 1:
        chosen = drawn.sample(range(STEPS), 4)
        return f"is late by {1e3 * most_s:.1f} ms in 4 of {STEPS} steps", _in_steps(chosen, most_s)
    return f"is late by more and more, up to {1e3 * most_s:.1f} ms,", [most_s * i / (STEPS - 1) for i in range(STEPS)]


def _in_steps(chosen: Sequence[int], seconds: float) -> list[float]:
    return [seconds if step in chosen else 0.0 for step in range(STEPS)]


def _runs_without() -> list[Lateness]:
    """Runs in which nobody is late, though something looks like it."""
    all_of_them: Delays = {(rank, "data"): [STEP_S] * STEPS for rank in range(RANKS)}
    makes_up: Delays = {(2, "data"): [0.01] * STEPS} | {(rank, "forward"): [0.01] * STEPS for rank in (0, 1, 3)}
    one_is_fast: Delays = {(rank, "optimizer"): [0.01] * STEPS for rank in (1, 2, 3)}
    hiccup: Delays = {(1, "forward"): _in_steps([0], 2 * STEP_S)}
    told = [
        ("all ranks alike, and their times vary by 2 %", {}, "who waited least was not late, it came last by chance"),
        ("all ranks late in data", all_of_them, "compare with the other ranks, not with other phases"),
        ("rank 0 faster than all others", one_is_fast, "compare with the middle one of the others: one may be fast"),
        ("a rank that sets something up in the first step", hiccup, "once is an accident: that is no step to judge by"),
        ("rank 2 late in data, and as much faster in forward", makes_up, "what a rank makes up for makes nobody wait"),
        ("a wire that is slow for all", {}, "all ranks wait for the wire, and no rank is to blame"),
    ]
    found = []
    for number, (name, delays, advice) in enumerate(told):
        cluster = cluster_of(100 + number, 0.02 if number == 0 else 0.01, 2e4 if number == 5 else 1e6)
        found.append(Lateness(name, delays, None, cluster, advice))
    return found


def check_who_was_late(student: Student) -> str:
    """Each run, one after the other."""
    named = spared = 0
    for run in runs():
        found = student.who_was_late(steps_of(foretell(run.delays, run.cluster)))
        answer = tuple(found) if isinstance(found, list) else found
        wanted = "None" if run.late is None else f"{run.late}"
        expect(answer == run.late, f"who_was_late, {run.name}: expected {wanted}, got {found!r}: {run.advice}")
        named, spared = named + (run.late is not None), spared + (run.late is None)
    return f"{named} of {named} late ranks were named with their phase, and nobody in {spared} runs without one"


# ------------------------------------------------------------------------------------------------------ what it costs


class Gain(NamedTuple):
    """A run, and the rank that is punctual when it is made again."""

    name: str
    delays: Delays
    late: tuple[int, str]
    advice: str


def gains() -> list[Gain]:
    """All of them."""
    alone: Delays = {(1, "backward"): [0.012] * STEPS}
    second: Delays = {(1, "backward"): [0.012] * STEPS, (3, "data"): [0.008] * STEPS}
    in_turn: Delays = {(0, "data"): _in_steps([1, 4, 6, 8], 0.02), (2, "forward"): _in_steps([4, 6, 7], 0.015)}
    not_last: Delays = {(1, "link"): [0.006] * STEPS, (2, "data"): [0.015] * STEPS}
    after: Delays = {(2, "optimizer"): [0.012] * STEPS, (0, "optimizer"): [0.004] * STEPS}
    others = {(rank, "data"): _in_steps(range(6), 0.01) for rank in (1, 2, 3)}
    early: Delays = others | {(0, "data"): _in_steps(range(6, 10), 0.02), (0, "forward"): _in_steps(range(6), 0.015)}
    return [
        Gain("rank 1 late by 12 ms in backward", alone, (1, "backward"), "the others wait for all of it"),
        Gain(
            "rank 1 late by 12 ms in backward, rank 3 by 8 ms in data",
            second,
            (1, "backward"),
            "with rank 1 punctual the others wait for rank 3: only what is left between the two is won",
        ),
        Gain(
            "rank 0 late by 20 ms in four steps, rank 2 by 15 ms in two of these and in another",
            in_turn,
            (0, "data"),
            "each step has a last rank of its own: sums and means over steps don't tell",
        ),
        Gain(
            "rank 1 late by 6 ms in link, rank 2 by 15 ms in data",
            not_last,
            (1, "link"),
            "where another rank comes last anyway, nothing is won",
        ),
        Gain(
            "rank 2 late by 12 ms in optimizer, rank 0 by 4 ms",
            after,
            (2, "optimizer"),
            "the optimizer's time is waited for too, in the next step",
        ),
        Gain(
            "rank 0 late by 20 ms in data in four steps, and before all others there in six",
            early,
            (0, "data"),
            "a punctual rank takes what the middle one took only where that is less: it does not become slower",
        ),
    ]


def check_seconds_won(student: Student) -> str:
    """Each run, and the same again without the lateness of one rank in one phase."""
    said = []
    for gain in gains():
        cluster = cluster_of(7, jitter=0.0)
        delays = {where: seconds for where, seconds in gain.delays.items() if where != gain.late}
        before, after = steps_of(foretell(gain.delays, cluster)), steps_of(foretell(delays, cluster))
        won_s = length_s(before) - length_s(after)
        found = student.seconds_won(before, *gain.late)
        expect(isinstance(found, Real), f"seconds_won: expected a number, got {found!r}")
        expect(
            abs(found - won_s) <= 0.1 * won_s + 0.01 * length_s(after),
            f"seconds_won, {gain.name}: run again with rank {gain.late[0]} punctual in {gain.late[1]} it was shorter "
            f"by {1e3 * won_s:.0f} ms, got {1e3 * found:.0f} ms: {gain.advice}",
        )
        said.append(f"{1e3 * found:.0f} of {1e3 * won_s:.0f} ms")
    return f"foretold were {', '.join(said)}, which the same runs were shorter by with a punctual rank"


def length_s(steps: Mapping[int, Mapping[int, RankStep]]) -> float:
    """From the first moment of all ranks to the last."""
    made = [own for each in steps.values() for own in each.values()]
    return max(own.ended_s for own in made) - min(own.began_s for own in made)
