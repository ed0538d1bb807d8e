"""Hypothesis strategies for balance, and a check of a balancer of your own. Needs the package hypothesis when called.

Strategies draw sizes, speeds and divisions, never the values of tensors: take those from a seeded normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from minigrad.arguments import as_integer, is_integer
from minigrad.distributed.balance.cost import CostModel
from minigrad.distributed.balance.shares import check_min_ratio
from minigrad.distributed.simulate import Cluster, RankCost
from minigrad.errors import ArgumentError, MissingPackageError

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

Sizes = Sequence[int]
BalanceFunction = Callable[[int, list[float]], Sizes]
_Case = tuple[int, list[float], int]  # batch size, throughputs, the seed of a permutation of the ranks

_MAX_EXAMPLES = 300


def _hypothesis() -> Any:
    try:
        import hypothesis
        import hypothesis.strategies
    except ImportError as error:
        raise MissingPackageError(
            "minigrad.testing.strategies: expected the package hypothesis, got none: pip install hypothesis"
        ) from error
    return hypothesis


# ------------------------------------------------------------------------------------------------------- strategies


def _check_bounds(who: str, what: str, low: int, high: int, least: int) -> None:
    """Refuse bounds between which there is nothing, or that are under the least; ArgumentError."""
    least = as_integer(f"strategies.{who}", f"min_{what}", low, least)
    as_integer(f"strategies.{who}", f"max_{what}", high, least)


def throughputs(max_ranks: int = 8, min_ranks: int = 1) -> SearchStrategy[list[float]]:
    """Samples per second of the ranks of a world: equal, of two kinds, or anything; all > 0.

    Example:
        >>> from hypothesis import find
        >>> find(throughputs(), lambda speeds: len(speeds) == 2)
        [1.0, 1.0]
    """
    _check_bounds("throughputs", "ranks", min_ranks, max_ranks, 1)
    st = _hypothesis().strategies
    sizes = range(min_ranks, max_ranks + 1)
    worlds = st.sampled_from([*sizes, *[max_ranks] * len(sizes)])
    speeds = st.sampled_from([1.0, 2.0, 3.0, 10.0, 1000.0])
    equal = worlds.map(lambda n: [1.0] * n)
    two_kinds = st.tuples(worlds, st.sampled_from([1, 2, 3, *sizes]), speeds).map(
        lambda drawn: [drawn[2] if rank < drawn[1] else 1.0 for rank in range(drawn[0])]
    )
    anything = st.lists(speeds | st.floats(0.01, 1000.0), min_size=min_ranks, max_size=max_ranks)
    strategy: SearchStrategy[list[float]] = equal | two_kinds | anything
    return strategy


def ratios(max_ranks: int = 8, min_ranks: int = 1) -> SearchStrategy[list[float]]:
    """Shares >= 0 of sum 1, to rounding; some are zero, some are equal."""
    _check_bounds("ratios", "ranks", min_ranks, max_ranks, 1)
    st = _hypothesis().strategies
    weights = st.lists(
        st.sampled_from([0.0, 1.0, 1.0, 2.0]) | st.floats(0.0, 10.0), min_size=min_ranks, max_size=max_ranks
    )

    def normal(values: list[float]) -> list[float]:
        total = math.fsum(values)
        return [v / total for v in values] if total > 1e-300 else [1.0] + [0.0] * (len(values) - 1)

    strategy: SearchStrategy[list[float]] = weights.map(normal)
    return strategy


def cost_models(max_fixed_s: float = 10.0, max_per_sample_s: float = 2.0) -> SearchStrategy[CostModel]:
    """Cost models; some have no fixed part, and every sample costs something."""
    st = _hypothesis().strategies
    fixed, per_sample = st.just(0.0) | st.floats(0.0, max_fixed_s), st.floats(max_per_sample_s / 100, max_per_sample_s)
    strategy: SearchStrategy[CostModel] = st.builds(CostModel, fixed, per_sample)
    return strategy


def clusters(max_ranks: int = 6, min_ranks: int = 1, max_jitter_fraction: float = 0.0) -> SearchStrategy[Cluster]:
    """Virtual clusters, whose link costs nothing, for `minigrad.distributed.simulate`."""
    _check_bounds("clusters", "ranks", min_ranks, max_ranks, 1)
    st = _hypothesis().strategies
    jitter = st.floats(0.0, max_jitter_fraction)
    costs = st.tuples(cost_models(), jitter).map(
        lambda drawn: RankCost(drawn[0].fixed_s, drawn[0].per_sample_s, drawn[1])
    )
    strategy: SearchStrategy[Cluster] = st.builds(
        Cluster,
        st.lists(costs, min_size=min_ranks, max_size=max_ranks).map(tuple),
        seed=st.integers(0, 2**32 - 1),
    )
    return strategy


def divisions(max_batch: int = 64, max_ranks: int = 4, min_batch: int = 0) -> SearchStrategy[tuple[int, ...]]:
    """Shards of a batch, in samples; ranks may get nothing."""
    _check_bounds("divisions", "ranks", 1, max_ranks, 1)
    _check_bounds("divisions", "batch", min_batch, max_batch, 0)
    st = _hypothesis().strategies

    def draw_division(draw: DrawFn) -> tuple[int, ...]:
        batch, ranks = draw(st.integers(min_batch, max_batch)), draw(st.integers(1, max_ranks))
        cuts = sorted(draw(st.lists(st.integers(0, batch), min_size=ranks - 1, max_size=ranks - 1)))
        return tuple(end - start for start, end in zip([0, *cuts], [*cuts, batch]))

    strategy: SearchStrategy[tuple[int, ...]] = st.composite(draw_division)()
    return strategy


# ------------------------------------------------------------------------------------------------- a user's balancer


def check_balancer(
    balancer: BalanceFunction,
    *,
    min_ratio: float | None = None,
    max_ranks: int = 20,
    max_batch: int = 10_000,
    max_examples: int = _MAX_EXAMPLES,
) -> None:
    """Look for batches and speeds for which a balancer breaks a rule that every balancer should keep.

    The rules: one whole number >= 0 for each rank; their sum is the batch; ranks of equal speed get shards that differ
    by at most one; a faster rank never gets less, but for one sample; no share is under its floor by more than rounding
    (as many samples as there are ranks); permuted ranks get permuted shards, but for one sample. Each is tried on its
    own, the later ones where the first two hold, so that all that are broken are told, with small inputs.

    Args:
        balancer: balancer(batch_size, throughputs) -> samples of each rank, for batches from 0 up.
        min_ratio: The floor that it promises; 0 where it promises none, None means min(0.05, 0.5/world_size).
        max_ranks: The largest world to try; not more than the floor allows.
        max_examples: How many inputs are tried for each rule.

    Raises:
        AssertionError: a rule is broken; the message names each of those with the smallest input that was found.
        ArgumentError: an argument out of its range.
        MissingPackageError: hypothesis is not installed.

    Example:
        >>> from minigrad.distributed import compute_shard_sizes, rebalance
        >>> check_balancer(lambda batch, speeds: compute_shard_sizes(batch, rebalance(speeds)))
    """
    hypothesis = _hypothesis()
    if not callable(balancer):
        raise ArgumentError(f"check_balancer: expected a function of a batch size and throughputs, got {balancer!r}")
    as_integer("check_balancer", "max_batch", max_batch, 0)
    as_integer("check_balancer", "max_examples", max_examples, 1)
    largest = as_integer("check_balancer", "max_ranks", max_ranks, 1)
    if min_ratio:
        largest = min(largest, math.floor(1.0 / check_min_ratio("check_balancer", min_ratio, 1) + 1e-9))
    settings = hypothesis.settings(
        max_examples=max_examples, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    broken = []
    for name, rule in _rules(balancer, min_ratio):

        def breaks(case: _Case) -> bool:
            return bool(_complaint(balancer, rule, case))

        try:
            case = hypothesis.find(_cases(largest, max_batch), breaks, settings=settings, random=Random(0))
        except hypothesis.errors.NoSuchExample:
            continue
        broken.append(f"{name}: balancer({case[0]}, {case[1]}) {_complaint(balancer, rule, case)}")
    if broken:
        listed = "\n  ".join(broken)
        raise AssertionError(f"check_balancer: expected every rule to hold, got {len(broken)} broken:\n  {listed}")


Rule = Callable[[_Case, list[int]], bool]


def _cases(max_ranks: int, max_batch: int) -> Any:
    """Inputs: small batches, large ones, and any; and the seed of a permutation of the ranks."""
    st = _hypothesis().strategies
    batches = st.sampled_from([*range(min(8, max_batch) + 1), *[max_batch] * 8]) | st.integers(0, max_batch)
    return st.tuples(batches, throughputs(max_ranks), st.integers(0, 999))


def _complaint(balancer: BalanceFunction, rule: Rule, case: _Case) -> str:
    """What the balancer did where that breaks a rule, else nothing."""
    batch, speeds, _ = case
    try:
        sizes = list(balancer(batch, list(speeds)))
    except Exception as error:
        return f"raised {type(error).__name__}: {error}" if rule is _is_whole else ""  # told once
    try:
        if rule not in (_is_whole, _is_complete) and not (_is_whole(case, sizes) and _is_complete(case, sizes)):
            return ""  # told on its own
        return "" if rule(case, sizes) else f"gave {sizes}"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def _rules(balancer: BalanceFunction, min_ratio: float | None) -> list[tuple[str, Rule]]:
    def keeps_floor(case: _Case, sizes: list[int]) -> bool:
        batch, speeds, _ = case
        floor = check_min_ratio("check_balancer", min_ratio, len(speeds)) * batch
        return all(size >= floor - len(speeds) for size in sizes)  # worse than any rounding

    def is_equivariant(case: _Case, sizes: list[int]) -> bool:
        batch, speeds, seed = case
        moved = Random(seed).sample(speeds, len(speeds))
        pairs = zip(sorted(zip(moved, balancer(batch, list(moved)))), sorted(zip(speeds, sizes)))
        return all(abs(one - other) <= 1 for (_, one), (_, other) in pairs)

    promised = "min(0.05, 0.5/world_size)" if min_ratio is None else f"{min_ratio:g}"
    return [
        ("one whole number >= 0 for each rank", _is_whole),
        ("the shards sum to the batch", _is_complete),
        ("ranks of equal speed differ by at most one sample", _is_even),
        ("a faster rank never gets less, but for one sample", _is_monotone),
        (f"no share is under the floor, {promised}, by more than rounding", keeps_floor),
        ("permuted ranks get permuted shards, but for one sample", is_equivariant),
    ]


def _is_whole(case: _Case, sizes: list[int]) -> bool:
    whole = all(is_integer(size) and size >= 0 for size in sizes)
    return whole and len(sizes) == len(case[1])


def _is_complete(case: _Case, sizes: list[int]) -> bool:
    return sum(sizes) == case[0]


def _is_even(case: _Case, sizes: list[int]) -> bool:
    by_speed: dict[float, list[int]] = {}
    for speed, size in zip(case[1], sizes):
        by_speed.setdefault(speed, []).append(size)
    return all(max(group) - min(group) <= 1 for group in by_speed.values())


def _is_monotone(case: _Case, sizes: list[int]) -> bool:
    pairs = sorted(zip(case[1], sizes))
    return all(size <= other + 1 for (a, size), (b, other) in zip(pairs, pairs[1:]) if a < b)
