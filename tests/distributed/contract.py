"""What every communicator must do: bodies that each rank of a world runs, whatever kind of world it is.

A body asserts on its own rank. `CASES` lists them with the world sizes that they are meant for.
"""

from __future__ import annotations

import functools
import itertools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import minigrad
from minigrad import optim
from minigrad.distributed import DDP, ReduceOp, SoloCommunicator, collectives, run
from minigrad.errors import (
    ArgumentError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DtypeError,
    RankFailedError,
    ShapeError,
)
from tests.distributed.models import Mlp, assert_gradients_close, data, mean_loss, values
from tests.kernel_suite.grad_scale import weighted


@dataclass(frozen=True)
class Case:
    """A body, and the worlds to run it on."""

    body: Callable[[Any], None]
    sizes: tuple[int, ...]
    timeout_s: float


CASES: dict[str, Case] = {}


def contract(
    *, sizes: tuple[int, ...] = (1, 2, 3, 4), timeout_s: float = 20.0, **values: Sequence[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to the contract, once for each combination of the values of its arguments."""

    def add(body: Callable[..., None]) -> Callable[..., None]:
        for combination in itertools.product(*values.values()):
            arguments = dict(zip(values, combination))
            name = "-".join([body.__name__, *map(str, combination)])
            CASES[name] = Case(functools.partial(body, **arguments), sizes, timeout_s)
        return body

    return add


def rank_array(rank: int, count: int, dtype: Any) -> np.ndarray:
    """Small whole numbers that differ by rank; few enough that no product overflows a byte."""
    return ((np.arange(count) % 7 + rank + 1) % 3 + 1).astype(dtype)


# --------------------------------------------------------------------------------------------------- collectives

DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8"]


OPS = {"SUM": np.sum, "AVG": np.mean, "MIN": np.min, "MAX": np.max, "PROD": np.prod}


def dtype_of(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@contract(dtype=["float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8"])
def all_reduce(comm, dtype):
    kind = dtype_of(dtype)
    for op, count in itertools.product(OPS, (0, 1, 7, 1000, 40_000)):
        array = rank_array(comm.rank, count, kind)
        if op == "AVG" and "float" not in dtype:
            with pytest.raises(DtypeError, match=f"float dtype for AVG, got {dtype}"):
                comm.all_reduce(array, ReduceOp.AVG)
            continue
        comm.all_reduce(array, ReduceOp[op]).wait()
        stacked = np.stack([rank_array(rank, count, np.float64) for rank in range(comm.world_size)])
        expected = OPS[op](stacked, axis=0).astype(kind)
        assert array.dtype == kind
        np.testing.assert_allclose(array.astype(np.float64), expected.astype(np.float64), rtol=1e-6)


@contract(dtype=["float16", "bfloat16", "float32", "float64"])
def sums_are_added_up_in_the_one_order(comm, dtype):
    """Bit for bit what `collectives` gives for a list of the arrays: the same on every kind of world."""
    kind = dtype_of(dtype)
    for op, count in itertools.product((ReduceOp.SUM, ReduceOp.AVG), (5, 3000, 70_001)):
        arrays = [np.random.default_rng(rank).standard_normal(count).astype(kind) for rank in range(comm.world_size)]
        array = arrays[comm.rank].copy()
        comm.all_reduce(array, op).wait()
        collectives.all_reduce(arrays, op)
        assert array.tobytes() == arrays[0].tobytes()


@contract(dtype=["float16", "bfloat16", "float32", "float64"])
def weighted_sums_have_the_bits_of_weighting_first(comm, dtype):
    """In any memory, with several under way, and where one rank has weighted its elements by itself.

    16-bit floats have the bits of weighting and adding up in float32, rounded once.
    """
    kind, rank, size = dtype_of(dtype), comm.rank, comm.world_size
    inside = np.dtype(np.float32) if kind.itemsize == 2 else kind
    weights = [[0.0, 1.0, 0.3, 1 / 3][(r + 1) % 4] for r in range(size)]  # the last of four ranks has no samples
    arrays, works, expected = [], [], []
    for count, make in itertools.product((0, 5, 3000, 300_001), (comm.empty, np.zeros)):
        own = [np.random.default_rng([r, count]).standard_normal(count).astype(kind) for r in range(size)]
        if size == 4:
            own[3][: count // 2] = np.nan
        arrays.append(make(count, kind))
        arrays[-1][...] = own[rank]
        own = [weighted(array.astype(inside), weight, inside) for array, weight in zip(own, weights)]
        if rank == size - 1 and count == 5 and inside == kind:
            arrays[-1][...] = own[rank]
            works.append(comm.all_reduce(arrays[-1], layout="a bucket"))
        else:
            weight = None if weights[rank] == 1.0 else np.array(weights[rank : rank + 1])
            works.append(comm.weighted_all_reduce(arrays[-1], weight, "a bucket"))
        weights = weights[1:] + weights[:1] if size < 4 else weights
        collectives.all_reduce(own)
        expected.append(own[0].astype(kind))
    for work, array, right in zip(works, arrays, expected):
        work.wait()
        assert array.tobytes() == right.tobytes()


@contract()
def works_tell_when_they_ran(comm):
    """After the last rank called, and before this one found it over; on one host, and so on one clock."""
    for count in (3, 700_001):
        began_s = comm.clock.now_s()
        work = comm.all_reduce(np.zeros(count))
        work.wait(host=True)
        ended_s = comm.clock.now_s()
        last_s = max(comm.all_gather_object(began_s))
        if comm.world_size > 1 and work.span is not None:  # NCCL does not tell
            started_s, over_s = work.span
            assert last_s <= started_s <= over_s <= ended_s


@contract()
def a_weighted_sum_of_integers_is_refused(comm):
    with pytest.raises(DtypeError, match=f"rank {comm.rank}: weighted_all_reduce: expected a float dtype, got int32"):
        comm.weighted_all_reduce(np.ones(3, np.int32), np.array([0.5]))


@contract()
def all_reduce_of_many_elements(comm):
    """In memory of the communicator's, and in any other, of which shared memory holds a chunk at a time."""
    count, size = 4 * 1024 * 1024 + 3, comm.world_size
    places = np.arange(count, dtype=np.float32) % 1000
    for array in (comm.empty(count, "float32"), np.empty(count, np.float32)):
        np.add(places, comm.rank, out=array)
        comm.all_reduce(array).wait()
        np.testing.assert_array_equal(array, size * places + sum(range(size)))


@contract()
def broadcast_from_each_root(comm):
    for root in range(comm.world_size):
        for count in (0, 1, 3, 300_001):
            array = np.full(count, float(comm.rank))
            comm.broadcast(array, root).wait()
            assert (array == root).all()


@contract()
def reduce_scatter_then_all_gather_is_all_reduce(comm):
    for count in (0, 3, 50_000):
        source = np.random.default_rng(comm.rank).standard_normal(count * comm.world_size)
        part, whole = np.empty(count), np.empty(count * comm.world_size)
        comm.reduce_scatter(part, source.copy()).wait()
        comm.all_gather(whole, part).wait()
        comm.all_reduce(source).wait()
        assert whole.tobytes() == source.tobytes()


@contract()
def all_gather_object(comm):
    values = [None, 1.5, "text", [1, [2.0]], {"a": True}, "x" * 10 * comm.rank]
    everything = comm.all_gather_object({"rank": comm.rank, "values": values})
    assert everything == [{"rank": r, "values": [*values[:-1], "x" * 10 * r]} for r in range(comm.world_size)]


@contract()
def several_calls_may_be_under_way_at_once(comm):
    arrays = [np.full(5, float(i + comm.rank)) for i in range(10)]
    works = [comm.all_reduce(array) for array in arrays]
    for work in reversed(works):
        work.wait()
        assert work.done()
    assert [array[0] for array in arrays] == [
        float(sum(i + rank for rank in range(comm.world_size))) for i in range(10)
    ]


@contract()
def refused_before_any_rank_is_asked(comm):
    size = comm.world_size
    with pytest.raises(ShapeError, match="C-contiguous"):
        comm.all_reduce(np.ones((4, 6))[:, ::2])
    with pytest.raises(ShapeError, match="C-contiguous"):
        comm.broadcast(np.ones((3, 2)).T)
    with pytest.raises(ArgumentError, match=r"root to be an integer in \[0, "):
        comm.broadcast(np.ones(2), size)
    with pytest.raises(ArgumentError, match=r"root to be an integer in \[0, "):
        comm.broadcast(np.ones(2), -1)
    with pytest.raises(ArgumentError, match="a ReduceOp, got 'sum'"):
        comm.all_reduce(np.ones(2), "sum")
    with pytest.raises(DtypeError, match="an array, got list"):
        comm.all_reduce([1.0, 2.0])
    with pytest.raises(ShapeError, match="elements in all"):
        comm.reduce_scatter(np.empty(2), np.empty(2 * size + 1))
    with pytest.raises(DtypeError, match="one dtype, got float64 and float32"):
        comm.all_gather(np.empty(2 * size), np.empty(2, np.float32))
    with pytest.raises(ArgumentError, match=f"rank {comm.rank}: empty: expected count to be an integer >= 0, got -1"):
        comm.empty(-1, np.float32)
    with pytest.raises(DtypeError, match="expected one of .*, got 'float33'"):
        comm.empty(3, "float33")
    with pytest.raises(DtypeError, match="JSON data, got set"):
        comm.all_gather_object({1})
    with pytest.raises(DtypeError, match=r"JSON keeps as it is, got the key 1 of a dict: make it a string"):
        comm.all_gather_object({1: [2, 3]})
    with pytest.raises(DtypeError, match=r"JSON keeps as it is, got the tuple \(2, 3\): make it a list"):
        comm.all_gather_object([{"1": (2, 3)}])
    comm.barrier()


# ------------------------------------------------------------------------------------------------- data parallelism

SHARDS = {1: [7], 2: [3, 5], 3: [4, 0, 7], 4: [1, 0, 6, 2]}


def _trained(comm, shards, dtype):
    """The parameters after five steps on fresh data each."""
    ddp = DDP(Mlp(comm.rank, dtype=dtype), comm, bucket_cap_bytes=64)
    optimizer = optim.SGD(ddp.module.parameters(), lr=0.01, momentum=0.9)
    cuts = np.cumsum([0, *shards])
    for step in range(5):
        inputs, targets = data(sum(shards), step, dtype=dtype)
        part = slice(cuts[comm.rank], cuts[comm.rank + 1])
        optimizer.zero_grad()
        mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        optimizer.step()
    return values(ddp.module)


@contract(dtype=["float32", "float64"])
def training_equals_one_device_and_has_the_bits_of_threads(comm, dtype):
    shards = SHARDS[comm.world_size]
    mine = _trained(comm, shards, dtype)
    threads = run(_trained, comm.world_size, shards, dtype)
    assert all(mine[name].tobytes() == threads[comm.rank][name].tobytes() for name in mine)
    tolerance = 1e-11 if dtype == "float64" else 1e-5
    assert_gradients_close(mine, _trained(SoloCommunicator(), [sum(shards)], dtype), tolerance)


# ---------------------------------------------------------------------------------------------------- mismatches

MISMATCHES = {
    "count": (lambda c: c.all_reduce(np.ones(3)), lambda c: c.all_reduce(np.ones(4)), ["of 3 float64", "of 4 float64"]),
    "dtype": (
        lambda c: c.all_reduce(np.ones(3)),
        lambda c: c.all_reduce(np.ones(3, np.float32)),
        ["float64", "float32"],
    ),
    "op": (
        lambda c: c.all_reduce(np.ones(3), ReduceOp.MIN),
        lambda c: c.all_reduce(np.ones(3), ReduceOp.MAX),
        ["MIN", "MAX"],
    ),
    "kind": (lambda c: c.all_reduce(np.ones(3)), lambda c: c.broadcast(np.ones(3)), ["all_reduce", "broadcast"]),
    "root": (lambda c: c.broadcast(np.ones(3), 0), lambda c: c.broadcast(np.ones(3), 1), ["root 0", "root 1"]),
    "layout": (
        lambda c: c.all_reduce(np.ones(3), layout="aaaa"),
        lambda c: c.all_reduce(np.ones(3), layout="bbbb"),
        ["aaaa", "bbbb"],
    ),
}


@contract(sizes=(2, 3), case=list(MISMATCHES))
def mismatch_raises_on_all_ranks_and_names_both_sides(comm, case):
    first, second, words = MISMATCHES[case]
    with pytest.raises(CollectiveMismatchError) as caught:
        (second if comm.rank == 1 else first)(comm).wait()
    with pytest.raises(CollectiveMismatchError):
        comm.barrier()
    message = str(caught.value)
    assert message.startswith(f"rank {comm.rank}: ")
    assert all(word in message for word in [*words, "on rank 1"])
    assert "on rank 0" in message or "on rank 2" in message


@contract(sizes=(2,))
def other_order_of_calls_is_a_mismatch(comm):
    small, large = np.ones(2), np.ones(9)
    with pytest.raises(CollectiveMismatchError, match="call 0: .*of 2 float64.*of 9 float64|of 9.*of 2"):
        for array in (small, large) if comm.rank == 0 else (large, small):
            comm.all_reduce(array).wait()


# --------------------------------------------------------------------------------------------- absent and failed ranks


@contract(sizes=(2,), timeout_s=0.4)
def missing_rank_is_named_with_what_it_did_last(comm):
    comm.barrier()
    if comm.rank == 1:
        time.sleep(1.2)
        return
    with pytest.raises(CollectiveTimeoutError) as caught:
        comm.all_reduce(np.ones(3)).wait()
    assert "rank 0: call 1: all_reduce(SUM) of 3 float64" in str(caught.value)
    assert "rank 1 last called call 0: barrier" in str(caught.value)
    here = r"[^ ]*contract.py:(\d+) in missing_rank_is_named_with_what_it_did_last"
    lines = re.search(f"; rank 1: at {here}; rank 0: waiting at {here}$", str(caught.value))
    assert lines is not None and int(lines[2]) - int(lines[1]) == 3, caught.value


@contract(sizes=(2,), timeout_s=0.2)
def late_rank_gets_the_error_too(comm):
    if comm.rank == 1:
        time.sleep(0.8)
    with pytest.raises(CollectiveTimeoutError):
        comm.barrier()


@contract(sizes=(2,))
def slow_rank_within_the_timeout_is_waited_for(comm):
    if comm.rank == 1:
        time.sleep(0.3)
    comm.barrier()


@contract(sizes=(2, 3))
def rank_that_left_is_named_at_once(comm):
    if comm.rank == 1:
        comm.close()
        return
    with pytest.raises(RankFailedError, match="rank 1 (closed its communicator|has returned)"):
        comm.barrier()


@contract(sizes=(2, 3))
def abort_reaches_everybody_and_stays(comm):
    if comm.rank == 1:
        comm.abort("no more")
    for _ in range(2):
        with pytest.raises(RankFailedError, match="rank 1 aborted: no more"):
            comm.barrier()


@contract()
def what_all_give_up_is_as_if_nothing_had_been(comm):
    before = comm.all_reduce(np.ones(2), layout="under way")
    for _ in range(2):
        comm.give_up(f"rank {comm.rank} had enough")
    array = np.full(3, comm.rank + 1.0)
    comm.all_reduce(array).wait()
    before.wait()
    assert array.tolist() == [sum(range(1, comm.world_size + 1))] * 3
    comm.barrier()


@contract(sizes=(2, 3))
def what_one_rank_gives_up_fails_all(comm):
    comm.barrier()
    if comm.rank == 1:
        comm.give_up("enough (of it)")
    for _ in range(2):
        with pytest.raises(RankFailedError, match=r"rank 1 aborted: enough \(of it\)$"):
            comm.all_reduce(np.ones(2)).wait(host=True)
            comm.barrier()
    comm.give_up("this says nothing any more")


@contract()
def closed_twice_and_used_after(comm):
    comm.barrier()
    comm.close()
    comm.close()
    with pytest.raises(RankFailedError, match="closed"):
        comm.barrier()
    with pytest.raises(RankFailedError, match="closed"):
        comm.all_reduce(np.ones(2)).wait()
