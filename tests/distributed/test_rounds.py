"""El Che on ranks: several whole batches, then one reduction."""

import io
import json

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, CadenceConfig, ElChe, Rounds, SoloCommunicator, average_gradients, run, simulate
from minigrad.distributed.average import (
    Divergence,
    DivergenceExchange,
    GrowthGuard,
    LevelGuard,
    NoGuard,
    TrendGuard,
    Verdict,
    sums_of,
)
from minigrad.distributed.balance import replay
from minigrad.distributed.simulate import Cluster, Link
from minigrad.errors import ArgumentError, ReplicaMismatchError, StateDictError
from tests.distributed.worlds import run_ranks

BATCH = 5
SLOW_LINK = Link(1e-3, 1e6)


def make_model():
    minigrad.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).to("float64")


def data(batches):
    """Inputs and targets, batch by batch; the last batch is a short one."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batches * BATCH - 2, 6))
    whole = [minigrad.Tensor(array) for array in (x, x[:, :1] * x[:, 1:2])]
    return [tuple(array[i : i + BATCH] for array in whole) for i in range(0, len(x), BATCH)]


def train(comm, batches, config=None, journal=None):
    """The parameters, and this rank's batches in each round."""
    rounds = Rounds(comm, config, journal=journal)
    ddp = DDP(make_model(), rounds.comm)
    optimizer = optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    taken = []
    for mine in rounds.deal(data(batches)):
        optimizer.zero_grad()
        samples = sum(len(x) for x, _ in mine)
        with ddp.no_sync():
            for x, y in mine:
                (nn.functional.mse_loss(ddp(x), y) * (len(x) / samples)).backward()
        ddp.flush()
        optimizer.step()
        taken.append(len(mine))
    return [p.detach().numpy().copy() for p in ddp.module.parameters()], taken


def on_one_device(batches, sizes):
    """The same steps, each the gradient of the mean over so many batches."""
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    left = data(batches)
    for size in sizes:
        mine, left = left[:size], left[size:]
        optimizer.zero_grad()
        x, y = (minigrad.cat(parts) for parts in zip(*mine))
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert not left
    return [p.detach().numpy() for p in model.parameters()]


@pytest.mark.parametrize("kind", ["solo", "threads", "shm", "simulated"])
def test_the_training_is_that_of_one_device_on_the_same_samples(kind):
    """Also where an epoch's end leaves ranks without a batch."""
    def body(comm):
        return train(comm, 64, CadenceConfig(3, min_anchor=1, max_anchor=6))

    if kind == "simulated":
        results = simulate.run(body, Cluster.of_speeds([3, 2, 1], link=SLOW_LINK)).results
    else:
        results = run_ranks(kind, body, 1 if kind == "solo" else 3)
    sizes = [sum(counts) for counts in zip(*(taken for _, taken in results))]
    assert sum(sizes) == 64
    for params, _ in results:
        for value, first, expected in zip(params, results[0][0], on_one_device(64, sizes)):
            assert (value == first).all()
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-10)


def test_over_a_slow_link_the_overhead_comes_to_its_target():
    """And the counts to the speeds."""
    cluster = Cluster.of_speeds([3, 2, 1], link=SLOW_LINK)
    trace = simulate.run(lambda comm: train(comm, 600, CadenceConfig(1)), cluster)
    overheads = [
        min(rank.steps[i].exposed_s for rank in trace.ranks) / max(rank.steps[i].compute_s for rank in trace.ranks)
        for i in range(trace.steps())
    ]
    assert overheads[0] > 1.0 and overheads[-2] < 0.13
    decisions = trace.decisions
    assert decisions[0]["kind"] == "cadence" and "first report" in decisions[0]["reason"]
    slow = decisions[-1]["anchor"]
    assert slow > 5 and decisions[-1]["counts"] == (3 * slow, 2 * slow, slow)
    assert [d["counts"] for d in trace.ranks[2].decisions] == [d["counts"] for d in decisions]
    assert trace.idle_fraction(3, -1) < 0.05


def test_a_round_cut_short_by_the_end_of_an_epoch_does_not_move_the_anchor():
    """Its reduction costs what others cost, after less computing: that says nothing about whole rounds."""
    el_che, *_ = ElChe.start(2, CadenceConfig(10, min_anchor=1)).report_timing([1000.0, 1000.0], [10, 10], 95.0)
    after, counts, reason = el_che.report_timing([100.0, 100.0], [1, 1], 95.0)
    assert counts == (10, 10) and after.anchor == 10 and "overhead 0.095 is near 0.1" in reason


