"""One rank of two on one GPU: python -m tests.gpu.nccl_rank CASE RANK PORT. Its last line is JSON, what the case tells.

NCCL takes two ranks on a GPU where they seem to be on different hosts, hence the environment in `test_nccl.py`.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from typing import Any

import numpy as np

import minigrad
from minigrad import Tensor, available_devices, optim
from minigrad.backend.device import load_cupy, to_host
from minigrad.distributed import (
    DDP,
    CompressionState,
    NcclCommunicator,
    ReduceOp,
    bf16_compress_hook,
    fp16_compress_hook,
    fp16_predivide_hook,
)
from minigrad.distributed.comm.rendezvous import Rendezvous
from minigrad.errors import CollectiveTimeoutError, DeviceError, RankFailedError
from minigrad.testing import RingAllReduce
from tests.distributed.models import Mlp, data, gradients, mean_loss
from tests.distributed.rooted_calls import every_call
from tests.distributed.test_noise import drawn, measured

GPU = available_devices()[-1]
SHARDS = [slice(0, 3), slice(3, 8)]


def start(rank: int, port: int, timeout_s: float = 60.0, **options: Any) -> NcclCommunicator:
    """This rank's communicator."""
    meeting = Rendezvous(rank, 2, "127.0.0.1", port, b"test", timeout_s)
    return NcclCommunicator(meeting, GPU, timeout_s=timeout_s, **{"share_devices": True, **options})


def collectives(rank: int, port: int) -> Any:
    """Every collective, in every dtype and operation, with and without debug."""
    cupy = load_cupy()
    found: dict[str, Any] = {}
    for debug in (True, False):
        comm = start(rank, port + int(debug), debug=debug)
        for dtype in ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8"):
            kind = minigrad.tensor([1], dtype=dtype).data.dtype
            for op in ReduceOp:
                if op is ReduceOp.AVG and "float" not in dtype:
                    continue
                array = cupy.full(1000, rank + 1).astype(kind)
                comm.all_reduce(array, op).wait()
                wide = array.astype(np.float64)
                assert (wide == wide[0]).all()
                found[f"{op.name} {dtype}"] = float(wide[0])
        mine, both, part = cupy.full(2, rank + 1.0), cupy.zeros(4), cupy.zeros(2)
        comm.all_gather(both, mine).wait()
        comm.reduce_scatter(part, cupy.arange(4.0)).wait()
        comm.broadcast(mine, 1).wait(host=True)
        comm.all_reduce(cupy.zeros(0)).wait(host=True)
        found["rooted"] = [every_call(comm, root, cupy) for root in range(2)]
        found["rest"] = [both.tolist(), part.tolist(), mine.tolist(), comm.all_gather_object(rank)]
        comm.barrier()
        comm.check_headers()
        comm.close()
    return found


def messages(rank: int, port: int) -> Any:
    """Both send before they take: many megabytes, with a collective between, a tag out of order, and half precision."""
    cupy = load_cupy()
    comm, other, found = start(rank, port), 1 - rank, []
    large, small = cupy.full(8 * 1024 * 1024, rank + 1.0, np.float32), cupy.full(3, rank + 5.0, np.float16)
    sent = [comm.send(large, other), comm.send(small, other, tag=1), comm.send(cupy.zeros(0), other, tag=2)]
    total = cupy.ones(1000)
    comm.all_reduce(total).wait()
    came, first = cupy.zeros_like(large), cupy.zeros_like(small)
    works = [comm.recv(first, other, tag=1), comm.recv(came, other), comm.recv(cupy.zeros(0), other, tag=2)]
    for work in (*works, *sent):
        work.wait()
    found += [float(came.min()), float(came.max()), float(first.sum()), float(total[0])]
    ring = cupy.full(1000, rank + 1.0)
    RingAllReduce(comm).all_reduce(ring).wait()
    found += [float(ring.min()), float(ring.max())]
    comm.barrier()
    comm.close()
    return found


def data_parallel(rank: int, port: int) -> Any:
    """How far gradients and five steps are from one device, what the values hash to, and memory over 100 steps."""
    comm = start(rank, port)
    inputs, targets = data(8, 0)
    one = Mlp(0)
    mean_loss(one(Tensor(inputs)), targets).backward()
    ddp = DDP(Mlp(rank).to(GPU), comm, bucket_cap_bytes=64)
    _backward(ddp, inputs[SHARDS[rank]], targets[SHARDS[rank]])
    pairs = zip(gradients(one).values(), gradients(ddp.module).values())
    error = max(float(np.abs(to_host(there) - here).max()) for here, there in pairs)
    optimizer, single = (optim.SGD(m.parameters(), lr=0.005, momentum=0.9) for m in (ddp.module, one))
    pool, levels = load_cupy().get_default_memory_pool(), []
    gc.collect()
    gc.disable()  # reference counting alone has to bring memory back to its level
    for step in range(100):
        inputs, targets = data(8, step)
        for stepper in (optimizer, single):
            stepper.zero_grad()
        _backward(ddp, inputs[SHARDS[rank]], targets[SHARDS[rank]])
        mean_loss(one(Tensor(inputs)), targets).backward()
        optimizer.step()
        single.step()
        if step in (4, 99):
            load_cupy().cuda.get_current_stream().synchronize()
            levels.append(pool.used_bytes())
    values = [to_host(p.data) for p in ddp.module.parameters()]
    off = max(float(np.abs(a - p.data).max()) for a, p in zip(values, one.parameters()))
    comm.close()
    return {
        "gradient": error,
        "values": off,
        "hash": hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest(),
        "levels": levels,
    }


