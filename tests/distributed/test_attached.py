"""A timeline attached to DDP: what it says of a step, that stats() says the same, and that without one nothing runs."""

import copy
import json
import sys
import time
import tracemalloc

import pytest

import minigrad
from minigrad import nn, optim
from minigrad.backend.stream import streams_of
from minigrad.distributed import DDP, CompressionState, SyncBatchNorm, fp16_compress_hook, run, simulate
from minigrad.distributed.ddp.buckets import Entry, plan_buckets
from minigrad.distributed.ddp.layer_waits import listen_inside
from minigrad.distributed.ddp.pass_notes import BucketNotes, told
from minigrad.distributed.record.moments import DeviceMoments
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate import Cluster, Link, RankCost
from minigrad.errors import ArgumentError
from tests.distributed.models import data
from tests.distributed.test_streams import Chain, Pretending
from tests.distributed.trace_rules import broken_rules
from tests.strict_cupy import machine

TIMEOUT_S = 10.0
FIGURES = ("forward_s", "backward_s", "idle_s", "exposed_s", "hidden_s", "bytes_sent", "calls")
LAYERS, BYTES, STEPS = 8, 16 * 16 * 4, 3
WIRE_S = 3.75e-3  # of a bucket
COUNT_S = WIRE_S * 8 * 3 / BYTES  # of the samples and the marks of two ranks
MOMENT_S = 0.2  # more than the call for the samples takes, which no bucket's span has
LINK = Link(0.0, BYTES / WIRE_S)


def layers(comm, **options):
    model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(LAYERS)])
    return DDP(model, comm, bucket_cap_bytes=BYTES, **options)


def train(comm, timeline, how="auto", steps=STEPS, hook=None):
    """The statistics of steps of 60 samples."""
    ddp = layers(comm, sync="manual" if how.endswith("sync_gradients") else "auto", timeline=timeline)
    optimizer = optim.SGD(ddp.parameters(), lr=1e-3)
    if hook is not None:
        ddp.register_comm_hook(CompressionState(), hook)
    for _ in range(steps):
        with timeline.span("data"):
            batch = minigrad.randn(60, 16)
        loss = ddp(batch).sum()
        if how == "auto":
            loss.backward()
        else:
            with ddp.no_sync():
                loss.backward()
            getattr(ddp, how)()
        with timeline.span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
    return ddp.stats()


def cluster(slower=1.0):
    return Cluster((RankCost(per_sample_s=1e-3), RankCost(per_sample_s=1e-3 * slower)), LINK)


def figures(each):
    return [getattr(each, name) for name in FIGURES]


@pytest.mark.parametrize("how", ["auto", "sync_gradients", "overlapped_sync_gradients", "flush"])
@pytest.mark.parametrize("slower", [1.0, 1.7])
def test_stats_timeline_and_trace_say_the_same_to_the_last_digit(how, slower):
    timeline = Timeline()
    trace = simulate.run(train, cluster(slower), timeline, how)
    for stats, own, steps in zip(trace.results, timeline.summary().ranks, (rank.steps for rank in trace.ranks)):
        assert figures(stats) == figures(own) and own.steps == STEPS and stats.passes == STEPS
        assert own.communication_s == stats.communication_s and own.overlap_fraction == stats.overlap_fraction
        leaves = [s for s in timeline.spans if (s.rank, s.kind) == (own.rank, "backward") and s.name != "local"]
        assert len(leaves) == STEPS * LAYERS  # each once, also where a local backward comes before the pass
        ready = [event for event in timeline.events if (event.rank, event.kind) == (own.rank, "ready")]
        assert [event.at_s for event in ready] == [span.ended_s for span in leaves]  # of buckets of one leaf
        assert sum(span.seconds for span in leaves) == pytest.approx(own.backward_s)
        for name in ("idle_s", "exposed_s", "hidden_s"):
            assert getattr(own, name) == pytest.approx(sum(getattr(step, name) for step in steps), abs=1e-15)