class Clock:
    """Moves where a test says so."""

    seconds = 0.0

    def now_s(self):
        return self.seconds

    def progress(self, fraction):
        pass


def test_ranks_that_waited_differently_decide_alike():
    """9 and 11 of 100 would be under and over the target: the reduction is what the last to come waits for."""

    def body(comm):
        comm.clock = clock = Clock()
        rounds = Rounds(comm)
        for _ in range(2):
            with rounds.round():
                clock.seconds += 0.100
                rounds.comm.barrier()
                with rounds.comm.waiting():
                    clock.seconds += 0.009 + 0.002 * comm.rank
        return rounds.el_che.anchor, rounds.reason

    assert run(body, 2) == [(10, "overhead 0.09 is near 0.1: anchor 10 stays; counts (10, 10) stay")] * 2


def test_times_that_a_device_hands_in_late_meet_what_belongs_to_their_own_round():
    stream = io.StringIO()

    def body(comm):
        comm.clock = clock = Clock()
        rounds, held = Rounds(comm, guard=LevelGuard(2.5), journal=stream), []
        if comm.rank == 1:
            read = rounds._times.read
            rounds._times.read = lambda: held.append(read()) or (held.pop(0) if len(held) > 1 else [])
        for number in range(1, 5):
            with rounds.round():
                clock.seconds += number
                rounds.comm.barrier()
                rounds.report(apart(float(number)))

    run(body, 2)
    entries = [json.loads(line) for line in stream.getvalue().splitlines()[1:]]
    assert [entry["wall_ms"] for entry in entries] == [[1e3 * n] * 2 for n in (1, 2, 3)]
    assert [entry["divergence"]["relative"] for entry in entries] == [[1.0] * 2, [2.0] * 2, [3.0] * 2]


def test_one_seed_gives_one_trace_and_the_journal_its_decisions():
    streams = [io.StringIO(), io.StringIO()]
    cluster = Cluster.of_speeds([3, 1], link=SLOW_LINK, jitter_fraction=0.1)
    first, second = (simulate.run(lambda comm: train(comm, 200, journal=stream), cluster) for stream in streams)
    assert first.ranks == second.ranks and streams[0].getvalue() == streams[1].getvalue()
    decisions = replay(streams[0].getvalue().splitlines())
    assert [(d.counts, d.reason) for d in decisions] == [(d["counts"], d["reason"]) for d in first.decisions]


def test_gradients_may_be_combined_by_a_call():
    def body(comm):
        rounds = Rounds(comm, CadenceConfig.fixed(2))
        model = make_model()
        for mine in rounds.deal(data(4)):
            samples = sum(len(x) for x, _ in mine)
            for x, y in mine:
                (nn.functional.mse_loss(model(x), y) * (len(x) / samples)).backward()
            average_gradients(model.parameters(), rounds.comm, samples)
        return model[0].weight.grad.numpy()

    first, second = run(body, 2)
    x, y = (minigrad.cat(parts) for parts in zip(*data(4)))
    model = make_model()
    nn.functional.mse_loss(model(x), y).backward()
    assert (first == second).all()
    np.testing.assert_allclose(first, model[0].weight.grad.numpy(), rtol=0, atol=1e-12)


def test_a_resumed_run_goes_on_as_if_it_had_never_stopped():
    """Stopped after a round; the state goes through JSON."""
    cluster = Cluster.of_speeds([3, 2, 1], link=SLOW_LINK)
    config, stream = CadenceConfig(2, max_batch_diff=4, speed_hint=(2, 2.0)), io.StringIO()

    def go(comm, count, state=None):
        rounds, seen = Rounds(comm, config, journal=stream), []
        if state is not None:
            rounds.load_state_dict(state)
        for _ in range(count):
            with rounds.round() as mine:
                comm.clock.compute(8 * (mine.stop - mine.start))
                rounds.comm.all_reduce(np.zeros(1000)).wait()
            seen.append((mine, rounds.el_che.anchor))
        return seen, rounds.state_dict()

    whole = simulate.run(lambda comm: go(comm, 12), cluster).results
    stopped = simulate.run(lambda comm: go(comm, 5), cluster).results
    stream.seek(0)
    stream.truncate()
    state = json.loads(json.dumps(stopped[1][1]))
    resumed = simulate.run(lambda comm: go(comm, 7, state), cluster).results
    for before, after, all_of_it in zip(stopped, resumed, whole):
        assert before[0] + after[0] == all_of_it[0]
    assert len({anchor for _, anchor in whole[0][0]}) > 1
    assert len(replay(stream.getvalue().splitlines())) == 7
    with pytest.raises(StateDictError, match="Rounds: expected the state of 1 ranks, got that of 3"):
        Rounds(SoloCommunicator()).load_state_dict(state)


