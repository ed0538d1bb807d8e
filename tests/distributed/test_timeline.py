"""The pure record: spans and events of ranks, what is read from them, and the formats that it is written in."""

import csv
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from minigrad.distributed import run
from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.inspect.steps import steps_of
from minigrad.distributed.record.alignment import offsets_of
from minigrad.distributed.record.spans import Gap
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.record.track import Track
from minigrad.errors import ArgumentError
from tests.distributed.trace_rules import broken_rules

TIMEOUT_S = 10.0


class Hand:
    """A clock that is set by hand."""

    def __init__(self):
        self.time_s = 0.0

    def now_s(self):
        return self.time_s


def by_hand():
    """Two ranks, one step: rank 1 is late, and a bucket travels."""
    timeline = Timeline()
    for rank, forward_s in ((0, 2.0), (1, 3.0)):
        track = timeline._tracks[rank] = Track(rank, Hand().now_s, "one")
        which = {"of": "ddp", "pass": 0, "bucket": 0}
        track.note("data", "", 0.0, 1.0)
        track.note("forward", "net.fc", 1.5, forward_s - 0.5)
        track.note("forward", "net", 1.0, forward_s, {"forward_s": forward_s - 1.0})
        track.note("backward", "fc.weight", forward_s, forward_s + 1.0)
        track.event_at("ready", forward_s + 1.0, which)
        track.note("weighted", "bucket 0", forward_s + 1.0, forward_s + 1.25, which)
        track.note("wire", "bucket 0", 4.25, 6.0, which)
        track.note("idle", "bucket 0", forward_s + 1.25, 4.25)
        track.note("exposed", "bucket 0", 4.25, 6.0)
        track.event_at("done", 6.0, which)
        track.note("pass", "", forward_s, 6.0, {"backward_s": 1.25, "idle_s": 3.0 - forward_s, "exposed_s": 1.75})
        track.end_step()
        track.note("optimizer", "", 6.5, 7.0, {"lr": 0.1})
    return timeline


def test_the_summary_of_a_step_by_hand():
    first, second = by_hand().summary().ranks
    assert (first.rank, first.steps, first.wall_s, first.forward_s, first.backward_s) == (0, 1, 7.0, 1.0, 1.25)
    assert (first.idle_s, second.idle_s, first.exposed_s, first.hidden_s) == (1.0, 0.0, 1.75, 0.0)
    seconds = {"data": 1.0, "forward": 1.0, "backward": 1.0, "pass": 4.0, "weighted": 0.25, "idle": 1.0, "wire": 1.75}
    assert first.seconds == seconds | {"exposed": 1.75, "optimizer": 0.5}  # a module within another counts once
    assert str(by_hand().summary()).splitlines()[1].split() == (
        "0 1 7.0000 1.0000 1.2500 1.0000 1.7500 0.0000 0%".split()
    )


@pytest.mark.parametrize("kind", ["rpc", "data"])
def test_what_a_user_notes_is_no_figure_of_ours(kind, tmp_path):
    timeline = Timeline()
    with timeline.span(kind, samples=7, calls="three", idle_s=5.0, hidden_s=1.0, kind="x", self=1):
        timeline.event("sent", calls=2)
    (own,) = timeline.summary().ranks
    assert (own.idle_s, own.hidden_s, own.calls) == (0.0, 0.0, 0)
    timeline.to_chakra(tmp_path)  # where "sent" would be a message
    step = steps_of(timeline)[0][0]
    assert (step.samples, step.idle_s, step.hidden_s) == (0.0, 0.0, 0.0)


def test_gaps_are_where_nothing_is_done():
    assert by_hand().idle_gaps(0) == [Gap(0, 3.25, 6.5, "weighted bucket 0", "optimizer")]
    assert [(gap.rank, gap.seconds) for gap in by_hand().idle_gaps(least_s=3.0)] == [(0, 3.25)]
    assert by_hand().idle_gaps(1, least_s=3.0) == []


def test_a_step_begins_with_the_first_data_or_forward_after_a_pass():
    track = Track(0, Hand().now_s)
    for kind in ("data", "forward", "forward"):
        track.note(kind, "", 0.0, 1.0)
    track.end_step()
    for kind in ("optimizer", "forward", "backward"):
        track.note(kind, "", 1.0, 2.0)
    track.begin_step()
    track.note("mine", "", 2.0, 3.0)
    assert [span.step for span in track.read()[0]] == [0, 0, 0, 0, 1, 1, 2]


def test_the_last_steps_are_kept():
    track = Track(0, Hand().now_s, "one", 2)
    for number in range(5):
        track.note("forward", str(number), number, number + 0.5)
        track.met(str(number), number, number + 0.5)
        track.end_step()
    spans, _, meetings = track.read()
    assert [(span.step, span.name) for span in spans] == [(3, "3"), (4, "4")]
    assert list(meetings) == ["3", "4"]


