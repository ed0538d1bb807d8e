"""A strategy of a user's own decides where ours does; what it does wrong is told on all ranks."""

import io
import json
import random

import numpy as np
import pytest

from minigrad.distributed import (
    Balance,
    BalanceConfig,
    Balancer,
    Reading,
    SoloCommunicator,
    compute_shard_sizes,
    rebalance,
    run,
    simulate,
)
from minigrad.distributed import balance
from minigrad.distributed.balance import balance_strategy, replay, stateless
from minigrad.distributed.comm.wrappers import Recording
from minigrad.errors import ArgumentError, ReplicaMismatchError, StateDictError
from minigrad.testing import check_balancer

BATCH = 60
OFTEN = BalanceConfig(calibration_steps=2, interval_steps=3)


def by_speed(batch_size, throughputs):
    return compute_shard_sizes(batch_size, rebalance(throughputs))


def half_way(state, batch_size, readings):
    """Half of the way to where speeds point, of shares that are remembered."""
    state = state or {"shares": [1 / len(readings)] * len(readings), "asked": 0}
    wanted = rebalance([n / s if s else None for n, s in readings])
    shares = [(old + new) / 2 for old, new in zip(state["shares"], wanted)]
    asked = state["asked"] + 1
    return {"shares": shares, "asked": asked}, compute_shard_sizes(batch_size, shares), f"asked {asked} times"


def train(comm, strategy, count=9, config=OFTEN, journal=None, state=None, wrap=lambda comm: comm):
    """Balanced steps without a model; the balancer, and the rows of each step."""
    balancer, taken = Balancer(wrap(comm), strategy, config, journal=journal), []
    if state is not None:
        balancer.load_state_dict(state)
    for _ in range(count):
        with balancer.step(BATCH) as rows:
            comm.clock.compute(rows.stop - rows.start)
            balancer.comm.all_reduce(np.zeros(1)).wait()
        taken.append((rows.start, rows.stop))
    return balancer, taken


def on_a_cluster(fn, *args, **options):
    return simulate.run(lambda comm: fn(comm, *args, **options), simulate.Cluster.of_speeds([3, 2, 1]))


def test_it_decides_in_the_simulation_and_its_decisions_are_seen_through_wrappers():
    trace = on_a_cluster(train, by_speed, wrap=Recording)
    assert [balancer.shard_sizes(BATCH) for balancer, _ in trace.results] == [(30, 20, 10)] * 3
    assert [taken[1] for _, taken in trace.results] == [(0, 20), (20, 40), (40, 60)]  # as it began
    assert [(entry["step"], entry["shards"]) for entry in trace.decisions] == [(n, (30, 20, 10)) for n in (2, 5, 8)]
    assert trace.results[2][0].reason == trace.decisions[-1]["reason"] == "(3000, 2000, 1000) samples/s"
    assert trace.results[1][0].shard_sizes(6) == (3, 2, 1)  # another batch, in the same shares


def test_its_journal_replays_and_its_run_resumes():
    streams = [io.StringIO() for _ in range(3)]
    whole = on_a_cluster(lambda comm: train(comm, half_way, 10, journal=streams[comm.rank]))
    decisions = replay(streams[0].getvalue().splitlines(), half_way)
    assert [decision.reason for decision in decisions] == [f"asked {n} times" for n in range(1, 9)]  # those handed in
    assert decisions[7].counts == whole.decisions[-1]["shards"] != decisions[0].counts
    assert streams[1].getvalue() == ""
    first = on_a_cluster(train, half_way, 8).results
    states = [json.loads(json.dumps(balancer.state_dict())) for balancer, _ in first]
    assert states[0] == states[1] == states[2] and states[0]["state"]["asked"] == 8
    second = on_a_cluster(train, half_way, 2, state=states[2]).results
    for before, after, (balancer, taken) in zip(first, second, whole.results):
        assert before[1] + after[1] == taken and after[0].state_dict() == balancer.state_dict()


def test_ours_is_one():
    config = BalanceConfig(calibration_steps=3, interval_steps=2, caps=(None, 9, None))
    strategy, state, balance = balance_strategy(config), None, Balance.start(3, config)
    for _ in range(7):
        sizes = balance.shard_sizes(BATCH)
        rows = [(n, 0.5 + n * speed if rank else 0.0) for rank, (n, speed) in enumerate(zip(sizes, (0.1, 0.2, 0.4)))]
        balance, _, reason = balance.observe(BATCH, [Reading(*row) if row[1] else None for row in rows])
        state, told, why = strategy(json.loads(json.dumps(state)), BATCH, rows)
        assert (told, why) == (balance.shard_sizes(BATCH), reason)
    assert Balance.from_state_dict(state) == balance


