"""A timeline of what is combined outside of DDP: averages, replicas, runs; and that without one nothing of it runs."""

import json
import sys

import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, run, simulate
from minigrad.distributed.average import Async, EveryK, ParameterAverager, StreamingDiLoCo
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate import Cluster, Link, RankCost
from tests.distributed.trace_rules import broken_rules

TIMEOUT_S = 10.0
STEPS, ROWS, BYTES = 6, 60, 2 * 16 * 16 * 4
SPEEDS = (1e-3, 1.7e-3)
LINK = Link(0.0, BYTES / 5e-3)  # the parameters take 5 ms


def cluster():
    return Cluster(tuple(RankCost(per_sample_s=each) for each in SPEEDS), LINK)


def layers():
    return nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))


def train(comm, timeline, **options):
    """Steps of 60 rows, of which the averager combines some."""
    model = layers()
    averager = ParameterAverager(model, comm, timeline=timeline, **options)
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        with timeline.span("data"):
            batch = minigrad.randn(ROWS, 16)
        model(batch).square().mean().backward()
        with timeline.span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        averager.step(ROWS)
    averager.finish()


# --------------------------------------------------------------------------------------------------- averages


@pytest.mark.parametrize("options", [
    {"policy": EveryK(2)},
    {"policy": EveryK(4), "outer": StreamingDiLoCo(0.5, 0.9, fragments=2, delay=1, alpha=0.5)},
    {"policy": Async(bound=1)},
])  # fmt: skip
def test_an_averager_says_what_the_trace_says(options):
    timeline = Timeline()
    trace = simulate.run(lambda comm: train(comm, timeline, **options), cluster())
    for rank, own in enumerate(timeline.summary().ranks):
        steps = trace.ranks[rank].steps
        for name in ("idle_s", "exposed_s"):
            assert getattr(own, name) == pytest.approx(sum(getattr(step, name) for step in steps), abs=1e-12)
        seconds = ROWS * SPEEDS[rank]
        assert own.steps == STEPS and own.forward_s == pytest.approx(STEPS * seconds / 3)
        assert own.backward_s == pytest.approx(STEPS * seconds * 2 / 3)
        decided = [event.fields["number"] for event in timeline.events if (event.rank, event.kind) == (rank, "average")]
        assert decided == [each["number"] for each in trace.ranks[rank].decisions]


def test_two_steps_and_their_combination_by_hand():
    """Rank 0 computes 60 ms a step and rank 1 102 ms: twice the 42 ms between them it waits, then for 5 ms of wire."""
    timeline = Timeline()
    simulate.run(lambda comm: train(comm, timeline, policy=EveryK(2)), cluster())
    first = [span for span in timeline.spans if span.rank == 0 and span.step < 2]
    zero_s = first[0].began_s
    assert first[0].kind == "forward" and [span.kind for span in first].count("optimizer") == 2
    idle, wire = ([s for s in first if s.kind == kind] for kind in ("idle", "wire"))
    assert [(s.step, round(s.began_s - zero_s, 6), round(s.ended_s - zero_s, 6)) for s in idle] == [(1, 0.12, 0.204)]
    assert [round(s.seconds / 5e-3, 3) for s in wire] == [0.008, 1.0]  # two float64, then 512 float32
    leaves = [(s.name, round(s.seconds, 6)) for s in first if s.kind == "backward"]
    assert leaves == 2 * [("local", 0.04), ("1.weight", 0.02), ("0.weight", 0.02)]
    passes = [span for span in first if span.kind == "pass"]
    assert len(passes) == 1 and passes[0].fields["idle_s"] == pytest.approx(0.084)
    assert {key: passes[0].fields[key] for key in ("bytes_sent", "calls", "pass")} == {
        "bytes_sent": BYTES + 16 + 32, "calls": 3, "pass": 0,
    }  # fmt: skip


def test_an_averager_on_threads(tmp_path):
    timeline = Timeline()
    run(lambda comm: train(comm, timeline, policy=EveryK(2)), 2, timeout_s=TIMEOUT_S)
    for rank, own in enumerate(timeline.summary().ranks):
        assert own.steps == STEPS and own.forward_s > 0.0 and own.backward_s > 0.0
        spans = [span for span in timeline.spans if span.rank == rank]
        assert all(span.ended_s >= span.began_s for span in spans)
        assert [span.kind for span in spans].count("pass") == STEPS // 2 + 1
    assert len(timeline._tracks[0].meetings) == len(timeline._tracks[1].meetings) > 0
    timeline.to_perfetto(tmp_path / "run.json")
    assert broken_rules(json.loads((tmp_path / "run.json").read_text())) == []


def test_a_wrapper_with_the_same_timeline_is_noted_once():
    timeline = Timeline()

    def body(comm):
        ddp = DDP(layers(), comm, timeline=timeline)
        averager = ParameterAverager(ddp, comm, EveryK(2), timeline=timeline)
        for _ in range(2):
            with ddp.no_sync():
                ddp(minigrad.randn(4, 16)).square().mean().backward()
            ddp.zero_grad()
            averager.step(4)

    run(body, 2, timeout_s=TIMEOUT_S)
    kinds = [span.kind for span in timeline.spans if span.rank == 1 and span.name in ("Sequential", "local")]
    assert kinds == ["forward", "backward"] * 2


def test_without_a_timeline_an_averager_calls_and_keeps_nothing_of_it():
    def body(comm):
        model = layers()
        averager = ParameterAverager(model, comm, EveryK(2))
        assert averager._by is comm and all(param.listeners == () for param in model.parameters())
        assert all(not each._forward_hooks and not each._forward_pre_hooks for each in model.modules())
        entered = []
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, argument: entered.append(frame.f_code.co_filename))
        for _ in range(2):
            model(minigrad.randn(4, 16)).square().mean().backward()
            averager.step(4)
        sys.setprofile(before)
        return {file for file in entered if "/record/" in file}

    assert all(found <= {file for file in found if file.endswith("fingerprint.py")} for found in run(body, 2))
