"""What is NCCL's own, beside the contract: its start, no debug, the watchdog, its end, all devices of a process."""

import gc
import os
import socket
import time

import numpy as np
import pytest

import minigrad
from minigrad import Device, FlowBuilder, nn
from minigrad.backend.device import CPU, device_identity
from minigrad.backend.nccl import dtype_code, problem_of
from minigrad.distributed import DDP, Ddp, NcclCommunicator, NcclDevices, Recording, ReduceOp, init
from minigrad.distributed.comm.nccl import launches
from minigrad.distributed.comm.rendezvous import Rendezvous, free_port
from minigrad.distributed.replicas import nccl_devices
from minigrad.errors import (
    ArgumentError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DeviceError,
    DistributedError,
    DtypeError,
    RankFailedError,
    ReplicaMismatchError,
    ShapeError,
)
from tests.distributed.fake_nccl import FakeNccl
from tests.distributed.models import Mlp, assert_gradients_close, data, gradients, mean_loss
from tests.distributed.worlds import run_nccl
from tests.strict_cupy import streams
from tests.strict_cupy.device import current_id


def alone(fake, device=CPU, timeout_s=5.0, **options):
    return NcclCommunicator(Rendezvous(0, 1, "", 0, b"k", timeout_s), device, timeout_s=timeout_s, nccl=fake, **options)


# ------------------------------------------------------------------------------------------------- without debug


def test_data_parallelism_equals_one_device():
    inputs, targets = data(8, 0)
    cuts = [slice(0, 3), slice(3, 3), slice(3, 8)]

    def body(comm):
        ddp = DDP(Mlp(comm.rank), comm, bucket_cap_bytes=64)
        mean_loss(ddp(minigrad.Tensor(inputs[cuts[comm.rank]])), targets[cuts[comm.rank]]).backward()
        return gradients(ddp.module)

    one = Mlp(0)
    mean_loss(one(minigrad.Tensor(inputs)), targets).backward()
    for actual in run_nccl(body, 3):
        assert_gradients_close(actual, gradients(one))


def test_different_calls_of_one_size_are_told_where_all_ranks_come():
    """NCCL takes these two for one call."""

    def body(comm):
        with pytest.raises(CollectiveMismatchError) as caught:  # a look at what the others told may come first
            comm.all_reduce(np.ones(4), layout="bucket 0" if comm.rank == 0 else "bucket 1").wait()
            Recording(comm).check_headers()
        assert "got call 0: all_reduce(SUM bucket 0) of 4 float64 on rank 0 and" in str(caught.value)
        assert str(caught.value).endswith("call 0: all_reduce(SUM bucket 1) of 4 float64 on rank 1")
        return True

    assert run_nccl(body, 2) == [True, True]


def test_other_plans_are_refused_when_they_are_made():
    def body(comm):
        with pytest.raises(ReplicaMismatchError, match="in bytes, is 64 on rank 0 and 1000 on rank 1"):
            DDP(Mlp(0), comm, bucket_cap_bytes=64 if comm.rank == 0 else 1000)
        return True

    assert run_nccl(body, 2) == [True, True]


def test_a_large_object_reaches_all():
    def body(comm):
        gathered = comm.all_gather_object("x" * 2_000_000 * (comm.rank + 1))
        return [len(text) for text in gathered]

    assert run_nccl(body, 3) == [[2_000_000, 4_000_000, 6_000_000]] * 3


# ---------------------------------------------------------------------------------------------------- the watchdog


def test_a_rank_that_waits_inside_nccl_is_released_and_told_who_is_missing():
    def body(comm):
        comm.barrier()
        if comm.rank == 1:
            time.sleep(1.0)
            with pytest.raises(CollectiveTimeoutError):
                comm.barrier()
            return True
        with pytest.raises(CollectiveTimeoutError) as caught:
            comm.all_reduce(np.ones(3)).wait()
        assert "call 1: all_reduce(SUM) of 3 float64: expected all 2 ranks within 0.3 s" in str(caught.value)
        assert "rank 1 last called call 0: barrier" in str(caught.value)
        return True

    assert run_nccl(body, 2, timeout_s=0.3) == [True, True]


