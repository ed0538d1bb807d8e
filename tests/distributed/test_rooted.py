"""reduce, gather, scatter and all_to_all beside the contract: as lists, on GPUs, where faults are injected."""

import multiprocessing
import time

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad
from minigrad import Device
from minigrad.distributed import (
    Fault,
    FaultInjecting,
    Recording,
    ReduceOp,
    SoloCommunicator,
    ThreadWorld,
    collectives,
    rooted,
    run,
)
from minigrad.errors import ArgumentError, CollectiveMismatchError, CollectiveTimeoutError, RankFailedError
from tests.distributed.rooted_calls import every_call, expected
from tests.distributed.worlds import run_nccl, run_processes

SECOND = Device("cuda:1")


# ------------------------------------------------------------------------------------------------------ as lists


def _arrays(count, world_size, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(count).astype(dtype) for _ in range(world_size)]


@given(st.integers(1, 7), st.integers(0, 9), st.integers(0, 99), st.sampled_from([*ReduceOp]))
def test_a_reduction_to_a_root_is_that_to_all(world_size, count, seed, op):
    for dtype in (np.float64, np.float16, ml_dtypes.bfloat16):
        for root in range(world_size):
            arrays, everywhere, before = (_arrays(count, world_size, seed, dtype) for _ in range(3))
            rooted.reduce(arrays, root, op)
            collectives.all_reduce(everywhere, op)
            wanted = [everywhere[r] if r == root else before[r] for r in range(world_size)]
            assert [array.tobytes() for array in arrays] == [array.tobytes() for array in wanted]


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 99))
def test_parts_are_gathered_scattered_and_turned_around(world_size, count, seed):
    sources, whole = _arrays(count, world_size, seed), np.empty(world_size * count)
    rooted.gather(whole, sources)
    assert whole.tobytes() == np.concatenate(sources).tobytes()
    outputs = [np.empty(count) for _ in sources]
    rooted.scatter(outputs, whole)
    assert [output.tobytes() for output in outputs] == [source.tobytes() for source in sources]
    grids, turned = (_arrays((world_size, count), world_size, seed) for _ in range(2))
    rooted.all_to_all(turned, grids)
    assert np.array_equal(np.stack(turned), np.stack(grids).transpose(1, 0, 2))


# ---------------------------------------------------------------------------------------------------- on GPUs


@pytest.mark.parametrize("debug", [False, True])
def test_over_nccl_on_the_second_gpu(strict_cupy, debug):
    """Nobody enters a device for them, and but for debug no host waits."""

    def body(comm):
        found = [every_call(comm, root, strict_cupy) for root in range(3)]
        comm.barrier()
        before = strict_cupy.syncs.count
        comm.barrier()
        for root in range(3):
            array = strict_cupy.ones(6)
            comm.reduce(array, root).wait()
            comm.gather(strict_cupy.zeros(18) if comm.rank == root else None, array, root).wait()
            comm.scatter(strict_cupy.zeros(2), array if comm.rank == root else None, root).wait()
            comm.all_to_all(array, array).wait()
        comm.barrier()
        assert strict_cupy.syncs.count == before
        return found

    wanted = [[expected(rank, root, 3) for root in range(3)] for rank in range(3)]
    assert run_nccl(body, 3, device=SECOND, timeout_s=10.0, debug=debug) == wanted


def test_thread_ranks_on_one_gpu(cuda, strict_cupy):
    comms = ThreadWorld(2, timeout_s=10.0).communicators([cuda, cuda])
    found = run(lambda comm: [every_call(comms[comm.rank], root, strict_cupy) for root in range(2)], 2, timeout_s=10.0)
    assert found == [[expected(rank, root, 2) for root in range(2)] for rank in range(2)]


def test_alone_on_a_gpu(cuda, strict_cupy):
    assert every_call(SoloCommunicator(cuda), 0, strict_cupy) == expected(0, 0, 1)


@pytest.mark.parametrize("call", ["gather", "scatter", "reduce"])
def test_other_roots_end_without_debug_too(strict_cupy, call):
    """NCCL itself would wait for ever."""

    def body(comm):
        root, array = min(comm.rank, 1), minigrad.ones(2, device=comm.device)
        whole = minigrad.ones(4, device=comm.device) if comm.rank == root else None
        with pytest.raises(CollectiveMismatchError) as caught:
            works = {"gather": (whole, array, root), "scatter": (array, whole, root), "reduce": (array, root)}[call]
            getattr(comm, call)(*works).wait(host=True)
            comm.barrier()
        return all(f"root {r}) of 2 float32 on rank {r}" in str(caught.value) for r in (0, 1))

    assert run_nccl(body, 2, device=SECOND, timeout_s=2.0) == [True, True]


