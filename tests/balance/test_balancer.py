"""The balancer of a rank: on virtual clocks it reaches the best shards; waiting never counts as computing."""

import io
import json

import numpy as np
import pytest

from minigrad import nn, optim, randn
from minigrad.distributed import DDP, BalanceConfig, Balancer, CostModel, SoloCommunicator, allocate, run, simulate
from minigrad.distributed.balance import Metered, replay
from minigrad.distributed.comm.wrappers import Recording
from minigrad.errors import ArgumentError, ReplicaMismatchError
from tests.balance.virtual import noise
from tests.distributed.worlds import run_ranks

BATCH = 60


class ModelClock:
    """A clock that only computing moves, by a cost model."""

    def __init__(self, cost, factor=lambda step: 1.0):
        self.cost, self.factor, self.seconds, self.steps = cost, factor, 0.0, 0

    def now_s(self):
        return self.seconds

    def compute(self, samples):
        self.seconds += self.cost.time_s(samples) * self.factor(self.steps) if samples else 0.0
        self.steps += 1

    def progress(self, fraction):
        pass


def steps(comm, count, config=None, journal=None, cost=None, factor=lambda step: 1.0):
    """Balanced steps without a model: compute, then a collective during which other ranks' clocks say nothing."""
    if cost is not None:
        comm.clock = ModelClock(cost, factor)
    balancer = Balancer(comm, config, journal=journal)
    taken = []
    for _ in range(count):
        with balancer.step(BATCH) as rows:
            comm.clock.compute(rows.stop - rows.start)
            balancer.comm.all_reduce(np.zeros(1)).wait()
        taken.append((rows.start, rows.stop))
    return balancer, taken


COSTS = [CostModel(1.0, 1 / 3), CostModel(0.5, 1 / 2), CostModel(2.0, 1.0)]


def test_all_ranks_take_over_the_division_of_rank_0():
    balancers = run(lambda comm: steps(comm, 12, cost=COSTS[comm.rank])[0], 3)
    assert {balancer.balance.division for balancer in balancers} == {balancers[0].balance.division}
    assert balancers[0].balance.division.shards == allocate(BATCH, COSTS)
    assert [balancer.balance.step for balancer in balancers] == [12] * 3
    assert {balancer.reason for balancer in balancers} == {balancers[0].reason}
    assert balancers[2].ratios == balancers[0].ratios
    kept = [any(history.earlier for history in balancer.balance.histories) for balancer in balancers]
    assert kept == [True, False, False]  # readings are on rank 0 alone


def test_the_rows_of_the_ranks_are_the_batch():
    taken = run(lambda comm: steps(comm, 25, cost=COSTS[comm.rank], config=BalanceConfig(5, 5))[1], 3)
    for parts in zip(*taken):
        assert [start for start, _ in parts] == [0, *[stop for _, stop in parts[:-1]]]
        assert parts[-1][1] == BATCH


def test_waiting_is_not_computing():
    """In the simulation all ranks' steps take equally long, since they wait for each other."""
    cluster = simulate.Cluster.of_speeds([3, 2, 1], fixed_s=0.01, link=simulate.Link(0.05, 1e6))
    trace = simulate.run(lambda comm: steps(comm, 11)[0].balance.division, cluster)
    costs = [CostModel(rank.fixed_s, rank.per_sample_s) for rank in cluster.ranks]
    assert trace.results[0].shards == allocate(BATCH, costs)


def train_ddp(comm):
    balancer = Balancer(comm)
    ddp = DDP(nn.Linear(3, 1), balancer.comm)
    optimizer, batch = optim.SGD(ddp.parameters(), lr=0.01), randn(BATCH, 3)
    for _ in range(11):
        with balancer.step(len(batch)) as rows:
            optimizer.zero_grad()
            ddp(batch[rows]).square().mean().backward()
            optimizer.step()
    return balancer.balance.division.shards


def test_ddp_is_balanced_in_the_simulation_and_decisions_are_in_its_trace():
    cluster = simulate.Cluster.of_speeds([3, 2, 1], fixed_s=1e-3, link=simulate.Link(1e-4, 1e9))
    trace = simulate.run(train_ddp, cluster)
    assert trace.results == [(30, 20, 10)] * 3
    [decision] = [entry for entry in trace.ranks[1].decisions if entry["kind"] == "balance"]
    assert decision["step"] == 10 and decision["shards"] == (30, 20, 10)
    assert "(20, 20, 20) would take" in decision["reason"]


def test_ranks_talk_only_where_a_decision_is_due():
    def talk(comm):
        recording = Recording(comm)
        steps(recording, 9, BalanceConfig(calibration_steps=4, interval_steps=4))
        return [call.kind for call in recording.calls]

    one = ["all_reduce"] * 4 + ["all_gather_object"] * 2
    assert run(talk, 2) == [["all_gather_object"] + one + one + ["all_reduce"]] * 2


def test_the_journal_of_rank_0_replays():
    streams = [io.StringIO(), io.StringIO()]
    config = BalanceConfig(calibration_steps=4, interval_steps=3)

    def fn(comm):
        chance = noise(5, 0.3)
        cost, mine = COSTS[comm.rank], lambda step: chance(step, comm.rank)
        return steps(comm, 14, config, streams[comm.rank], cost, mine)[0].balance.division

    division, _ = run(fn, 2)
    decisions = replay(streams[0].getvalue().splitlines())
    assert len(decisions) == 13  # the last step is handed in with the next decision
    assert decisions[-1].counts == division.shards
    assert streams[1].getvalue() == ""