def test_a_step_of_eight_equal_layers_by_hand():
    """20 ms of forward, 5 ms of backward a layer, 3.75 ms of wire: each bucket goes at once, the last is exposed."""
    timeline = Timeline()
    simulate.run(train, cluster(), timeline, "auto", 1)
    own = [span for span in timeline.spans if span.rank == 1]
    zero_s = min(span.began_s for span in own if span.kind == "forward")  # the parameters were broadcast before
    spans = {(s.kind, s.name): (round(s.began_s - zero_s, 6), round(s.ended_s - zero_s, 6)) for s in own}
    names = [f"{number}.weight" for number in reversed(range(LAYERS))]
    for number, name in enumerate(names):
        begin_s, ready_s = 0.02 + 0.005 * number, 0.02 + 0.005 * (number + 1)
        assert spans["backward", name] == (round(begin_s, 6), round(ready_s, 6))
        assert spans["weighted", f"bucket {number}"] == (round(ready_s, 6), round(ready_s, 6))
        assert spans["wire", f"bucket {number}"] == (round(ready_s, 6), round(ready_s + WIRE_S, 6))
    assert spans["forward", "Sequential"] == (0.0, 0.02)
    assert spans["exposed", "bucket 7"] == (0.06, round(0.06 + WIRE_S, 6))
    assert [key for key in spans if key[0] in ("idle", "exposed")] == [("exposed", "bucket 7")]
    ready = [event for event in timeline.events if event.rank == 1 and event.kind == "ready"]
    assert [event.fields["bucket"] for event in ready] == list(range(LAYERS))
    assert all(event.fields["nbytes"] == BYTES for event in ready)


def test_what_holds_for_the_whole_run_is_kept_with_it():
    """The plan, of which a replay makes another one, the samples of each pass, and the link of a simulation."""
    timeline = Timeline(last_steps=1)
    simulate.run(train, cluster(), timeline, "auto")
    for facts in (timeline.facts, Timeline.from_json(timeline.to_json()).facts, Timeline.merged([timeline]).facts):
        for rank in (0, 1):
            (name,) = [name for name in facts[rank] if name != "link"]
            about, link = facts[rank][name], facts[rank]["link"]
            assert name == "DDP 1 of Sequential of ranks [0, 1]"
            assert about["cap_bytes"] == about["first_cap_bytes"] == BYTES
            entries = [Entry(**entry) for entry in about["entries"]]
            assert plan_buckets(entries, BYTES, BYTES).buckets[3].entries == (3,)
            assert about["buckets"] == [[number] for number in range(LAYERS)] and Link(**link) == LINK
    passes = [span.fields for span in timeline.spans if span.kind == "pass"]
    assert [each["samples"] for each in passes] == [60.0, 60.0]
    counts = [span.fields["nbytes"] for span in timeline.spans if (span.kind, span.name) == ("wire", "samples")]
    assert counts == [8 * (1 + 2)] * 2


def test_the_wire_knows_what_travels_and_when_it_was_called():
    """A rank calls each bucket as soon as it has weighted it, and the wire begins when the slower one has, too."""
    timeline = Timeline()
    simulate.run(train, cluster(2.0), timeline, "auto", 1)
    called_s = {(s.rank, s.fields["bucket"]): s.ended_s for s in timeline.spans if s.kind == "weighted"}
    wire = [span for span in timeline.spans if span.kind == "wire" and "bucket" in span.fields]
    assert len(wire) == 2 * LAYERS
    for span in wire:
        assert span.fields["collective"] == "all_reduce" and span.fields["sent_bytes"] == BYTES
        assert span.began_s - span.fields["queued_s"] == pytest.approx(called_s[span.rank, span.fields["bucket"]])
    counted = next(span for span in timeline.spans if span.kind == "wire" and span.name == "samples")
    assert counted.fields["sent_bytes"] == 8 * (1 + 2)  # of all ranks together, and a mark of each


