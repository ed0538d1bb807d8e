"""The timeline of a run of `Trainer.start`, however its ranks go: in step, by averages, apart, where one fails."""

import pytest

import minigrad
from minigrad.distributed import explain_ranks
from minigrad.distributed.average import Async, Cadence, EveryK
from minigrad.distributed.inspect.steps import steps_of
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate import Cluster, Link, RankCost
from minigrad.train import Checkpoint
from tests.train.runs import bits, start

COST_S, FIXED_S = 1e-3, 2e-3
LATENCY_S = 1e-4
CLUSTER = Cluster((RankCost(COST_S, FIXED_S), RankCost(2 * COST_S, FIXED_S)), Link(latency_s=LATENCY_S))
PARAMETERS = {"average": "parameters"}
MODES = {
    "in step": {},
    "rounds of whole batches": {"policy": Cadence()},
    "parameters in step": {"policy": EveryK(2), **PARAMETERS},
    "apart": {"on_failure": "shrink"},
    "progressive": {"dispatch": "progressive"},
    "averages apart": {"policy": EveryK(2), "on_failure": "shrink", **PARAMETERS},
    "asynchronous": {"policy": Async(2), **PARAMETERS},
}
APART = [*MODES][3:]


def traced(**options):
    timeline = Timeline()
    run = start(cluster=CLUSTER, timeline=timeline, seed=0, **options)
    run.join()
    return run.trace, timeline


@pytest.mark.parametrize("how", MODES)
def test_what_a_simulation_says_the_timeline_says(how):
    """Computing, and standing still: to the last digits, that sums in another order leave."""
    trace, timeline = traced(**MODES[how])
    for rank, own in enumerate(timeline.summary().ranks):
        steps = trace.ranks[rank].steps
        computed_s, idle_s, exposed_s = (
            sum(getattr(step, name) for step in steps) for name in ("compute_s", "idle_s", "exposed_s")
        )
        assert own.forward_s + own.backward_s == pytest.approx(computed_s, rel=1e-9)
        spans = [span for span in timeline.spans if span.rank == rank]
        assert {"data", "forward", "backward", "optimizer", "pass", "wire"} <= {span.kind for span in spans}
        if how in APART:  # the first command takes a latency, before the first step
            assert (own.idle_s, own.exposed_s) == (pytest.approx(idle_s + LATENCY_S), pytest.approx(exposed_s))
            commands = [event.kind for event in timeline.events if event.rank == rank]
            assert commands[0] == "train" and commands[-2:] == ["finish", "stop"] and "commit" in commands
        elif "parameters" in how:  # an epoch ends with a few small calls of the run's own
            events = [event for event in timeline.events if (event.rank, event.kind) == (rank, "average")]
            averages = [event.fields["number"] for event in events]
            assert averages == list(range(1, len(averages) + 1)) and averages
            assert own.idle_s == pytest.approx(idle_s) and 0.9 * exposed_s < own.exposed_s <= exposed_s
        assert own.steps == sum(rank in step for step in steps_of(timeline).values())  # as readers count them
        optimized = [span.step for span in spans if span.kind == "optimizer"]
        assert optimized == sorted(set(optimized)) and len(optimized) > 1


@pytest.mark.parametrize("how", MODES)
def test_a_timeline_changes_no_bit_of_a_run(how):
    plain = start(cluster=CLUSTER, seed=0, **MODES[how]).join()
    noted = start(cluster=CLUSTER, seed=0, timeline=Timeline(), **MODES[how]).join()
    assert bits(plain) == bits(noted)


@pytest.mark.parametrize("how", ["in step", "parameters in step", "apart"])
def test_checkpoints_are_spans(how, tmp_path):
    timeline = Timeline()
    callbacks = [Checkpoint(tmp_path, every=1)]
    start(ranks=2, seed=0, timeline=timeline, callbacks=callbacks, timeout_s=10.0, **MODES[how]).join()
    for rank in (0, 1):
        saved = [span for span in timeline.spans if (span.rank, span.kind) == (rank, "checkpoint")]
        assert len(saved) == 2 and all(span.seconds > 0.0 for span in saved)


@pytest.mark.filterwarnings("ignore:.*is left behind:RuntimeWarning")
def test_a_rank_that_fails_is_noted_until_then_and_the_others_go_on():
    def stop(metrics, worker):
        if worker.rank == 1:
            raise ValueError("rank 1 has had enough")

    timeline = Timeline()
    start(ranks=3, seed=0, timeline=timeline, callbacks=[stop], on_failure="shrink", timeout_s=10.0).join()
    lasts = [max(span.step for span in timeline.spans if span.rank == rank) for rank in range(3)]
    assert lasts[1] < lasts[0] == lasts[2]
    assert "restore" in {event.kind for event in timeline.events if event.rank == 0}


@pytest.mark.parametrize("how", [how for how in MODES if how != "asynchronous"])
def test_the_rank_that_computes_for_longer_is_named(how):
    """A sample takes rank 1 twice as long; what it shares with rank 0 in each mode is another thing."""
    trace, timeline = traced(**MODES[how])
    for record, phases in ((trace, {"compute"}), (timeline, {"forward", "backward"})):
        report = explain_ranks(record)
        assert {each.phase for each in report.late} == phases and report.ranks == (1,) and report.wire is None
        assert report.waited_s[0] > report.waited_s[1]


def test_what_a_callback_computes_before_a_command_comes_is_no_waiting_for_it():
    """Of a forward without a backward the time of that passes before the rank waits."""

    def look(metrics, worker):
        if worker.rank == 1:
            worker.model(minigrad.ones(40, 6))

    trace, timeline = traced(**MODES["apart"], callbacks=[look])
    for own, rank in zip(timeline.summary().ranks, trace.ranks):
        assert own.idle_s == pytest.approx(sum(step.idle_s for step in rank.steps) + LATENCY_S)
