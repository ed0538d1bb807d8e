"""The suite of tests/device_suite on the stand-in for CuPy, and what only the stand-in can tell."""

import contextlib

import numpy as np
import pytest

import minigrad
from minigrad import distributed, ops, optim
from minigrad.distributed.run import run_world
from minigrad.testing import assert_close
from tests.cases.models import MODELS, batch, training_step
from tests.device_suite.checks import *  # noqa: F401, F403
from tests.device_suite.mixed import *  # noqa: F401, F403
from tests.device_suite.modules import *  # noqa: F401, F403
from tests.device_suite.products import *  # noqa: F401, F403
from tests.device_suite.tensors import *  # noqa: F401, F403
from tests.device_suite.training import *  # noqa: F401, F403
from tests.device_suite.training import OPTIMIZERS, make
from tests.strict_cupy import wrapping


@pytest.fixture
def cupy(strict_cupy):
    """The stand-in."""
    return strict_cupy


@pytest.fixture
def unnoticed(strict_cupy):
    """A block in which an index out of range wraps around, as on a GPU, and in which nobody waits unless he may."""

    @contextlib.contextmanager
    def block(waits=False):
        with wrapping(), contextlib.nullcontext() if waits else strict_cupy.no_sync():
            yield

    return block


# ------------------------------------------------------------------------------------------------------- no waiting


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_step_waits_for_nothing(name, optimizer, cuda, cupy):
    model = make(name, cuda, "float32")
    opt = OPTIMIZERS[optimizer](model.parameters())
    x, labels = batch(name, cuda, "float32")
    sent = []
    with cupy.no_sync():
        for _ in range(3):
            training_step(model, opt, x, labels)
            sent.append(cupy.syncs.uploads)
    assert sent[1] == sent[2], "an upload takes as long as a launch, and can't be captured"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_step_in_mixed_precision_waits_for_nothing(name, dtype, cuda, cupy):
    model = make(name, cuda, "float32")
    optimizer, scaler = optim.Adam(model.parameters(), lr=0.01), optim.GradScaler(growth_interval=2)
    x, labels = batch(name, cuda, "float32")
    with cupy.no_sync():
        for _ in range(5):
            optimizer.zero_grad()
            with minigrad.autocast(dtype):
                loss = ops.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            optim.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()


def test_clipping_waits_for_nothing(cuda, cupy):
    model = make("mlp", cuda, "float32")
    x, labels = batch("mlp", cuda, "float32")
    with cupy.no_sync():
        ops.cross_entropy(model(x), labels).backward()
        optim.clip_grad_norm_(model.parameters(), 0.1)
        optim.clip_grad_value_(model.parameters(), 0.1)


def test_a_loss_whose_labels_were_checked_is_read_after_what_was_found(cuda, cupy):
    x, labels = batch("mlp", cuda, "float32")
    with cupy.no_sync():
        loss = ops.cross_entropy(x, labels)
    before = cupy.syncs.count
    loss.item()
    assert cupy.syncs.count == before + 2
    loss.item()
    assert cupy.syncs.count == before + 3


def test_reading_a_loss_waits_once(cuda, cupy):
    loss = minigrad.ones(3, device=cuda).sum()
    before = cupy.syncs.count
    loss.item()
    assert cupy.syncs.count == before + 1


# ------------------------------------------------------------------------------------------------- several devices


def on_ranks(devices, fn):
    """What fn(comm) returns on a thread rank for each device, in order of rank."""
    world = distributed.ThreadWorld(len(devices), timeout_s=10)
    return run_world(fn, world, world.communicators(devices))


def data_parallel_weights(comm, name="mlp"):
    """The weights after two steps on this rank's half of the batch, in host memory."""
    ddp = distributed.DistributedDataParallel(make(name, comm.device), comm, bucket_cap_bytes=512)
    opt = optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    x, labels = batch(name, comm.device)
    half = slice(comm.rank, None, comm.world_size)
    for _ in range(2):
        opt.zero_grad()
        ops.cross_entropy(ddp(x[half]), labels[half]).backward()
        opt.step()
    return {key: value.cpu() for key, value in ddp.state_dict().items()}


def test_data_parallel_steps_equal_those_on_one_cpu(cuda):
    model = make("mlp", "cpu")
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        training_step(model, opt, *batch("mlp"))
    first, second = on_ranks([cuda, cuda], data_parallel_weights)
    for key, value in model.state_dict().items():
        assert_close(first[key], value, tolerance=1e-12, what=key)
        assert (first[key].numpy() == second[key].numpy()).all()


def test_solo_data_parallel_on_a_device(cuda):
    [weights] = on_ranks([cuda], data_parallel_weights)
    assert all(np.isfinite(value.numpy()).all() for value in weights.values())
