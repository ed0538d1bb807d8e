"""A check of a balancer of your own. Needs the package hypothesis when called."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from minigrad.arguments import as_integer, is_integer
from minigrad.distributed.balance.shares import check_min_ratio, compute_shard_sizes, rebalance
from minigrad.distributed.balance.strategy import BalanceFunction, Row, Strategy
from minigrad.distributed.balance.strategy import as_strategy, as_text, ask, name_of, takes
from minigrad.errors import ArgumentError
from minigrad.testing.strategies import hypothesis_package, throughputs

_Case = tuple[int, list[float], int]  # batch size, throughputs, the seed of a permutation of the ranks

_MAX_EXAMPLES = 300


def check_balancer(
    balancer: BalanceFunction | Strategy,
    *,
    steps: int = 1,
    min_ratio: float | None = None,
    max_ranks: int = 20,
    max_batch: int = 10_000,
    max_examples: int = _MAX_EXAMPLES,
) -> None:
    """Look for batches and speeds for which a balancer breaks a rule that every balancer should keep.

    The rules: one whole number >= 0 for each rank; their sum is the batch; ranks of equal speed get shards that differ
    by at most one; a faster rank never gets less, but for one sample; no share is under its floor by more than rounding
    (as many samples as there are ranks); permuted ranks get permuted shards, but for one sample. Each is tried on its
    own, those of speeds where the shards are whole and sum to the batch, so that all that are broken are told, with
    small inputs.

    A strategy is shown steps of ranks of such speeds, the first with equal shards, and its last sizes are judged; by
    speeds where the first step has a sample for each rank. One rule more is for it: it decides by its arguments alone,
    alike whenever it is asked, with a state that JSON gives back as it is.

    Args:
        balancer: balancer(batch_size, throughputs) -> samples of each rank, for batches from 0 up; or a strategy
            (state, batch_size, readings) -> (state, sizes, reason).
        steps: How many steps a strategy is shown, >= 1: as many as it needs for its first decision.
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
    hypothesis = hypothesis_package()
    as_integer("check_balancer", "steps", steps, 1)
    as_integer("check_balancer", "max_batch", max_batch, 0)
    as_integer("check_balancer", "max_examples", max_examples, 1)
    largest = as_integer("check_balancer", "max_ranks", max_ranks, 1)
    if min_ratio:
        largest = min(largest, math.floor(1.0 / check_min_ratio("check_balancer", min_ratio, 1) + 1e-9))
    settings = hypothesis.settings(
        max_examples=max_examples, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    broken = []
    function, rules = _function_and_rules(balancer, steps, min_ratio)
    for name, rule in rules:

        def breaks(case: _Case) -> bool:
            return bool(_complaint(function, rule, case, rule is rules[0][1]))

        try:
            case = hypothesis.find(_cases(largest, max_batch), breaks, settings=settings, random=Random(0))
        except hypothesis.errors.NoSuchExample:
            continue
        broken.append(f"{name}: balancer({case[0]}, {case[1]}) {_complaint(function, rule, case, rule is rules[0][1])}")
    if broken:
        listed = "\n  ".join(broken)
        raise AssertionError(f"check_balancer: expected every rule to hold, got {len(broken)} broken:\n  {listed}")


Rule = Callable[[_Case, list[int]], bool]


def _cases(max_ranks: int, max_batch: int) -> Any:
    """Inputs: small batches, large ones, and any; and the seed of a permutation of the ranks."""
    st = hypothesis_package().strategies
    batches = st.sampled_from([*range(min(8, max_batch) + 1), *[max_batch] * 8]) | st.integers(0, max_batch)
    return st.tuples(batches, throughputs(max_ranks), st.integers(0, 999))


def _function_and_rules(
    balancer: BalanceFunction | Strategy, steps: int, min_ratio: float | None
) -> tuple[BalanceFunction, list[tuple[str, Rule]]]:
    """The balancer as a function of speeds, and what it is tested for."""
    if takes(balancer, 2):
        return balancer, _rules(balancer, min_ratio)  # type: ignore[arg-type,return-value]
    strategy = as_strategy("check_balancer", balancer)

    def after_steps(batch_size: int, speeds: list[float]) -> Sequence[int]:
        state: Any = None
        sizes = list(compute_shard_sizes(batch_size, rebalance([1.0] * len(speeds), 0.0)))
        for _ in range(steps):
            case = batch_size, speeds, 0
            if not (_is_whole(case, sizes) and _is_complete(case, sizes)):
                break  # no step could be made with these
            state, sizes = _decided(strategy, state, batch_size, [(n, n / s) for n, s in zip(sizes, speeds)])
        return sizes

    def is_decided(case: _Case, sizes: list[int]) -> bool:
        return True  # else it has raised

    whole, complete, *of_speeds = _rules(after_steps, min_ratio)
    measured = [(name, _where_all_are_measured(rule)) for name, rule in of_speeds]
    return after_steps, [("a decision by its arguments alone", is_decided), whole, complete, *measured]


def _where_all_are_measured(rule: Rule) -> Rule:
    return lambda case, sizes: case[0] < len(case[1]) or rule(case, sizes)


def _decided(strategy: Strategy, state: Any, batch_size: int, readings: list[Row]) -> tuple[Any, list[Any]]:
    name, text = name_of(strategy), as_text("", state)
    told = [ask(strategy, json.loads(text), batch_size, list(readings)) for _ in range(2)]
    one, other = ((as_text(name, after), list(sizes), reason) for after, sizes, reason in told)
    if one != other:
        raise ArgumentError(f"{name}: expected one decision on the same arguments, got {one} and then {other}")
    return json.loads(one[0]), one[1]


def _complaint(balancer: BalanceFunction, rule: Rule, case: _Case, is_first: bool) -> str:
    """What the balancer did where that breaks a rule, else nothing; the first rule tells what it raised."""
    batch, speeds, _ = case
    try:
        sizes = list(balancer(batch, list(speeds)))
    except Exception as error:
        return f"raised {type(error).__name__}: {error}" if is_first else ""
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
