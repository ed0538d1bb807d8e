"""El Che on ranks: several whole batches, then one reduction."""

import io
import json

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, CadenceConfig, ElChe, Rounds, SoloCommunicator, average_gradients, run, simulate
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


def test_times_that_a_device_hands_in_late_meet_those_of_their_own_round():
    stream = io.StringIO()

    def body(comm):
        comm.clock = clock = Clock()
        rounds, held = Rounds(comm, journal=stream), []
        if comm.rank == 1:
            read = rounds._times.read
            rounds._times.read = lambda: held.append(read()) or (held.pop(0) if len(held) > 1 else [])
        for number in range(1, 5):
            with rounds.round():
                clock.seconds += number
                rounds.comm.barrier()

    run(body, 2)
    entries = [json.loads(line) for line in stream.getvalue().splitlines()[1:]]
    assert [entry["wall_ms"] for entry in entries] == [[1e3 * n] * 2 for n in (1, 2, 3)]


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
