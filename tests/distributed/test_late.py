"""Who was late, where, by how much and how often: 20 scenarios in virtual time, 6 on threads, and cases by hand."""

import itertools
import threading

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, SyncBatchNorm, Timeline, Wrapper, explain_ranks, run, simulate
from minigrad.distributed.inspect.patterns import pattern_in, spread_of
from minigrad.distributed.inspect.steps import steps_of
from minigrad.distributed.record.spans import TimeSpan
from minigrad.distributed.simulate import Cluster, Link, RankCost, Slowdown
from minigrad.errors import ArgumentError

TIMEOUT_S = 20.0
RANKS, STEPS, LAYERS = 4, 20, 2
SAMPLES, SAMPLE_S = 20, 1e-3
LATE_S = 0.012  # beside 20 ms of computing
NOW_AND_THEN = (3, 9, 10, 17)
PHASES = ("data", "forward", "backward", "optimizer", "link")
PATTERNS = ("constant", "occasional", "growing")


def late_s(pattern, step, whole_s, steps=STEPS):
    """How late a rank is to be in a step."""
    if pattern == "growing":
        return whole_s * step / (steps - 1)
    return whole_s if pattern == "constant" or step in NOW_AND_THEN else 0.0


class Slow:
    """What lets seconds pass on one rank in one phase; nothing on others."""

    def __init__(self, comm, let_pass, rank, phase, seconds):
        self.comm, self._let_pass, self._rank, self._phase, self._seconds = comm, let_pass, rank, phase, seconds
        self.step = 0

    def __call__(self, phase, part=1):
        seconds = self._seconds(self.step) / part if (self._rank, self._phase) == (self.comm.rank, phase) else 0.0
        if seconds:
            self._let_pass(seconds)


class SlowLayer(nn.Module):
    """Passes on what it gets, late."""

    def __init__(self, slow):
        super().__init__()
        self.slow = slow

    def forward(self, x):
        self.slow("forward")
        if x.requires_grad:
            x.register_hook(lambda grad: self.slow("backward"))
        return x


class SlowLink(Wrapper):
    """Hands in late; each step has a call for the samples, and one for each bucket."""

    slow = None

    def around(self, call, arrays, make):
        if self.slow is not None:
            self.slow("link", 1 + LAYERS)
        return make()


def train(comm, timeline, slow, steps=STEPS, samples=SAMPLES):
    comm = SlowLink(comm)
    layers = [nn.Linear(8, 8, bias=False), SlowLayer(slow), nn.Linear(8, 8, bias=False)]
    ddp = DDP(nn.Sequential(*layers), comm, bucket_cap_bytes=8 * 8 * 4, timeline=timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=1e-3)
    comm.slow = slow
    for slow.step in range(steps):
        with timeline.span("data"):
            slow("data")
            batch = minigrad.randn(samples, 8)
        ddp(batch).sum().backward()
        with timeline.span("optimizer"):
            slow("optimizer")
            optimizer.step()
            optimizer.zero_grad()


