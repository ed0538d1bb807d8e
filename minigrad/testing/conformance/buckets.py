"""Checks of buckets: what is cut, in which order it travels, and that neither shows in the result."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.testing.conformance.adapter import Adapter, Setup
from minigrad.testing.conformance.expect import (
    Backward,
    Gradients,
    combined,
    expect_on_all,
    expect_same_bits,
    faulty,
    random_batch,
    returned,
    values,
)

SHAPES: dict[str, tuple[int, ...]] = {"a": (3, 4), "b": (5,), "c": (2, 2, 2), "d": (1,)}
REPEATS = 4


def check_readiness_in_another_order(adapter: Adapter) -> None:
    """Buckets go out in the order in which they become ready, which differs by rank, and are matched with others.

    The gradient of parameter i on rank r is 100·i + r, on three ranks, four times.
    """
    setup = Setup({f"p{i}": np.zeros(4) for i in range(4)}, bucket_bytes=4)
    right = {"p0": 1.0, "p1": 101.0, "p2": 201.0, "p3": 301.0}
    for result in returned(faulty(adapter, _shuffled, 3, setup, REPEATS, without=0, control=right)):
        expect_on_all(result, **right)


def _shuffled(place: Any, adapter: Adapter, setup: Setup, repeats: int) -> Any:
    """The gradients of a backward in order; or of so many, each in an order of its own."""
    seen = []
    for repeat in range(max(1, repeats)):
        order = np.random.default_rng([place.rank, repeat]).permutation(4) if repeats else range(4)
        replica = adapter.wrap(place, setup)
        replica.backward({f"p{i}": np.full((1, 4), 100.0 * i + place.rank) for i in order})
        seen.append(replica.gradients())
    return seen if repeats else seen[0]


def check_buckets_of_unequal_size(adapter: Adapter) -> None:
    """Buckets of different sizes are matched with each other: a size that was not expected, or a hang."""
    setup = Setup({f"p{size}": np.zeros(size) for size in (3, 5, 7, 9)}, bucket_bytes=4)
    passes = [
        [Backward({f"p{size}": np.full((1, size), 10.0 * size + r) for size in sizes})]
        for r, sizes in enumerate([(3, 5, 7, 9), (9, 3, 7, 5), (5, 9, 3, 7)])
    ]
    expect_on_all(combined(adapter, setup, passes), p3=31.0, p5=51.0, p7=71.0, p9=91.0)


def check_parameter_above_the_cap(adapter: Adapter) -> None:
    """A parameter larger than a bucket, a message or a socket's memory is refused; or all send, and nobody reads."""
    size = 2**21
    setup = Setup({"small": np.zeros(3, np.float32), "large": np.zeros(size, np.float32)}, bucket_bytes=1024)
    results = values(adapter, _large, 2, setup, size)
    for rank, (small, lowest, highest) in enumerate(results):
        found = (small, lowest, highest)
        assert found == (1.5, 1.5, 1.5), f"rank {rank}: expected 1.5 everywhere, got {found}"


def _large(place: Any, adapter: Adapter, setup: Setup, size: int) -> Any:
    replica = adapter.wrap(place, setup)
    value = np.float32(1 + place.rank)
    replica.backward({"small": np.full((1, 3), value), "large": np.full((1, size), value)})
    gradients = replica.gradients()
    small, large = gradients["small"], gradients["large"]
    assert small is not None and large is not None, "expected both gradients, got none"
    return float(small.max()), float(large.min()), float(large.max())


def _gradients(adapter: Adapter, bucket_bytes: int | None) -> list[Gradients]:
    """The same random float32 gradients on three ranks."""
    params = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    passes = [[Backward(random_batch(params, 2 + r, r))] for r in range(3)]
    return combined(adapter, Setup(params, bucket_bytes=bucket_bytes), passes)


def check_all_ranks_have_the_same_bits(adapter: Adapter) -> None:
    """Ranks add up in different orders, and their replicas drift apart."""
    expect_same_bits(_gradients(adapter, None))


def check_bits_do_not_depend_on_the_cap(adapter: Adapter) -> None:
    """The order of a sum follows from where a bucket is cut, so that another cap is another result."""
    expect_same_bits([_gradients(adapter, cap)[0] for cap in (4, 48, 10**6)], of="cap")


def check_bits_do_not_depend_on_the_run(adapter: Adapter) -> None:
    """The order of a sum follows from which rank came first, so that no run can be repeated."""
    expect_same_bits([_gradients(adapter, 48)[0] for _ in range(4)], of="run")
