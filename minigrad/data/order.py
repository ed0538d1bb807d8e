"""Orders: pure functions that say which sample comes when, and on which rank.

A shuffle is a function of (length, seed, epoch) alone, so every rank computes the same one, and any epoch can be had
again without running those before it. It stands on the raw output of Philox, not on a distribution of NumPy's, so
that it stays the same from one NumPy to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, check_choice, check_shares, is_integer
from minigrad.errors import ArgumentError

Indices = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Seed = int | np.random.Generator
Weights = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Shares = Sequence[float | Fraction]  # one for each rank, >= 0, of sum 1

MODES = ("pad", "drop", "exact")
WORD = 2**64  # seeds and epochs are words of Philox's key

_SHUFFLE_STREAM = 0x73687566666C65  # keeps shuffles apart from weights and noise drawn with the same seed
_CHOICE_STREAM = 0x63686F696365
_FRACTION = 2.0**-53  # of the 53 bits that a float has


def permutation(length: int, seed: int, epoch: int = 0, part: int = 0) -> Indices:
    """The shuffled order of `length` samples in one epoch.

    Args:
        length: >= 0.
        seed, epoch: In [0, 2**64). Each pair gives an order of its own.
        part: In [0, 2**64). Which one of several orders of this pair.

    Raises:
        ArgumentError: an argument out of its range.

    Example:
        >>> sorted(permutation(5, seed=0).tolist())
        [0, 1, 2, 3, 4]
    """
    as_integer("permutation", "length", length, 0)
    as_integer("permutation", "seed", seed, 0, WORD)
    as_integer("permutation", "epoch", epoch, 0, WORD)
    as_integer("permutation", "part", part, 0, WORD)
    return _order_of(_draws(length, seed, epoch, _SHUFFLE_STREAM, part))


def permutations(length: int, count: int, seed: int, epoch: int = 0) -> Indices:
    """The first `count` of one shuffle of `length` samples after the other, all of one epoch.

    Args:
        length: >= 1.
        count: >= 0.
        seed, epoch: See `permutation`, which the first one is.
    """
    draws = _draws(-(-count // length) * length, seed, epoch, _SHUFFLE_STREAM)
    return np.concatenate([_order_of(part) for part in draws.reshape(-1, length)] or [draws.astype(np.int64)])[:count]


def choices(weights: Weights, count: int, seed: int, epoch: int = 0, *, replacement: bool = True) -> Indices:
    """Numbers in [0, len(weights)), each drawn with a probability in proportion to its weight.

    Without replacement the weights of those drawn already no longer count (Efraimidis and Spirakis, "Weighted random
    sampling with a reservoir", 2006).

    Args:
        weights: Finite and >= 0, float64; at least one, without replacement count of them, is not 0.
        count: How many, >= 0.
        seed, epoch: See `permutation`.
    """
    if not replacement:
        uniform = ((_draws(len(weights), seed, epoch, _CHOICE_STREAM) >> np.uint64(11)) + np.uint64(1)) * _FRACTION
        with np.errstate(divide="ignore", invalid="ignore"):  # of a weight of 0, which comes last
            keys = -np.log(uniform) / weights
        return _order_of(keys)[:count]
    uniform = (_draws(count, seed, epoch, _CHOICE_STREAM) >> np.uint64(11)) * _FRACTION
    ends = np.cumsum(weights)
    places = np.searchsorted(ends, uniform * ends[-1], side="right")
    drawn: Indices = np.minimum(places, np.flatnonzero(weights)[-1]).astype(np.int64, copy=False)
    return drawn


def _draws(count: int, seed: int, epoch: int, stream: int, part: int = 0) -> np.ndarray[Any, np.dtype[np.uint64]]:
    key, counter = np.array([seed, epoch], np.uint64), np.array([0, 0, part, stream], np.uint64)
    return np.random.Philox(counter=counter, key=key).random_raw(count)


def _order_of(keys: np.ndarray[Any, np.dtype[Any]]) -> Indices:
    order: Indices = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
    return order


def as_seed(who: str, seed: Any) -> int:
    """A seed in [0, 2**64); one is drawn from a generator.

    Raises:
        ArgumentError: neither an integer in range nor a numpy.random.Generator, as `minigrad.Generator` is.
    """
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(WORD, dtype=np.uint64))
    return as_integer(who, "seed", seed, 0, WORD)


def shard(length: int, rank: int, world_size: int, mode: str = "pad", shares: Shares | None = None) -> Indices:
    """The places of one global order that a rank takes: `order[shard(...)]` is its part of an epoch.

    Ranks take turns (rank, rank + world_size, ...), so that the k-th batches of all ranks together are the k-th stretch
    of the global order, whatever the number of ranks. With shares they take turns in proportion.

    Args:
        length: Samples in the global order, >= 0.
        rank: In [0, world_size).
        mode: "pad": all ranks get ceil(length / world_size), the order beginning again at its end, so up to
            world_size - 1 samples come twice. "drop": all get floor(length / world_size), the last few are left out.
            "exact": each sample once, lengths differ by at most one.
        shares: Fraction of the order for each rank, >= 0, of sum 1; only with mode "exact".

    Raises:
        ArgumentError: an argument out of its range, or shares with a mode that makes lengths equal.
    """
    check_sharding("shard", rank, world_size, mode, shares)
    as_integer("shard", "length", length, 0)
    if shares is not None:
        return _interleave(largest_remainder(length, shares), rank)
    if mode == "exact":
        return np.arange(rank, length, world_size)
    each = -(-length // world_size) if mode == "pad" else length // world_size
    places = np.arange(rank, each * world_size, world_size)
    return places % length if mode == "pad" and length else places


def longest_shard(length: int, world_size: int, mode: str, shares: Shares | None) -> int:
    """How many places the rank with the most of them takes; see `shard`."""
    if shares is not None:
        return max(largest_remainder(length, shares))
    return length // world_size if mode == "drop" else -(-length // world_size)


def check_sharding(who: str, rank: int, world_size: int, mode: str, shares: Shares | None) -> None:
    """Refuse arguments of `shard` that do not fit each other.

    Raises:
        ArgumentError: they do not; the message holds the values.
    """
    as_integer(who, "world_size", world_size, 1)
    as_integer(who, "rank", rank, 0, world_size)
    check_choice(who, MODES, mode=mode)
    if shares is None:
        return
    check_shares(who, shares)
    if len(shares) != world_size:
        raise ArgumentError(f"{who}: expected a share for each of {world_size} ranks, got {len(shares)}: {shares!r}")
    if mode != "exact":
        raise ArgumentError(
            f"{who}: expected mode='exact' with shares, got {mode!r}: it makes lengths equal, shares make them unequal"
        )


def _interleave(counts: Sequence[int], rank: int) -> Indices:
    """The places of a rank when rank r takes counts[r] of them, spread evenly over the order.

    The j-th sample of a rank with n of them is due at (j + 1/2) / n; at the same time the lower rank goes first.
    Equal counts, and counts that differ by one as in mode "exact", take strict turns.
    """
    due = np.concatenate([(np.arange(count) + 0.5) / max(count, 1) for count in counts])
    owners = np.repeat(np.arange(len(counts)), counts)
    return np.flatnonzero(owners[np.argsort(due, kind="stable")] == rank)


def largest_remainder(total: int, shares: Shares) -> list[int]:
    """Whole numbers in proportion to shares: their sum is total, each is within 1 of total · share.

    Each gets the floor of its exact part; what is left goes, one each, to those with the largest remainder (equal
    remainders to the larger share, then to the lower rank). Computed in integers, so neither rounding nor the order of
    ranks has a say. At one total, a larger share never gets less. (Hamilton's method of apportionment.)

    Args:
        total: What to divide, >= 0.
        shares: Fractions >= 0 of sum 1 (to 1e-6; they are taken in proportion to their exact sum).

    Raises:
        ArgumentError: a negative total, or shares that are no such fractions.

    Example:
        >>> largest_remainder(10, [0.55, 0.45])
        [6, 4]
    """
    as_integer("largest_remainder", "total", total, 0)
    check_shares("largest_remainder", shares)
    weights = whole_weights(shares)
    whole = sum(weights)
    parts = [divmod(int(total) * weight, whole) for weight in weights]
    counts = [floor for floor, _ in parts]
    order = sorted(range(len(parts)), key=lambda i: (-parts[i][1], -weights[i], i))
    for i in order[: int(total) - sum(counts)]:
        counts[i] += 1
    return counts


def whole_weights(values: Sequence[float | Fraction]) -> list[int]:
    """Integers in exactly the proportions of finite values: those times their common denominator."""
    ratios = [(int(value) if is_integer(value) else value).as_integer_ratio() for value in values]
    common = math.lcm(*(denominator for _, denominator in ratios))
    return [numerator * (common // denominator) for numerator, denominator in ratios]
