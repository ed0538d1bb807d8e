"""The stand-in for NCCL: it computes what NCCL would, and raises where NCCL would hang."""

import re
import threading

import ml_dtypes
import numpy as np
import pytest

from tests.distributed.fake_nccl import DTYPES, FakeNccl, NcclError


def on_threads(fake, size, body):
    """body(communicator) on a thread for each rank; the results, or the exceptions where they raised."""
    unique, results = fake.get_unique_id(), [None] * size

    def run(rank):
        try:
            results[rank] = body(fake.NcclCommunicator(size, unique, rank))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    return results


def address(array):
    return array.ctypes.data


def reduce_in_place(comm, array, op, stream=0):
    comm.allReduce(address(array), address(array), array.size, DTYPES.index(array.dtype.type), op, stream)
    return array


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64])
def test_reductions(dtype):
    fake = FakeNccl()
    operations = [fake.NCCL_SUM, fake.NCCL_PROD, fake.NCCL_MAX, fake.NCCL_MIN]
    operations += [] if dtype is np.int64 else [fake.NCCL_AVG]

    def body(comm):
        return [reduce_in_place(comm, np.full(3, comm.rank_id() + 2, dtype), op).astype(float)[0] for op in operations]

    assert on_threads(fake, 2, body) == [[5.0, 6.0, 3.0, 2.0, 2.5][: len(operations)]] * 2


def test_the_other_collectives():
    fake = FakeNccl()

    def body(comm):
        mine, both, part = np.full(2, float(comm.rank_id() + 1)), np.zeros(4), np.zeros(2)
        comm.allGather(address(mine), address(both), 2, fake.NCCL_FLOAT64, 0)
        comm.reduceScatter(address(both), address(part), 2, fake.NCCL_FLOAT64, fake.NCCL_SUM, 0)
        comm.broadcast(address(mine), address(mine), 2, fake.NCCL_FLOAT64, 1, 0)
        return both.tolist(), part.tolist(), mine.tolist()

    first, second = on_threads(fake, 2, body)
    assert first == ([1.0, 1.0, 2.0, 2.0], [2.0, 2.0], [2.0, 2.0])
    assert second == ([1.0, 1.0, 2.0, 2.0], [4.0, 4.0], [2.0, 2.0])


def test_what_would_hang_raises():
    def missing(comm):
        if comm.rank_id() == 0:
            reduce_in_place(comm, np.ones(2), 0)

    def mismatched(comm):
        reduce_in_place(comm, np.ones(2 + comm.rank_id()), 0)

    first, second = on_threads(FakeNccl(timeout_s=0.1), 2, missing)
    assert isinstance(first, NcclError) and "only ranks [0]" in str(first) and second is None
    assert all(isinstance(error, NcclError) for error in on_threads(FakeNccl(timeout_s=0.1), 2, mismatched))
    with pytest.raises(NcclError, match="NCCL would hang"):
        fake = FakeNccl(timeout_s=0.05)
        fake.NcclCommunicator(2, fake.get_unique_id(), 0)


def test_one_thread_is_several_ranks_inside_a_group_only():
    fake = FakeNccl(timeout_s=0.05)
    comms = fake.NcclCommunicator.initAll([0, 1, 2])
    fake.current_device = lambda: device
    arrays = [np.full(2, float(rank)) for rank in range(3)]
    fake.groupStart()
    for device, (comm, array) in enumerate(zip(comms, arrays)):
        reduce_in_place(comm, array, fake.NCCL_SUM)
    assert arrays[1].tolist() == [1.0, 1.0]
    fake.groupEnd()
    assert [array.tolist() for array in arrays] == [[3.0, 3.0]] * 3
    device = 0
    with pytest.raises(NcclError, match="NCCL would hang"):
        reduce_in_place(comms[0], arrays[0], fake.NCCL_SUM)
    with pytest.raises(NcclError, match="expected device 1 to be current"):
        reduce_in_place(comms[1], arrays[1], fake.NCCL_SUM)
    with pytest.raises(NcclError, match="groupEnd without groupStart"):
        fake.groupEnd()
    with pytest.raises(TypeError, match="a list"):
        fake.NcclCommunicator.initAll((0, 1))


