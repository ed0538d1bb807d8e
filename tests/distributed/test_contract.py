"""What every communicator must do, on every kind of world."""

import time

import numpy as np
import pytest

from minigrad.distributed import ReduceOp, SoloCommunicator
from minigrad.errors import (
    ArgumentError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DtypeError,
    RankFailedError,
    ShapeError,
)
from tests.distributed.worlds import KINDS, run_ranks

WORLDS = [("solo", 1)] + [(kind, n) for kind in KINDS for n in (1, 2, 3, 4)]
PAIRS = [(kind, 2) for kind in KINDS]
world = pytest.mark.parametrize("kind, size", WORLDS, ids=lambda value: str(value))
pair = pytest.mark.parametrize("kind, size", PAIRS, ids=lambda value: str(value))


def _rank_array(rank, count, dtype):
    return ((np.arange(count) % 7 + rank + 1) % 5 + 1).astype(dtype)


@world
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("op", ["SUM", "AVG", "MIN", "MAX", "PROD"])
def test_all_reduce(kind, size, dtype, op):
    def body(comm):
        results = []
        for count in (0, 1, 7, 1000):
            array = _rank_array(comm.rank, count, dtype)
            comm.all_reduce(array, ReduceOp[op]).wait()
            results.append(array)
        return results

    if op == "AVG" and not dtype.startswith("float"):
        with pytest.raises(DtypeError, match=f"float dtype for AVG, got {dtype}"):
            run_ranks(kind, body, size)
        return
    ranks = run_ranks(kind, body, size)
    function = {"SUM": np.sum, "AVG": np.mean, "MIN": np.min, "MAX": np.max, "PROD": np.prod}[op]
    for i, count in enumerate((0, 1, 7, 1000)):
        stacked = np.stack([_rank_array(rank, count, dtype) for rank in range(size)])
        expected = function(stacked, axis=0).astype(dtype)
        for results in ranks:
            assert results[i].dtype == np.dtype(dtype)
            np.testing.assert_allclose(results[i], expected, rtol=1e-3 if dtype == "float16" else 1e-6)
            assert results[i].tobytes() == ranks[0][i].tobytes()


@world
def test_all_reduce_of_many_elements(kind, size):
    count = 4 * 1024 * 1024

    def body(comm):
        array = comm.empty(count, np.dtype(np.float32))
        array[...] = comm.rank + 1
        comm.all_reduce(array).wait()
        return float(array.min()), float(array.max())

    assert set(run_ranks(kind, body, size)) == {(float(sum(range(1, size + 1))),) * 2}


@world
def test_broadcast_from_each_root(kind, size):
    def body(comm):
        received = []
        for root in range(size):
            array = np.full(3, float(comm.rank))
            comm.broadcast(array, root).wait()
            received.append(array.tolist())
        return received

    assert run_ranks(kind, body, size) == [[[float(root)] * 3 for root in range(size)]] * size


@world
def test_reduce_scatter_then_all_gather_is_all_reduce(kind, size):
    def body(comm):
        source = np.arange(3.0 * size) * (comm.rank + 1)
        part, whole = np.empty(3), np.empty(3 * size)
        comm.reduce_scatter(part, source.copy()).wait()
        comm.all_gather(whole, part).wait()
        comm.all_reduce(source).wait()
        return whole.tolist() == source.tolist()

    assert run_ranks(kind, body, size) == [True] * size


@world
def test_all_gather_object(kind, size):
    values = [None, 1.5, "text", [1, [2.0]], {"a": True}]

    def body(comm):
        return comm.all_gather_object({"rank": comm.rank, "values": values})

    expected = [{"rank": rank, "values": values} for rank in range(size)]
    assert run_ranks(kind, body, size) == [expected] * size


@world
def test_several_calls_may_be_under_way_at_once(kind, size):
    def body(comm):
        arrays = [np.full(5, float(i + comm.rank)) for i in range(10)]
        works = [comm.all_reduce(array) for array in arrays]
        for work in reversed(works):
            work.wait()
            assert work.done()
        return [array[0] for array in arrays]

    expected = [float(sum(i + rank for rank in range(size))) for i in range(10)]
    assert run_ranks(kind, body, size) == [expected] * size


