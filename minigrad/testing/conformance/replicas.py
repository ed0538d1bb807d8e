"""Checks of replicas: that they start alike, are the same model, share their buffers, and keep their optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.testing.conformance.adapter import Adapter, Arrays, Setup
from minigrad.testing.conformance.expect import (
    batch,
    expect_on_all,
    expect_raised,
    expect_right_or_raised,
    expect_same_bits,
    faulty,
    offered,
    returned,
    scalars,
    values,
)
from minigrad.testing.conformance.outcome import Outcome


def check_replicas_start_alike(adapter: Adapter) -> None:
    """Initial values are left to the seed: replicas that start one apart stay so for ever."""
    setups = [Setup(scalars(w=1.0)), Setup(scalars(w=2.0))]
    expect_on_all(values(adapter, _initial, 2, setups), 0.0, w=1.0)


def _initial(place: Any, adapter: Adapter, setups: Sequence[Setup]) -> Any:
    return adapter.wrap(place, setups[place.rank]).values()


def _of_ones(params: Arrays) -> dict[str, Array]:
    return {name: np.ones((1, *value.shape)) for name, value in params.items()}


def _differing(place: Any, adapter: Adapter, setup: Setup, others: Sequence[tuple[Setup, Arrays]]) -> Any:
    """A step of this rank's replica: that of setup, or another one."""
    mine, part = [(setup, _of_ones(setup.params)), *others][place.rank]
    replica = adapter.wrap(place, mine)
    replica.backward(part)
    return replica.gradients()


def _beside(adapter: Adapter, setup: Setup, other: Setup, part: Arrays) -> list[Outcome]:
    """What became of a replica beside another one, once two of the first kind were right."""
    alike = [(setup, _of_ones(setup.params))]
    control = {name: 1.0 for name in setup.params}
    return faulty(adapter, _differing, 2, setup, [(other, part)], without=alike, control=control)


def _refused(adapter: Adapter, first: Arrays, second: Arrays, what: str, frozen: tuple[str, ...] = ()) -> None:
    expect_raised(_beside(adapter, Setup(first), Setup(second, frozen=frozen), _of_ones(second)), what)


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
    small, large = (Setup(scalars(a=1.0, b=1.0), bucket_bytes=cap) for cap in (1, 10**6))
    found = _beside(adapter, small, large, batch(a=[3], b=[39]))
    expect_right_or_raised(found, "other caps", a=2.0, b=20.0)


def check_optimizer_made_before(adapter: Adapter) -> None:
    """Wrapping makes new parameters: an optimizer that was made before holds the old ones, and nothing moves."""
    after, before = (
        values(adapter, _one_step, 2, Setup(scalars(w=1.0), lr=0.5, optimizer_first=first)) for first in (False, True)
    )
    assert after[0]["w"] != 1.0, f"an optimizer made after: expected a step to move 'w', got {after[0]['w']}"
    expect_on_all(before, **after[0])


def _one_step(place: Any, adapter: Adapter, setup: Setup) -> Any:
    replica = adapter.wrap(place, setup)
    replica.backward(batch(w=[2.0 + 2.0 * place.rank]))
    replica.step()
    return replica.values()


def check_loss_scale_that_differs(adapter: Adapter) -> None:
    """Ranks multiply their losses by scales of their own, restored on one of them, say: replicas part without a word.

    Three steps of gradient 2 with a rate of 0.5 lead from 10 to 7, or to an error.
    """
    setup = Setup(scalars(w=10.0), lr=0.5)
    found = faulty(adapter, _scaled, 2, setup, [1024.0, 2048.0], without=[1024.0] * 2, control={"w": 7.0})
    expect_right_or_raised(found, "scales that differ", w=7.0)


def _scaled(place: Any, adapter: Adapter, setup: Setup, scales: Sequence[float]) -> Any:
    replica = adapter.wrap(place, setup)
    for _ in range(3):
        offered(replica, "scaled_step")(batch(w=[2.0]), scales[place.rank])
    return replica.values()


COUNTED = Setup(scalars(w=1.0), {"mean": np.zeros(2, np.float32), "count": np.zeros((), np.int64)})


def check_buffers_agree(adapter: Adapter) -> None:
    """Buffers differ by rank after steps."""
    expect_same_bits(values(adapter, _with_buffers, 2, COUNTED))


def check_counters_are_exact(adapter: Adapter) -> None:
    """Buffers pass through a float on their way, and a large counter is off by one."""
    for rank, result in enumerate(values(adapter, _with_buffers, 2, COUNTED)):
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
    """A forward without gradients makes collectives of its own: a rank that evaluates alone waits for the others.

    Each rank in turn evaluates after a step of all, while the others have nothing more to do.
    """
    setup = Setup(scalars(w=2.0), {"mean": np.zeros(1)})
    right: dict[str, Any] = {"outputs": [[2.0, 6.0]] * 3}
    for alone in range(2):
        results = returned(faulty(adapter, _evaluated, 2, setup, [alone], without=[0, 1], control=right))
        expect_on_all([results[alone]], **right)


def _evaluated(place: Any, adapter: Adapter, setup: Setup, ranks: Sequence[int]) -> Any:
    """What these ranks evaluate, after a step of all."""
    replica = adapter.wrap(place, setup)
    replica.backward(batch(w=[1.0]))
    times = 3 if place.rank in ranks else 0
    return {"outputs": np.array([replica.evaluate(batch(w=[1.0, 3.0])) for _ in range(times)])}


SAVED = Setup(scalars(w=1.0), {"mean": np.array([3.0])})


def check_state_is_that_of_the_model(adapter: Adapter) -> None:
    """What is saved has a prefix that the bare model does not know."""
    for rank, state in enumerate(values(adapter, _state, 2, SAVED)):
        other = sorted(state.keys() - {"mean", "w"})
        assert "w" in state and not other, f"rank {rank}: expected the keys of the bare model, got {sorted(state)}"


def check_state_has_the_buffers(adapter: Adapter) -> None:
    """What is saved lacks the buffers, whatever the names of its keys."""
    for state in values(adapter, _state, 2, SAVED):
        bare = {name.rpartition(".")[2]: value for name, value in state.items()}
        assert "mean" in bare, f"expected the buffer 'mean' in what is saved, got {sorted(state)}"
        expect_on_all([bare], w=1.0, mean=3.0)


def _state(place: Any, adapter: Adapter, setup: Setup) -> Any:
    return adapter.wrap(place, setup).state()