def test_a_step_without_a_collective_of_the_balancer_is_refused():
    def fn(comm):
        balancer = Balancer(comm)
        with balancer.step(4):
            comm.barrier()

    with pytest.raises(ArgumentError, match="rank .: Balancer: expected the step's collectives to go through its comm"):
        run(fn, 2)


def test_options_that_differ_between_ranks_are_refused():
    with pytest.raises(ReplicaMismatchError, match="Balancer: expected equal configurations on all ranks"):
        run(lambda comm: Balancer(comm, BalanceConfig(granularity=1 + comm.rank)), 2)


def test_batches_that_differ_between_ranks_are_refused():
    def fn(comm):
        balancer = Balancer(comm, BalanceConfig(calibration_steps=2))
        for batch in (4, 4 + comm.rank):
            with balancer.step(batch):
                balancer.comm.barrier()

    with pytest.raises(ReplicaMismatchError, match=r"equal batch sizes on all ranks, got \[4, 4\] on"):
        run(fn, 2)


def test_a_resumed_run_goes_on_as_if_it_had_never_stopped():
    """Stopped at a decision; what rank 0 saved, through JSON, serves all ranks."""
    config, stream = BalanceConfig(calibration_steps=4, interval_steps=5, speed_hint={2: 0.5}), io.StringIO()

    def go(comm, count, state=None):
        chance, first = noise(3, 0.2), 0 if state is None else state["step"]
        comm.clock = ModelClock(COSTS[comm.rank], lambda step: chance(first + step, comm.rank))
        balancer, taken = Balancer(comm, config, journal=stream), []
        if state is not None:
            balancer.load_state_dict(state)
        for _ in range(count):
            with balancer.step(BATCH) as rows:
                comm.clock.compute(rows.stop - rows.start)
                balancer.comm.barrier()
            taken.append((rows, balancer.reason))
        return taken, balancer.state_dict()

    whole = run(lambda comm: go(comm, 19), 3)
    stopped = run(lambda comm: go(comm, 9), 3)
    stream.seek(0)
    stream.truncate()
    state = json.loads(json.dumps(stopped[0][1]))
    resumed = run(lambda comm: go(comm, 10, state), 3)
    for before, after, all_of_it in zip(stopped, resumed, whole):
        rows = [part for part, _ in all_of_it[0]]
        assert [part for part, _ in before[0] + after[0]] == rows
        assert after[0][0][1] == "resumed" and after[0][-1] == all_of_it[0][-1]
    assert len(replay(stream.getvalue().splitlines())) == 10


def test_sizes_may_be_those_of_an_array_and_still_be_written():
    stream = io.StringIO()
    balancer = Balancer(SoloCommunicator(), BalanceConfig(calibration_steps=1), journal=stream)
    with balancer.step(np.int64(4)):
        pass
    with balancer.step(np.int64(4)):
        pass
    assert json.loads(stream.getvalue().splitlines()[1])["batch_size"] == 4


def test_waits_between_steps_do_not_count():
    def fn(comm):
        comm.clock = ModelClock(COSTS[comm.rank])
        balancer = Balancer(comm)
        for _ in range(11):
            balancer.comm.barrier()
            with balancer.step(BATCH) as rows:
                balancer.comm.all_reduce(np.zeros(1)).wait()
                comm.clock.compute(rows.stop - rows.start)
            balancer.comm.barrier()
        return balancer.balance.division.shards

    assert run(fn, 3) == [allocate(BATCH, COSTS)] * 3


def test_a_wait_within_a_wait_is_one():
    meter = Metered(SoloCommunicator())
    with meter.waiting():
        meter.barrier()
    assert meter.calls == meter.stretches == 1


@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_a_weighted_sum_is_one_call_and_one_wait(kind):
    def body(comm):
        meter, array = Metered(comm), np.full(3, comm.rank + 1.0)
        meter.weighted_all_reduce(array, np.array([0.25]), "").wait()
        return array.tolist(), meter.calls, meter.stretches

    assert run_ranks(kind, body, 2) == [([0.75] * 3, 1, 1)] * 2


def test_a_step_that_raises_is_no_reading():
    balancer = Balancer(SoloCommunicator(), BalanceConfig(calibration_steps=2))
    with pytest.raises(KeyError):
        with balancer.step(4):
            raise KeyError
    for _ in range(2):
        with balancer.step(4) as rows:
            assert rows == slice(0, 4)
    assert balancer.balance.step == 2 and balancer.balance.division.shards == (4,)


def test_a_timeline_gets_every_decision():
    class Notes(list):
        def event(self, kind, **fields):
            self.append((kind, fields["step"]))

    notes = Notes()
    balancer = Balancer(SoloCommunicator(), BalanceConfig(calibration_steps=2, interval_steps=2), timeline=notes)
    for _ in range(5):
        with balancer.step(4):
            pass
    assert notes == [("balance", 2), ("balance", 4)]
