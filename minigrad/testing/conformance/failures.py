"""Checks of ranks that fail, leave, or have fewer batches than the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.testing.conformance.adapter import Adapter, Setup
from minigrad.testing.conformance.expect import (
    batch,
    expect_end,
    expect_on_all,
    expect_one_of,
    expect_same_bits,
    faulty,
    returned,
    scalars,
    values,
)
from minigrad.testing.conformance.outcome import NotOfferedError, Outcome, fail, outcomes, told

ONE = Setup(scalars(w=1.0))
PLANTED = "a planted fault"


def _step(replica: Any) -> None:
    replica.zero_grad()
    replica.backward(batch(w=[1.0]))


def _raising(place: Any, adapter: Adapter, setup: Setup, raises: bool) -> Any:
    """Two steps, before the second of which a rank raises."""
    replica = adapter.wrap(place, setup)
    _step(replica)
    if raises and place.rank == 1:
        raise ArithmeticError(PLANTED)
    _step(replica)
    return replica.gradients()


def _others(adapter: Adapter) -> list[Outcome]:
    """What became of the ranks beside one that raised."""
    found = faulty(adapter, _raising, 3, ONE, True, without=False, control={"w": 1.0}, stay=False)
    return [one for rank, one in enumerate(found) if rank != 1]


def check_rank_that_raises(adapter: Adapter) -> None:
    """One rank raises, and the others wait for it."""
    expect_end(_others(adapter))


def check_what_a_rank_raised_is_told(adapter: Adapter) -> None:
    """One rank raises, and what the others say hides what happened."""
    others = _others(adapter)
    said = [one for one in others if one.kind == "raised"]
    if not said:
        raise NotOfferedError(f"nothing was raised on the others that could tell it: {told(others)}")
    assert all(PLANTED in one.message for one in said), f"expected {PLANTED!r} in each error, got {told(said)}"


def _uneven(place: Any, adapter: Adapter, setup: Setup, steps: Sequence[int]) -> Any:
    """So many steps on each rank."""
    replica = adapter.wrap(place, setup)
    for _ in range(steps[place.rank]):
        _step(replica)
    return replica.gradients()


def _leaving(adapter: Adapter) -> list[Outcome]:
    """What became of a rank beside one that left."""
    return faulty(adapter, _uneven, 2, ONE, [2, 1], without=[2, 2], control={"w": 1.0}, stay=False)


def check_rank_that_leaves(adapter: Adapter) -> None:
    """One rank has a batch fewer and leaves, and the others wait for it."""
    expect_end(_leaving(adapter))


def check_nobody_goes_on_alone(adapter: Adapter) -> None:
    """One rank has a batch fewer, and the others go on with what is not a mean over all."""
    found = _leaving(adapter)
    _waits(found[0])
    assert found[0].kind == "raised", f"a rank that left: expected an error on rank 0, got {told(found)}"


def _waits(one: Outcome) -> None:
    """Ranks that wait for one that left, or die of it, do nothing that could be judged."""
    if one.kind == "died":
        fail("died", str(one))
    if one.kind == "out of time":
        raise NotOfferedError("nothing comes after the wait for a rank that left: see rank_that_leaves")


def check_nothing_works_after_a_failure(adapter: Adapter) -> None:
    """After a backward that failed the next one is matched with another step's, and its result passes for a mean."""
    found = faulty(adapter, _trying_again, 2, ONE, True, without=False, control={"w": 1.0}, stay=False)[0]
    if len(found.steps) < 2:
        _waits(found)
        fail("fails", str(found))
    if not found.steps[1]:
        raise NotOfferedError("nothing fails where a rank left: see nobody_goes_on_alone")
    if found.kind != "value":
        fail("died" if found.kind == "died" else "out of time", str(found))
    assert found.value, "expected the backward after the one that failed to raise as well, got a gradient"


def _trying_again(place: Any, adapter: Adapter, setup: Setup, leaves: bool) -> Any:
    """Three steps; or one, and whether a second raised, and the one after it, where rank 1 has left."""
    if not leaves:
        return _uneven(place, adapter, setup, [3, 3])
    replica = adapter.wrap(place, setup)
    _step(replica)
    return _tries(replica) if place.rank == 0 else None


def _tries(replica: Any) -> Any:
    yield _raises(replica)
    return _raises(replica)


def _raises(replica: Any) -> bool:
    try:
        _step(replica)
    except NotImplementedError:
        raise
    except Exception:
        return True
    return False


def check_joining(adapter: Adapter) -> None:
    """Ranks with different numbers of batches hang at the end of the epoch, or end it with different replicas.

    Rank 0 has gradients 2, 2, 2 and rank 1 only 4, with steps of 1: 10 - 3 - 2 - 2, on both, where those count that are
    there, and 10 - 3 - 1 - 1 where all count always.
    """
    results = values(adapter, _joined, 2, Setup(scalars(w=10.0), lr=1.0), [[[2.0]] * 3, [[4.0]]])
    expect_one_of(results, {"w": 3.0}, {"w": 5.0})
    expect_same_bits(results)


def check_joined_ranks_count_no_more(adapter: Adapter) -> None:
    """The mean counts ranks that have no batch left, though it weighs ranks by their samples.

    Of that a first step of one sample of gradient 1 beside three of gradient 5 is the proof; 20 - 4 - 2 - 2 follows.
    """
    setup = Setup(scalars(w=20.0), lr=1.0)
    if values(adapter, _joined, 2, setup, [[[1.0]], [[5.0] * 3]])[0]["w"] != 16.0:
        raise NotOfferedError("ranks are not weighted by their samples: see unequal_batches")
    found = outcomes(adapter, _joined, 2, setup, [[[1.0], [2.0], [2.0]], [[5.0] * 3]])
    if any(one.kind != "value" for one in found):
        raise NotOfferedError(f"ranks do not join, or die of it: see joining ({told(found)})")
    expect_on_all(returned(found), w=12.0)


def _joined(place: Any, adapter: Adapter, setup: Setup, gradients: Any) -> Any:
    replica = adapter.wrap(place, setup)
    with replica.join():
        for column in gradients[place.rank]:
            replica.zero_grad()
            replica.backward(batch(w=column))
            replica.step()
    return replica.values()