@pytest.mark.parametrize("hook, sent_bytes", [(None, BYTES), (fp16_compress_hook, BYTES // 2)])
def test_what_a_hook_sends_is_what_travels(hook, sent_bytes):
    timeline = Timeline()
    run(lambda comm: train(comm, timeline, steps=1, hook=hook), 2, timeout_s=TIMEOUT_S)
    wire = [span for span in timeline.spans if span.kind == "wire" and "bucket" in span.fields]
    assert {span.fields["sent_bytes"] for span in wire} == {sent_bytes} and len(wire) == 2 * LAYERS
    assert all(span.fields["queued_s"] >= 0.0 for span in wire)


def test_what_follows_the_gradients_is_noted_as_well():
    """Buffers that are made alike take time on the wire, which stats() counts with a timeline and without one."""

    def normed(comm, timeline):
        ddp = DDP(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)), comm, timeline=timeline)
        for _ in range(STEPS):
            ddp(minigrad.randn(60, 16)).sum().backward()
        return ddp.stats()

    timeline = Timeline()
    (with_one, _), (without, _) = (simulate.run(normed, cluster(), each).results for each in (timeline, None))
    assert figures(with_one) == pytest.approx(figures(without), abs=1e-12) and without.exposed_s > 0.0
    calls = [s for s in timeline.spans if (s.rank, s.step, s.name) == (0, 0, "after the gradients")]
    sent = [(span.fields["collective"], span.fields["sent_bytes"]) for span in calls if span.kind == "wire"]
    assert sent == [("broadcast", 128), ("broadcast", 64)]  # two of 16 floats; an integer, with its padding


@pytest.mark.parametrize(
    "how, hidden_s", [("auto", 7 * WIRE_S + COUNT_S), ("sync_gradients", 0.0), ("overlapped_sync_gradients", 0.0)]
)
def test_overlap_of_eight_equal_layers_by_hand(how, hidden_s):
    """8 buckets of 3.75 ms and the sum of the samples: in backward all but the last bucket is hidden, behind it none.

    The waits for the wire end when the wire does; of the samples only those behind backward.
    """
    timeline = Timeline()
    trace = simulate.run(train, cluster(), timeline, how, 1)
    exposed_s = LAYERS * WIRE_S + COUNT_S - hidden_s
    for stats, own, (step,) in zip(trace.results, timeline.summary().ranks, (rank.steps for rank in trace.ranks)):
        for found in (stats, own, step):
            assert found.exposed_s == pytest.approx(exposed_s, abs=1e-12)
            assert found.hidden_s == pytest.approx(hidden_s, abs=1e-12) and found.idle_s == 0.0
        spans = [span for span in timeline.spans if span.rank == own.rank]
        assert sum(span.seconds for span in spans if span.kind == "exposed") == pytest.approx(exposed_s, abs=1e-12)
        assert sum(span.seconds for span in spans if span.kind == "wire") == pytest.approx(exposed_s + hidden_s)
        assert own.overlap_fraction == pytest.approx(hidden_s / (LAYERS * WIRE_S + COUNT_S))
        first_s = 0.02 + (0.005 if how == "auto" else LAYERS * 0.005 + COUNT_S)  # from the start of forward
        zero_s = min(span.began_s for span in spans if span.kind == "forward")
        apart_s = 0.005 if how == "auto" else WIRE_S
        wire = [span.began_s - zero_s for span in spans if span.kind == "wire" and span.name.startswith("bucket")]
        assert wire == pytest.approx([first_s + apart_s * number for number in range(LAYERS)])


def test_two_wrappers_in_one_backward_by_hand():
    """Two layers each, 10 ms of backward a layer: a leaf begins where the one before is complete, whosever it is."""

    def body(comm, timeline):
        both = [DDP(nn.Sequential(nn.Linear(4, 4, False), nn.Linear(4, 4, False)), comm, timeline=timeline)]
        both.append(DDP(nn.Sequential(nn.Linear(4, 4, False), nn.Linear(4, 4, False)), comm, timeline=timeline))
        sum(ddp(minigrad.randn(30, 4)).sum() for ddp in both).backward()
        return [ddp.stats().backward_s for ddp in both]

    timeline = Timeline()
    trace = simulate.run(body, cluster(), timeline)
    leaves = [span for span in timeline.spans if (span.rank, span.kind) == (0, "backward")]
    assert [span.name for span in leaves] == ["1.weight", "0.weight"] * 2
    first_s = leaves[0].began_s
    assert [(s.began_s - first_s, s.ended_s - first_s) for s in leaves] == [
        (pytest.approx(0.01 * number, abs=1e-12), pytest.approx(0.01 * (number + 1))) for number in range(4)
    ]
    assert trace.results[0] == [pytest.approx(0.04)] * 2  # each waited for the whole backward
    assert timeline.summary().ranks[0].backward_s == pytest.approx(0.04)


def test_a_leaf_is_without_the_launch_that_came_before_it():
    """Leaf 1 completes bucket 0 at 2; that goes out until 3; then leaf 2 takes from 3 to 5, and waits for no wire."""
    plan = BucketNotes("DDP", {1: ("b", 0), 2: ("a", 1)}, [8, 8], False)
    launches = [(1, 2, 2.0, 3.0), (2, 3, 5.0, 5.5)]
    calls = [(0.5, 0.6, 0.1, 0.2, False), (3.5, 4.5, 2.5, 3.0, False), (5.5, 6.5, 5.2, 5.5, False)]
    handed = [("all_reduce", None), ("broadcast", 8), ("all_reduce", 8)]  # of a broadcast the root may leave early
    waits, leaves = [(2, 6.0, 7.0)], [(1, 2.0), (2, 5.0)]
    made, met = told(plan, 4, 1.0, leaves, launches, calls, handed, 0.1, waits, 24, 0.0, 7.0, {})
    leaves = [note[1:4] for note in made if note[0] == "backward"]
    assert leaves == [("b", 1.0, 2.0), ("a", 3.0, 5.0)]
    assert [note[1] for note in made if note[0] == "ready"] == [2.0, 5.0]
    assert [note[1:4] for note in made if note[0] in ("idle", "exposed")] == [("bucket 1", 6.0, 7.0)]
    assert met == {"DDP: 4.0": (0.1, 0.2), "DDP: 4.2": (5.2, 7.0)}


class Sleepy(nn.Module):
    """A layer that takes its time, forward and backward."""

    def __init__(self, seconds):
        super().__init__()
        self.layer, self.seconds = nn.Linear(16, 16, bias=False), seconds

    def forward(self, x):
        time.sleep(self.seconds)
        x = self.layer(x)
        if x.requires_grad:
            x.register_hook(lambda grad: time.sleep(self.seconds))
        return x


def test_figures_on_threads_are_those_of_the_spans_within_5_percent():
    """Rank 1 sleeps three times as long. What a busy machine does between two clocks is tried again."""

    def body(comm, timeline):
        ddp = DDP(nn.Sequential(*[Sleepy(0.01 * (1 + 2 * comm.rank)) for _ in range(2)]), comm, timeline=timeline)
        for _ in range(2):
            ddp(minigrad.randn(4, 16)).sum().backward()
        return ddp.stats()

    def figures():
        """Of each rank, by stats() and by spans."""
        timeline = Timeline()
        for stats, own in zip(run(body, 2, timeline, timeout_s=TIMEOUT_S), timeline.summary().ranks):
            spans = [span for span in timeline.spans if span.rank == own.rank]
            held = {kind: sum(span.seconds for span in spans if span.kind == kind) for kind in ("backward", "idle")}
            yield (stats.forward_s, stats.backward_s, stats.idle_s), (own.forward_s, held["backward"], held["idle"])

    def are_close(found):
        return all(spans == pytest.approx(stats, rel=0.05, abs=1e-3) for stats, spans in found)

    found = [*figures()]
    for _ in range(2):
        found = found if are_close(found) else [*figures()]
    assert are_close(found), found
    (stats, _), (slow, _) = found
    assert min(stats[:2]) > 0.03 and min(slow[:2]) > 0.1 and stats[2] > slow[2]


def test_waiting_for_ranks_and_for_the_wire_are_told_apart():
    """Rank 1 needs 10 ms a layer: rank 0 waits 6.25 ms for each bucket but the first two, which its own hid."""
    timeline = Timeline()
    simulate.run(train, cluster(2.0), timeline, "auto", 1)
    for rank, idle in ((0, 6), (1, 0)):
        spans = [span for span in timeline.spans if span.rank == rank and span.kind == "idle"]
        assert [round(span.seconds, 6) for span in spans] == [round(0.01 - WIRE_S, 6)] * idle


def test_on_threads():
    timeline = Timeline()
    results = run(lambda comm: train(comm, timeline), 2, timeout_s=TIMEOUT_S)
    for rank, (stats, own) in enumerate(zip(results, timeline.summary().ranks)):
        assert figures(stats)[1:] == figures(own)[1:]
        assert own.forward_s <= stats.forward_s
        spans = [span for span in timeline.spans if span.rank == rank]
        assert all(span.began_s <= span.ended_s for span in spans)
        wire_s = sum(span.seconds for span in spans if span.kind == "wire")
        held_s = sum(span.seconds for span in spans if span.kind == "weighted")  # what a call takes counts as well
        assert wire_s <= own.communication_s + 1e-9 <= wire_s + held_s + MOMENT_S * STEPS
        for step in range(STEPS):
            here = [span for span in spans if span.step == step]
            assert len(here) <= 2 * LAYERS + 4 * LAYERS + 8
            assert [s.name for s in here if s.kind == "backward"] == [f"{i}.weight" for i in reversed(range(LAYERS))]
            assert {s.name for s in here if s.kind == "forward"} == {"Sequential", *map(str, range(LAYERS))}
            order = [s.kind for s in here if s.kind in ("data", "pass", "optimizer")]
            assert order == ["data", "pass", "optimizer"]


@pytest.mark.parametrize("slower", [1.0, 1.7])
def test_perfetto_takes_what_ddp_wrote(tmp_path, slower):
    timeline = Timeline()
    simulate.run(train, cluster(slower), timeline)
    timeline.to_perfetto(tmp_path / "run.json")
    trace = json.loads((tmp_path / "run.json").read_text())
    assert broken_rules(trace) == []
    begins = [event for event in trace["traceEvents"] if event["ph"] == "s"]
    leaves = [event for event in trace["traceEvents"] if event.get("cat") == "backward"]
    assert len(begins) == 2 * STEPS * LAYERS
    for arrow in begins:  # within the leaf, while it is open
        assert any(e["pid"] == arrow["pid"] and e["ts"] <= arrow["ts"] < e["ts"] + e["dur"] for e in leaves)


def test_buckets_that_wait_for_the_wire_are_on_it_one_after_the_other(tmp_path):
    """Each is ready 5 ms after the one before, and needs 15 ms of the wire."""
    timeline, ranks = Timeline(), (RankCost(per_sample_s=1e-3), RankCost(per_sample_s=1e-3))
    simulate.run(train, Cluster(ranks, Link(0.0, BYTES / (4 * WIRE_S))), timeline, "auto", 1)
    wire = [span for span in timeline.spans if (span.rank, span.kind) == (0, "wire")]
    assert all(one.ended_s <= other.began_s for one, other in zip(wire, wire[1:]))
    assert [round(span.seconds, 9) for span in wire[1:]] == [4 * WIRE_S] * LAYERS
    own = timeline.summary().ranks[0]
    assert own.seconds["wire"] == pytest.approx(own.communication_s) and own.hidden_s > 0.0
    timeline.to_perfetto(tmp_path / "run.json")
    assert broken_rules(json.loads((tmp_path / "run.json").read_text())) == []


def test_perfetto_takes_what_threads_wrote(tmp_path):
    timeline = Timeline()
    run(lambda comm: train(comm, timeline), 2, timeout_s=TIMEOUT_S)
    timeline.to_perfetto(tmp_path / "run.json")
    assert broken_rules(json.loads((tmp_path / "run.json").read_text())) == []


def test_statistics_that_are_reset_take_nothing_from_a_pass():
    timeline = Timeline()

    def body(comm):
        ddp = layers(comm, timeline=timeline)
        for _ in range(3):
            ddp(minigrad.randn(4, 16)).sum().backward()
            ddp.stats().reset()

    run(body, 1, timeout_s=TIMEOUT_S)
    passes = [span.fields for span in timeline.spans if span.kind == "pass"]
    assert [(each["calls"], each["bytes_sent"]) for each in passes] == [(LAYERS, LAYERS * BYTES)] * 3


def test_what_a_hook_sends_belongs_to_its_bucket():
    timeline = Timeline()
    (stats, _) = run(lambda comm: train(comm, timeline, hook=fp16_compress_hook), 2, timeout_s=TIMEOUT_S)
    own = timeline.summary().ranks[0]
    assert figures(stats)[1:] == figures(own)[1:]
    wire = [span.name for span in timeline.spans if (span.rank, span.step, span.kind) == (0, 0, "wire")]
    assert sorted(wire) == sorted(["samples", *(f"bucket {number}" for number in range(LAYERS))])


def test_ranks_can_be_aligned_by_what_they_called():
    """A rank whose clock is an hour ahead comes back to within what its collectives take."""
    timeline = Timeline()
    run(lambda comm: train(comm, timeline), 2, timeout_s=TIMEOUT_S)
    true = {(s.rank, s.step, s.kind, s.name): s.began_s for s in timeline.spans if s.kind == "weighted"}
    data = json.loads(timeline.to_json())
    entry = data["ranks"][1]
    entry["clock"] = "another machine"
    for span in entry["spans"]:
        span[2:4] = span[2] + 3600.0, span[3] + 3600.0
    entry["meetings"] = {name: [a + 3600.0, b + 3600.0] for name, (a, b) in entry["meetings"].items()}
    assert len(entry["meetings"]) == STEPS * (LAYERS + 1)
    back = Timeline.from_json(json.dumps(data))
    longest_s = max(over_s - called_s for called_s, over_s in data["ranks"][0]["meetings"].values())
    for span in back.spans:
        if span.kind == "weighted":
            assert abs(span.began_s - true[span.rank, span.step, span.kind, span.name]) <= longest_s


def test_a_local_backward_and_an_evaluation():
    """What a busy machine does between two clocks is tried again."""

    def body(comm, timeline):
        ddp = DDP(nn.Sequential(*[Sleepy(0.01) for _ in range(2)]), comm, timeline=timeline)
        with minigrad.no_grad():
            ddp(minigrad.randn(4, 16))
        with ddp.no_sync():
            ddp(minigrad.randn(4, 16)).sum().backward()
        ddp(minigrad.randn(4, 16)).sum().backward()
        ddp.unwrap()
        ddp.module(minigrad.randn(4, 16)).sum().backward()
        return ddp.stats()

    def figures():
        timeline = Timeline(depth=0)
        (stats, _) = run(body, 2, timeline, timeout_s=TIMEOUT_S)
        spans = [span for span in timeline.spans if span.rank == 0]
        kinds = [span.kind for span in spans if span.kind in ("forward", "pass") or span.name == "local"]
        assert kinds == ["forward", "backward", "forward", "pass"] and {span.step for span in spans} == {0}
        return timeline.summary().ranks[0].backward_s, pytest.approx(stats.backward_s, rel=0.05)

    found, held = figures()
    for _ in range(2):
        found, held = (found, held) if found == held else figures()
    assert found == held and found > 0.035


def test_a_backward_that_fails_leaves_no_trace_of_itself():
    timeline = Timeline()

    def body(comm):
        ddp = layers(comm, timeline=timeline)
        x = minigrad.randn(4, 16)
        loss = ddp(x).sum()
        loss.backward()
        with pytest.raises(minigrad.errors.AutogradError):
            loss.backward()
        ddp.module.zero_grad()
        ddp(x).sum().backward()

    run(body, 1, timeout_s=TIMEOUT_S)
    leaves = [span for span in timeline.spans if span.kind == "backward"]
    assert len(leaves) == 2 * LAYERS and all(span.seconds >= 0 for span in leaves)


def test_a_copy_is_noted_too_and_each_call_once():
    timeline = Timeline(depth=0)

    def body(comm):
        first = layers(comm, timeline=timeline)
        for ddp in (first, copy.deepcopy(first), first):
            ddp(minigrad.randn(4, 16)).sum().backward()

    run(body, 1, timeout_s=TIMEOUT_S)
    spans = [span for span in timeline.spans if span.kind in ("forward", "pass")]
    assert [span.kind for span in spans] == ["forward", "pass"] * 3
    assert len({span.name for span in spans if span.kind == "pass"}) == 2


def test_without_a_timeline_nothing_of_it_runs_or_is_allocated():
    """Nothing is attached, so there is nothing to ask: no hook, no listener, no call, no memory."""

    def body(comm):
        ddp = layers(comm)
        x = minigrad.randn(4, 16)
        assert all(not each._forward_hooks and not each._forward_pre_hooks for each in ddp.modules())
        assert all(param.listeners == (ddp.reducer,) for param in ddp.parameters())
        ddp(x).sum().backward()
        entered = []
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, argument: entered.append(frame.f_code.co_filename))
        tracemalloc.start() if comm.rank == 0 else None
        ddp(x).sum().backward()
        sys.setprofile(before)
        return {file for file in entered if "/record/" in file or "timekeeper" in file}

    try:
        assert run(body, 2, timeout_s=TIMEOUT_S) == [set(), set()]
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    only = [tracemalloc.Filter(True, "*/record/*"), tracemalloc.Filter(True, "*/timekeeper.py")]
    assert snapshot.filter_traces(only).statistics("filename") == []


