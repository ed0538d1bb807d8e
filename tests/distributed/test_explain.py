"""Where the time of a step went, by hand; what would help most, beside what simulating it anew gives."""

from html import escape

import pytest

import minigrad
from minigrad import nn
from minigrad.distributed import DDP, Timeline, explain, explain_ranks, replay, run, simulate
from minigrad.distributed.inspect.page import page_of
from minigrad.distributed.inspect.page.words import help_of
from minigrad.distributed.simulate import Cluster, Link, RankCost
from tests.distributed.test_replay import BYTES, LAYERS, LINK, record, walls_s

PARTS = ("compute_s", "waiting_s", "exposed_s", "overhead_s")


def layers(comm, timeline, cap=BYTES):
    ddp = DDP(nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(LAYERS)]), comm,
              bucket_cap_bytes=cap, timeline=timeline)  # fmt: skip
    for _ in range(3):
        with timeline.span("data"):
            comm.clock.advance(0.004)
        ddp(minigrad.randn(60, 16)).sum().backward()
        with timeline.span("optimizer"):
            comm.clock.advance(0.003)
        comm.clock.advance(0.001)


def test_parts_of_a_step_by_hand():
    """Rank 0 computes 60 ms, and rank 1 120 ms, 10 ms a layer; 4 ms of data, 3 ms of optimizer, 1 ms that nobody notes.

    Each of eight buckets takes 3.75 ms of the wire. Rank 1 stands still for the last one alone. Rank 0 is through with
    backward when rank 1 has two layers: from then on it waits, of each 10 ms, for the wire where that works.
    """
    timeline, wire_s = Timeline(), 3.75e-3
    cluster = Cluster((RankCost(per_sample_s=1e-3), RankCost(per_sample_s=2e-3)), Link(0.0, BYTES / wire_s))
    simulate.run(layers, cluster, timeline)
    explanation = explain(timeline)
    slow, fast = explanation.ranks[1], explanation.ranks[0]
    assert explanation.steps == 3 and explanation.step_s == pytest.approx(0.128 + wire_s)
    assert slow.compute_s == pytest.approx(0.127) and fast.compute_s == pytest.approx(0.067)
    assert slow.exposed_s == pytest.approx(wire_s) and slow.waiting_s == 0.0
    assert fast.exposed_s + fast.waiting_s == pytest.approx(0.06 + wire_s)
    assert fast.waiting_s == pytest.approx(6 * (0.01 - wire_s))
    # the last moment of the last step is the optimizer's end: what follows it is of no step
    assert [rank.overhead_s for rank in explanation.ranks] == pytest.approx([0.001 * 2 / 3] * 2)
    for rank in explanation.ranks:
        assert sum(getattr(rank, part) for part in PARTS) == pytest.approx(rank.wall_s, rel=1e-12)
    assert sum(explanation.fraction(part) for part in PARTS) == pytest.approx(1.0)
    even = "rank 1 as fast as the others in backward and forward"
    shares = "shares of 0.6667, 0.3333 (if time goes with samples)"
    assert explanation.best.choice == even and explanation.best_option.choice == shares
    assert explanation.best.step_s == pytest.approx(0.068 - 0.001 / 3 + wire_s)
    first, second, *rest = str(explanation).splitlines()
    assert first == "The median of 3 steps took 132 ms; on average a step took 131 ms."  # no rest after the last one
    assert str(explain_ranks(timeline)).splitlines()[2] == first and f"<li>{first} The longest" in page_of(timeline)
    assert second.startswith("Of the ranks' time: 74% computing, 14% waiting for")
    told = f"what would help most is {even}, and of options of the training {shares}"
    assert f"{told}; what was tried, in a step on average:" in rest


def test_each_choice_takes_what_it_takes_anew():
    """All that is tried, simulated with the options that stand for it; a network of all collectives in half the time
    is one of half the latency and twice the bandwidth."""
    timeline, plan = record()
    choices = {choice.choice: choice for choice in explain(timeline).choices}
    fast = Link(LINK.latency_s / 2, LINK.bandwidth_bytes_s * 2)
    anew = {
        "bucket_cap_bytes=4096": {"bucket_cap_bytes": 4 * BYTES, "first_bucket_mb": BYTES / 2**20},
        "all gradients in one bucket": {"bucket_cap_bytes": LAYERS * BYTES},
        "shares of 0.4167, 0.2444, 0.3389 (if time goes with samples)": {"sizes": (75, 44, 61)},
        "ranks 1 and 2 as fast as the others in backward and forward": {"slower": (1.0,) * 3},
        "a network twice as fast": {"link": fast},
        "a network that takes no time": {"link": Link()},
        "combining half as often": {"every": 2},
    }
    assert set(choices) == set(anew)
    for words, options in anew.items():
        assert choices[words].replayed_s == pytest.approx(walls_s(record(**options)[0]), rel=1e-9), words
    saved = [choice.saved_fraction for choice in explain(timeline).choices]
    assert saved == sorted(saved, reverse=True) and explain(timeline).best.saved_fraction == saved[0] > 0.2


