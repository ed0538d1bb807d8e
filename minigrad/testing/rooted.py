"""The cases of the contract in which ranks get different things: reduce, gather, scatter and all_to_all."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.backend.dtypes import Array
from minigrad.distributed import Communicator, ReduceOp, Work
from minigrad.errors import (
    ArgumentError,
    AutogradError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DtypeError,
    RankFailedError,
    ShapeError,
)
from minigrad.testing.contract import OPS, as_dtype, contract, refused, whole_numbers
from minigrad.tensor import Tensor


def _values(rank: int, count: int, dtype: Any = np.float64) -> Array:
    return np.random.default_rng([rank, count]).integers(0, 100, count).astype(dtype)


def _reduce(comm: Communicator, root: int) -> Work:
    return comm.reduce(np.ones(3), root)


def _gather(comm: Communicator, root: int) -> Work:
    return comm.gather(np.empty(3 * comm.world_size) if comm.rank == root else None, np.ones(3), root)


def _scatter(comm: Communicator, root: int) -> Work:
    return comm.scatter(np.empty(3), np.ones(3 * comm.world_size) if comm.rank == root else None, root)


def _all_to_all(comm: Communicator, root: int) -> Work:
    return comm.all_to_all(np.empty(3 * comm.world_size), np.ones(3 * comm.world_size))


_CALLS: dict[str, Callable[[Communicator, int], Work]] = {
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
}


# ----------------------------------------------------------------------------------------------------- what they do


@contract(dtype=["int32", "bfloat16", "float16", "float64"])
def reduce_gives_the_root_what_all_reduce_gives_all(comm: Communicator, dtype: str) -> None:
    """Bit for bit; and no other array changes, which may be read-only."""
    kind, size = as_dtype(dtype), comm.world_size
    for root, count in itertools.product(range(size), (0, 7, 3001)):
        for op in OPS if count == 7 else ("SUM", "MAX"):
            mine = whole_numbers(comm.rank, count, kind)
            if "float" in dtype:
                mine = np.random.default_rng(comm.rank).standard_normal(count).astype(kind)
            elif op == "AVG":
                with refused(DtypeError, f"reduce: expected a float dtype for AVG, got {dtype}"):
                    comm.reduce(mine, root, ReduceOp.AVG)
                continue
            everywhere, given = mine.copy(), mine.copy()
            given.setflags(write=comm.rank == root)
            works = [comm.reduce(given, root, ReduceOp[op]), comm.all_reduce(everywhere, ReduceOp[op])]
            for work in works:
                work.wait()
            assert given.tobytes() == (everywhere if comm.rank == root else mine).tobytes()


@contract(dtype=["bool", "int16", "bfloat16", "float64"])
def gather_and_scatter_undo_each_other(comm: Communicator, dtype: str) -> None:
    """Of any numbers and shapes, from and to each root."""
    rank, size, kind = comm.rank, comm.world_size, as_dtype(dtype)
    for root, shape in itertools.product(range(size), [(0,), (), (2, 3), (1001,)]):
        count = int(np.prod(shape))
        source = _values(rank, count, kind).reshape(shape)
        source.setflags(write=False)
        whole = np.empty((size, *shape), kind) if rank == root else None
        comm.gather(whole, source, root).wait()
        if whole is not None:
            assert whole.tobytes() == b"".join(_values(r, count, kind).tobytes() for r in range(size))
        back = np.empty(shape, kind)
        comm.scatter(back, whole, root).wait()
        assert back.tobytes() == source.tobytes()


@contract()
def all_to_all_transposes_the_parts_of_ranks(comm: Communicator) -> None:
    """Part r of rank s becomes part s of rank r; twice is as if nothing had been."""
    rank, size = comm.rank, comm.world_size
    for count in (0, 1, 3, 700):
        sources = [_values(r, size * count).reshape(size, count) for r in range(size)]
        output, back = np.empty((size, count)), np.empty(size * count)
        comm.all_to_all(output, sources[rank]).wait()
        assert output.tobytes() == b"".join(source[rank].tobytes() for source in sources)
        comm.all_to_all(back, output).wait()
        assert back.tobytes() == sources[rank].tobytes()


@contract(sizes=(1, 2, 3))
def many_elements_reach_other_ranks(comm: Communicator) -> None:
    """In memory of the communicator's and in any other."""
    rank, size, count, root = comm.rank, comm.world_size, 120_001, comm.world_size - 1
    ours, whole = comm.empty(count, "float32"), comm.empty(size * count, "float32")
    for array in (np.empty(count, np.float32), ours):
        array[...] = rank + 1
        comm.reduce(array, root).wait()
        assert (array == (sum(range(1, size + 1)) if rank == root else rank + 1)).all()
    array[...] = rank
    comm.gather(whole if rank == root else None, array, root).wait()
    places = np.repeat(np.arange(size, dtype=np.float32), count)
    assert rank != root or (whole == places).all()
    comm.scatter(ours, whole if rank == root else None, root).wait()
    assert (ours == rank).all()
    source = places + 10 * rank
    comm.all_to_all(whole, source).wait()
    assert (whole == 10 * places + rank).all() and (source == places + 10 * rank).all()