def test_what_is_no_timeline_is_refused():
    def body(comm):
        with pytest.raises(ArgumentError, match="expected timeline as a Timeline, got 3"):
            layers(comm, timeline=3)

    run(body, 1, timeout_s=TIMEOUT_S)


# ------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.parametrize("seed", range(3))
def test_on_a_device_its_own_time_is_noted_and_no_step_waits_for_it(seed, cuda, strict_cupy):
    """A millisecond is a piece of work on this machine. A bucket goes out once its gradients are there."""
    steps, timeline = 3, Timeline(depth=0)
    with machine(seed):
        ddp = DDP(Chain().to(cuda), Pretending(cuda), bucket_cap_bytes=64, timeline=timeline)
        x = minigrad.Tensor(data(5, 0)[0]).to(cuda)
        for _ in range(steps):
            with strict_cupy.no_sync():
                ddp(x).sum().backward()
        streams_of(cuda).get_current_stream().synchronize()
        spans, events = timeline.spans, timeline.events
    for step in range(steps):
        here = [span for span in spans if span.step == step]
        leaves = [span for span in here if span.kind == "backward"]
        assert [span.name for span in leaves] == [name for name, _ in reversed(list(ddp.module.named_parameters()))]
        assert all(one.ended_s == other.began_s for one, other in zip(leaves, leaves[1:]))
        assert all(span.seconds >= 0.0 for span in here) and sum(span.seconds for span in leaves) > 1e-3
        ready = {event.fields["bucket"]: event.at_s for event in events if event.step == step}
        wire = {span.fields["bucket"]: span for span in here if span.kind == "wire"}
        assert len(ready) == len(wire) == len(ddp.plan.buckets)
        assert all(wire[bucket].began_s >= ready[bucket] - 1e-9 for bucket in wire)
    figures_of = timeline.summary().ranks[0]
    assert figures_of.calls == ddp.stats().calls and figures_of.forward_s > 0.0  # of the host


