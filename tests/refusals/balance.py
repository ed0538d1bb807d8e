"""What balancing and its configurations refuse."""

from itertools import product

from minigrad.distributed import (
    Balance,
    BalanceConfig,
    Balancer,
    ElChe,
    SoloCommunicator,
    compute_shard_sizes,
    rebalance,
)
from minigrad.distributed.balance import CadenceConfig, CostModel, Reading, median_cost, replay
from minigrad.distributed.balance.cost import fit_cost
from minigrad.errors import ArgumentError, StateDictError
from minigrad.testing import check_balancer
from tests.balance.test_strategies import naive
from tests.balance.test_strategy import by_chance, tuple_in_state
from tests.refusals import each


def late(state, batch_size, readings):
    """Sound, but for its first sizes."""
    sizes = compute_shard_sizes(batch_size, rebalance([1.0] * len(readings)))
    return True, sizes if state else [size + 1 for size in sizes], ""


ROWS = [
    # balancer
    *each(
        (lambda state: Balancer(SoloCommunicator()).load_state_dict(state), StateDictError),
        (Balance.start(3).state_dict(), "expected the state of 1 ranks, got that of 3"),
        (Balance.start(1, BalanceConfig(granularity=4)).state_dict(), "expected a state with granularity 1, got 4"),
        (ElChe.start(1).state_dict(), "Balance: expected what its state_dict"),
        ({}, "Balance: expected what its state_dict"),
    ),
    (lambda: Balancer(SoloCommunicator(), timeline=3), ArgumentError, "Balancer: expected a timeline with"),
    # cadence
    *each(
        (lambda options: ElChe.start(2, CadenceConfig(**options)), ArgumentError),
        ({"anchor": 0}, "CadenceConfig: expected anchor to be an integer >= 1, got 0"),
        ({"anchor": 10, "max_anchor": 3}, "expected min_anchor <= anchor <= max_anchor, got 10, 10 and 3"),
        ({"anchor": 10, "min_anchor": 11}, "expected min_anchor <= anchor <= max_anchor, got 11, 10 and 200"),
        ({"max_batch_diff": 0}, "expected max_batch_diff to be an integer >= 1, got 0"),
        ({"overhead_target": 0.6}, r"expected overhead_target to be a number in \[0.01, 0.5\], got 0.6"),
        ({"overhead_target": float("nan")}, "expected overhead_target to be a number in"),
        ({"speed_hint": (0, 0.4)}, "expected ratio, .* >= 1"),
        ({"speed_hint": (2, 2.0)}, r"expected slow_rank to be an integer in \[0, 2\), got 2"),
        ({"speed_hint": 3}, r"expected \(slow_rank, ratio\) or a mapping of rank to speed, got 3"),
    ),
    *each(
        (lambda walls, counts, sync: ElChe.start(2).report_timing(walls, counts, sync), ArgumentError),
        ([1.0], [1, 1], 0.0, "expected wall_ms of 2 ranks, got 1"),
        ([1.0, 1.0], [1], 0.0, "expected batch_counts of 2 ranks, got 1"),
        ([1.0, -1.0], [1, 1], 0.0, "expected each wall_ms to be a finite number >= 0, got -1.0"),
        ([1.0, 1.0], [1, -1], 0.0, "expected each batch count to be an integer >= 0, got -1"),
        ([1.0, 1.0], [1, 1], None, "expected sync_ms to be a finite number >= 0, got None"),
        who="report_timing: ",
    ),
    *each(
        (lambda factor: ElChe.start(2).nudge_anchor_down(factor), ArgumentError, "nudge_anchor_down: expected"),
        *[0.0, 1.5, -1.0],
    ),
    # division
    (lambda: Balance.start(2, BalanceConfig(caps=(20, 20))).shard_sizes(41), ArgumentError, "expected caps that hold"),
    *each(
        (lambda options: BalanceConfig(**options), ArgumentError),
        ({"calibration_steps": 0}, "expected calibration_steps to be an integer >= 1, got 0"),
        ({"interval_steps": 2.5}, "expected interval_steps to be an integer >= 1, got 2.5"),
        ({"window_steps": 51}, "expected window_steps <= interval_steps, got 51 > 50"),
        ({"min_ratio": -0.1}, "expected min_ratio to be a finite number >= 0, got -0.1"),
        ({"hysteresis": 1.0}, r"expected hysteresis to be a number in \[0, 1\), got 1.0"),
        ({"granularity": 0}, "expected granularity to be an integer >= 1, got 0"),
        ({"caps": (8, 1.5)}, "expected each cap to be an integer >= 0, got 1.5"),
        ({"caps": 8}, "expected a cap for each of 1 ranks, got 8"),
        who="BalanceConfig: ",
    ),
    *each(
        (lambda options: Balance.start(3, BalanceConfig(**options)), ArgumentError),
        ({"min_ratio": 0.5}, "Balance: expected min_ratio <= 1/3 for 3 ranks, got 0.5"),
        ({"caps": (1, 2)}, r"Balance: expected a cap for each of 3 ranks, got \(1, 2\)"),
        ({"speed_hint": (3, 2.0)}, r"expected slow_rank to be an integer in \[0, 3\), got 3"),
        ({"speed_hint": (0, 0.4)}, "expected ratio, .* >= 1"),
        ({"speed_hint": {1: 0.0}}, "expected the speed of rank 1 to be a finite number > 0, got 0.0"),
        ({"speed_hint": {7: 1.0}}, r"expected a rank to be an integer in \[0, 3\), got 7"),
    ),
    (lambda: Balance.start(2).observe(4, [None]), ArgumentError, "observe: expected 2 readings, one a rank, got 1"),
    (lambda: Balance.start(2).observe(-1, [None, None]), ArgumentError, "observe: expected batch_size to be an"),
    (lambda: Balance.start(2).observe(8, [None, (4, 1.0)]), ArgumentError, "observe: expected a Reading or None"),
    *each(
        (Reading, ArgumentError, "Reading: expected"),
        *[(0, 1.0), (1, 0.0), (1, float("nan")), (-1, 1.0), ("1", 1.0), (1, None)],
    ),
    (lambda: CostModel(0.0, -1.0), ArgumentError, "CostModel: expected per_sample_s to be a finite number >= 0"),
    (lambda: Balance.start(2, CadenceConfig()), ArgumentError, "Balance: expected a BalanceConfig, got CadenceConfig"),
    (lambda: ElChe.start(2, BalanceConfig()), ArgumentError, "ElChe: expected a CadenceConfig, got BalanceConfig"),
    *each(
        (lambda config, hint: config(speed_hint=hint), ArgumentError, "speed_hint: expected"),
        *product([BalanceConfig, CadenceConfig], [(0, 0.4), (-1, 2.0), 3, {0: 0.0}, {"a": 1.0}]),
    ),
    *each((median_cost, ArgumentError, "median_cost: expected the cost model of at least one rank, got"), [], [0.5]),
    # fitting
    (lambda: fit_cost([]), ArgumentError, "at least one reading"),
    # journal
    *each(
        (lambda line: replay([line]), ArgumentError, "replay: expected a journal's line, got line 1"),
        *["no JSON", "[]", '{"kind": "balance"}', '{"kind": "x", "config": {"speed_hint": null}}'],
    ),
    # strategies
    *each(
        (lambda options: check_balancer(naive, **options), ArgumentError),
        ({"max_examples": 0}, "max_examples to be an integer >= 1, got 0"),
        ({"max_batch": -1}, "max_batch to be an integer >= 0, got -1"),
        ({"max_ranks": 0}, "max_ranks to be an integer >= 1, got 0"),
        ({"min_ratio": 2}, "min_ratio <= 1/1 for 1 ranks, got 2"),
        who="check_balancer: expected ",
    ),
    (lambda: check_balancer(3), ArgumentError, "expected a strategy .*, or a function .*, got 3"),
    # strategy
    *each(
        (lambda strategy: check_balancer(strategy, max_ranks=3, max_examples=20), AssertionError),
        (by_chance, r"by its arguments alone: balancer\(0, \[1.0\]\) raised .* one decision on the same arguments"),
        (tuple_in_state, r"a decision by its arguments alone: .* a state that JSON gives back as it is"),
        (lambda state, batch, readings: (state, [batch] * len(readings), ""), r"the shards sum to the batch: balancer"),
        (lambda state, batch, readings: (state, [batch, *[0] * (len(readings) - 1)], ""), "permuted ranks"),
    ),
    (lambda: check_balancer(late, steps=2, max_ranks=2, max_examples=20), AssertionError, "the shards sum to the"),
]
