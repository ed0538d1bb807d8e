"""Checks of what is averaged: the mean over all samples, over micro-batches, and what is clipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.testing.conformance.adapter import Adapter, Setup
from minigrad.testing.conformance.expect import (
    Backward,
    batch,
    combined,
    expect_on_all,
    expect_one_of,
    expect_right_or_raised,
    faulty,
    offered,
    random_batch,
    scalars,
    values,
)
from minigrad.testing.conformance.outcome import NotOfferedError, fail

ONE = Setup(scalars(w=1.0))


def check_unequal_batches(adapter: Adapter) -> None:
    """Ranks with different numbers of samples are averaged rank by rank, a mean of means.

    One sample of gradient 1 and three of mean gradient 5 make 4, not 3. The same with 48, 12 and 4 random gradients.
    """
    passes = [[Backward(batch(w=[1]))], [Backward(batch(w=[4, 5, 6]))]]
    expect_on_all(combined(adapter, ONE, passes), w=4.0)
    params = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.float32)}
    parts = [random_batch(params, samples, seed) for seed, samples in enumerate([48, 12, 4])]
    whole = {name: np.concatenate([part[name] for part in parts]).mean(axis=0, dtype=np.float64) for name in params}
    expect_on_all(combined(adapter, Setup(params), [[Backward(part)] for part in parts]), 1e-5, **whole)


def check_empty_batch(adapter: Adapter) -> None:
    """A rank without samples crashes a reshape, or its 0/0 is NaN everywhere.

    Gradients 2 and 4 beside none make 3; 1.5 where all ranks count alike, which is the matter of unequal batches.
    """
    passes = [[Backward(batch(w=[2, 4]))], [Backward(batch(w=[]))]]
    expect_one_of(combined(adapter, ONE, passes), {"w": 3.0}, {"w": 1.5})


def check_tokens(adapter: Adapter) -> None:
    """A loss that is a mean over tokens is weighted by sentences.

    7 tokens of gradient 1 in one sentence and 3 of gradient 11 in three make 4, not 8.5.
    """
    passes = [[Backward(batch(w=[1]), samples=7)], [Backward(batch(w=[11, 11, 11]), samples=3)]]
    results = combined(adapter, ONE, passes)
    _ranks_weigh(results, w=6.0)
    expect_on_all(results, w=4.0)


def _ranks_weigh(results: Any, **alike: float) -> None:
    """A wrapper that counts all ranks alike has no weights; what weighs them is no matter of its."""
    try:
        expect_on_all(results, **alike)
    except AssertionError:
        return
    raise NotOfferedError("ranks count alike, whatever samples they have: see unequal_batches")


def check_nan_of_no_samples(adapter: Adapter) -> None:
    """A rank whose tokens are all masked has a loss of 0/0; a weight of 0 times NaN is NaN everywhere."""
    try:
        expect_on_all(values(adapter, _masked, 2, ONE, 8.0), w=2.0)
    except AssertionError as error:
        raise NotOfferedError(f"a rank of no samples weighs something: see tokens ({error})") from error
    expect_on_all(values(adapter, _masked, 2, ONE, math.nan), w=2.0)


def _masked(place: Any, adapter: Adapter, setup: Setup, masked: float) -> Any:
    """Gradients 2 on one rank, and on the other those of no samples."""
    replica = adapter.wrap(place, setup)
    replica.backward(batch(w=[2.0 if place.rank == 0 else masked]), samples=4 if place.rank == 0 else 0)
    return replica.gradients()


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

    Four micro-batches of gradients 1, 2, 3, 6 on one rank and 10, 20, 30, 60 on the other, divided by 4, make 16.5.
    """
    passes = [
        [Backward(batch(w=[factor * i]), scale=1 / 4, sync=i == 6) for i in (1, 2, 3, 6)] for factor in (1, 10)
    ]
    expect_on_all(combined(adapter, ONE, passes), w=16.5)


def check_accumulation_of_unequal_batches(adapter: Adapter) -> None:
    """Only the samples of the last micro-batch are counted.

    Rank 0 has 3 + 1 samples of gradient 1, rank 1 has 1 + 3 of gradient 7, as many: 4; by the last ones alone 5.5.
    """

    def passes(counts: Sequence[Sequence[int]]) -> list[list[Backward]]:
        return [
            [Backward(batch(w=[gradient] * n), scale=0.5, sync=last) for n, last in zip(counts[rank], (False, True))]
            for rank, gradient in enumerate((1, 7))
        ]

    try:
        expect_on_all(combined(adapter, ONE, passes([(1, 1), (1, 1)])), w=4.0)
    except AssertionError as error:
        fail("not judged", f"with equal batches, see accumulation: {error}")
    expect_on_all(combined(adapter, ONE, passes([(3, 1), (1, 3)])), w=4.0)


def check_backwards_add_up(adapter: Adapter) -> None:
    """A second synchronising backward replaces the first, or combines the combined gradient once more, shrunk."""
    passes = [[Backward(batch(w=[1])), Backward(batch(w=[2]))], [Backward(batch(w=[5])), Backward(batch(w=[10]))]]
    expect_on_all(combined(adapter, ONE, passes), w=3.0 + 6.0)


