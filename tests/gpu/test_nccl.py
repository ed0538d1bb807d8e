"""NCCL, streams and data parallelism on a GPU: a world of one, and two ranks that share the card."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn, optim
from minigrad.backend.device import device_identity, to_host
from minigrad.backend.stream import CommStream
from minigrad.backend.timer import CudaTimer
from minigrad.distributed import DDP, Ddp, NcclCommunicator, NcclDevices, ReduceOp, SoloCommunicator, collectives
from minigrad.distributed.comm.rendezvous import Rendezvous, free_port
from minigrad.distributed.comm.wrappers import Wrapper
from tests.distributed.models import Mlp, assert_gradients_close, data, gradients
from tests.distributed.rooted_calls import every_call, expected
from tests.distributed.test_noise import by_formula, drawn

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
SHARING = {  # ranks seem to be on different hosts, and talk over the loopback interface
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_MAX_CTAS": "4",
    "PYTHONPATH": str(ROOT),
}


def two_ranks(case):
    """What a case of nccl_rank tells on each of two ranks that share the card."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.nccl_rank", case, str(rank), str(port)],
            env={**os.environ, **SHARING, "NCCL_HOSTID": f"rank{rank}"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = []
    try:
        for process in processes:
            said.append(process.communicate(timeout=200.0)[0])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return [json.loads(text.strip().splitlines()[-1]) for text in said]


@pytest.fixture
def world_of_one(cuda):
    """A communicator of one rank over NCCL."""
    comm = NcclCommunicator(Rendezvous(0, 1, "", 0, b"k", 60.0), cuda, timeout_s=60.0)
    yield comm
    comm.close()


def single(module, device, samples=8, seed=0):
    """The gradients of one backward, on the host."""
    inputs, targets = (Tensor(array).to(device) for array in data(samples, seed))
    error = module(inputs) - targets
    ((error * error).sum() / samples).backward()
    inner = getattr(module, "module", module)
    return {name: to_host(gradient) for name, gradient in gradients(inner).items()}


# ---------------------------------------------------------------------------------------------------- a world of one


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8"])
def test_collectives_of_one(world_of_one, cupy, dtype):
    comm, kind = world_of_one, minigrad.tensor([1], dtype=dtype).data.dtype
    for op in ReduceOp:
        if op is not ReduceOp.AVG or "float" in dtype:
            array = cupy.full(1000, 3).astype(kind)
            comm.all_reduce(array, op).wait()
            assert (array.astype(np.float64) == 3.0).all(), op
    mine, gathered, part = cupy.full(5, 3).astype(kind), cupy.zeros(5, kind), cupy.zeros(5, kind)
    comm.broadcast(mine).wait()
    comm.all_gather(gathered, mine).wait()
    comm.reduce_scatter(part, mine).wait(host=True)
    for array in (mine, gathered, part):
        assert array.astype(np.float64).tolist() == [3.0] * 5
    comm.all_reduce(cupy.zeros(0, np.float32)).wait(host=True)
    assert comm.all_gather_object("x") == ["x"]
    assert every_call(comm, 0, cupy) == expected(0, 0, 1)


def test_a_collective_follows_the_stream_it_was_called_on(world_of_one, cupy):
    side, array, gathered = CommStream(world_of_one.device), cupy.zeros(1 << 22), cupy.zeros(1 << 22)
    for step in range(1, 20):
        array += 1
        side.follow()
        with side.current():
            work = world_of_one.all_gather(gathered, array)
        work.wait()
        assert float(gathered.sum()) == step * array.size


@pytest.mark.parametrize("kind", ["solo", "nccl"])
def test_data_parallelism_equals_the_cpu(kind, cuda, world_of_one):
    comm = SoloCommunicator(cuda) if kind == "solo" else world_of_one
    expected, ddp = single(Mlp(0), "cpu"), DDP(Mlp(0).to(cuda), comm, bucket_cap_bytes=64)
    for _ in range(2):
        ddp.zero_grad()
        assert_gradients_close(single(ddp, cuda), expected)


def test_replicas_of_one_process(cuda):
    devices = NcclDevices([cuda])
    ddp = Ddp.wrap([Mlp(0).to(cuda)], [cuda], collectives=devices)
    ddp.sync_params()
    expected = single(ddp.models[0], cuda)
    ddp.weighted_all_reduce_gradients([8])
    assert_gradients_close({n: to_host(g) for n, g in gradients(ddp.models[0]).items()}, expected)
    devices.close()


def test_replicas_that_share_a_card(cuda):
    models = [Mlp(0).to(cuda), Mlp(1).to(cuda)]
    ddp = Ddp.wrap(models, [cuda, cuda], collectives=collectives)
    ddp.sync_params()
    expected = single(Mlp(0), "cpu", samples=8)
    (inputs, targets), cuts = data(8, 0), [slice(0, 3), slice(3, 8)]
    for model, cut in zip(models, cuts):
        error = model(Tensor(inputs[cut]).to(cuda)) - Tensor(targets[cut]).to(cuda)
        ((error * error).sum() / len(inputs[cut])).backward()
    ddp.weighted_all_reduce_gradients([3, 5])
    for model in models:
        assert_gradients_close({n: to_host(g) for n, g in gradients(model).items()}, expected)


class Timed(Wrapper):
    """Records an event before each bucket's collective, on its stream."""

    def __init__(self, comm, cupy):
        super().__init__(comm)
        self._cupy, self.events = cupy, []

    def around(self, call, arrays, make):
        if "bucket" in call.detail:
            self.events.append(self._cupy.cuda.get_current_stream().record())
        return make()


def test_buckets_travel_while_backward_still_runs(world_of_one, cupy, cuda):
    comm = Timed(world_of_one, cupy)
    net = nn.Sequential(*(nn.Linear(2048, 2048, device=cuda) for _ in range(12)))
    ddp = DDP(net, comm, bucket_cap_mb=16)
    x, computed = minigrad.ones(8192, 2048, device=cuda), []
    for _ in range(3):
        comm.events.clear()
        computed.clear()
        ddp.zero_grad()
        loss = ddp(x).mean()
        loss.backward(on_leaf=lambda leaf: computed.append(cupy.cuda.get_current_stream().record()))
        cupy.cuda.get_current_stream().synchronize()
    assert len(comm.events) == len(ddp.plan.buckets) > 3
    ahead_ms = [cupy.cuda.get_elapsed_time(begin, computed[-1]) for begin in comm.events]
    assert all(ms > 0.0 for ms in ahead_ms[:3]), ahead_ms


@pytest.mark.parametrize("kind", ["solo", "nccl"])
def test_memory_returns_to_its_level(kind, cuda, cupy, world_of_one):
    comm = SoloCommunicator(cuda) if kind == "solo" else world_of_one
    ddp = DDP(Mlp(0).to(cuda), comm, bucket_cap_bytes=64)
    optimizer = optim.Adam(ddp.module.parameters(), lr=1e-3)

    def level(steps):
        for step in range(steps):
            optimizer.zero_grad()
            single(ddp, cuda, seed=step)
            optimizer.step()
        cupy.cuda.get_current_stream().synchronize()
        return cupy.get_default_memory_pool().used_bytes()

    gc.collect()
    gc.disable()  # reference counting alone has to do it
    try:
        first = level(5)
        assert level(100) == first
    finally:
        gc.enable()


def test_a_timer_reads_without_waiting(cuda, cupy):
    timer, x = CudaTimer(cuda), cupy.ones((4096, 4096), np.float32)
    for _ in range(5):
        timer.start()
        x @ x
        timer.stop()
    read = timer.read_s()
    cupy.cuda.get_current_stream().synchronize()
    read += timer.read_s()
    assert len(read) == 5 and all(seconds > 0.0 for seconds in read) and timer.lost == 0


def test_the_card_has_an_identity(cuda):
    assert device_identity(cuda).startswith("GPU ")


# ------------------------------------------------------------------------------------------------ two ranks, one card


def test_collectives_of_two():
    first, second = two_ranks("collectives")
    wanted = {"SUM": 3.0, "AVG": 1.5, "MIN": 1.0, "MAX": 2.0, "PROD": 2.0}
    for key, value in first.items():
        if key not in ("rest", "rooted"):
            assert value == second[key] == wanted[key.split()[0]], key
    assert first["rest"] == [[1.0, 1.0, 2.0, 2.0], [0.0, 2.0], [2.0, 2.0], [0, 1]]
    assert second["rest"] == [[1.0, 1.0, 2.0, 2.0], [4.0, 6.0], [2.0, 2.0], [0, 1]]
    for rank, told in enumerate((first, second)):
        assert told["rooted"] == [expected(rank, root, 2) for root in range(2)]


def test_messages_of_two_in_both_directions():
    for rank, told in enumerate(two_ranks("messages")):
        other = 2.0 - rank
        assert told == [other, other, 3 * (other + 4.0), 2.0, 3.0, 3.0]


def test_data_parallelism_of_two_equals_one_device():
    first, second = two_ranks("data_parallel")
    for told in (first, second):
        assert told["gradient"] <= 1e-12 and told["values"] <= 1e-10
        assert told["levels"][0] == told["levels"][1]
    assert first["hash"] == second["hash"]


def test_a_rank_without_samples_adds_nothing():
    assert max(two_ranks("no_samples")) <= 1e-12


def test_compressed_gradients_of_two_are_near_one_device_and_bad_ones_are_named():
    buckets = ["rank 1, bucket 0: w2", "rank 1, bucket 1: b1", "rank 1, bucket 2: w1"]
    for told in two_ranks("compressed"):
        for hook, found in told.items():
            rounding = 2.0**-8 if "bf16" in hook else 2.0**-11
            assert found["off"] <= 4 * rounding, hook  # once a rank, and the sum once or twice
            assert found["finite"] == [] and found["bad"] == buckets and found["timed"] > 0.0


def test_noise_of_two_is_what_the_formula_says():
    for told in two_ranks("noise"):
        assert told == pytest.approx([*by_formula(drawn((3, 1), 2)), 2], rel=1e-12)


def test_the_watchdog_releases_a_rank_that_waits_for_its_stream():
    first, second = two_ranks("abort")
    for told in (first, second):
        assert "all_reduce(SUM) of 1000 float32: expected all 2 ranks within 3 s" in told
        assert "rank 1 last called call 0" in told


def test_a_rank_that_dies_releases_the_other():
    first, _ = two_ranks("peer_dies")
    assert "rank 1 is gone, its process has ended" in first


def test_ranks_that_share_the_card_unasked_are_refused():
    for told in two_ranks("duplicate"):
        assert "expected a GPU of its own for each rank" in told and "ranks 0 and 1" in told