def test_a_function_without_state_gets_medians_of_what_was_measured():
    seen = []
    strategy = stateless(lambda batch, speeds: seen.append(speeds) or [batch, 0])
    state = None
    for seconds in (1.0, 1.0, 100.0):
        state, _, reason = strategy(state, 8, [(8, seconds), (0, 0.0)])
    assert seen == [[8.0, 8.0]] * 3 and reason == "(8, 8) samples/s" and state == [[8.0, 8.0, 0.08], []]


def no_state(state, batch_size, readings):
    return {1, 2}, [30, 30], ""


def tuple_in_state(state, batch_size, readings):
    return {"last": (1, 2)}, [30, 30], ""


def keys_in_state(state, batch_size, readings):
    return {0: 1.0}, [30, 30], ""


def raising(state, batch_size, readings):
    return state["no such"], [30, 30], ""


WRONG = [
    (lambda batch, speeds: [30, 31], r"expected sizes of sum 60, got \(30, 31\) of sum 61"),
    (lambda batch, speeds: [61, -1], r"expected sizes that are whole numbers >= 0, got \(61, -1\)"),
    (lambda batch, speeds: [30.0, 30.0], r"expected sizes that are whole numbers >= 0, got \(30.0, 30.0\)"),
    (lambda batch, speeds: [60], r"stateless\(<lambda>\): expected 2 sizes, one a rank, got 1: \(60\)"),
    (lambda batch, speeds: None, "expected sizes as a sequence with a value for each rank, got None"),
    (lambda batch, speeds: {0: 20, 60: 40}, "expected sizes as a sequence with a value for each rank, got {0: 20, 60"),
    (lambda batch, speeds: {29, 31}, "expected sizes as a sequence with a value for each rank, got {29, 31}"),
    (lambda state, batch, readings: [30, 30], r"<lambda>: expected \(state, sizes, reason\), got \[30, 30\]"),
    (lambda state, batch, readings: (state, [30, 30], 3), r"expected \(state, sizes, reason\), got \(None, "),
    (no_state, r"no_state: expected a state that JSON takes, got \{1, 2\}"),
    (tuple_in_state, r"expected a state that JSON gives back as it is, got \{'last': \(1, 2\)\}: use lists for tuples"),
    (keys_in_state, r"expected a state that JSON gives back as it is, got \{0: 1.0\}: .* texts as keys"),
    (raising, "raising: expected a decision, got TypeError: 'NoneType' object is not subscriptable"),
]


@pytest.mark.parametrize("strategy, message", WRONG)
def test_what_a_strategy_does_wrong_is_told_on_all_ranks(strategy, message):
    def fn(comm):
        told = f"rank {comm.rank}: Balancer: expected a decision of .* on rank 0, got .*{message}"
        with pytest.raises(ArgumentError, match=told):
            train(comm, strategy)
        return True

    assert run(fn, 2) == [True, True]


@pytest.mark.parametrize(
    "strategy, error, message",
    [
        (lambda rank: [30 + rank, 30 - rank], ReplicaMismatchError, "expected equal .*stateless.* on rank 1: a str"),
        (lambda rank: [30, 30 + rank], ArgumentError, "expected a decision of stateless.* on rank 1, got .* of sum 61"),
    ],
)
def test_ranks_that_decide_otherwise_are_told_on_all_ranks(strategy, error, message):
    def fn(comm):
        with pytest.raises(error, match=f"rank {comm.rank}: Balancer: {message}"):
            train(comm, lambda batch, speeds: strategy(comm.rank))
        return True

    assert run(fn, 2) == [True, True]


def test_states_that_differ_are_told_too():
    def fn(comm):
        with pytest.raises(ReplicaMismatchError, match="decisions of .*, got state is 0 on rank 0 and 1 on rank 1"):
            train(comm, lambda state, batch, readings: (comm.rank, [30, 30], "equal"))
        return True

    assert run(fn, 2) == [True, True]