def test_what_a_layer_waits_on_a_device_is_not_noted(cuda, strict_cupy):
    """Its stream waits, and does not tell for whom."""
    comm = Pretending(cuda)
    layer = SyncBatchNorm(3, comm, device=cuda)
    assert listen_inside(Timeline(), comm, layer) == [] and layer.comm is comm


def test_seconds_of_a_device_are_added_up_from_moment_to_moment(cuda, strict_cupy):
    with machine(0):
        moments = DeviceMoments(cuda, lambda: 1000.0)
        marks = []
        for _ in range(4):  # a millisecond for the work, and one for the event
            strict_cupy.ones(3)
            marks.append(moments.mark())
        streams_of(cuda).get_current_stream().synchronize()
        moments.settle()
        assert [round(float(mark), 9) for mark in marks] == [1000.002, 1000.004, 1000.006, 1000.008]
        assert marks[-1].event is None and moments._last[1] == float(marks[-1])  # from which the next one is told
        strict_cupy.ones(3)
        assert float(moments.mark()) == pytest.approx(1000.01)  # who reads it waits


def test_leaves_of_a_local_backward_are_not_noted_again_by_a_flush():
    def body(comm, timeline):
        ddp = DDP(nn.Linear(4, 4), comm, timeline=timeline)
        with ddp.no_sync():
            ddp(minigrad.randn(5, 4)).sum().backward()
        ddp.flush()

    timeline = Timeline()
    simulate.run(body, cluster(), timeline)
    names = [span.name for span in timeline.spans if (span.kind, span.rank) == ("backward", 1)]
    assert sorted(names) == ["bias", "local", "weight"]
