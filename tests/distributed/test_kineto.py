"""A timeline as traces of PyTorch's profiler, one a rank: what a reader of them makes of overlap is what we say.

`pytest -m hta` lets HolisticTraceAnalysis 0.5.0 read them (pip install HolisticTraceAnalysis==0.5.0).
"""

import json

import numpy as np
import pytest

from minigrad.distributed import simulate
from minigrad.distributed.record.kineto import rank_trace
from minigrad.distributed.record.spans import TimeSpan
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate import Cluster, Link, RankCost
from tests.distributed.test_attached import BYTES, WIRE_S, cluster, train
from tests.distributed.trace_rules import broken_rules

RANKS, STEPS = 4, 50
SLOWNESS = (1.0, 1.2, 1.5, 1.1)


@pytest.fixture(scope="module", params=["fast wire", "slow wire"])
def noted(request, tmp_path_factory):
    """The timeline of four unequal ranks, 50 steps, and the folder of its traces."""
    timeline, folder = Timeline(), tmp_path_factory.mktemp("kineto")
    ranks = tuple(RankCost(per_sample_s=1e-3 * slower) for slower in SLOWNESS)
    bandwidth = BYTES / WIRE_S if request.param == "fast wire" else BYTES / (4.0 * WIRE_S)
    simulate.run(train, Cluster(ranks, Link(0.0, bandwidth)), timeline, "auto", STEPS)
    timeline.to_kineto(folder)
    return timeline, folder


def read(folder):
    return {rank: json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)}


def moments(events, until):
    """In which of so many microseconds some of these events are."""
    found = np.zeros(until, bool)
    for each in events:
        found[each["ts"] : each["ts"] + each["dur"]] = True
    return found


def test_kernels_overlap_as_the_summary_says(noted):
    """Done anew, microsecond by microsecond."""
    timeline, folder = noted
    for own, trace in zip(timeline.summary().ranks, read(folder).values()):
        kernels = [event for event in trace["traceEvents"] if event["cat"] == "kernel"]
        until = max(event["ts"] + event["dur"] for event in kernels)
        wire = moments((event for event in kernels if event["name"].startswith("ncclDevKernel_AllReduce(")), until)
        computing = moments((event for event in kernels if not event["name"].startswith("nccl")), until)
        assert (wire & computing).sum() / wire.sum() == pytest.approx(own.overlap_fraction, abs=0.01)
        assert 1e-6 * computing.sum() == pytest.approx(own.forward_s + own.backward_s, rel=0.01)
        assert 1e-6 * wire.sum() == pytest.approx(own.communication_s, rel=0.01)


def test_every_kernel_was_launched_in_its_step(noted):
    timeline, folder = noted
    for rank, trace in read(folder).items():
        events = trace["traceEvents"]
        assert broken_rules({"traceEvents": events}) == []
        assert trace["distributedInfo"] == {"rank": rank, "world_size": RANKS, "backend": "minigrad"}
        assert '"rank": ' in (folder / f"rank{rank}.json").read_text()  # by these bytes a rank is known
        steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
        assert [event["name"] for event in steps] == [f"ProfilerStep#{number}" for number in range(STEPS)]
        launched = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"] == "cuda_runtime"}
        kernels = [event for event in events if event["cat"] == "kernel"]
        assert len(launched) == len(kernels) and min(launched) > len(events)
        assert all(launched[each["args"]["correlation"]] <= each["ts"] for each in kernels)
        assert all(type(event[key]) is int for event in events for key in ("ts", "dur", "pid", "tid"))


def test_what_a_rank_computes_is_without_its_parts_and_without_waiting():
    """In milliseconds: forward 0 to 10, of which it waits from 4 to 6, with a part; a leaf; the wire 5 to 12."""
    spans = [
        ("forward", "Sequential", 0, 10, {"forward_s": 0.01}),
        ("forward", "0", 1, 3, {}),
        ("idle", "all_reduce", 4, 5, {}),
        ("exposed", "all_reduce", 5, 6, {}),
        ("wire", "bucket 0", 5, 12, {"collective": "all_reduce", "queued_s": 0.001}),
        ("backward", "SyncBatchNorm.weight", 10, 14, {}),
    ]
    made = [TimeSpan(3, kind, name, a / 1e3, b / 1e3, 0, fields) for kind, name, a, b, fields in spans]
    made.append(TimeSpan(3, "wire", "", -0.002, -0.001, -1, {}))  # setting up
    events = rank_trace(3, 4, made, 0.0)["traceEvents"]
    kernels = {(e["name"], e["ts"], e["dur"]) for e in events if e["cat"] == "kernel"}
    assert kernels == {
        ("forward Sequential", 0, 4000),
        ("forward Sequential", 6000, 4000),
        ("ncclDevKernel_AllReduce(bucket 0)", 5000, 7000),
        ("backward syncBatchNorm.weight", 10000, 4000),
    }
    assert [e["ts"] for e in events if e["cat"] == "cuda_runtime"] == [0, 4000, 6000, 10000]
    assert [(e["ts"], e["dur"]) for e in events if e["name"] == "ProfilerStep#0"] == [(0, 14000)]


def test_perfetto_takes_four_ranks_of_50_steps(noted, tmp_path):
    timeline, _ = noted
    timeline.to_perfetto(tmp_path / "run.json")
    trace = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)
    events = trace["traceEvents"]
    assert broken_rules(trace) == [] and {event["pid"] for event in events} == set(range(RANKS))
    assert sum(event["ph"] == "s" for event in events) == RANKS * STEPS * 8
    for rank, own in enumerate(timeline.summary().ranks):
        wire = [e["dur"] for e in events if e["ph"] == "X" and (e["pid"], e["cat"]) == (rank, "wire")]
        assert len(wire) == STEPS * 9 and 1e-6 * sum(wire) == pytest.approx(own.communication_s, rel=1e-6)


@pytest.mark.hta
@pytest.mark.filterwarnings("ignore")  # of its own libraries
def test_holistic_trace_analysis_finds_our_overlap(noted):
    from hta.trace_analysis import TraceAnalysis

    timeline, folder = noted
    read = TraceAnalysis(trace_dir=str(folder), include_last_profiler_step=True)
    table = read.get_comm_comp_overlap(visualize=False)
    found = dict(zip(table["rank"], table["comp_comm_overlap_pctg"]))
    assert sorted(found) == list(range(RANKS))
    for own in timeline.summary().ranks:
        assert found[own.rank] == pytest.approx(100.0 * own.overlap_fraction, abs=1.0)
    assert len(read.get_profiler_steps()) == STEPS


@pytest.mark.hta
@pytest.mark.filterwarnings("ignore")
def test_it_reads_the_trace_of_a_few_steps_too(tmp_path):
    """Of more than 127 events, and less than 127 kernels, before which parameters were broadcast."""
    from hta.trace_analysis import TraceAnalysis

    trace = simulate.run(train, cluster(1.5), Timeline(), "auto", 6)
    trace.timeline.to_kineto(tmp_path)
    table = TraceAnalysis(trace_dir=str(tmp_path)).get_comm_comp_overlap(visualize=False)
    found = dict(zip(table["rank"], table["comp_comm_overlap_pctg"]))
    for own in trace.timeline.summary().ranks:
        assert found[own.rank] == pytest.approx(100.0 * own.overlap_fraction, abs=1.0) and own.overlap_fraction > 0.3