@pytest.mark.parametrize(
    "leave, words",
    [
        (lambda comm: comm.close(), "rank 1 closed its communicator and last called call 0: barrier"),
        (lambda comm: comm.abort("no more"), "rank 1 aborted: no more"),
        (lambda comm: cut(comm), "rank 1 is gone, its process has ended"),
    ],
    ids=["closed", "aborted", "died"],
)
def test_a_rank_that_is_gone_releases_those_that_wait_inside_nccl(leave, words):
    def body(comm):
        comm.barrier()
        if comm.rank == 1:
            time.sleep(0.1)
            leave(comm)
            return True
        started = time.perf_counter()
        with pytest.raises(RankFailedError, match=words):
            comm.all_reduce(np.ones(3)).wait()
        assert time.perf_counter() - started < 10.0
        return True

    assert run_nccl(body, 3, timeout_s=20.0) == [True] * 3


def cut(comm):
    """End the connection of a rank as its death would."""
    with comm._control.star._sending:  # a process ends all its connections at once, and tells nobody of the first
        for link in list(comm._control.star._links.values()):
            with socket.socket(fileno=os.dup(link.fileno())) as same:
                same.shutdown(socket.SHUT_RDWR)


def test_the_root_may_die_too():
    def body(comm):
        comm.barrier()
        if comm.rank == 0:
            cut(comm)
            return True
        with pytest.raises(RankFailedError, match="rank 0 is gone"):
            comm.all_reduce(np.ones(3)).wait()
        return True

    assert run_nccl(body, 2) == [True] * 2


class NeverDone:
    """Streams whose events never happen: a device that hangs."""

    class Event:
        done, ptr = False, 0

        def __init__(self, disable_timing):
            pass

        def record(self, stream):
            pass

    class Stream:
        ptr = 0

        def wait_event(self, event):
            pass

    class runtime:
        def eventQuery(address):
            return 600  # cudaErrorNotReady

    get_current_stream = Stream


@pytest.mark.parametrize("status, words", [(6, "NCCL_ERROR_REMOTE_ERROR"), (8, "NCCL error 8"), (7, "data has not")])
def test_what_nccl_says_meanwhile_is_raised(monkeypatch, status, words):
    """Code 7 means that it is in progress: then it is the time that ends the waiting."""
    monkeypatch.setattr(launches, "_PATIENCE_S", 0.1)
    fake = FakeNccl()
    comm = alone(fake, timeout_s=0.3 if status == 7 else 5.0, streams=NeverDone)
    work = comm.all_reduce(np.ones(3))
    comm._handle.comm.async_status = status
    with pytest.raises(DistributedError, match=f"call 0: all_reduce.* of 3 float64.*{words}"):
        work.wait(host=True)
    with pytest.raises(DistributedError):
        work.done()
    comm.close()
    fake.check_all_given_back()


def test_nccl_is_asked_while_nobody_can_abort_it():
    """What is aborted is freed; the control thread aborts."""
    comm, locked = alone(FakeNccl(), streams=NeverDone, timeout_s=0.3), []
    comm._handle.comm.check_async_error = lambda: locked.append(comm._handle._ending.locked())
    with pytest.raises(CollectiveTimeoutError):
        comm.all_reduce(np.ones(3)).wait(host=True)
    comm.close()
    assert locked and all(locked)


def test_problem_of_knows_the_codes():
    fake = FakeNccl()

    def raising(status):
        raise fake.NcclError(status)

    assert problem_of(fake, lambda: None) == problem_of(fake, lambda: raising(7)) == ""
    assert problem_of(fake, lambda: raising(8)) == "NCCL error 8"
    assert "NCCL_ERROR_INVALID_USAGE" in problem_of(fake, lambda: raising(5))


# ------------------------------------------------------------------------------------------------ start and end


def test_ranks_that_share_a_gpu_are_refused_before_nccl_sees_them(strict_cupy):
    fake, port = FakeNccl(current_device=current_id, timeout_s=5.0), free_port()

    def start(comm, **options):
        meeting = Rendezvous(comm.rank, 2, "127.0.0.1", port, b"test", 5.0)
        return NcclCommunicator(meeting, Device("cuda:0"), timeout_s=5.0, nccl=fake, **options)

    def body(comm):
        with pytest.raises(DeviceError, match="GPU of its own for each rank, got GPU 0000.* on ranks 0 and 1"):
            start(comm)
        comm.barrier()
        with pytest.raises(DistributedError, match="Duplicate GPU"):
            start(comm, share_devices=True)
        return True

    assert minigrad.distributed.run(body, 2, timeout_s=10.0) == [True, True]
    fake.check_all_given_back()