def test_what_differs_between_ranks_is_refused():
    with pytest.raises(ReplicaMismatchError, match="Rounds: expected equal configurations on all ranks"):
        run(lambda comm: Rounds(comm, CadenceConfig.fixed(1 + comm.rank)), 2)

    def other_ends(comm):
        rounds = Rounds(comm, CadenceConfig.fixed(2))
        with rounds.round(3 + comm.rank):
            rounds.comm.barrier()

    with pytest.raises(ReplicaMismatchError, match="got 3 on rank 0 and 4 on rank 1"):
        run(other_ends, 2)


def test_wrong_use_is_an_error():
    def passes_by(comm):
        with Rounds(comm).round():
            comm.barrier()

    with pytest.raises(ArgumentError, match="Rounds: expected the step's collectives to go through its comm"):
        run(passes_by, 2)
    with pytest.raises(ArgumentError, match="batches_left to be an integer >= 1, got 0"):
        with Rounds(SoloCommunicator()).round(0):
            pass


# ---------------------------------------------------------------------------------------------------- under a guard


def apart(level, ranks=2):
    return Divergence((level,) * ranks, (1.0,) * ranks, (0.0,) * ranks)


def guarded(comm, guard, levels, **options):
    """Rounds over a link so slow that the anchor would double each time."""
    rounds, anchors = Rounds(comm, CadenceConfig(1), guard=guard, **options), []
    for level in levels:
        with rounds.round() as mine:
            comm.clock.compute(8 * (mine.stop - mine.start))
            rounds.comm.all_reduce(np.zeros(20_000)).wait()
            rounds.report(apart(level, comm.world_size))
        anchors.append(rounds.el_che.anchor)
    return anchors, rounds


def simulated(guard, levels, **options):
    found = simulate.run(
        lambda comm: guarded(comm, guard, levels, **options), Cluster.of_speeds([3, 1], link=SLOW_LINK)
    )
    (first, rounds), (second, _) = found.results
    assert first == second
    return first, rounds, found.decisions


def test_a_guard_is_asked_before_the_anchor_grows():
    """Held while ranks are as far apart as they were, and halved where that lasts; it never grew first."""
    free, _, told = simulated(NoGuard(), [0.9] * 5)
    assert free == [1, 2, 4, 8, 16] and "verdict" not in told[-1]
    held, rounds, told = simulated(LevelGuard(0.5), [0.1, 0.1, 0.1, 0.9, 0.9, 0.9, 0.1])
    assert held == [1, 2, 4, 4, 4, 4, 8]
    assert [decision["verdict"] for decision in told] == ["stable"] * 3 + ["hold"] * 3 + ["stable"]
    assert told[3]["reason"].startswith("hold: rank 0 is 0.9 from the average, above 0.5; overhead")
    assert rounds.reason.startswith("stable: rank 0 is 0.1 from the average, within 0.5; overhead")
    assert simulated(LevelGuard(0.5, patience=2), [0.1, 0.1, 0.1, 0.9, 0.9])[0] == [1, 2, 4, 4, 2]
    assert simulated(TrendGuard(), [0.06, 0.07, 0.08, 0.08])[0] == [1, 2, 2, 4]


def test_verdicts_and_their_reasons_are_in_the_journal_and_decided_again():
    stream = io.StringIO()
    levels = [0.01 * 1.4**i for i in range(8)]
    _, _, told = simulated(GrowthGuard(), levels, journal=stream)
    lines = stream.getvalue().splitlines()
    entries = [json.loads(line) for line in lines]
    assert {"name": "GrowthGuard", "hold_above": 0.001}.items() <= entries[0]["state"]["guard"].items()
    assert [entry["verdict"]["action"] for entry in entries[1:]] == [each["verdict"] for each in told]
    assert "nudge" in [each["verdict"] for each in told]
    assert [Divergence.from_data(entry["divergence"]) for entry in entries[1:]] == [apart(level) for level in levels]
    assert [(d.counts, d.reason) for d in replay(lines)] == [(each["counts"], each["reason"]) for each in told]
    entries[5]["verdict"]["reason"] = "because"
    with pytest.raises(ArgumentError, match="decide line 6 again, got expected Verdict.*'because'"):
        replay([json.dumps(entry) for entry in entries])