def check_backward_within_a_backward(adapter: Adapter) -> None:
    """A backward that a hook runs while another is under way stays each rank's own, or is lost, without a word.

    Gradients 1 and 3 of one and 100 and 300 of the other make 202, or an error.
    """
    setup = Setup(scalars(v=1.0, w=1.0))
    found = faulty(adapter, _nested, 2, setup, True, without=False, control={"v": 202.0, "w": 404.0})
    expect_right_or_raised(found, "a backward within a backward", v=202.0, w=404.0)


def _nested(place: Any, adapter: Adapter, setup: Setup, within: bool) -> Any:
    """Two backwards, one after the other or one within the other."""
    r = 1.0 + 2.0 * place.rank
    outer, inner = batch(v=[r], w=[2 * r]), batch(v=[100 * r], w=[200 * r])
    replica = adapter.wrap(place, setup)
    if within:
        offered(replica, "backward_within")(outer, inner)
    else:
        replica.backward(outer)
        replica.backward(inner)
    return replica.gradients()


def check_gradient_set_by_hand(adapter: Adapter) -> None:
    """A gradient that no forward made stays each rank's own, beside the mean of those that one made, without a word.

    Rank r sets a gradient of 2·r, and then a backward makes 10 on both: 1 + 10, or an error.
    """
    found = faulty(adapter, _by_hand, 2, ONE, True, without=False, control={"w": 10.0})
    expect_right_or_raised(found, "a gradient set by hand", w=11.0)


def _by_hand(place: Any, adapter: Adapter, setup: Setup, given: bool) -> Any:
    replica = adapter.wrap(place, setup)
    if given:
        offered(replica, "set_gradients")({"w": np.array([2.0 * place.rank])})
    replica.backward(batch(w=[10.0]))
    return replica.gradients()


def check_zero_grad(adapter: Adapter) -> None:
    """Gradients that were dropped come back: an old value is added, or lies in a bucket and is sent again."""
    rounds = [[batch(v=[1], w=[2]), batch(v=[3], w=[4]), batch(v=[5], w=[6])]] * 2
    for result in values(adapter, _rounds, 2, Setup(scalars(v=0.0, w=0.0)), rounds):
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
    """Each rank clips before the mean.

    Gradients 10 and 0 have the mean 5, which 8 does not clip; clipped before they would make 4.
    """
    expect_on_all([found for found, _ in values(adapter, _clipped, 2, ONE, [10.0, 0.0], 8.0)], 1e-5, w=5.0)


def check_norm_of_clipping(adapter: Adapter) -> None:
    """The norm of a combined gradient is added up over the ranks once more, or nothing is clipped.

    Two or three gradients of 0.8 have a norm of 0.8, and are left; two of 10 are clipped to 1.
    """
    for gradients, left in (([0.8] * 2, 0.8), ([0.8] * 3, 0.8), ([10.0] * 2, 1.0)):
        results = values(adapter, _clipped, len(gradients), ONE, gradients, 1.0)
        expect_on_all([found for found, _ in results], 1e-5, w=left)
        for rank, (_, found) in enumerate(results):
            expected = gradients[0]
            assert abs(found - expected) < 1e-5, f"rank {rank}: expected norm {expected} before clipping, got {found}"


def _clipped(place: Any, adapter: Adapter, setup: Setup, gradients: list[float], max_norm: float) -> Any:
    replica = adapter.wrap(place, setup)
    replica.backward(batch(w=[gradients[place.rank]]))
    norm = replica.clip(max_norm)
    return replica.gradients(), norm


def check_training(adapter: Adapter) -> None:
    """Steps drift away from those of one process on the joined batch: one is made twice, late, or on one rank alone.

    Four ranks have two samples each, of whole numbers, whose means no dtype rounds.
    """
    steps, lr, decay = 5, 0.05, 0.1
    setup = Setup({"w": np.ones((2, 3)), "b": np.ones(2)}, lr=lr, weight_decay=decay)
    rng = np.random.default_rng(0)
    parts = [
        [{n: rng.integers(-8, 9, (2, *p.shape)).astype(p.dtype) for n, p in setup.params.items()} for _ in range(steps)]
        for _ in range(4)
    ]
    alone = dict(setup.params)
    for step in range(steps):
        for name, value in alone.items():
            gradient = np.concatenate([part[step][name] for part in parts]).mean(axis=0)
            alone[name] = value - lr * (gradient + decay * value)
    expect_on_all(values(adapter, _trained, 4, setup, parts), **alone)


def check_one_rank(adapter: Adapter) -> None:
    """A world of one rank is refused, or is a special case of other values."""
    expect_on_all(combined(adapter, ONE, [[Backward(batch(w=[1, 3]))]]), w=2.0)


def _trained(place: Any, adapter: Adapter, setup: Setup, parts: Any) -> Any:
    """The values after a step on each batch of this rank."""
    replica = adapter.wrap(place, setup)
    for part in parts[place.rank]:
        replica.zero_grad()
        replica.backward(part)
        replica.step()
    return replica.values()