def test_two_gpus_of_one_process_as_thread_ranks(strict_cupy):
    """Each thread starts on device 0, and all arrays and calls must be on the rank's own."""
    fake, port = FakeNccl(current_device=current_id, timeout_s=5.0), free_port()
    inputs, targets = data(8, 0)

    def body(threads):
        device = Device(f"cuda:{threads.rank}")
        meeting = Rendezvous(threads.rank, 2, "127.0.0.1", port, b"test", 5.0)
        comm = NcclCommunicator(meeting, device, timeout_s=5.0, nccl=fake)
        part = slice(0, 3) if threads.rank == 0 else slice(3, 8)
        ddp = DDP(Mlp(threads.rank).to(device), comm, bucket_cap_bytes=64)
        error = ddp(minigrad.Tensor(inputs[part]).to(device)) - minigrad.Tensor(targets[part]).to(device)
        ((error * error).sum() / len(inputs[part])).backward()
        with pytest.raises(DeviceError, match=f"an array on {device}, got one on cpu"):
            comm.all_reduce(np.ones(2))
        comm.close()
        return {name: p.grad.cpu().numpy() for name, p in ddp.module.named_parameters()}

    one = Mlp(0)
    mean_loss(one(minigrad.Tensor(inputs)), targets).backward()
    for actual in minigrad.distributed.run(body, 2, timeout_s=10.0):
        assert_gradients_close(actual, gradients(one))
    fake.check_all_given_back()


def test_a_start_that_takes_too_long_ends():
    """The other rank exchanges all that comes before, and then does not start NCCL."""

    class Lazy(FakeNccl):
        def get_unique_id(self):
            return bytes(128)

    def body(comm):
        return True

    fake = Lazy(timeout_s=0.6)
    fake.world(bytes(128), 3)  # so that NCCL waits for a third rank
    with pytest.raises((CollectiveTimeoutError, DistributedError), match="nccl: expected"):
        run_nccl(body, 2, timeout_s=0.3, fake=fake)


def test_what_was_given_back_stays_so():
    fake = FakeNccl()
    comm = alone(fake)
    assert len(fake.open) == 1
    comm.close()
    assert not fake.open
    del comm
    assert not fake.collected


def test_dtypes_that_nccl_does_not_add_up_still_travel():
    fake = FakeNccl()
    comm = alone(fake)
    with pytest.raises(DtypeError, match="one of int8, .* for NCCL, got bool"):
        comm.all_reduce(np.ones(2, bool), ReduceOp.MAX)
    comm.broadcast(np.ones(2, bool)).wait()
    gathered = np.zeros(2, np.int16)
    comm.all_gather(gathered, np.arange(2, dtype=np.int16)).wait()
    assert gathered.tolist() == [0, 1]
    comm.close()
    assert dtype_code("all_reduce", np.dtype(np.float16)) == 6


def test_init_asks_for_a_gpu(monkeypatch):
    with pytest.raises(ArgumentError, match="a GPU for backend 'nccl', got cpu"):
        init(backend="nccl", device="cpu")
    monkeypatch.setenv("MINIGRAD_DEBUG", "yes")
    with pytest.raises(ArgumentError, match="MINIGRAD_DEBUG to be 0 or 1, got 'yes'"):
        init(backend="nccl")


def test_identities_of_devices(strict_cupy):
    assert device_identity(CPU) == ""
    assert device_identity(Device("cuda:0")) != device_identity(Device("cuda:1"))


# ----------------------------------------------------------------------------------------- all GPUs of one process


@pytest.fixture
def devices(strict_cupy):
    """Two GPUs that are none, and the stand-in that knows which is current."""
    fake = FakeNccl(current_device=current_id, timeout_s=0.5)
    devices = NcclDevices(["cuda:0", "cuda:1"], nccl=fake)
    yield devices
    devices.close()
    devices.close()
    fake.check_all_given_back()


def on(device, array):
    return minigrad.Tensor(array).to(device).data


def test_replicas_of_one_process(devices):
    inputs, targets = data(8, 0)
    models = [Mlp(rank).to(device) for rank, device in enumerate(devices.devices)]
    ddp = Ddp.wrap(models, devices.devices, collectives=devices, bucket_cap_bytes=64)
    ddp.sync_params()
    for model, device, part in zip(models, devices.devices, (slice(0, 3), slice(3, 8))):
        with device.current():
            error = model(minigrad.Tensor(inputs[part]).to(device)) - minigrad.Tensor(targets[part]).to(device)
            ((error * error).sum() / len(inputs[part])).backward()
    ddp.weighted_all_reduce_gradients([3, 5])
    one = Mlp(0)
    mean_loss(one(minigrad.Tensor(inputs)), targets).backward()
    for model in models:
        assert_gradients_close({n: p.grad.cpu().numpy() for n, p in model.named_parameters()}, gradients(one))


