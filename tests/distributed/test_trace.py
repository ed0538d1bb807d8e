"""A trace of a simulation: made from a timeline, as text and back, as a table."""

import json
import math

import numpy as np
import pytest

import minigrad
from minigrad import nn
from minigrad.distributed import DDP, simulate
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate import Cluster, Link, RankCost, Trace
from minigrad.errors import ArgumentError
from tests.distributed.test_attached import cluster, train

STEPS = 3


def body(comm):
    ddp = DDP(nn.Linear(4, 4), comm)
    for number in range(STEPS):
        ddp(minigrad.randn(10, 4)).sum().backward()
        comm.event("noted", number=number, shares=(1, 2), bound=math.inf)
    return 7


@pytest.fixture(scope="module")
def trace():
    return simulate.run(body, Cluster((RankCost(per_sample_s=1e-3), RankCost(per_sample_s=2e-3)), Link(1e-4, 1e6)))


def test_it_comes_back_to_the_last_bit(trace):
    read = Trace.from_json(trace.to_json())
    assert [rank.steps for rank in read.ranks] == [rank.steps for rank in trace.ranks]
    assert read.timeline == trace.timeline and read.to_json() == trace.to_json() and read.results == []
    assert [decision["bound"] for decision in read.decisions] == [math.inf] * STEPS
    assert read.decisions[1] == {**trace.decisions[1], "shares": [1, 2]}
    assert read.idle_fraction() == trace.idle_fraction() > 0.0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "minigrad timeline 1", "ranks": []}'])
def test_what_is_no_trace_is_refused(text):
    with pytest.raises(ArgumentError, match="Trace.from_json: expected the text of to_json"):
        Trace.from_json(text)


@pytest.mark.parametrize("where, what", [("end_s", None), ("sent_bytes", "x"), ("more", 0.0)])
def test_a_step_that_is_none_is_refused(trace, where, what):
    data = json.loads(trace.to_json())
    data["ranks"][1]["steps"][0][where] = what
    with pytest.raises(ArgumentError, match="Trace.from_json: expected the text of to_json"):
        Trace.from_json(json.dumps(data))
    del data["ranks"][1]["steps"][0]
    with pytest.raises(ArgumentError, match="as many steps"):
        Trace.from_json(json.dumps(data))


def test_its_timeline_has_the_same_steps(trace):
    """Sums of the spans of a step, done anew, are the figures of the step."""
    for rank, own in enumerate(trace.ranks):
        for number, step in enumerate(own.steps):
            spans = [s for s in trace.timeline.spans if (s.rank, s.step) == (rank, number)]
            for name in ("compute_s", "idle_s", "exposed_s", "samples"):
                assert sum(span.fields.get(name, 0.0) for span in spans) == getattr(step, name)
            wire_s = sum(span.seconds for span in spans if span.kind == "wire")
            assert wire_s == pytest.approx(step.communication_s)
        events = [event for event in trace.timeline.events if event.rank == rank]
        assert [(event.step, event.fields["number"]) for event in events] == [(i, i) for i in range(STEPS)]


def test_the_summary_of_its_timeline_has_the_figures_of_its_steps(trace):
    """Also what is hidden, and sent, which no span "pass" says here; setting up is in none of them."""
    for own, rank in zip(trace.timeline.summary().ranks, trace.ranks):
        for name in ("compute_s", "idle_s", "exposed_s", "hidden_s"):
            assert getattr(own, name) == pytest.approx(sum(getattr(step, name) for step in rank.steps), abs=1e-15)
        assert own.hidden_s > 0.0 and own.steps == STEPS and own.calls == 2 * STEPS
        assert own.bytes_sent == sum(step.sent_bytes for step in rank.steps) > 0
    heads, *rows = str(trace.timeline.summary()).splitlines()
    assert [dict(zip(heads.split(), row.split()))["compute_s"] for row in rows] == ["0.0300", "0.0600"]


def test_who_waits_is_idle(trace):
    """From a computing of rank 0 to its next there is nothing but waiting, for the other and the wire."""
    steps = trace.ranks[0].steps
    gaps = [(gap.after, gap.seconds) for gap in trace.timeline.idle_gaps(0, least_s=1e-6)]
    assert gaps == [("compute", pytest.approx(step.idle_s + step.exposed_s)) for step in steps[:-1]]


def test_what_travels_is_told(trace):
    """The parameters, 20 floats, from rank 0; then in each step the samples of two ranks, and the gradients."""
    told = [(s.fields["collective"], s.fields["sent_bytes"]) for s in trace.timeline.spans if s.kind == "wire"]
    assert told.count(("all_reduce", 24)) == told.count(("all_reduce", 128)) == 2 * STEPS
    assert ("broadcast", 128) in told


def messages(comm):
    group = comm.split(comm.rank // 2)
    if comm.rank == 0:
        comm.send(np.zeros(5), 2, tag=3).wait()
    if comm.rank == 2:
        comm.clock.advance(0.5)
        comm.recv(np.zeros(5), 0, tag=3).wait()
    group.all_reduce(np.zeros(2)).wait()


def test_messages_and_groups_are_told():
    timeline = simulate.run(messages, Cluster((RankCost(),) * 4, Link(1e-3, 1e6))).timeline
    (sent,) = timeline.events
    assert (sent.kind, sent.rank, sent.fields) == ("sent", 0, {"peer": 2, "tag": 3, "nbytes": 40})
    wire = [span for span in timeline.spans if span.rank == 2 and span.kind == "wire"]
    came, summed = (next(s for s in wire if s.fields["collective"] == kind) for kind in ("recv", "all_reduce"))
    assert {key: came.fields[key] for key in ("peer", "tag", "nbytes")} == {"peer": 0, "tag": 3, "nbytes": 40}
    assert came.fields["queued_s"] == pytest.approx(-0.5)  # it had long been there
    assert summed.fields["ranks"] == [2, 3] and summed.fields["sent_bytes"] == 16


def test_the_table(trace):
    lines = [line.split() for line in trace.table(1).splitlines()]
    assert len(lines) == 1 + 2 * (STEPS - 1) and lines[0][:4] == ["step", "rank", "begin_s", "end_s"]
    step = trace.ranks[1].steps[2]
    assert lines[-1] == ["2", "1", f"{step.begin_s:.6f}", f"{step.end_s:.6f}", "0.020000", *[
        f"{getattr(step, name):.6f}" for name in ("idle_s", "exposed_s", "hidden_s")
    ], "10", str(step.sent_bytes)]  # fmt: skip


def test_the_picture_in_text_by_hand():
    """Eight layers: 20 ms of forward, 5 ms of backward each, then 3.75 ms of wire; 63.75 ms are 51 characters."""
    trace = simulate.run(train, cluster(), Timeline())
    lines = trace.plot(1, 2, width=51).splitlines()
    assert lines[0].startswith("step 1: 0.06375") and lines[0].endswith("a character is 0.00125 s")
    assert lines[2] == "rank 0 |" + "#" * 48 + "~~~" + "|"
    assert lines[3] == "       |" + " " * 16 + "=   " + "=== " * 7 + "===|"  # the samples, at 20 ms
    assert lines[4:] == ["rank 1 " + lines[2][7:], lines[3]]
    assert trace.plot(2, 3, width=1).splitlines()[2] == "rank 0 |#|"
    assert trace.plot(7).splitlines()[2].strip("rank 0|") == ""
