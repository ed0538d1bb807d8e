"""Strategies draw what they say, and the check finds the faults that balancers have."""

import math
import sys

import pytest
from hypothesis import given

from minigrad.distributed import CostModel, allocate, compute_shard_sizes, rebalance
from minigrad.errors import ArgumentError, MissingPackageError
from minigrad.testing import check_balancer, strategies


@given(ratios=strategies.ratios(), speeds=strategies.throughputs(5, 2), division=strategies.divisions(30, 4, 3))
def test_what_is_drawn(ratios, speeds, division):
    assert math.isclose(math.fsum(ratios), 1.0) and min(ratios) >= 0 and len(ratios) <= 8
    assert 2 <= len(speeds) <= 5 and min(speeds) > 0
    assert 3 <= sum(division) <= 30 and min(division) >= 0 and len(division) <= 4


@given(cluster=strategies.clusters(4, 2, max_jitter_fraction=0.3))
def test_clusters_are_those_of_the_simulation(cluster):
    assert 2 <= cluster.world_size <= 4
    assert all(rank.per_sample_s > 0 and rank.jitter_fraction <= 0.3 for rank in cluster.ranks)


def naive(batch, speeds):
    """Raise what is under the floor, normalise again, round each rank, leave the rest to the last."""
    shares = [max(0.05, speed / sum(speeds)) for speed in speeds]
    sizes, left = [], batch
    for rank, share in enumerate(shares[:-1]):
        size = min(max(1, round(batch * share / sum(shares))), left - (len(shares) - rank - 1))
        sizes.append(size)
        left -= size
    return [*sizes, left]


def sound(batch, speeds):
    return compute_shard_sizes(batch, rebalance(speeds))


def two_apart(batch, speeds):
    """Where two ranks are equal and so could their shards be."""
    equal = batch and batch % 2 == 0 and len(speeds) == 2 and speeds[0] == speeds[1]
    return [batch // 2 + 1, batch // 2 - 1] if equal else sound(batch, speeds)


def broken_rules(balancer, **options):
    with pytest.raises(AssertionError) as raised:
        check_balancer(balancer, **options)
    return str(raised.value)


def test_the_faults_of_a_naive_balancer_are_found():
    message = broken_rules(naive, min_ratio=0.05, max_ranks=8, max_batch=2000, max_examples=80)
    assert "one whole number >= 0 for each rank: balancer(" in message and "gave [-1, 1" in message
    assert "ranks of equal speed differ by at most one sample: balancer(" in message
    assert "no share is under the floor, 0.05, by more than rounding: balancer(" in message


@pytest.mark.parametrize(
    "balancer, rule",
    [
        (lambda batch, speeds: [batch] * len(speeds), "the shards sum to the batch: balancer(1, [1.0, 1.0])"),
        (lambda batch, speeds: [float(batch)], "one whole number >= 0 for each rank: balancer(0, [1.0])"),
        (lambda batch, speeds: [batch // (len(speeds) - 1)], "raised ZeroDivisionError"),
        (lambda batch, speeds: [batch] + [0] * (len(speeds) - 1), "permuted ranks get permuted shards"),
        (two_apart, "ranks of equal speed differ by at most one sample: balancer(2, [1.0, 1.0]) gave [2, 0]"),
        (lambda batch, speeds: compute_shard_sizes(batch, rebalance([1 / s for s in speeds])), "a faster rank never"),
    ],
)
def test_each_rule_is_told(balancer, rule):
    assert rule in broken_rules(balancer, max_ranks=4, max_examples=200)


@pytest.mark.parametrize(
    "balancer, floor",
    [
        (sound, None),
        (lambda batch, speeds: compute_shard_sizes(batch, rebalance(speeds, 0.05)), 0.05),
        (lambda batch, speeds: allocate(batch, [CostModel(0.0, 1 / speed) for speed in speeds]), 0.0),
    ],
    ids=["default floor", "floor", "allocation"],
)
def test_what_keeps_the_rules_passes(balancer, floor):
    check_balancer(balancer, min_ratio=floor, max_examples=40)


@pytest.mark.parametrize("strategy", [strategies.throughputs, strategies.ratios, strategies.clusters])
def test_there_is_something_between_the_bounds(strategy):
    with pytest.raises(ArgumentError, match=f"{strategy.__name__}: expected max_ranks to be an integer >= 3, got 2"):
        strategy(2, 3)
    with pytest.raises(ArgumentError, match="expected min_ranks to be an integer >= 1, got 0"):
        strategy(2, 0)
    with pytest.raises(ArgumentError, match="strategies.divisions: expected max_batch to be an integer >= 9, got 5"):
        strategies.divisions(5, 2, 9)


def test_a_balancer_that_raises_is_told_once():
    message = broken_rules(lambda batch, speeds: None, max_examples=20)
    assert "got 1 broken" in message and "balancer(0, [1.0]) raised TypeError" in message


def test_a_missing_hypothesis_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(MissingPackageError, match="expected the package hypothesis, got none: pip install hypothesis"):
        strategies.ratios()
