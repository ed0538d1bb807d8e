"""16-bit parameters without a hook: the float32 gradient, rounded once, however ranks reach each other."""

import contextlib
import functools

import ml_dtypes
import numpy as np
import pytest

import minigrad
from minigrad import Device, nn, ops
from minigrad.backend.device import to_host
from minigrad.distributed import DDP, Ddp, Recording, average_gradients, collectives
from tests.distributed.worlds import run_ranks

COUNT, SAMPLES = 700, [3, 0, 5, 1]
HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class Weights(nn.Module):
    """Two vectors whose gradients are the inputs."""

    def __init__(self, kind, count=COUNT):
        super().__init__()
        self.first, self.second = nn.Parameter(np.zeros(count, kind)), nn.Parameter(np.zeros(count, kind))

    def forward(self, x, both=True):
        first = ops.sum(self.first * x)
        return first + ops.sum(self.second * x) if both else first


@functools.cache
def slopes(name, ranks):
    """The gradient of each rank: sizes from the smallest that there are upwards, and NaN without samples."""
    sizes = 10.0 ** -(np.arange(COUNT) % 8)
    rows = [np.random.default_rng(rank).standard_normal(COUNT) * sizes for rank in range(ranks)]
    return [np.where(n, row, np.nan).astype(HALVES[name]) for row, n in zip(rows, SAMPLES)]


def right(name, ranks=4, samples=SAMPLES):
    """Weighted and added up in float32, in the one order, and rounded once."""
    weights = [np.float32(n / sum(samples[:ranks])) for n in samples[:ranks]]
    rows = [row.astype(np.float32) if weight else np.zeros(COUNT) for row, weight in zip(slopes(name, ranks), weights)]
    parts = [row.astype(np.float32) * weight for row, weight in zip(rows, weights)]
    return collectives.pairwise(parts, lambda a, b: np.add(a, b, out=a)).astype(HALVES[name])


def backward(comm, name, how):
    """The gradients of a rank, combined in one of several ways."""
    x = minigrad.Tensor(slopes(name, comm.world_size)[comm.rank])
    model = Weights(x.data.dtype)
    samples = SAMPLES[comm.rank]
    if how == "average_gradients":
        model(x).backward()
        average_gradients(model.parameters(), comm, samples)
        return [model.first.grad_array, model.second.grad_array]
    options = {"find_unused_parameters": how == "find_unused", "track_nonfinite": how == "track_nonfinite"}
    ddp = DDP(model, comm, bucket_cap_bytes=COUNT * 2, **options)
    with ddp.join() if how == "join" else contextlib.nullcontext(), ddp.samples(samples):
        if how == "no_sync":
            with ddp.no_sync():
                ddp(x).backward()
            ddp.flush()
        elif how != "join" or samples:
            ddp(x, both=how != "find_unused").backward()
    if how == "track_nonfinite":
        assert ddp.nonfinite_gradients() == []
    return [p.grad_array for p in model.parameters() if p.grad_array is not None]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["threads", "shm", "nccl"])
def test_the_float32_gradient_rounded_once(kind, name):
    hows = ["backward", "no_sync", "find_unused", "track_nonfinite", "join", "average_gradients"]
    expected = right(name)

    def body(comm):
        wrong = []
        for how in hows:
            found = backward(Recording(comm) if comm.rank == 2 else comm, name, how)
            if [g.tobytes() for g in found] != [expected.tobytes()] * (1 if how == "find_unused" else 2):
                wrong.append(how)
        return wrong

    assert run_ranks(kind, body, 4) == [[]] * 4


@pytest.mark.parametrize("kind", ["solo", "threads", "shm", "nccl"])
def test_what_is_small_is_not_lost(kind):
    """The mean of eight gradients of 1e-7, whose eighth part is no float16."""

    def body(comm):
        model = Weights(np.float16, 2)
        DDP(model, comm)(minigrad.Tensor(np.full(2, 1e-7, np.float16))).backward()
        return model.first.grad_array.tolist()

    ranks = 1 if kind == "solo" else 8
    assert run_ranks(kind, body, ranks) == [[float(np.float16(1e-7))] * 2] * ranks


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("place", ["cpu", "cuda:1"])
def test_replicas_of_one_process(place, name, cuda):
    device = Device(place)
    models = [Weights(HALVES[name]).to(device) for _ in range(4)]
    ddp = Ddp.wrap(models, [device] * 4, collectives=collectives)
    for model, row in zip(models, slopes(name, 4)):
        model(minigrad.Tensor(row).to(device)).backward()
    ddp.weighted_all_reduce_gradients(SAMPLES)
    for model in models:
        assert to_host(model.first.grad_array).tobytes() == right(name).tobytes()
    assert ddp.last_bytes == 2 * sum(bucket.nbytes for bucket in ddp.plan.buckets)  # as float32