def two_late(late_s, phase="data", mine=60):
    """Two equal ranks, the second of which may be late."""
    timeline = Timeline()

    def body(comm):
        ddp = DDP(nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(LAYERS)]), comm,
                  bucket_cap_bytes=BYTES, timeline=timeline)  # fmt: skip
        for step in range(8):
            with timeline.span("data"):
                comm.clock.advance(0.002 + (phase == "data") * comm.rank * late_s[step % 4])
            ddp(minigrad.randn(120 - mine if comm.rank else mine, 16)).sum().backward()
            if phase != "data":
                with timeline.span(phase):
                    comm.clock.advance(0.002 + comm.rank * late_s[step % 4])

    simulate.run(body, Cluster((RankCost(per_sample_s=1e-3),) * 2, LINK))
    return timeline


@pytest.mark.parametrize("late_s", [(0.02,) * 4, (0.0, 0.04, 0.0, 0.0), (0.0, 0.02, 0.04, 0.06)])
@pytest.mark.parametrize("phase", ["data", "optimizer", "reading"])
def test_nobody_late_takes_what_it_takes_anew(late_s, phase):
    best = explain(two_late(late_s, phase)).best
    assert best.choice == f"rank 1 as fast as the others in {phase}"
    assert best.replayed_s == pytest.approx(explain(two_late((0.0,) * 4, phase)).paces_s, rel=1e-9)


def test_shares_make_up_for_what_does_not_go_with_samples():
    """60 samples take 60 ms, and rank 1 is 20 ms late with its data: 70 and 50 samples end at once."""
    explanation, anew = explain(two_late((0.02,) * 4)), explain(two_late((0.02,) * 4, mine=70))
    assert explanation.best_option.choice == "shares of 0.5833, 0.4167 (if time goes with samples)"
    assert explanation.best_option.replayed_s == pytest.approx(anew.paces_s, rel=1e-9)
    assert "rank 1" in explanation.best.choice and explanation.best.saved_fraction > 0.2


def test_who_has_more_to_compute_on_is_not_slow():
    """Equal ranks, of which one has twice the samples: other shares help, and no rank could be faster."""
    explanation = explain(two_late((0.0,) * 4, mine=40))
    assert explanation.best.choice == "shares of 0.5000, 0.5000 (if time goes with samples)"
    assert explanation.best.replayed_s == pytest.approx(explain(two_late((0.0,) * 4)).paces_s, rel=1e-9)
    assert not any("as fast as" in choice.choice for choice in explanation.choices)


def test_a_page_shows_the_median_step_first_and_says_what_was_hidden():
    """Of 62 ms and what is late; of eight buckets, of 3.95 ms each, and the sum of the samples all but the last."""
    page = page_of(two_late((0.04, 0.02, 0.0, 0.02)))
    assert '<output id="which">1</output>' in page and page.count("<h3>Step 1 <small>86.0 ms</small></h3>") == 1
    assert "of the wire" not in page and "88% was hidden behind what the ranks did" in page_of(two_late((0.0,) * 4))


def test_what_happens_now_and_then_counts_for_what_it_costs():
    """Rank 1 is 40 ms late in two steps of eight: the median step is none of them, and yet it costs 10 ms a step."""
    explanation = explain(two_late((0.0, 0.04, 0.0, 0.0)))
    before_s = sum(explanation.paces_s) / 8
    assert explanation.best.choice == "rank 1 as fast as the others in data"
    assert explanation.best.before_s - explanation.best.step_s == pytest.approx(0.01)
    assert [each.before_s for each in explanation.choices] == pytest.approx([before_s] * len(explanation.choices))
    odd = replay(two_late((0.0, 0.04, 0.0, 0.0)), cadence=3)  # (3 * 62 + 40 + 3.95) / 3, and (6 * 65.95 + 80) / 6
    told = "cadence=3: a step of 0.076650 s in place of 0.079283 s, 3.3% less (of the first 6 steps)"
    assert str(odd) == told


def test_order_and_small_buckets_are_tried_where_they_differ():
    whole, plan = record(bucket_cap_bytes=LAYERS * BYTES)
    words = [choice.choice for choice in explain(whole).choices]
    assert "bucket_cap_bytes=2048" in words and "a bucket for each gradient" in words
    assert explain(whole).beyond[1] == "a network that takes no time"
    backwards, _ = record(bucket_plan=replay(record()[0], order=list(reversed(range(LAYERS)))).plan)
    assert "buckets in the order in which they are complete" in [each.choice for each in explain(backwards).choices]