@world
def test_refused_before_any_rank_is_asked(kind, size):
    def body(comm):
        with pytest.raises(ShapeError, match="C-contiguous"):
            comm.all_reduce(np.ones((4, 6))[:, ::2])
        with pytest.raises(ShapeError, match="C-contiguous"):
            comm.broadcast(np.ones((3, 2)).T)
        with pytest.raises(ArgumentError, match=r"root in \[0, "):
            comm.broadcast(np.ones(2), size)
        with pytest.raises(ArgumentError, match=r"root in \[0, "):
            comm.broadcast(np.ones(2), -1)
        with pytest.raises(ArgumentError, match="a ReduceOp, got 'sum'"):
            comm.all_reduce(np.ones(2), "sum")
        with pytest.raises(DtypeError, match="an array, got list"):
            comm.all_reduce([1.0, 2.0])
        with pytest.raises(ShapeError, match="elements in all"):
            comm.reduce_scatter(np.empty(2), np.empty(2 * size + 1))
        with pytest.raises(DtypeError, match="one dtype, got float64 and float32"):
            comm.all_gather(np.empty(2 * size), np.empty(2, np.float32))
        with pytest.raises(DtypeError, match="JSON data, got set"):
            comm.all_gather_object({1})
        comm.barrier()
        return True

    assert run_ranks(kind, body, size) == [True] * size


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


@pair
@pytest.mark.parametrize("case", MISMATCHES)
def test_mismatch_raises_on_all_ranks_and_names_both_sides(kind, size, case):
    first, second, words = MISMATCHES[case]

    def body(comm):
        with pytest.raises(CollectiveMismatchError) as caught:
            (first if comm.rank == 0 else second)(comm).wait()
        with pytest.raises(CollectiveMismatchError):
            comm.barrier()
        return str(caught.value)

    for rank, message in enumerate(run_ranks(kind, body, size)):
        assert message.startswith(f"rank {rank}: ")
        assert all(word in message for word in [*words, "on rank 0", "on rank 1"])


@pair
def test_other_order_of_calls_is_a_mismatch(kind, size):
    def body(comm):
        small, large = np.ones(2), np.ones(9)
        with pytest.raises(CollectiveMismatchError, match="call 0: .*of 2 float64.*of 9 float64|of 9.*of 2"):
            for array in (small, large) if comm.rank == 0 else (large, small):
                comm.all_reduce(array).wait()
        return True

    assert run_ranks(kind, body, size) == [True, True]


@pair
def test_missing_rank_is_named_with_what_it_did_last(kind, size):
    def body(comm):
        comm.barrier()
        if comm.rank == 1:
            time.sleep(1.2)
            return ""
        with pytest.raises(CollectiveTimeoutError) as caught:
            comm.all_reduce(np.ones(3)).wait()
        return str(caught.value)

    message = run_ranks(kind, body, size, timeout_s=0.4)[0]
    assert "rank 0: call 1: all_reduce(SUM) of 3 float64" in message
    assert "rank 1 last called call 0: barrier" in message


@pair
def test_late_rank_gets_the_error_too(kind, size):
    def body(comm):
        if comm.rank == 1:
            time.sleep(0.8)
        with pytest.raises(CollectiveTimeoutError):
            comm.barrier()
        return True

    assert run_ranks(kind, body, size, timeout_s=0.2) == [True, True]


@pair
def test_slow_rank_within_the_timeout_is_waited_for(kind, size):
    def body(comm):
        if comm.rank == 1:
            time.sleep(0.3)
        comm.barrier()
        return True

    assert run_ranks(kind, body, size) == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_raising_rank_is_what_run_raises_and_what_the_others_hear(kind):
    heard = []

    def body(comm):
        if comm.rank == 1:
            raise ZeroDivisionError("boom")
        try:
            comm.barrier()
        except RankFailedError as error:
            heard.append(str(error))
            raise

    started = time.perf_counter()
    with pytest.raises(ZeroDivisionError, match="boom"):
        run_ranks(kind, body, 3)
    assert time.perf_counter() - started < 10.0  # at once, not after the timeout of 20 s
    if kind == "threads":
        assert len(heard) == 2
        assert all("rank 1 failed first: ZeroDivisionError: boom" in message for message in heard)


@pair
def test_rank_that_left_is_named_at_once(kind, size):
    def body(comm):
        if comm.rank == 1:
            comm.close()
            return True
        with pytest.raises(RankFailedError, match="rank 1 (closed its communicator|has returned)"):
            comm.barrier()
        return True

    assert run_ranks(kind, body, size) == [True, True]


@pair
def test_abort_reaches_everybody_and_stays(kind, size):
    def body(comm):
        if comm.rank == 1:
            comm.abort("no more")
        for _ in range(2):
            with pytest.raises(RankFailedError, match="rank 1 aborted: no more"):
                comm.barrier()
        return True

    assert run_ranks(kind, body, size) == [True, True]


def test_solo_after_its_end():
    comm = SoloCommunicator()
    comm.close()
    comm.close()
    with pytest.raises(RankFailedError, match="it was closed"):
        comm.barrier()


@pytest.mark.parametrize("kind", KINDS)
def test_a_world_of_no_ranks_is_refused(kind):
    with pytest.raises(ArgumentError, match="world_size"):
        run_ranks(kind, lambda comm: None, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_fifty_worlds_one_after_the_other(kind):
    for _ in range(50):
        assert run_ranks(kind, lambda comm: comm.all_gather_object(comm.rank), 2) == [[0, 1], [0, 1]]