def wary(state, divergence):
    """A guard of a user's own: every second reading holds."""
    number = (state or 0) + 1
    return number, Verdict("stable" if number % 2 else "hold", reason=f"reading {number}")


def test_a_guard_of_ones_own():
    stream = io.StringIO()
    anchors, *_ = simulated(wary, [0.0] * 5, journal=stream)
    assert anchors == [1, 1, 2, 2, 4]
    lines = stream.getvalue().splitlines()
    assert len(replay(lines, guard=wary)) == 5
    with pytest.raises(ArgumentError, match="guard: expected the guard {'name': 'wary'}, got none"):
        replay(lines)


def test_a_resumed_run_goes_on_under_its_guard():
    guard, levels = LevelGuard(0.5, patience=2), [0.1, 0.1, 0.9, 0.9, 0.1]

    def go(comm, some, state=None):
        rounds, seen = Rounds(comm, CadenceConfig(1), guard=guard), []
        if state is not None:
            rounds.load_state_dict(state)
        for level in some:
            with rounds.round() as mine:
                comm.clock.compute(8 * (mine.stop - mine.start))
                rounds.comm.all_reduce(np.zeros(20_000)).wait()
                rounds.report(apart(level))
            seen.append((rounds.el_che.anchor, rounds.cadence.verdict))
        return seen, rounds.state_dict()

    cluster = Cluster.of_speeds([3, 1], link=SLOW_LINK)
    before, state = simulate.run(lambda comm: go(comm, levels[:3]), cluster).results[0]
    stopped = json.loads(json.dumps(state))
    assert stopped["guard_state"] == 1
    after, _ = simulate.run(lambda comm: go(comm, levels[3:], stopped), cluster).results[0]
    assert before + after == simulate.run(lambda comm: go(comm, levels), cluster).results[0][0]
    with pytest.raises(StateDictError, match="Rounds: expected the state of guard"):
        run(lambda comm: Rounds(comm, CadenceConfig(1), guard=TrendGuard()).load_state_dict(stopped), 2)


def test_the_spread_of_gradients_as_a_divergence():
    """Rank r's gradient is 2·(r + 1) · [3, 4] beside a mean of 3 · [3, 4]."""

    def body(comm):
        rounds, exchange = Rounds(comm, CadenceConfig.fixed(1), guard=LevelGuard(0.2)), DivergenceExchange(comm)
        with rounds.round():
            gradient = 2.0 * (comm.rank + 1) * np.array([3.0, 4.0])
            own = gradient.copy()
            rounds.comm.weighted_all_reduce(gradient, np.array([0.5])).wait()
            exchange.start(sums_of([(own, gradient)]))
            rounds.report(exchange.read())
        return rounds.reason.split(";")[0]

    third = f"{1 / 3:.4g}"
    assert run(body, 2) == [f"hold: rank 0 is {third} from the average, above 0.2"] * 2


def test_wrong_use_of_a_guard_is_an_error():
    solo = SoloCommunicator()
    with pytest.raises(ArgumentError, match=r"Rounds.report: expected Rounds\(..., guard=\) to judge it, got none"):
        Rounds(solo).report(apart(0.1, 1))
    with pytest.raises(ArgumentError, match="Rounds.report: expected a Divergence of 1 ranks, got Divergence"):
        Rounds(solo, guard=NoGuard()).report(apart(0.1))
    with pytest.raises(ArgumentError, match="rank 0: Rounds: expected rounds.report.divergence. in a round"):
        with Rounds(solo, guard=LevelGuard(0.5)).round():
            pass
    with pytest.raises(ReplicaMismatchError, match="guard is .* on rank 0 and .* on rank 1"):
        run(lambda comm: Rounds(comm, guard=LevelGuard(0.1 * (comm.rank + 1))), 2)

    def other_divergence(comm):
        rounds = Rounds(comm, guard=LevelGuard(0.5))
        with rounds.round():
            rounds.comm.barrier()
            rounds.report(apart(0.1 * comm.rank))

    with pytest.raises(ReplicaMismatchError, match="divergence is Divergence.* on rank 0 and .* on rank 1"):
        run(other_divergence, 2)