def test_a_device_twice_is_refused():
    with pytest.raises(NcclError, match="Duplicate GPU"):
        FakeNccl().NcclCommunicator.initAll([0, 0])
    errors = on_threads(FakeNccl(current_device=lambda: 0), 2, lambda comm: None)
    assert all("Duplicate GPU" in str(error) for error in errors)


def test_abort_ends_a_call_that_waits():
    fake = FakeNccl()

    def body(comm):
        if comm.rank_id() == 0:
            reduce_in_place(comm, np.ones(2), 0)
        comm.abort()
        reduce_in_place(comm, np.ones(2), 0)

    first, second = on_threads(fake, 2, body)
    assert "aborted" in str(first) and "destroyed or aborted" in str(second)


@pytest.mark.parametrize("status, error", [(1, NcclError), (6, NcclError), (7, KeyError), (8, KeyError)])
def test_codes_7_and_8_are_key_errors_as_in_cupy(status, error):
    fake = FakeNccl()
    comm = fake.NcclCommunicator(1, fake.get_unique_id(), 0)
    comm.check_async_error()
    comm.async_status = status
    with pytest.raises(error):
        comm.check_async_error()
    comm.destroy()


def test_open_and_collected_communicators_are_counted():
    fake = FakeNccl()
    comm = fake.NcclCommunicator(1, fake.get_unique_id(), 0)
    assert len(fake.open) == 1
    comm.destroy()
    assert not fake.open and not fake.collected
    comm = fake.NcclCommunicator(1, fake.get_unique_id(), 0)
    del comm
    assert fake.collected == [0]


def test_work_goes_to_the_stream_that_was_named():
    held = []
    fake = FakeNccl(submit=lambda stream, work: held.append((stream, work)))
    comm = fake.NcclCommunicator(1, fake.get_unique_id(), 0)
    array = np.ones(2)
    reduce_in_place(comm, array, fake.NCCL_PROD, stream=77)
    [(stream, work)] = held
    work()
    assert stream == 77 and array.tolist() == [1.0, 1.0]
    comm.destroy()


def test_messages_and_reductions_to_a_root():
    """In a group, whose messages go at one time, to oneself too; of one pair of ranks in the order of the calls."""
    fake = FakeNccl()

    def body(comm):
        rank = comm.rank_id()
        mine, from_each, total = np.arange(2.0) + 10 * rank, np.zeros((3, 2)), np.full(2, rank + 1.0)
        fake.groupStart()
        for peer in range(3):
            comm.recv(address(from_each[peer]), 1, fake.NCCL_FLOAT64, peer, 0)
            comm.send(address(mine), 1, fake.NCCL_FLOAT64, peer, 0)
            comm.recv(address(from_each[peer]) + 8, 1, fake.NCCL_FLOAT64, peer, 0)
            comm.send(address(mine) + 8, 1, fake.NCCL_FLOAT64, peer, 0)
        fake.groupEnd()
        comm.reduce(address(total), address(total), 2, fake.NCCL_FLOAT64, fake.NCCL_SUM, 1, 0)
        return from_each.tolist(), total.tolist()

    rows = [[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]]
    assert on_threads(fake, 3, body) == [(rows, [6.0 if rank == 1 else rank + 1.0] * 2) for rank in range(3)]


@pytest.mark.parametrize(
    "calls, words",
    [
        ([("send", 2, 1), ("send", 2, 0)], "NCCL would hang: rank 0 sending waits in .*message 0 from 0 to 1"),
        ([("send", 2, 1), ("recv", 1, 0)], "ranks do not match, NCCL would hang or mix up data"),
        ([("send", 2, 0), ("send", 2, 1)], "rank 0 sends to itself outside of a group"),
        ([("send", 2, 7), ("send", 2, 7)], "a message from 0 to 7 in a world of 2"),
    ],
    ids=["both send", "other sizes", "to oneself", "to nobody"],
)
def test_messages_that_nccl_would_not_take(calls, words):
    fake = FakeNccl(timeout_s=0.2)

    def body(comm):
        method, count, peer = calls[comm.rank_id()]
        getattr(comm, method)(address(np.zeros(2)), count, fake.NCCL_FLOAT64, peer, 0)

    first, _ = on_threads(fake, 2, body)
    assert isinstance(first, NcclError) and re.search(words, str(first))