@pytest.mark.parametrize("leave", ["is late", "closes"])
def test_a_root_that_waits_inside_nccl_is_released_and_told_of_whom(leave):
    def body(comm):
        comm.barrier()
        if comm.rank == 1:
            if leave == "closes":
                return comm.close()
            time.sleep(0.8)
        kind, words = {
            "is late": (CollectiveTimeoutError, r"call 1: gather\(root 0\) of 3 float64: expected all 3 ranks"),
            "closes": (RankFailedError, "rank 1 closed its communicator and last called call 0: barrier"),
        }[leave]
        with pytest.raises(kind, match=words) as caught:
            comm.gather(np.empty(9) if comm.rank == 0 else None, np.ones(3)).wait(host=True)
            comm.barrier()
        assert "rank 1" in str(caught.value)

    run_nccl(body, 3, timeout_s=0.3)


# ------------------------------------------------------------------------------------------------------- wrappers


def test_a_wrapper_sees_what_a_rank_hands_in():
    def body(comm):
        recording = Recording(comm)
        every_call(recording, 1, np)
        return [(call.kind, call.detail, call.dtype, call.count, call.nbytes) for call in recording.calls]

    first, root = run(body, 2, timeout_s=10.0)
    reductions = [("reduce", "SUM root 1", "float64", 4, 32), ("reduce", "AVG root 1", "float32", 1, 4)]
    gathered, turned = ("gather", "root 1", "float16", 2, 4), ("all_to_all", "", "int64", 6, 48)
    assert first == [*reductions, gathered, ("scatter", "root 1", "float64", 0, 0), turned]
    assert root == [*reductions, gathered, ("scatter", "root 1", "float64", 4, 32), turned]


def test_faults_strike_what_is_sent_and_what_comes_back():
    faults = [
        Fault("nan", rank=1, kind="gather"),
        Fault("nan", rank=0, kind="scatter", after=True),
        Fault("nan", rank=1, kind="all_to_all"),
        Fault("drop", rank=0, step=1),
    ]

    def body(comm):
        rank, faulty = comm.rank, FaultInjecting(comm, faults)
        whole, part, turned = np.zeros(2) if rank == 0 else None, np.zeros(1), np.zeros(2)
        faulty.gather(whole, np.ones(1)).wait()
        faulty.scatter(part, np.ones(2) if rank == 0 else None).wait()
        faulty.all_to_all(turned, np.ones(2)).wait()
        faulty.next_step()
        if rank == 0:
            faulty.reduce(part)
        with pytest.raises(CollectiveMismatchError, match="call 3: "):
            faulty.all_reduce(turned).wait() if rank == 0 else faulty.reduce(part).wait()
        return [None if x is None else np.isnan(x).tolist() for x in (whole, part, turned)]

    assert run(body, 2, timeout_s=10.0) == [[[False, True], [True], [False, True]], [None, [False], [False, False]]]


@pytest.mark.parametrize("after", [False, True])
def test_a_fault_that_would_strike_nothing_is_refused(after):
    """A rank that is not the root hands nothing in to a scatter, and gets nothing back from a gather."""
    fault = Fault("nan", rank=1, after=after)

    def body(comm):
        faulty, mine = FaultInjecting(comm, [fault]), np.ones(1)
        if comm.rank == 1:
            with pytest.raises(ArgumentError, match="expected a call with an array to spoil for nan on rank 1"):
                faulty.gather(None, mine) if after else faulty.scatter(mine, None)

    run(body, 2, timeout_s=10.0)


def test_memory_of_the_communicator_is_reduced_to_a_root_without_waiting():
    """As it is to all: the rank that comes first goes on."""
    has_posted = multiprocessing.get_context("fork").Event()

    def body(comm):
        array = comm.empty(50_000, np.float32)
        array[...] = comm.rank + 1
        if comm.rank == 1:
            assert has_posted.wait(5.0)
        work = comm.reduce(array, 1)
        has_posted.set()
        work.wait()
        return array.min(), array.max()

    assert run_processes(body, 2, timeout_s=10.0) == [(1.0, 1.0), (3.0, 3.0)]
