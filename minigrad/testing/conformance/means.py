"""Checks of what is averaged: the mean over all samples, over micro-batches, and what is clipped."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.testing.conformance.adapter import Adapter, Setup
from minigrad.testing.conformance.expect import Backward, batch, combined, expect_on_all, random_batch, scalars

ONE = Setup(scalars(w=1.0))


def check_unequal_batches(adapter: Adapter) -> None:
    """Ranks with different numbers of samples are averaged rank by rank, a mean of means.

    One sample of gradient 1 and three of mean gradient 5 make 4, not 3.
    """
    passes = [[Backward(batch(w=[1]))], [Backward(batch(w=[4, 5, 6]))]]
    expect_on_all(combined(adapter, ONE, passes), w=4.0)


def check_very_unequal_batches(adapter: Adapter) -> None:
    """The same with 48, 12 and 4 samples of random gradients."""
    params = {"w": np.zeros((3, 2)), "b": np.zeros(3)}
    parts = [random_batch(params, samples, seed) for seed, samples in enumerate([48, 12, 4])]
    whole = {name: np.concatenate([part[name] for part in parts]).mean(axis=0) for name in params}
    expect_on_all(combined(adapter, Setup(params), [[Backward(part)] for part in parts]), **whole)


def check_empty_batch(adapter: Adapter) -> None:
    """A rank without samples counts as a rank with a zero gradient, or crashes."""
    passes = [[Backward(batch(w=[2, 4]))], [Backward(batch(w=[]))]]
    expect_on_all(combined(adapter, ONE, passes), w=3.0)


def check_tokens(adapter: Adapter) -> None:
    """A loss that is a mean over tokens is weighted by sentences.

    7 tokens of gradient 1 on one rank and 3 of gradient 11 on the other make 4.
    """
    passes = [[Backward(batch(w=[1]), samples=7)], [Backward(batch(w=[11]), samples=3)]]
    expect_on_all(combined(adapter, ONE, passes), w=4.0)


def check_nan_of_no_samples(adapter: Adapter) -> None:
    """A rank whose tokens are all masked has a loss of 0/0; a weight of 0 times NaN is NaN everywhere."""
    passes = [[Backward(batch(w=[2]), samples=4)], [Backward(batch(w=[math.nan]), samples=0)]]
    expect_on_all(combined(adapter, ONE, passes), w=2.0)


def check_nan_is_seen_by_all(adapter: Adapter) -> None:
    """A NaN of one rank stays on that rank, or is taken out, so that the ranks decide differently about the step."""
    passes = [[Backward(batch(v=[2], w=[2]))], [Backward(batch(v=[4], w=[math.nan]))]]
    results = combined(adapter, Setup(scalars(v=1.0, w=1.0)), passes)
    expect_on_all(results, v=3.0)
    for rank, result in enumerate(results):
        found = result["w"]
        assert found is not None and np.isnan(found).all(), f"rank {rank}: expected NaN in w, got {found}"


def check_unsynchronised_backward_is_local(adapter: Adapter) -> None:
    """Accumulation without synchronisation has no effect: the gradients are combined all the same."""
    first, second = combined(adapter, ONE, [[Backward(batch(w=[r]), sync=False)] for r in (1, 3)])
    expect_on_all([first], w=1.0)
    expect_on_all([second], w=3.0)


def check_accumulation(adapter: Adapter) -> None:
    """The wrong micro-batch is combined, or only one of them, or an accumulated gradient is averaged twice.

    Three micro-batches of gradients 1, 2, 3 on one rank and 10, 20, 30 on the other, each divided by 3, make 11.
    """
    passes = [
        [Backward(batch(w=[factor * i]), scale=1 / 3, sync=i == 3) for i in (1, 2, 3)] for factor in (1, 10)
    ]
    expect_on_all(combined(adapter, ONE, passes), w=11.0)


def check_accumulation_of_unequal_batches(adapter: Adapter) -> None:
    """Only the samples of the last micro-batch are counted.

    Rank 0 has 3 + 1 samples of gradient 1, rank 1 has 1 + 1 of gradient 7: (4·1 + 2·7) / 6 = 3.
    """
    passes = [
        [Backward(batch(w=[1, 1, 1]), scale=0.5, sync=False), Backward(batch(w=[1]), scale=0.5)],
        [Backward(batch(w=[7]), scale=0.5, sync=False), Backward(batch(w=[7]), scale=0.5)],
    ]
    expect_on_all(combined(adapter, ONE, passes), w=3.0)


def check_backwards_add_up(adapter: Adapter) -> None:
    """A second synchronising backward replaces the first, or combines the combined gradient once more, shrunk."""
    passes = [[Backward(batch(w=[1])), Backward(batch(w=[2]))], [Backward(batch(w=[5])), Backward(batch(w=[10]))]]
    expect_on_all(combined(adapter, ONE, passes), w=3.0 + 6.0)


def check_zero_grad(adapter: Adapter) -> None:
    """Gradients that were dropped come back: an old value is added, or lies in a bucket and is sent again."""
    rounds = [[batch(v=[1], w=[2]), batch(v=[3], w=[4]), batch(v=[5], w=[6])]] * 2
    for result in adapter.run(_rounds, 2, adapter, Setup(scalars(v=0.0, w=0.0)), rounds):
        expect_on_all(result[:1], v=1.0, w=2.0)
        expect_on_all(result[1:2], v=3.0, w=4.0)
        expect_on_all(result[2:], v=5.0, w=6.0)


def _rounds(place: Any, adapter: Adapter, setup: Setup, rounds: Any) -> Any:
    """The gradients of each backward on its own."""
    replica, seen = adapter.wrap(place, setup), []
    for part in rounds[place.rank]:
        replica.zero_grad()
        replica.backward(part)
        seen.append(replica.gradients())
    return seen


def check_clipping(adapter: Adapter) -> None:
    """Each rank clips before the mean, or the norm is added up over ranks once more.

    Gradients 10 and 0 have the mean 5, and clipped to 1 they are 1, not 0.5. A norm of 0.8 is not clipped to 1.
    """
    for gradients, norm, left in (([10.0, 0.0], 5.0, 1.0), ([0.8, 0.8], 0.8, 0.8), ([0.8] * 3, 0.8, 0.8)):
        results = adapter.run(_clipped, len(gradients), adapter, ONE, gradients)
        expect_on_all([found for found, _ in results], 1e-5, w=left)
        for rank, (_, found) in enumerate(results):
            assert abs(found - norm) < 1e-5, f"rank {rank}: expected norm {norm} before clipping, got {found}"


def _clipped(place: Any, adapter: Adapter, setup: Setup, gradients: list[float]) -> Any:
    replica = adapter.wrap(place, setup)
    replica.backward(batch(w=[gradients[place.rank]]))
    norm = replica.clip(1.0)
    return replica.gradients(), norm


def check_training(adapter: Adapter) -> None:
    """Steps drift away from those of one process on the joined batch."""
    sizes, steps = [2, 3, 1], 5
    setup = Setup({"w": np.ones((2, 3)), "b": np.ones(2)}, lr=0.05, weight_decay=0.1)
    parts = [[random_batch(setup.params, n, 10 * step + r) for step in range(steps)] for r, n in enumerate(sizes)]
    joined = [
        {name: np.concatenate([part[step][name] for part in parts]) for name in setup.params} for step in range(steps)
    ]
    (alone,) = adapter.run(_trained, 1, adapter, setup, [joined])
    expect_on_all(adapter.run(_trained, len(sizes), adapter, setup, parts), **alone)


def check_one_rank(adapter: Adapter) -> None:
    """A world of one rank is refused, or is a special case of other values."""
    setup = Setup(scalars(w=1.0), lr=0.5, weight_decay=0.1)
    expect_on_all(adapter.run(_trained, 1, adapter, setup, [[batch(w=[1, 3])]]), w=1.0 - 0.5 * (2.0 + 0.1))


def _trained(place: Any, adapter: Adapter, setup: Setup, parts: Any) -> Any:
    """The values after a step on each batch of this rank."""
    replica = adapter.wrap(place, setup)
    for part in parts[place.rank]:
        replica.zero_grad()
        replica.backward(part)
        replica.step()
    return replica.values()