@contract(sizes=(1, 3))
def memory_may_overlap_on_a_rank(comm: Communicator) -> None:
    """What is sent is what the source was when the call was made."""
    rank, size = comm.rank, comm.world_size
    whole, grid = np.full((size, 2), float(rank)), np.arange(3.0 * size).reshape(size, 3) + 10 * rank
    comm.gather(whole if rank == 0 else None, whole[size - 1], 0).wait()
    assert rank or whole.tolist() == [[r, r] for r in range(size)]
    comm.scatter(whole[size - 1], whole if rank == 0 else None, 0).wait()
    assert whole[-1].tolist() == [rank, rank]
    comm.all_to_all(grid, grid).wait()
    assert grid[:, 0].tolist() == [3.0 * rank + 10 * r for r in range(size)]


@contract(sizes=(2, 3))
def several_kinds_of_calls_may_be_under_way_at_once(comm: Communicator) -> None:
    """And be waited for in any order, by ranks that come late too."""
    rank, size = comm.rank, comm.world_size
    if rank == 1:
        time.sleep(0.05)
    total, whole, part = np.full(2, rank + 1.0), np.empty(size), np.empty(1)
    turned, added = np.empty(size), np.full(2, rank + 1.0)
    works = [
        comm.reduce(total, 1),
        comm.gather(whole if rank == 1 else None, np.full(1, float(rank)), 1),
        comm.all_reduce(added),
        comm.scatter(part, np.arange(1.0 * size) if rank == 0 else None),
        comm.all_to_all(turned, np.full(size, float(rank))),
    ]
    for work in reversed(works):
        work.wait(host=True)
        assert work.done()
    everything = sum(range(1, size + 1))
    assert total[0] == (everything if rank == 1 else rank + 1) and added[0] == everything
    assert (rank != 1 or whole.tolist() == list(range(size))) and part[0] == rank
    assert turned.tolist() == list(range(size))


