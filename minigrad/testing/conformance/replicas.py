"""Checks of replicas: that they start alike, are the same model, share their buffers, and keep their optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.testing.conformance.adapter import Adapter, Arrays, Setup
from minigrad.testing.conformance.expect import (
    Backward,
    batch,
    combined,
    expect_error,
    expect_on_all,
    expect_same_bits,
    scalars,
)


def check_replicas_start_alike(adapter: Adapter) -> None:
    """Initial values are left to the seed: replicas that start one apart stay so for ever."""
    setups = [Setup(scalars(w=1.0)), Setup(scalars(w=2.0))]
    expect_on_all(adapter.run(_initial, 2, adapter, setups), 0.0, w=1.0)


def _initial(place: Any, adapter: Adapter, setups: Sequence[Setup]) -> Any:
    return adapter.wrap(place, setups[place.rank]).values()


def _refused(adapter: Adapter, first: Arrays, second: Arrays, what: str, frozen: tuple[str, ...] = ()) -> None:
    passes = [
        [Backward({name: np.ones((1, *value.shape)) for name, value in params.items()})] for params in (first, second)
    ]
    expect_error(lambda: combined(adapter, [Setup(first), Setup(second, frozen=frozen)], passes), what)


def check_other_shapes_are_refused(adapter: Adapter) -> None:
    """Replicas of as many elements but other shapes exchange gradients that belong to different parameters."""
    _refused(adapter, {"a": np.ones(2), "b": np.ones(1)}, {"a": np.ones(1), "b": np.ones(2)}, "other shapes")


def check_other_names_are_refused(adapter: Adapter) -> None:
    """Replicas that registered the same parameters in another order exchange them crosswise."""
    _refused(adapter, scalars(a=1.0, b=1.0), scalars(b=1.0, a=1.0), "another order")


def check_another_parameter_is_refused(adapter: Adapter) -> None:
    """A replica has a parameter more: the others wait for a bucket that never comes, or take half of one."""
    _refused(adapter, scalars(a=1.0), scalars(a=1.0, b=1.0), "one parameter more")


def check_freezing_on_one_rank_is_refused(adapter: Adapter) -> None:
    """A parameter is frozen on one rank only: the ranks' buckets are not the same."""
    _refused(adapter, scalars(a=1.0, b=1.0), scalars(a=1.0, b=1.0), "frozen on one rank", frozen=("b",))


def check_other_caps_are_right_or_refused(adapter: Adapter) -> None:
    """Ranks cut their buckets differently, and what fits by chance is mixed up."""
    params = scalars(a=1.0, b=1.0)
    setups = [Setup(params, bucket_bytes=1), Setup(params, bucket_bytes=10**6)]
    passes = [[Backward(batch(a=[r], b=[10 * r]))] for r in (1, 3)]
    try:
        results = combined(adapter, setups, passes)
    except NotImplementedError:
        raise
    except Exception:
        return
    expect_on_all(results, a=2.0, b=20.0)


def check_optimizer_made_before(adapter: Adapter) -> None:
    """Wrapping makes new parameters: an optimizer that was made before holds the old ones, and nothing moves."""
    setup = Setup(scalars(v=1.0, w=1.0), frozen=("v",), lr=0.5, optimizer_first=True)
    expect_on_all(adapter.run(_one_step, 2, adapter, setup), w=1.0 - 0.5 * 3.0, v=1.0)


def _one_step(place: Any, adapter: Adapter, setup: Setup) -> Any:
    replica = adapter.wrap(place, setup)
    replica.backward(batch(w=[2.0 + 2.0 * place.rank]))
    replica.step()
    return replica.values()


def check_buffers_agree(adapter: Adapter) -> None:
    """Buffers differ by rank after steps; or pass through a float on their way, and a large counter is off by one."""
    setup = Setup(scalars(w=1.0), {"mean": np.zeros(2, np.float32), "count": np.zeros((), np.int64)})
    results = adapter.run(_with_buffers, 2, adapter, setup)
    expect_same_bits(results)
    for rank, result in enumerate(results):
        count = result["count"]
        assert count.dtype == np.int64 and int(count) in (2**60 + 1, 2**60 + 2), (
            f"rank {rank}: expected the counter of a rank as int64, got {count!r}"
        )


def _with_buffers(place: Any, adapter: Adapter, setup: Setup) -> Any:
    replica = adapter.wrap(place, setup)
    mean = np.full(2, place.rank, np.float32)
    replica.set_buffers({"mean": mean, "count": np.array(2**60 + 1 + place.rank, np.int64)})
    for _ in range(2):
        replica.zero_grad()
        replica.backward(batch(w=[1.0]))
    return replica.buffers()


def check_evaluation_on_one_rank(adapter: Adapter) -> None:
    """A forward without gradients makes collectives of its own: a rank that evaluates alone waits for the others."""
    setup = Setup(scalars(w=2.0), {"mean": np.zeros(1)}, lr=0.5)
    expect_on_all(adapter.run(_evaluated, 2, adapter, setup), w=1.5)


def _evaluated(place: Any, adapter: Adapter, setup: Setup) -> Any:
    replica = adapter.wrap(place, setup)
    for _ in range(3 * place.rank):
        found = replica.evaluate(batch(w=[1.0, 3.0]))
        assert found.tolist() == [2.0, 6.0], f"expected outputs [2, 6], got {found}"
    replica.backward(batch(w=[1.0]))
    replica.step()
    return replica.values()


def check_state_is_that_of_the_model(adapter: Adapter) -> None:
    """What is saved has a prefix that the bare model does not know, or lacks the buffers."""
    setup = Setup(scalars(w=1.0), {"mean": np.array([3.0])})
    for rank, state in enumerate(adapter.run(_state, 2, adapter, setup)):
        assert sorted(state) == ["mean", "w"], f"rank {rank}: expected the keys mean and w, got {sorted(state)}"
    expect_on_all([state], w=1.0, mean=3.0)


def _state(place: Any, adapter: Adapter, setup: Setup) -> Any:
    return adapter.wrap(place, setup).state()
