"""What a timeline, or a trace, comes to in each step of each rank: by hand, and beside stats()."""

import pytest

import minigrad
from minigrad import nn
from minigrad.distributed import DDP, Timeline, run, simulate
from minigrad.distributed.inspect.steps import steps_of
from minigrad.distributed.record.spans import Event, TimeSpan
from minigrad.errors import ArgumentError
from tests.distributed.test_attached import LAYERS, STEPS, TIMEOUT_S, cluster, layers, train

FIGURES = ("forward_s", "backward_s", "idle_s", "exposed_s", "hidden_s")


def test_figures_by_hand():
    """Of rank 2: 1 s of data, 2 of forward, 4 of backward, 1 waiting for ranks and 2 for the wire, 0.5 of nothing."""
    mine = {"of": "net", "pass": 0}
    bucket = {**mine, "bucket": 0, "nbytes": 8}
    spans = [
        ("data", "", 0.0, 1.0, {}),
        ("forward", "Net", 1.0, 3.0, {"forward_s": 2.0}),
        ("forward", "0", 1.0, 2.0, {}),
        ("backward", "weight", 3.0, 7.0, {}),
        ("weighted", "bucket 0", 7.0, 8.5, bucket),
        ("idle", "samples", 7.0, 8.0, mine),
        ("wire", "bucket 0", 8.5, 10.0, bucket),
        ("exposed", "bucket 0", 8.0, 10.0, bucket),
        ("pass", "net", 3.0, 10.0, {**mine, "backward_s": 4.0, "idle_s": 1.0, "exposed_s": 2.0, "hidden_s": 0.25}),
        ("optimizer", "", 10.0, 10.5, {}),
        ("whole", "", 0.0, 11.0, {}),
    ]
    made = [TimeSpan(2, kind, name, began_s, ended_s, 0, fields) for kind, name, began_s, ended_s, fields in spans]
    made.append(TimeSpan(2, "data", "", 11.5, 12.0, 1, {}))
    steps = steps_of(Timeline.of(made, [Event(2, "ready", 7.0, 0, bucket)], "virtual"))
    step = steps[0][2]
    assert (step.began_s, step.ended_s, step.wall_s, steps[1][2].wall_s) == (0.0, 11.5, 11.5, 0.5)
    assert (step.data_s, step.forward_s, step.backward_s, step.optimizer_s) == (1.0, 2.0, 4.0, 0.5)
    assert (step.idle_s, step.exposed_s, step.hidden_s, step.handing_s) == (1.0, 2.0, 0.25, 0.0)
    assert step.own == {"whole": 0.5} and step.other_s == 0.5 and step.work_s == 8.5 and step.communication_s == 2.25
    (only,) = step.buckets
    assert (only.of, only.passed, only.bucket, only.nbytes, only.ready_s) == ("net", 0, 0, 8, 7.0)
    assert only.handed_s == (7.0, 8.5) and only.wire == ((8.5, 10.0),) and only.done_s == 10.0


@pytest.mark.parametrize("how", ["auto", "overlapped_sync_gradients"])
def test_sums_over_steps_are_those_of_stats_and_of_the_trace(how):
    timeline = Timeline()
    trace = simulate.run(train, cluster(1.7), timeline, how)
    for record in (timeline, trace):
        steps = steps_of(record)
        assert sorted(steps) == list(range(STEPS))
        for rank, stats in enumerate(trace.results):
            for name in FIGURES if record is timeline else FIGURES[2:]:
                total = sum(getattr(ranks[rank], name) for ranks in steps.values())
                assert total == pytest.approx(getattr(stats, name), abs=1e-12)
            for number, ranks in steps.items():
                seen, own = trace.ranks[rank].steps[number], ranks[rank]
                assert (own.began_s, own.wall_s) == pytest.approx((seen.begin_s, seen.end_s - seen.begin_s))
                assert own.forward_s + own.backward_s + own.compute_s == pytest.approx(seen.compute_s)
                assert own.other_s == pytest.approx(0.0, abs=1e-12)
                assert len(own.buckets) == (LAYERS if record is timeline else 0)


def test_on_threads():
    timeline = Timeline()
    results = run(lambda comm: train(comm, timeline), 2, timeout_s=TIMEOUT_S)
    steps = steps_of(timeline)
    for rank, stats in enumerate(results):
        own = [ranks[rank] for ranks in steps.values()]
        for name in FIGURES[1:]:
            assert sum(getattr(step, name) for step in own) == pytest.approx(getattr(stats, name), abs=1e-9)
        for step in own:
            assert len(step.buckets) == LAYERS and all(each.done_s >= each.ready_s for each in step.buckets)
            assert step.other_s >= 0.0 and step.handing_s > 0.0