@contract(sizes=(1, 3))
def tensors_may_be_reduced_gathered_and_scattered(comm: Communicator) -> None:
    """They count as changed where they are overwritten, and are refused where a gradient would be lost."""
    rank, size = comm.rank, comm.world_size
    x, whole, part = Tensor(np.full((1, 2), rank + 1.0)), Tensor(np.empty((size, 2))), Tensor(np.empty(2))
    turned, weight = Tensor(np.empty((size, 2))), Tensor(np.ones(2), requires_grad=True)
    losses = [(tensor * weight).sum() for tensor in (x, whole, part, turned)]
    comm.reduce(x, 0).wait()
    comm.gather(whole if rank == 0 else None, x, 0).wait()
    comm.scatter(part, whole if rank == 0 else None, 0).wait()
    comm.all_to_all(turned, Tensor(np.full((size, 2), float(rank)))).wait()
    assert part.tolist() == [rank + 1.0 if rank else sum(range(1, size + 1))] * 2
    assert turned.tolist() == [[r, r] for r in range(size)]
    for loss, changed in zip(losses, (rank == 0, rank == 0, True, True)):
        if changed:
            with refused(AutogradError, "got data changed in place since, its input"):
                loss.backward()
        else:
            loss.backward()
    wanted = nn.Linear(2, 3).weight
    root_only = Tensor(np.empty((size, 3, 2), np.float32)) if rank == 0 else None
    calls: list[Callable[[], Any]] = [
        lambda: comm.reduce(wanted),
        lambda: comm.gather(root_only, wanted),
        lambda: comm.scatter(wanted, root_only),
        lambda: comm.all_to_all(Tensor(np.empty((3, 2), np.float32)), wanted),
    ]
    for call in calls:
        with refused(AutogradError, r"not require grad, got one of shape \(3, 2\) that does, .*within no_grad"):
            call()


# ------------------------------------------------------------------------------------------------------ what fails


@contract()
def what_no_rank_can_gather_or_scatter_is_refused(comm: Communicator) -> None:
    """Before any rank is asked: the ranks may go on."""
    rank, size, two, fixed = comm.rank, comm.world_size, np.ones(2), np.ones(2 * comm.world_size)
    fixed.setflags(write=False)
    mine, whole, elsewhere = rank, np.empty(2 * size), (rank + 1) % size
    refusals: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ArgumentError, "gather: expected output on the root, got None", lambda: comm.gather(None, two, mine)),
        (ArgumentError, "scatter: expected source on the root, got None", lambda: comm.scatter(two, None, mine)),
        (ShapeError, f"gather: expected {size} x 2 elements in all", lambda: comm.gather(np.empty(9), two, mine)),
        (ShapeError, f"scatter: expected {size} x 2 elements in all", lambda: comm.scatter(two, np.ones(9), mine)),
        (DtypeError, "gather: expected one dtype, got", lambda: comm.gather(whole, np.ones(2, "f"), mine)),
        (DtypeError, "scatter: expected one dtype, got", lambda: comm.scatter(np.ones(2, "f"), whole, mine)),
        (ShapeError, "all_to_all: expected output of", lambda: comm.all_to_all(np.empty(3 * size), whole)),
        (DtypeError, "all_to_all: expected one dtype, got", lambda: comm.all_to_all(whole, np.ones(2 * size, "f"))),
        (ShapeError, "C-contiguous", lambda: comm.gather(whole, np.ones(4)[::2], mine)),
        (DtypeError, "an array, got list", lambda: comm.all_to_all(whole, [1.0, 2.0] * size)),
        (ArgumentError, "a ReduceOp, got 'sum'", lambda: comm.reduce(two, mine, "sum")),  # type: ignore[arg-type]
        (ArgumentError, "gather: .* to overwrite, got a read-only one", lambda: comm.gather(fixed, two, mine)),
        (ArgumentError, "reduce: .* to overwrite, got a read-only one", lambda: comm.reduce(fixed, mine)),
        (ArgumentError, "all_to_all: .* to overwrite, got a read-only", lambda: comm.all_to_all(fixed, whole)),
    ]
    roots: list[Any] = [size, -1, 0.5]
    for root in roots:
        words = r"expected root to be an integer in \[0, "
        refusals += [
            (ArgumentError, f"reduce: {words}", functools.partial(comm.reduce, two, root)),
            (ArgumentError, f"gather: {words}", functools.partial(comm.gather, whole, two, root)),
            (ArgumentError, f"scatter: {words}", functools.partial(comm.scatter, two, whole, root)),
        ]
    if size > 1:
        others = f"to be None on all ranks but the root, {elsewhere}, got ndarray"
        refusals += [
            (ArgumentError, f"gather: expected output {others}", lambda: comm.gather(whole, two, elsewhere)),
            (ArgumentError, f"scatter: expected source {others}", lambda: comm.scatter(two, whole, elsewhere)),
            (ShapeError, f"{size} equal parts, got 7", lambda: comm.all_to_all(np.empty(7), np.empty(7))),
        ]
    for kind, said, call in refusals:
        with refused(kind, f"rank {rank}: .*{said}"):
            call()
    comm.barrier()