@pytest.mark.parametrize("op, result", [("SUM", 3.0), ("AVG", 1.5), ("MIN", 1.0), ("MAX", 2.0), ("PROD", 2.0)])
def test_list_collectives(devices, op, result):
    arrays = [on(device, np.full(3, rank + 1.0)) for rank, device in enumerate(devices.devices)]
    devices.all_reduce(arrays, ReduceOp[op])
    assert [array.tolist() for array in arrays] == [[result] * 3] * 2
    devices.broadcast(arrays, 1)
    devices.all_reduce([on(device, np.empty(0)) for device in devices.devices])


def test_wrong_lists(devices):
    first, second = (on(device, np.ones(3)) for device in devices.devices)
    for arrays, error, words in [
        ([first], ShapeError, "2 arrays, one a device, got 1"),
        ([second, first], DeviceError, "rank 0: all_reduce: expected an array on cuda:0, got one on cuda:1"),
        ([first, second[:2]], ShapeError, "rank 1: all_reduce: expected float64 of 3 elements as on rank 0"),
        ([first[::2], second[::2]], ShapeError, "C-contiguous"),
    ]:
        with pytest.raises(error, match=words):
            devices.all_reduce(arrays)
    with pytest.raises(ArgumentError, match=r"root to be an integer in \[0, 2\), got 2"):
        devices.broadcast([first, second], 2)
    with pytest.raises(DtypeError, match="got bool"):
        devices.all_reduce([on(device, np.ones(3, bool)) for device in devices.devices])
    devices.close()
    with pytest.raises(DistributedError, match="after their end: it was closed"):
        devices.all_reduce([first, second])


def test_an_error_of_nccl_ends_all(devices):
    devices._comms[1].abort()
    arrays = [on(device, np.ones(3)) for device in devices.devices]
    with pytest.raises(DistributedError, match="all_reduce: expected NCCL to take it, got NCCL_ERROR_"):
        devices.all_reduce(arrays)
    with pytest.raises(DistributedError, match="after their end: all_reduce failed"):
        devices.all_reduce(arrays)


# ------------------------------------------------------------------------------------------------ what goes wrong


def test_an_interrupt_in_a_launch_leaves_nothing_open_and_blames_nobody(strict_cupy, monkeypatch):
    fake = FakeNccl(current_device=current_id)
    comm = alone(fake, Device("cuda:1"))
    array = strict_cupy.ones(3)
    comm.all_reduce(array).wait()

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(comm._handle.comm, "allReduce", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        comm.all_reduce(array)
    with pytest.raises(RankFailedError, match=r"rank 0: call 1: all_reduce.*its launch raised KeyboardInterrupt"):
        comm.barrier()
    comm.close()
    fake.check_all_given_back()


def test_an_error_of_the_device_is_told_and_no_rank_is_blamed(strict_cupy, monkeypatch):
    fake = FakeNccl(current_device=current_id)
    comm = alone(fake, Device("cuda:1"))
    monkeypatch.setattr(comm._control, "_watch", lambda: None)  # which may meet it too, and then the end tells of it
    work = comm.all_reduce(strict_cupy.ones(3))
    monkeypatch.setattr(streams, "failures", [700])
    with pytest.raises(DeviceError, match="expected a device that works, got .*700"):
        work.done()
    monkeypatch.setattr(streams, "failures", [])
    comm.close()
    fake.check_all_given_back()


def test_the_communicators_of_a_graph_end_with_it(strict_cupy, monkeypatch):
    fake = FakeNccl(current_device=current_id)
    monkeypatch.setattr(nccl_devices, "load_nccl", lambda: fake)

    def build(device):
        return FlowBuilder.from_(nn.Linear(3, 2, device=device)).build()

    for _ in range(3):
        graph = build(Device("cuda:0"))
        graph.distribute(build, ["cuda:0", "cuda:1"])
        graph(minigrad.ones(4, 3, device="cuda:0"))
        assert len(fake.open) == 2
        del graph
        gc.collect()
        fake.check_all_given_back()