def test_a_rank_without_data_keeps_its_place():
    """Rank 1 has none in the second step; its third is that of the others."""
    timeline = Timeline()

    def body(comm):
        ddp = layers(comm, timeline=timeline)
        for step in range(4):
            if comm.rank == 1 and step in (1, 2):
                ddp.flush()
            else:
                ddp(minigrad.randn(2 + step, 16)).sum().backward()
            with timeline.span("optimizer", number=step):
                ddp.module.zero_grad()

    run(body, 2, timeout_s=TIMEOUT_S)
    steps = steps_of(timeline)
    assert sorted(steps) == [0, 1, 2, 3]
    for number, ranks in steps.items():
        for rank in (0, 1):
            assert {each.passed for each in ranks[rank].buckets} == {number} and len(ranks[rank].buckets) == LAYERS
            assert [s.fields["number"] for s in ranks[rank].spans if s.kind == "optimizer"] == [number]
            assert (ranks[rank].forward_s > 0.0) == (rank == 0 or number in (0, 3))


def test_on_a_gpu_the_times_are_the_devices():
    """Its host launched forward in 1 s and backward in 2, and its figures of waiting are those of passes before."""
    bucket = {"of": "net", "pass": 0, "bucket": 0, "nbytes": 8}
    spans = [
        ("forward", "Net", 1.0, 4.0, {"forward_s": 1.0}),
        ("backward", "b", 4.0, 6.0, {}),
        ("backward", "a", 6.0, 9.0, {}),
        ("wire", "bucket 0", 8.0, 11.0, bucket),
        ("exposed", "", 9.0, 11.0, {}),
        ("pass", "net", 2.0, 4.0, {"of": "net", "pass": 0, "backward_s": 2.0, "exposed_s": 7.0, "idle_s": 0.0}),
    ]
    made = [TimeSpan(0, kind, name, began_s, ended_s, 0, fields) for kind, name, began_s, ended_s, fields in spans]
    step = steps_of(Timeline.of(made, [], "host"))[0][0]
    assert (step.forward_s, step.backward_s, step.exposed_s, step.idle_s) == (3.0, 5.0, 2.0, 0.0)
    assert step.handing_s == 0.0 and step.buckets[0].handed_s is None and step.buckets[0].done_s == 11.0


def test_what_is_no_record_is_refused():
    with pytest.raises(ArgumentError, match="steps_of: expected a Timeline, or the Trace of a simulation, got 3"):
        steps_of(3)


def test_a_span_over_several_steps_has_its_part_in_each():
    """An epoch of two steps, of 3 s each; in the data of the second, which nobody had begun yet, 0.5 s of reading."""
    spans = [
        ("setup", -1.0, 0.0, 0),
        ("data", 0.0, 1.0, 0),
        ("forward", 1.0, 2.0, 0),
        ("read", 3.0, 3.5, 0),
        ("data", 3.0, 4.0, 1),
        ("forward", 4.0, 5.0, 1),
        ("epoch", 0.0, 6.0, 1),
    ]
    made = [TimeSpan(0, kind, "", began_s, ended_s, step, {}) for kind, began_s, ended_s, step in spans]
    first, second = (ranks[0] for ranks in steps_of(Timeline.of(made, [], "virtual")).values())
    assert (first.began_s, first.ended_s, second.began_s, second.ended_s) == (-1.0, 3.0, 3.0, 6.0)
    assert first.own == {"setup": 1.0, "epoch": 1.0} and second.own == {"read": 0.0, "epoch": 1.0}
    assert first.other_s == second.other_s == 0.0
    assert [(span.kind, span.began_s, span.ended_s) for span in second.spans][0] == ("epoch", 3.0, 6.0)


def test_a_step_begins_with_a_span_of_ones_own_that_comes_first():
    spans = [("forward", 0.0, 1.0, 0), ("tokenise", 1.0, 1.5, 1), ("forward", 2.0, 3.0, 1)]
    made = [TimeSpan(0, kind, "", began_s, ended_s, step, {}) for kind, began_s, ended_s, step in spans]
    first, second = (ranks[0] for ranks in steps_of(Timeline.of(made, [], "virtual")).values())
    assert (first.wall_s, second.began_s, second.own, second.other_s) == (1.0, 1.0, {"tokenise": 0.5}, 0.5)


def test_fields_of_ones_own_may_be_anything(tmp_path):
    timeline = Timeline()
    with timeline.span("evaluate", of=["a", "b"], bucket={}):
        with timeline.span("pass", **{"pass": 1}):
            pass
    timeline.event("ready", bucket=["for", "anything"])
    assert list(steps_of(timeline)[0][0].own) == ["evaluate"]
    timeline.to_perfetto(tmp_path / "run.json")
    timeline.to_chakra(tmp_path)
    timeline.save(tmp_path / "run.html")


def test_two_wrappers_in_one_backward_are_not_counted_twice():
    def body(comm, timeline):
        first, second = (DDP(nn.Linear(4, 4), comm, timeline=timeline) for _ in range(2))
        for _ in range(2):
            second(first(minigrad.randn(10, 4))).sum().backward()

    timeline = Timeline()
    simulate.run(body, cluster(1.7), timeline)
    for ranks in steps_of(timeline).values():
        for step in ranks.values():
            parts = (step.forward_s, step.backward_s, step.idle_s, step.exposed_s, step.other_s)
            assert sum(parts) == pytest.approx(step.wall_s)
            assert step.backward_s == pytest.approx(2.0 * step.forward_s)