@contract(sizes=(2, 3), call=["reduce", "gather", "scatter"])
def ranks_that_name_two_roots_hear_of_both(comm: Communicator, call: str) -> None:
    """All of them, in the wording of every mismatch."""
    with refused(CollectiveMismatchError, f"to make one call, got call 0.*: {call}.* and call 0.*: {call}") as said:
        _CALLS[call](comm, 1 if comm.rank == 1 else 0).wait()
    assert all(word in said[0] for word in ("root 0", "root 1", "on rank 1"))


_PAIRS: dict[str, tuple[Callable[[Communicator], Work], Callable[[Communicator], Work], list[str]]] = {
    "op": (
        lambda c: c.reduce(np.ones(3), op=ReduceOp.MIN),
        lambda c: c.reduce(np.ones(3), op=ReduceOp.MAX),
        ["MIN root 0", "MAX root 0"],
    ),
    "count": (
        lambda c: c.gather(np.empty(3 * c.world_size) if c.rank == 0 else None, np.ones(3)),
        lambda c: c.gather(None, np.ones(4)),
        ["of 3 float64", "of 4 float64"],
    ),
    "dtype": (
        lambda c: c.scatter(np.empty(3), np.ones(3 * c.world_size) if c.rank == 0 else None),
        lambda c: c.scatter(np.empty(3, np.float32), None),
        ["float64", "float32"],
    ),
    "parts": (
        lambda c: c.all_to_all(np.empty(3 * c.world_size), np.ones(3 * c.world_size)),
        lambda c: c.all_to_all(np.empty(4 * c.world_size), np.ones(4 * c.world_size)),
        ["all_to_all of"],
    ),
    "kind": (lambda c: c.reduce(np.ones(3)), lambda c: c.all_reduce(np.ones(3)), ["call 0", ": reduce", "all_reduce"]),
}


@contract(sizes=(2, 3), case=list(_PAIRS))
def other_rooted_calls_are_a_mismatch_on_all_ranks(comm: Communicator, case: str) -> None:
    """Named with both sides; and the world stays failed."""
    first, second, words = _PAIRS[case]
    with refused(CollectiveMismatchError, "expected all ranks to make one call, got call 0.*: .* call 0.*: ") as said:
        (second if comm.rank == 1 else first)(comm).wait()
    assert all(word in said[0] for word in [*words, "on rank 1"])
    with refused(CollectiveMismatchError):
        comm.reduce(np.ones(1))


@contract(sizes=(2,), timeout_s=0.2)
def a_rank_that_a_root_waits_for_is_named(comm: Communicator) -> None:
    """With what it did last; when it comes it hears of it."""
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.7)
    with refused(CollectiveTimeoutError, r"call 1: gather\(root 0\) of 3 float64.*: expected all 2 ranks") as said:
        _gather(comm, 0).wait()
    assert "rank 1 last called call 0: barrier" in said[0]


@contract(sizes=(2, 3), call=list(_CALLS))
def a_rank_that_left_is_missed_at_once(comm: Communicator, call: str) -> None:
    """Root or not."""
    if comm.rank == 1:
        comm.close()
        with refused(RankFailedError, "closed"):
            _CALLS[call](comm, 0)
        return
    with refused(RankFailedError, "rank 1 (closed its communicator|has returned)"):
        _CALLS[call](comm, comm.world_size - 1).wait(host=True)
