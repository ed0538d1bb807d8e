"""Hypothesis strategies for balance. Need the package hypothesis when called.

They draw sizes, speeds and divisions, never the values of tensors: take those from a seeded normal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from minigrad.arguments import as_integer
from minigrad.distributed.balance.cost import CostModel
from minigrad.distributed.simulate import Cluster, RankCost
from minigrad.errors import MissingPackageError

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


def hypothesis_package() -> Any:
    """The package hypothesis; MissingPackageError where there is none."""
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
    st = hypothesis_package().strategies
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
    st = hypothesis_package().strategies
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
    st = hypothesis_package().strategies
    fixed, per_sample = st.just(0.0) | st.floats(0.0, max_fixed_s), st.floats(max_per_sample_s / 100, max_per_sample_s)
    strategy: SearchStrategy[CostModel] = st.builds(CostModel, fixed, per_sample)
    return strategy


def clusters(max_ranks: int = 6, min_ranks: int = 1, max_jitter_fraction: float = 0.0) -> SearchStrategy[Cluster]:
    """Virtual clusters, whose link costs nothing, for `minigrad.distributed.simulate`."""
    _check_bounds("clusters", "ranks", min_ranks, max_ranks, 1)
    st = hypothesis_package().strategies
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
    st = hypothesis_package().strategies

    def draw_division(draw: DrawFn) -> tuple[int, ...]:
        batch, ranks = draw(st.integers(min_batch, max_batch)), draw(st.integers(1, max_ranks))
        cuts = sorted(draw(st.lists(st.integers(0, batch), min_size=ranks - 1, max_size=ranks - 1)))
        return tuple(end - start for start, end in zip([0, *cuts], [*cuts, batch]))

    strategy: SearchStrategy[tuple[int, ...]] = st.composite(draw_division)()
    return strategy