def test_a_failure_of_ours_on_rank_0_is_told_on_all_ranks(monkeypatch):
    monkeypatch.setattr(Balance, "observe", lambda *_: 1 // 0)

    def fn(comm):
        with pytest.raises(ArgumentError, match=f"rank {comm.rank}: .* of Balance on rank 0, got ZeroDivisionError"):
            train(comm, None)
        return True

    assert run(fn, 2) == [True, True]


def test_ranks_with_different_strategies_are_refused():
    with pytest.raises(ReplicaMismatchError, match="expected equal configurations on .* got strategy is half_way on"):
        run(lambda comm: Balancer(comm, [half_way, by_speed][comm.rank]), 2)
    with pytest.raises(ReplicaMismatchError, match="got strategy is Balance on rank 0 and stateless"):
        run(lambda comm: Balancer(comm, [None, by_speed][comm.rank]), 2)


def test_a_replay_finds_a_strategy_that_is_no_function_of_its_arguments():
    def by_chance(state, batch_size, readings):
        first = random.randrange(1, batch_size)
        return state, [first, batch_size - first][: len(readings)] if len(readings) > 1 else [batch_size], str(first)

    stream = io.StringIO()
    train(SoloCommunicator(), by_chance, 20, BalanceConfig(1, 1), stream)
    lines = stream.getvalue().splitlines()
    with pytest.raises(ArgumentError, match="replay: expected Decision.* again, .* no function of its arguments"):
        replay(lines, by_chance)
    with pytest.raises(ArgumentError, match=r"line 1 again, got expected replay\(lines, strategy\) with test_"):
        replay(lines)
    with pytest.raises(ArgumentError, match="replay: expected to decide line 2 again, got .*: expected sizes of"):
        replay([lines[0].replace("by_chance", "<lambda>"), lines[1]], lambda state, batch, readings: (state, [0], ""))


def test_what_is_no_strategy_and_options_of_ours_are_refused():
    for wrong in (3, lambda batch: [batch], lambda *, batch, speeds: [batch]):
        with pytest.raises(ArgumentError, match=r"Balancer: expected a strategy \(state, batch_size, readings\) -> "):
            Balancer(SoloCommunicator(), wrong)
    with pytest.raises(ArgumentError, match="Balancer: expected no granularity for a strategy of your own, got B"):
        Balancer(SoloCommunicator(), by_speed, BalanceConfig(granularity=2))
    with pytest.raises(ArgumentError, match="Balancer: expected one configuration, got "):
        Balancer(SoloCommunicator(), OFTEN, OFTEN)
    assert Balancer(SoloCommunicator(), config=OFTEN).balance == Balancer(SoloCommunicator(), OFTEN).balance


def test_the_state_of_another_strategy_is_refused():
    state = Balancer(SoloCommunicator(), half_way).state_dict()
    for strategy, given, message in (
        (by_speed, state, r"expected the state of strategy stateless\(by_speed\), got that of half_way"),
        (half_way, {**state, "state": (1,)}, "half_way: expected what its state_dict"),
        (half_way, Balance.start(1).state_dict(), "half_way: expected what its state_dict"),
        (half_way, None, "half_way: expected what its state_dict"),
        (None, state, "Balance: expected what its state_dict"),
    ):
        with pytest.raises(StateDictError, match=message):
            Balancer(SoloCommunicator(), strategy).load_state_dict(given)


def test_an_empty_batch_leaves_the_division_as_it_is():
    balancer = Balancer(SoloCommunicator(), by_speed, BalanceConfig(1, 1))
    for batch in (0, 4, 0):
        with balancer.step(batch):
            pass
        assert balancer.shard_sizes(8) == (8,)


# ------------------------------------------------------------------------------------------------------ check_balancer


def by_chance(state, batch_size, readings):
    return None, [batch_size] + [0] * (len(readings) - 1), str(random.random())


STRATEGIES = {
    "balance_strategy": balance_strategy(BalanceConfig(calibration_steps=2)),
    "stateless": stateless(by_speed),
}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_strategies_that_keep_the_rules_pass(strategy):
    for batch in (3, 200):  # with ranks that were never measured, and without
        check_balancer(strategy, steps=2, max_ranks=4, max_batch=batch, max_examples=15)


def test_every_strategy_of_ours_is_checked():
    made_here = {name for name in balance.__all__ if getattr(balance, name).__module__.endswith(".balance.strategy")}
    assert made_here - {"Strategy"} == set(STRATEGIES)