def test_json_comes_back_to_the_last_bit():
    timeline = by_hand()
    track = timeline._tracks[1]
    track.event("decision", reason="rank 1 is slow", shares=(0.1 + 0.2, math.inf), none=None, deep={"a": -math.inf})
    track.met("sum", 0.1, 1 / 3)
    read = Timeline.from_json(timeline.to_json())
    assert read == timeline and read.to_json() == timeline.to_json()
    assert read.events[0].fields["shares"] == [0.1 + 0.2, math.inf]
    json.loads(timeline.to_json(), parse_constant=pytest.fail)  # strict: a browser reads it
    timeline.event("nan", value=math.nan)
    read = Timeline.from_json(timeline.to_json())
    assert [math.isnan(event.fields["value"]) for event in read.events if event.kind == "nan"] == [True]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other", "ranks": []}', by_hand().to_json()[:-40]])
def test_what_is_no_timeline_is_refused(text):
    with pytest.raises(ArgumentError, match="from_json: expected the text of to_json"):
        Timeline.from_json(text)


@pytest.mark.parametrize("which, where, what", [
    ("spans", 0, 3), ("spans", 2, None), ("spans", 3, "x"), ("spans", 4, "x"), ("spans", 5, 7),
    ("events", 0, None), ("events", 1, {}), ("events", 2, 0.5), ("meetings", "sum", [1.0]),
])  # fmt: skip
def test_what_is_wrong_within_is_refused_at_once(which, where, what):
    timeline = by_hand()
    timeline._tracks[0].met("sum", 0.1, 0.2)
    data = json.loads(timeline.to_json())
    entry = data["ranks"][0][which]
    (entry if which == "meetings" else entry[0])[where] = what
    with pytest.raises(ArgumentError, match="from_json: expected the text of to_json"):
        Timeline.from_json(json.dumps(data))


def test_saving_goes_by_the_ending(tmp_path):
    timeline = by_hand()
    timeline.save(tmp_path / "run.json")
    timeline.save(str(tmp_path / "run.CSV"))
    assert (tmp_path / "run.json").read_text() == timeline.to_json()
    assert len((tmp_path / "run.CSV").read_text().splitlines()) == 1 + len(timeline.spans) + len(timeline.events)


def test_a_table(tmp_path):
    timeline = by_hand()
    timeline.to_csv(tmp_path / "run.csv")
    rows = list(csv.DictReader((tmp_path / "run.csv").read_text().splitlines()))
    assert len(rows) == len(timeline.spans) + len(timeline.events)
    spans = [row for row in rows if row["type"] == "span"]
    assert [float(row["began_s"]) for row in spans] == [span.began_s for span in timeline.spans]
    assert {row["kind"] for row in rows if row["type"] == "event"} == {"ready", "done"}
    assert next(json.loads(row["fields"]) for row in spans if row["kind"] == "optimizer") == {"lr": 0.1}


def test_perfetto(tmp_path):
    by_hand().to_perfetto(tmp_path / "run.json")
    trace = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)
    assert broken_rules(trace) == []
    events = trace["traceEvents"]
    slices = {(e["pid"], e["name"], e["cat"]): (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert slices[1, "bucket 0", "wire"] == (4.25e6, 1.75e6)
    assert {e["pid"] for e in events} == {0, 1}
    arrows = [(e["ph"], e["pid"], round(e["ts"])) for e in events if e["ph"] in "sf"]
    assert arrows == [("s", 0, 3e6), ("f", 0, 6e6), ("s", 1, 4e6), ("f", 1, 6e6)]


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda e: e.update(dur=-1.0), "has times"),
        (lambda e: e.pop("pid"), "lacks"),
        (lambda e: e.update(ts=e["ts"] - 0.5e6, tid=e["tid"]), "crosses"),
    ],
)
def test_the_rules_find_what_breaks_them(tmp_path, spoil, said):
    by_hand().to_perfetto(tmp_path / "run.json")
    trace = json.loads((tmp_path / "run.json").read_text())
    spoil(next(e for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] == "fc.weight"))
    assert any(said in rule for rule in broken_rules(trace))


def test_an_empty_one(tmp_path):
    timeline = Timeline()
    timeline.to_perfetto(tmp_path / "run.json")
    timeline.to_csv(tmp_path / "run.csv")
    assert Timeline.from_json(timeline.to_json()) == timeline and timeline.spans == [] == timeline.idle_gaps()
    assert timeline.summary().ranks == ()


# ------------------------------------------------------------------------------------------------------ clocks


