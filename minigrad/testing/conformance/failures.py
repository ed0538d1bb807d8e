"""Checks of ranks that fail, leave, or have fewer batches than the others."""

from __future__ import annotations

from typing import Any

from minigrad.testing.conformance.adapter import Adapter, Setup
from minigrad.testing.conformance.expect import batch, expect_error, expect_on_all, expect_same_bits, scalars

ONE = Setup(scalars(w=1.0))
PLANTED = "a planted fault"


def check_rank_that_raises(adapter: Adapter) -> None:
    """One rank raises, and the others wait for it; or what they say hides what happened."""
    expect_error(lambda: adapter.run(_raising, 3, adapter, ONE), "a rank that raised", PLANTED)


def _raising(place: Any, adapter: Adapter, setup: Setup) -> None:
    replica = adapter.wrap(place, setup)
    replica.backward(batch(w=[1.0]))
    if place.rank == 1:
        raise ArithmeticError(PLANTED)
    replica.backward(batch(w=[1.0]))


def check_rank_that_leaves(adapter: Adapter) -> None:
    """One rank has a batch fewer: the others wait, or go on with what is not a mean over all."""
    expect_error(lambda: adapter.run(_uneven, 2, adapter, ONE, [3, 2]), "a rank that left")


def _uneven(place: Any, adapter: Adapter, setup: Setup, counts: list[int]) -> Any:
    replica = adapter.wrap(place, setup)
    for _ in range(counts[place.rank]):
        replica.backward(batch(w=[1.0]))
    return replica.gradients()


def check_nothing_works_after_a_failure(adapter: Adapter) -> None:
    """After a backward that failed the next one is matched with another step's, and its result passes for a mean."""
    first = adapter.run(_trying_again, 2, adapter, ONE)[0]
    assert first == [True, True], f"expected both backwards to raise, got {first}"


def _trying_again(place: Any, adapter: Adapter, setup: Setup) -> list[bool]:
    replica = adapter.wrap(place, setup)
    raised: list[bool] = []
    if place.rank == 1:
        return raised
    for _ in range(2):
        try:
            replica.backward(batch(w=[1.0]))
        except Exception:
            raised.append(True)
        else:
            raised.append(False)
    return raised


def check_joining(adapter: Adapter) -> None:
    """Ranks with different numbers of batches hang at the end of the epoch, or the mean counts those who left.

    Rank 0 has gradients 2, 2, 2 and rank 1 only 4, with steps of 1: 10 - 3 - 2 - 2, on both.
    """
    setup = Setup(scalars(w=10.0), lr=1.0)
    results = adapter.run(_joined, 2, adapter, setup, [[2.0, 2.0, 2.0], [4.0]])
    expect_on_all(results, w=3.0)
    expect_same_bits(results)


def _joined(place: Any, adapter: Adapter, setup: Setup, gradients: Any) -> Any:
    replica = adapter.wrap(place, setup)
    with replica.join():
        for gradient in gradients[place.rank]:
            replica.zero_grad()
            replica.backward(batch(w=[gradient]))
            replica.step()
    return replica.values()