def simulated(rank=0, phase="", pattern="constant", ranks=None, jitter=0.01):
    """The timeline, and the trace, of ranks one of which is late."""
    costs = ranks or tuple(RankCost(per_sample_s=SAMPLE_S, jitter_fraction=jitter) for _ in range(RANKS))
    timeline = Timeline(depth=0)

    def body(comm):
        train(comm, timeline, Slow(comm, comm.clock.advance, rank, phase, lambda step: late_s(pattern, step, LATE_S)))

    return timeline, simulate.run(body, Cluster(costs, Link(1e-5, 1e6)), timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("number, phase, pattern", [(i, *p) for i, p in enumerate(itertools.product(PHASES, PATTERNS))])
def test_who_is_late_in_virtual_time(number, phase, pattern):
    rank = number % RANKS
    timeline, trace = simulated(rank, phase, pattern)
    (found,) = explain_ranks(timeline).late
    assert (found.rank, found.phase, found.pattern, found.looked_at) == (rank, phase, pattern, STEPS)
    true = [late_s(pattern, step, LATE_S) for step in found.steps]
    assert found.by_s == pytest.approx(sum(true) / len(true), rel=0.1)
    whole = sum(late_s(pattern, step, LATE_S) for step in range(STEPS)) / STEPS
    assert found.per_step_s == pytest.approx(whole, rel=0.1)
    if pattern == "growing":
        assert found.first_s < 0.25 * LATE_S and found.last_s == pytest.approx(LATE_S, rel=0.1)
    else:
        assert found.steps == (tuple(range(STEPS)) if pattern == "constant" else NOW_AND_THEN)
    ends = {round(span.ended_s, 9) for span in timeline.spans if span.kind == "pass" and span.step == STEPS - 1}
    assert len(ends) == 1  # it is not to be seen in how long the steps are
    assert explain_ranks(trace).ranks == (rank,)  # which knows of computing alone


@pytest.mark.parametrize("phase", ["data", "forward", "backward"])
def test_who_is_late_where_a_layer_waits(phase):
    """SyncBatchNorm waits in forward, so that all forwards are as long."""
    timeline = Timeline()

    def body(comm):
        slow = Slow(comm, comm.clock.advance, 1, phase, lambda step: LATE_S)
        layers = [nn.Linear(8, 8), SlowLayer(slow), SyncBatchNorm(8, comm), nn.Linear(8, 8)]
        ddp = DDP(nn.Sequential(*layers), comm, timeline=timeline)
        for _ in range(4):
            with timeline.span("data"):
                slow("data")
            ddp(minigrad.randn(SAMPLES, 8)).sum().backward()
        ddp.unwrap()
        assert layers[2].comm is comm
        return timeline

    costs = (RankCost(per_sample_s=SAMPLE_S),) * 3
    trace = simulate.run(body, Cluster(costs, Link(1e-5, 1e6)), timeout_s=TIMEOUT_S)
    report = explain_ranks(timeline)
    (found,) = report.late
    assert (found.rank, found.phase, found.pattern, found.by_s) == (1, phase, "constant", pytest.approx(LATE_S))
    assert report.waited_s == pytest.approx({0: LATE_S, 1: 0.0, 2: LATE_S})
    for rank in range(3):
        steps = [ranks[rank] for ranks in steps_of(timeline).values()]
        for step in steps:
            assert step.forward_s == pytest.approx(SAMPLES * SAMPLE_S / 3 + LATE_S * (rank == 1 and phase == "forward"))
            noted_s = step.data_s + step.forward_s + step.backward_s + step.idle_s + step.exposed_s
            assert noted_s == pytest.approx(step.wall_s)
        for name in ("idle_s", "exposed_s"):
            charged_s = sum(getattr(step, name) for step in trace.ranks[rank].steps)
            assert sum(getattr(step, name) for step in steps) == pytest.approx(charged_s)


def found_in(record):
    return [(each.rank, each.phase, each.pattern) for each in explain_ranks(record).late]


@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_nobody_is_late_in_virtual_time(jitter):
    timeline, trace = simulated(jitter=jitter)
    assert found_in(timeline) == found_in(trace) == []
    assert str(explain_ranks(timeline)).startswith("Nobody was late: in 20 steps no rank took 0.")


def test_a_rank_that_turns_slow_in_virtual_time():
    """From step 12 on rank 2 computes twice as long: 6.7 ms more in forward and 13.3 ms in backward."""
    ranks = [RankCost(per_sample_s=SAMPLE_S) for _ in range(RANKS)]
    ranks[2] = RankCost(per_sample_s=SAMPLE_S, slowdowns=(Slowdown(12, 2.0),))
    timeline, trace = simulated(ranks=tuple(ranks))
    backward, forward = explain_ranks(timeline).late
    assert (backward.rank, backward.phase, backward.pattern) == (2, "backward", "constant")
    assert (forward.rank, forward.phase, forward.pattern) == (2, "forward", "constant")
    assert forward.steps == backward.steps == tuple(range(12, STEPS)) and forward.steps_fraction == 0.4
    assert (round(backward.by_s, 9), round(forward.by_s, 9)) == (round(0.04 / 3, 9), round(0.02 / 3, 9))
    assert str(forward) == "Rank 2 was late in forward: by 6.7 ms in 8 of 20 steps, those from 12 to 19."
    (whole,) = explain_ranks(trace).late
    assert (whole.rank, whole.phase, round(whole.by_s, 9)) == (2, "compute", 0.02)


def test_a_rank_that_was_late_until_a_decision():
    """Shares that are tried make the level uneven; from step 10 on nobody is late."""
    uneven = [3.6, 2.7, 3.6, 4.4, 3.6, 2.7, 3.6, 4.4, 3.6, 2.7] + [0.0] * 6
    assert pattern_in(uneven, spread_of(uneven), 0.1).at == tuple(range(10))
    assert pattern_in(uneven[::-1], spread_of(uneven), 0.1).at == tuple(range(6, 16))
    assert pattern_in(uneven[:10], spread_of(uneven[:10]), 0.1).at == tuple(range(10))


def test_two_ranks_of_three_are_late_in_virtual_time():
    """What the others take is what the one that is in time takes."""
    timeline, _ = simulated(ranks=tuple(RankCost(per_sample_s=SAMPLE_S * slower) for slower in (1.5, 1.0, 1.5)))
    assert sorted(found_in(timeline)) == sorted((r, p, "constant") for r in (0, 2) for p in ("forward", "backward"))


def test_more_samples_are_told_in_virtual_time():
    timeline = Timeline()

    def body(comm):
        train(comm, timeline, Slow(comm, None, -1, "", None), samples=SAMPLES * (1 + (comm.rank == 1)))

    simulate.run(body, Cluster.of_speeds([1, 1]), timeout_s=TIMEOUT_S)
    backward, forward = explain_ranks(timeline).late
    assert backward.samples == forward.samples == (2 * SAMPLES, SAMPLES) and {forward.rank, backward.rank} == {1}
    assert str(forward).endswith("; it had 40 samples in a step, the middle one of the others 20.")


# ------------------------------------------------------------------------------------------------------ on threads


def on_threads(rank, phase, pattern, seconds, steps=10):
    """The timeline of two thread ranks, each phase of which lasts a while, and longer on one of them."""
    timeline = Timeline(depth=0)

    def let_pass(seconds):
        threading.Event().wait(seconds)

    def body(comm):
        train(comm, timeline, Slow(comm, let_pass, rank, phase, lambda at: late_s(pattern, at, seconds, steps)), steps)

    run(body, 2, timeout_s=TIMEOUT_S)
    return timeline


@pytest.mark.parametrize(
    "rank, phase, pattern",
    [
        (0, "data", "constant"),
        (1, "forward", "occasional"),
        (0, "backward", "growing"),
        (1, "optimizer", "constant"),
        (0, "link", "constant"),
    ],
)
def test_who_is_late_on_threads(rank, phase, pattern):
    """However busy the machine is: where something else took as long, it is tried again with more."""

    def is_right(found):
        true_s = sum(late_s(pattern, step, whole_s, 10) for step in found.steps) / len(found.steps)
        is_as_often = abs(found.steps_fraction - (0.2 if pattern == "occasional" else 1.0)) < 0.25
        return (found.rank, found.phase, found.pattern) == (rank, phase, pattern) and is_as_often and (
            0.9 * true_s < found.by_s < 1.5 * true_s
        )

    for whole_s in (0.03, 0.1, 0.3):
        late = explain_ranks(on_threads(rank, phase, pattern, whole_s)).late
        if late and is_right(late[0]):
            break
    assert any(map(is_right, late)), late


def test_nobody_is_late_on_threads():
    """Both ranks are as slow, by more and more, so that what a busy machine does to one of them is little beside it."""
    for whole_s in (0.02, 0.1, 0.4):
        timeline = Timeline(depth=0)

        def body(comm, seconds):
            slow = Slow(comm, lambda seconds: threading.Event().wait(seconds), comm.rank, "data", lambda step: seconds)
            train(comm, timeline, slow, 8)

        run(body, 2, whole_s, timeout_s=TIMEOUT_S)
        if not found_in(timeline):
            break
    assert found_in(timeline) == []


# --------------------------------------------------------------------------------------------------------- by hand


def noted(*steps):
    """A timeline of steps, each a mapping from a rank to the seconds of its phases, which are one after the other."""
    spans = []
    for number, ranks in enumerate(steps):
        for rank, phases in ranks.items():
            now_s = 100.0 * number
            for kind, seconds in phases.items():
                spans.append(TimeSpan(rank, kind, "", now_s, now_s + seconds, number, {}))
                now_s += seconds
            spans.append(TimeSpan(rank, "idle", "", now_s, 100.0 * number + 100.0, number, {}))
    return Timeline.of(spans, [], "virtual")


def test_what_a_rank_makes_up_for_is_not_late():
    """Rank 0 loads data for 10 s more, rank 1 computes for 10 s more: nobody waits."""
    step = {0: {"data": 20.0, "forward": 30.0}, 1: {"data": 10.0, "forward": 40.0}}
    assert found_in(noted(*[step] * 4)) == []
    step[1]["forward"] = 45.0
    (found,) = explain_ranks(noted(*[step] * 4)).late
    assert (found.rank, found.phase, found.by_s, found.made_up_s) == (1, "forward", 15.0, 10.0)
    assert str(found) == (
        "Rank 1 was late in forward: by 15.00 s in each of 4 steps; it made up for 10.00 s of that in other phases."
    )
    warm = {0: {"data": 20.0, "forward": 80.0}, 1: {"data": 25.0, "forward": 30.0}}
    step = {**warm, 0: {"data": 20.0, "forward": 30.0}}
    assert found_in(noted(warm, *[step] * 5)) == [(1, "data", "constant")]  # though rank 0 has set up for 50 s


def test_what_is_late_in_every_second_step_is_so_in_these():
    for late in (lambda step: step % 2, lambda step: step % 3):
        steps = [{0: {"data": 20.0}, 1: {"data": 30.0 if late(step) else 20.0}} for step in range(20)]
        (found,) = explain_ranks(noted(*steps)).late
        assert found.steps == tuple(step for step in range(20) if late(step)) and found.by_s == 10.0


def test_a_span_of_ones_own_and_what_nobody_noted_are_phases():
    step = {rank: {"data": 60.0} for rank in range(3)}
    step[1] |= {"evaluate": 30.0}
    assert found_in(noted(*[step] * 4)) == [(1, "evaluate", "constant")]
    spans = [s for s in noted(*[step] * 4).spans if s.kind != "evaluate" and not (s.rank == 1 and s.kind == "idle")]
    spans += [TimeSpan(1, "idle", "", 100.0 * at + 90.0, 100.0 * at + 100.0, at, {}) for at in range(4)]
    assert found_in(Timeline.of(spans, [], "virtual")) == [(1, "other", "constant")]


def test_who_waits_where_nobody_notes_it_is_not_late():
    """In a collective of one's own, say: rank 1 is late, and rank 0 waits for it where no span is."""
    step = {0: {"forward": 30.0}, 1: {"forward": 70.0}}
    spans = [s for s in noted(*[step] * 4).spans if not (s.rank == 0 and s.kind == "idle")]
    spans += [TimeSpan(0, "idle", "", 100.0 * at + 70.0, 100.0 * at + 100.0, at, {}) for at in range(4)]
    assert found_in(Timeline.of(spans, [], "virtual")) == [(1, "forward", "constant")]


def test_the_wire_can_be_what_was_late():
    spans = []
    for step in range(8):
        for rank in (0, 1):
            began_s, took_s = 10.0 * step, 4.0 if step in (2, 5) else 1.0
            spans.append(TimeSpan(rank, "forward", "", began_s, began_s + 3.0, step, {}))
            spans.append(TimeSpan(rank, "wire", "samples", began_s + 3.0, began_s + 3.0 + took_s + rank, step, {}))
            spans.append(TimeSpan(rank, "end", "", began_s + 9.0, began_s + 10.0, step, {}))
    report = explain_ranks(Timeline.of(spans, [], "virtual"))
    assert report.late == () and (report.wire.rank, report.wire.steps, report.wire.by_s) == (None, (2, 5), 3.0)
    assert "The wire took longer than else: by 3.00 s in 2 of 8 steps (2, 5)." in str(report)


def test_a_wire_that_carries_more_does_not_take_longer_than_else():
    """In every third step buffers travel too."""
    spans = []
    for step in range(9):
        for rank in (0, 1):
            spans.append(TimeSpan(rank, "forward", "", 10.0 * step, 10.0 * step + 3.0, step, {}))
            spans.append(TimeSpan(rank, "wire", "samples", 10.0 * step + 3.0, 10.0 * step + 4.0, step, {}))
            if step % 3 == 2:
                spans.append(TimeSpan(rank, "wire", "buffers", 10.0 * step + 4.0, 10.0 * step + 9.0, step, {}))
    assert explain_ranks(Timeline.of(spans, [], "virtual")).wire is None


def test_a_rank_that_is_restless_by_itself_is_late():
    """What rank 1 takes varies as nothing does on the others, whose own noise is a hundredth of it."""
    late = [3.0, 17.0, 8.0, 20.0, 1.0, 14.0, 5.0, 19.0, 9.0, 2.0, 16.0, 11.0]
    noise = [0.1 * ((7 * step) % 5) for step in range(24)]
    steps = [{rank: {"data": 50.0 + noise[step + rank]} for rank in range(4)} for step in range(12)]
    for step, seconds in zip(steps, late):
        step[1]["data"] += seconds
    (found,) = explain_ranks(noted(*steps)).late
    assert (found.rank, found.phase) == (1, "data") and {1, 3, 5, 7, 10} <= set(found.steps)


def test_steps_that_a_rank_did_not_make_are_left_out():
    step = {0: {"data": 10.0}, 1: {"data": 40.0}}
    report = explain_ranks(noted(step, step, {0: {"data": 10.0}}))
    assert report.steps == 2 and report.late[0].steps == (0, 1)
    with pytest.raises(ArgumentError, match=r"got 1 steps of ranks \[0\]: gather the timelines of all ranks"):
        explain_ranks(noted({0: {"data": 1.0}}))


def test_ranks_that_make_different_numbers_of_steps_are_compared_in_sum():
    """Rank 0 makes two steps of 10 s for one of 20 s of rank 1: nobody is late; one for one, rank 1 is."""
    quick, slow = {"forward": 10.0}, {"forward": 20.0}
    uneven = [{0: quick, 1: slow} if number < 4 else {0: quick} for number in range(8)]
    report = explain_ranks(noted(*uneven))
    assert (report.late, report.steps, report.made) == ((), 0, {0: 8, 1: 4})
    assert "compared in sum: rank 0 8, rank 1 4." in str(report)
    uneven[3][1]["forward"] = 60.0  # of each step of rank 1: 240 s in all
    (found,) = explain_ranks(noted(*uneven)).late
    assert (found.rank, found.by_s, found.steps, found.per_step_s) == (1, 160.0, (), 160.0)
    assert str(found) == "Rank 1 was late in forward: by 160.00 s in all."
    assert found_in(noted(*[{0: quick, 1: {"forward": 20.0}}] * 4)) == [(1, "forward", "constant")]


@pytest.mark.parametrize("seed", range(5))
def test_patterns_in_noise(seed):
    """Late by 3 standard deviations in each step is constant; 12 now and then stand out; a line is a line."""
    draws = iter(np.random.default_rng(seed).normal(size=10_000).tolist())
    noise = [next(draws) for _ in range(100)]
    assert spread_of(noise) == pytest.approx(1.0, rel=0.35)
    assert pattern_in(noise, spread_of(noise), 0.1) is None
    constant = [3.0 + next(draws) for _ in range(100)]
    seen = pattern_in(constant, spread_of(constant), 0.1)
    assert (seen.pattern, len(seen.at)) == ("constant", 100) and seen.by_s == pytest.approx(3.0, abs=0.4)
    spikes = [next(draws) + 12.0 * (step % 10 == 5) for step in range(100)]
    seen = pattern_in(spikes, spread_of(spikes), 0.1)
    assert seen.pattern == "occasional" and seen.at == tuple(range(5, 100, 10))
    line = [next(draws) + 0.12 * step for step in range(100)]
    seen = pattern_in(line, spread_of(line), 0.1)
    assert seen.pattern == "growing" and seen.last_s == pytest.approx(12.0, abs=1.5)
    later = [next(draws) + 12.0 * (step >= 70) for step in range(100)]
    seen = pattern_in(later, spread_of(later), 0.1)
    assert (seen.pattern, seen.at) == ("constant", tuple(range(70, 100)))


@pytest.mark.parametrize(
    "late_s, expected",
    [
        ([9.0, *[0.0] * 9], None),  # the first step sets much up
        ([*[0.0] * 9, 9.0], ("occasional", [9])),
        ([*[0.0] * 5, 2.9, *[0.0] * 4], None),  # under three times 0.1 on average over 10 steps, as it is one step
        ([*[0.0] * 5, 1.1, 0.0, 1.1, 0.0, 0.0], ("occasional", (5, 7))),  # two have to come to twice that
        ([*[0.0] * 10, *[10.0] * 10], ("constant", range(10, 20))),
        ([*[0.0] * 8, *[10.0] * 12], ("constant", range(8, 20))),
        ([*[0.0] * 20, *[2.0 + step for step in range(10)]], ("growing", range(20, 30))),
        ([10.0 - step for step in range(10)], ("constant", range(10))),  # it gets better
        ([5.0], ("constant", [0])),
        ([0.05] * 10, None),
    ],
)
def test_patterns_by_hand(late_s, expected):
    seen = pattern_in(late_s, spread_of(late_s) if expected is None else 0.0, 0.1)
    assert expected is None and seen is None or (seen.pattern, seen.at) == (expected[0], tuple(expected[1]))
    if expected is not None:
        assert seen.by_s == pytest.approx(sum(late_s[at] for at in seen.at) / len(seen.at))