def _backward(ddp: DDP, inputs: np.ndarray, targets: np.ndarray) -> None:
    error = ddp(Tensor(inputs).to(GPU)) - Tensor(targets).to(GPU)
    ((error * error).sum() / len(inputs)).backward()


def no_samples(rank: int, port: int) -> Any:
    """Rank 1 has no samples and NaN gradients; then nobody has samples."""
    comm = start(rank, port)
    ddp = DDP(Mlp(0).to(GPU), comm)
    inputs, targets = data(4, 0)
    one = Mlp(0)
    mean_loss(one(Tensor(inputs)), targets).backward()
    with ddp.samples(4 if rank == 0 else 0):
        error = ddp(Tensor(inputs).to(GPU)) - Tensor(targets).to(GPU)
        ((error * error).sum() / (4 if rank == 0 else float("nan"))).backward()
    ddp.flush()
    pairs = zip(gradients(one).values(), gradients(ddp.module).values())
    off = max(float(np.abs(to_host(there) - here).max()) for here, there in pairs)
    comm.close()
    return off


def compressed(rank: int, port: int) -> Any:
    """For each hook how far gradients are from one device's, whose are not finite, and what was timed."""
    comm, found = start(rank, port), {}
    inputs, targets = data(8, 0, dtype=np.float32)
    one = Mlp(0, dtype=np.float32)
    mean_loss(one(Tensor(inputs)), targets).backward()
    for hook in (bf16_compress_hook, fp16_compress_hook, fp16_predivide_hook):
        ddp = DDP(Mlp(0, dtype=np.float32).to(GPU), comm, bucket_cap_bytes=64, track_nonfinite=True)
        state = CompressionState()
        ddp.register_comm_hook(state, hook)
        _backward(ddp, inputs[SHARDS[rank]], targets[SHARDS[rank]])
        pairs = zip(gradients(one).values(), gradients(ddp.module).values())
        off = max(float(np.abs(to_host(there) - here).max() / np.abs(here).max()) for here, there in pairs)
        finite = [str(one) for one in ddp.nonfinite_gradients()]
        ddp.zero_grad()
        _backward(ddp, inputs[SHARDS[rank]] * (np.nan if rank == 1 else 1), targets[SHARDS[rank]])
        bad = [str(one) for one in ddp.nonfinite_gradients()]
        timed = ddp.stats().communication_s  # of the first pass: the second was still under way
        found[hook.__name__] = {"off": off, "sent": state.relative_error, "finite": finite, "bad": bad, "timed": timed}
    comm.close()
    return found


def noise(rank: int, port: int) -> Any:
    """What a meter tells of two steps of ranks of unequal shards: variance, square, steps."""
    comm, batches = start(rank, port), drawn((3, 1), 2)
    found = measured(comm, batches)
    comm.close()
    return [found.variance, found.square, found.steps]


def abort(rank: int, port: int) -> Any:
    """Rank 1 does not come to a collective; rank 0 waits for its stream until the watchdog aborts."""
    cupy = load_cupy()
    comm = start(rank, port)
    comm.timeout_s = comm._world.timeout_s = 3.0  # from here on: to start may take longer
    array = cupy.ones(1000, np.float32)
    comm.all_reduce(array).wait(host=True)
    try:
        if rank == 1:
            comm._world.await_failure(40.0)
        else:
            comm.all_reduce(array).wait()
            cupy.cuda.get_current_stream().synchronize()
        comm.barrier()
    except CollectiveTimeoutError as error:
        return str(error)
    finally:
        comm.close()


def peer_dies(rank: int, port: int) -> Any:
    """Rank 1 ends without a word while rank 0 waits for its stream."""
    cupy = load_cupy()
    comm = start(rank, port)
    array = cupy.ones(1000, np.float32)
    comm.all_reduce(array).wait(host=True)
    if rank == 1:
        print(json.dumps("dies"), flush=True)
        os._exit(0)
    try:
        comm.all_reduce(array).wait()
        cupy.cuda.get_current_stream().synchronize()
        comm.barrier()
    except RankFailedError as error:
        return str(error)
    finally:
        comm.close()


def duplicate(rank: int, port: int) -> Any:
    """Two ranks on one GPU, where nobody asked for that."""
    try:
        start(rank, port, share_devices=False)
    except DeviceError as error:
        return str(error)


ALL = (collectives, messages, data_parallel, no_samples, compressed, noise, abort, peer_dies, duplicate)
CASES = {case.__name__: case for case in ALL}

if __name__ == "__main__":
    name, own_rank, base_port = sys.argv[1:]
    print(json.dumps(CASES[name](int(own_rank), int(base_port))), flush=True)
