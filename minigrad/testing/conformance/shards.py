"""Optimizers whose state is shared out over the ranks: the values of one that is not, and the bytes that each keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.optim.muon import muon_update
from minigrad.testing.conformance.adapter import Adapter, Arrays, Setup
from minigrad.testing.conformance.expect import expect_on_all, offered, values

MOMENTUM = 0.9
STEPS = 2
_ROUNDING = 0.1  # of the largest element of a change, which also one in bfloat16 keeps within


def check_sharded_step(adapter: Adapter) -> None:
    """A plain optimizer steps where a rank has only a part of the combined gradient, or ranks keep their parts.

    Sizes that no number of ranks divides; the values are those of one process on the joined batch, to rounding.
    """
    setup = Setup({"w": np.ones((3, 5)), "b": np.ones(1), "v": np.ones((2, 7))}, bucket_bytes=64, lr=0.05)
    parts = _batches(setup, 3)
    alone, velocity = dict(setup.params), {name: np.zeros_like(value) for name, value in setup.params.items()}
    for gradient in _joined(parts):
        for name in alone:
            velocity[name] = MOMENTUM * velocity[name] + gradient[name]
            alone[name] = alone[name] - setup.lr * velocity[name]
    expect_on_all([found for found, _ in values(adapter, _trained, 3, setup, parts, "momentum")], **alone)


def check_sharded_state(adapter: Adapter) -> None:
    """Every rank keeps the optimizer's state of all parameters, as a plain optimizer in the place of a sharded one.

    One number for each of 4 parameters of 16 elements: on 2 ranks a half of them, and one parameter, at most.
    """
    setup = Setup({f"w{i}": np.ones((4, 4)) for i in range(4)}, bucket_bytes=128)
    whole, ranks = sum(value.nbytes for value in setup.params.values()), 2
    assert setup.bucket_bytes is not None
    most = whole // ranks + setup.bucket_bytes
    found = [nbytes for _, nbytes in values(adapter, _trained, ranks, setup, _batches(setup, ranks), "momentum")]
    for rank, nbytes in enumerate(found):
        assert nbytes <= most, f"rank {rank}: expected at most {most} bytes of state, of {whole}, got {nbytes}"
    assert sum(found) >= whole, f"expected {whole} bytes of state on all ranks together, got {sum(found)}"


def check_matrices_are_whole(adapter: Adapter) -> None:
    """A matrix is made orthogonal from the part of it that a rank has, and not as a whole.

    Tall, wide and square ones; the values are those of one process on the joined batch,
    within what a rounding to bfloat16 changes. Source: DeepSpeed issue 7807.
    """
    shapes = {"tall": (6, 4), "wide": (4, 6), "square": (5, 5)}
    setup = Setup({name: np.ones(shape) for name, shape in shapes.items()}, bucket_bytes=64, lr=0.5)
    parts = _batches(setup, 2)
    alone = {name: value.copy() for name, value in setup.params.items()}
    averages = {name: np.zeros_like(value) for name, value in setup.params.items()}
    for gradient in _joined(parts):
        for name in alone:
            muon_update(alone[name], gradient[name], averages[name], lr=setup.lr, weight_decay=0.0)
    results = [found for found, _ in values(adapter, _trained, 2, setup, parts, "muon")]
    for name, value in alone.items():
        bound = _ROUNDING * float(np.abs(value - setup.params[name]).max())
        expect_on_all(results, bound / max(1.0, float(np.abs(value).max())), **{name: value})


def _batches(setup: Setup, world_size: int) -> list[list[dict[str, Array]]]:
    """Of each rank a batch of two samples for each step, of whole numbers."""
    rng = np.random.default_rng(0)

    def one() -> dict[str, Array]:
        return {name: rng.integers(-8, 9, (2, *p.shape)).astype(p.dtype) for name, p in setup.params.items()}

    return [[one() for _ in range(STEPS)] for _ in range(world_size)]


def _joined(parts: Sequence[Sequence[Arrays]]) -> list[dict[str, Array]]:
    """The gradients of each step over the batches of all ranks."""
    return [
        {name: np.concatenate([own[step][name] for own in parts]).mean(axis=0) for name in parts[0][step]}
        for step in range(STEPS)
    ]


def _trained(place: Any, adapter: Adapter, setup: Setup, parts: Any, rule: str) -> Any:
    """The values after a step on each batch of this rank, and the bytes of its state."""
    replica = adapter.wrap(place, setup)
    step, state_bytes = offered(replica, "sharded_step"), offered(replica, "state_bytes")
    for part in parts[place.rank]:
        step(part, rule)
    return replica.values(), state_bytes()