@given(st.floats(-1e3, 1e3), st.lists(st.tuples(*[st.floats(0.0, 1.0)] * 4), min_size=1, max_size=8))
def test_clocks_are_aligned_within_what_the_collectives_leave(apart_s, delays):
    """Whatever the delays: what is left is at most half the shortest time from the first call to the last end."""
    first, second, least = {}, {}, math.inf
    for number, (call_0, call_1, end_0, end_1) in enumerate(delays):
        over = max(call_0, call_1)
        first[str(number)] = call_0, over + end_0
        second[str(number)] = call_1 + apart_s, over + end_1 + apart_s
        least = min(least, over + end_0 - call_1 + (over + end_1 - call_0))
    here, there = offsets_of(["a", "b"], [first, second])
    assert here == 0.0 and abs(there + apart_s) <= least / 2 + 1e-9


def test_ranks_of_one_clock_are_left_alone():
    far = {"sum": (100.0, 101.0)}
    assert offsets_of(["a", "a", "b", "b"], [{"sum": (0.0, 1.0)}, far, far, {}]) == [0.0, 0.0, -100.0, -100.0]
    assert offsets_of(["a", "b"], [far, {}]) == [0.0, 0.0]


def test_two_machines_are_put_on_one_clock():
    timeline = by_hand()
    for rank, clock in ((0, "here"), (1, "there")):
        timeline._tracks[rank].clock = clock
        timeline._tracks[rank].met("sum", 3.0 + 50 * rank, 5.0 + 50 * rank)
    assert timeline.offsets_s() == {0: 0.0, 1: -50.0}
    assert min(span.began_s for span in timeline.spans if span.rank == 1) == -50.0
    assert timeline.summary().ranks[1].wall_s == 7.0


# ------------------------------------------------------------------------------------------------------- ranks


def test_thread_ranks_share_one_and_processes_gather():
    shared = Timeline()

    def body(comm):
        own = Timeline()
        for timeline in (shared, own):
            with timeline.span("mine", "part", rank=comm.rank) as open_span:
                timeline.event("noted", reason=f"of rank {comm.rank}")
                open_span.fields["more"] = 2
        return own.gather().to_json()

    texts = run(body, 2, timeout_s=TIMEOUT_S)
    whole = Timeline.from_json(texts[0])
    assert texts[0] == texts[1]
    for timeline in (shared, whole):
        assert timeline.ranks == [0, 1]
        assert sorted((s.rank, s.kind, s.name, tuple(s.fields.items())) for s in timeline.spans) == [
            (rank, "mine", "part", (("rank", rank), ("more", 2))) for rank in (0, 1)
        ]
        assert {(e.rank, e.fields["reason"]) for e in timeline.events} == {(0, "of rank 0"), (1, "of rank 1")}


def test_without_ranks_here_spans_are_those_of_the_only_rank_that_is_known():
    timeline = Timeline()
    with timeline.span("early"):
        pass
    assert timeline.spans[0].rank == 0
    timeline = Timeline()
    timeline.at(rank=3, clock=HostClock())
    with timeline.span("data"):
        pass
    assert [(span.rank, span.kind) for span in timeline.spans] == [(3, "data")]


def test_a_span_that_an_error_ends_says_so():
    timeline = Timeline()
    with pytest.raises(KeyError), timeline.span("data"):
        raise KeyError
    assert timeline.spans[0].fields == {"error": "KeyError"}


def test_refusals():
    with pytest.raises(ArgumentError, match="last_steps"):
        Timeline(last_steps=0)
    with pytest.raises(ArgumentError, match=r"expected a rank of \[0, 1\], got 2"):
        by_hand().idle_gaps(2)
    with pytest.raises(ArgumentError, match="least_s"):
        by_hand().idle_gaps(least_s=-1)
    with pytest.raises(ArgumentError, match=r"got \[0, 1\] in two"):
        Timeline.merged([by_hand(), by_hand()])
    with pytest.raises(ArgumentError, match="gather: expected a communicator"):
        Timeline().gather()
    with pytest.raises(ArgumentError, match="Timeline.at: expected a communicator"):
        Timeline().at(3)


READ_BACK = {  # where each format is read by what shares nothing with its writer, or comes back
    "to_chakra": "test_chakra",
    "to_csv": "test_timeline",
    "to_json": "test_timeline",
    "to_kineto": "test_kineto",
    "to_perfetto": "test_timeline",
}


def test_every_format_is_read_back():
    assert {name for name in dir(Timeline) if name.startswith("to_")} == set(READ_BACK)
    for name, test in READ_BACK.items():
        assert f".{name}(" in (Path(__file__).parent / f"{test}.py").read_text()