def test_a_page_says_what_would_help_most():
    timeline, _ = record()
    said = help_of(explain(timeline))
    assert said == (
        "What would help most is ranks 1 and 2 as fast as the others in backward and forward: on average a step of "
        "72.2 ms in place of 110 ms, 35% less. Of options of the training it is shares of 0.4167, 0.2444, 0.3389 (if "
        "time goes with samples): on average a step of 83.2 ms in place of 110 ms, 25% less."
    )
    assert escape(said) in page_of(timeline)


def test_where_nothing_helps_it_says_so():
    timeline = Timeline()
    cluster = Cluster((RankCost(per_sample_s=1e-3),) * 2, Link(0.0, BYTES / 3e-4))
    simulate.run(layers, cluster, timeline)
    explanation = explain(timeline)
    assert 0.002 < explanation.choices[0].saved_fraction < 0.005  # 0.3 ms of 68
    assert explanation.best is None and "nothing that was tried would save 1 % of a step" in str(explanation)
    assert explanation.fraction("compute_s") > 0.99 - 1 / 128


def test_a_trace_tells_where_the_time_went():
    """Its steps are as long as those of the trace itself, and have their parts."""

    def body(comm, evaluates):
        ddp = DDP(nn.Linear(16, 16, bias=False), comm)
        for _ in range(3):
            ddp(minigrad.randn(60, 16)).sum().backward()
        if evaluates:
            comm.clock.advance(0.01 * (1 + comm.rank))

    cluster = Cluster((RankCost(per_sample_s=1e-3), RankCost(per_sample_s=1.5e-3)), LINK)
    trace = simulate.run(body, cluster, False)
    explanation = explain(trace)
    for own, rank in zip(explanation.ranks, trace.ranks):
        for name, other in (("compute_s", "compute_s"), ("waiting_s", "idle_s"), ("exposed_s", "exposed_s")):
            mean_s = sum(getattr(step, other) for step in rank.steps) / 3
            assert getattr(own, name) == pytest.approx(mean_s), (name, other)
    free = next(choice for choice in explanation.choices if choice.choice == "a network that takes no time")
    assert free.step_s == pytest.approx(0.09) and len(explanation.choices) == 3
    even = simulate.run(body, Cluster((RankCost(per_sample_s=1e-3),) * 2, LINK), False)
    assert explanation.best.choice == "rank 1 as fast as the others in compute"
    assert explanation.best.replayed_s == pytest.approx(explain(even).paces_s, rel=1e-9)
    assert all(choice.recorded_s == pytest.approx(explanation.paces_s) for choice in explanation.choices)
    longer = explain(simulate.run(body, cluster, True))  # the last step has no collective
    free = next(choice for choice in longer.choices if choice.choice == "a network that takes no time")
    assert longer.steps == 4 and free.recorded_s == pytest.approx(longer.paces_s)
    assert free.replayed_s == pytest.approx((0.09, 0.09, 0.09, 0.02))
    lonely = explain(simulate.run(lambda comm: comm.clock.compute(3), Cluster((RankCost(),) * 2)))
    assert lonely.best is None and "what would help is not known: explain: expected a trace with" in str(lonely)


def test_on_threads_the_parts_add_up():
    timeline = Timeline()

    def trains(comm):
        ddp = DDP(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]), comm, bucket_cap_bytes=9000, timeline=timeline)
        for _ in range(5):
            ddp(minigrad.randn(64, 64)).square().mean().backward()

    run(trains, 2, timeout_s=20.0)
    explanation = explain(timeline)
    for rank in explanation.ranks:
        assert sum(getattr(rank, part) for part in PARTS) == pytest.approx(rank.wall_s, rel=0.05)
    assert len(explanation.choices) >= 5 and explanation.unknown == ""
    # what the threads' waking up adds to a replay is no merit of a choice, nor its fault
    assert all(choice.recorded_s == explanation.unchanged.replayed_s for choice in explanation.choices)
    assert all(choice.saved_fraction >= 0.0 for choice in explanation.choices if choice.choice.startswith("a network"))


def test_steps_around_a_freezing_are_not_replayed():
    """The buckets of the steps after it are fewer, and a replay has one plan."""

    def body(comm, timeline, freezes):
        ddp = DDP(nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(3)]), comm,
                  bucket_cap_bytes=BYTES, timeline=timeline)  # fmt: skip
        for step in range(3):
            ddp.module[0].weight.requires_grad_(not (freezes and step == 1))
            ddp(minigrad.randn(60, 16)).sum().backward()
            ddp.zero_grad()

    for freezes in (True, False):
        timeline = Timeline()
        simulate.run(body, Cluster((RankCost(),) * 2, LINK), timeline, freezes)
        words = "expected one plan of buckets in all steps, got 2 buckets in step 1, and 3 before"
        assert (words in str(explain(timeline))) == freezes
