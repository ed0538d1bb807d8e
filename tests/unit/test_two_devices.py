"""Two GPUs in one process, on the stand-in: what moves between them, and what is refused."""

import copy
import pickle

import numpy as np
import pytest

import minigrad
from minigrad import Device, nn, ops, optim
from minigrad.backend.device import device_of, to_device, to_host
from minigrad.backend.fused.replicas import reduce_replicas_
from minigrad.backend.kernels import kernels_for
from minigrad.data import ArrayDataset, DataLoader
from minigrad.distributed import NcclDevices
from minigrad.errors import DeviceError
from tests.device_suite.pairs import *  # noqa: F401, F403
from tests.distributed.fake_nccl import FakeNccl
from tests.strict_cupy import StrictError
from tests.strict_cupy.device import current_id
from tests.strict_cupy.streams import machine

FIRST, SECOND = Device("cuda:0"), Device("cuda:1")


@pytest.fixture
def pair(cuda):
    """Both devices; the current one is the second."""
    return FIRST, cuda


@pytest.fixture
def nccl_devices(pair):
    """NCCL over them, which raises where NCCL would hang."""
    devices = NcclDevices(pair, nccl=FakeNccl(current_device=current_id))
    yield devices
    devices.close()


def test_a_device_is_one_object():
    assert Device("cuda") is Device("cuda:0") is Device(FIRST) is not SECOND
    assert copy.deepcopy(SECOND) is copy.copy(SECOND) is pickle.loads(pickle.dumps(SECOND)) is SECOND
    assert {Device("cpu"): 1}[Device("cpu")] == 1


def test_a_device_that_is_used_stays_current_for_its_thread(strict_cupy):
    SECOND.use()
    try:
        assert device_of(strict_cupy.zeros(2)) is SECOND
        Device("cpu").use()
        assert device_of(strict_cupy.zeros(2)) is SECOND
    finally:
        FIRST.use()


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_comes_after_what_its_source_was_given_and_before_what_it_gets_next(strict_cupy, seed):
    with machine(seed):
        with FIRST.current():
            array = strict_cupy.zeros(3)
            array += 1.0
        moved = to_device(array, SECOND)
        with FIRST.current():
            array += 10.0
        with SECOND.current():
            moved += 0.5
    assert moved.memory.tolist() == [1.5, 1.5, 1.5] and array.memory.tolist() == [11.0, 11.0, 11.0]


REFUSED = {
    "add": lambda a, b, labels: a + b,
    "matmul": lambda a, b, labels: a @ b,
    "linear": lambda a, b, labels: ops.linear(a, b),
    "where": lambda a, b, labels: ops.where(a > 0, a, b),
    "mse_loss": lambda a, b, labels: ops.mse_loss(a, b),
    "cat": lambda a, b, labels: ops.cat([a, b]),
    "layer_norm": lambda a, b, labels: ops.layer_norm(a, (3,), b[0], b[0]),
    "batch_norm weight": lambda a, b, labels: ops.batch_norm(a, a[0], a[1], b[0], b[1]),
    "masked_fill": lambda a, b, labels: a.masked_fill(minigrad.ones_like(b, dtype=bool), 1.0),
    "masked_fill_": lambda a, b, labels: a.masked_fill_(minigrad.ones_like(b, dtype=bool), 1.0),
    "nll_loss weight": lambda a, b, labels: ops.nll_loss(a, labels.to(FIRST), weight=b[0]),
    "cross_entropy weight": lambda a, b, labels: ops.cross_entropy(a, labels.to(FIRST), weight=b[0]),
    "batch_norm": lambda a, b, labels: ops.batch_norm(a, b[0], b[0]),
    "conv2d": lambda a, b, labels: ops.conv2d(a[None, None], b[None, None]),
    "cross_entropy": lambda a, b, labels: ops.cross_entropy(a, labels),
    "copy_": lambda a, b, labels: a.copy_(b),
    "index": lambda a, b, labels: a[labels],
    "embedding": lambda a, b, labels: ops.embedding(a, labels),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_of_two_gpus_are_refused_by_name(strict_cupy, name):
    a, b = minigrad.ones(3, 3, device=FIRST), minigrad.ones(3, 3, device=SECOND)
    labels = minigrad.tensor([0, 1, 2], device=SECOND)
    with pytest.raises(DeviceError, match="expected .* one device, got .*cuda:[01].*cuda:[01].*to"):
        REFUSED[name](a, b, labels)


def test_zeroing_gradients_needs_no_current_device(strict_cupy):
    layer = nn.Linear(2, 2, device=SECOND)
    opt = optim.SGD(layer.parameters(), lr=0.1)
    for param in layer.parameters():
        param.grad = minigrad.ones_like(param)
    opt.zero_grad(set_to_none=False)
    assert not layer.weight.grad.cpu().numpy().any()


COPIES = {
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.T.contiguous(),
    "deepcopy of a tensor": copy.deepcopy,
    "deepcopy of a parameter": lambda x: copy.deepcopy(nn.Parameter(x)),
    "a loader": lambda x: next(iter(DataLoader(ArrayDataset(x), 2))),
    "a loader of samples": lambda x: next(iter(DataLoader(list(x), 2))),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_where_its_source_is_whatever_is_current(strict_cupy, name):
    """CuPy's own copy is on the current device."""
    made = COPIES[name](minigrad.arange(4.0).view(2, 2).to(SECOND))
    made = made[0] if isinstance(made, (list, tuple)) else made
    assert made.device is SECOND and current_id() == 0
    assert sorted(made.detach().cpu().numpy().ravel().tolist()) == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("target", ["cpu", "cuda:0", "cuda:1"])
def test_a_move_that_converts_needs_no_current_device(strict_cupy, target):
    x = minigrad.arange(3.0).to(SECOND).requires_grad_()
    moved = x.to(target, "float64")
    assert str(moved.device) == target and moved.dtype == np.float64 and moved.tolist() == [0.0, 1.0, 2.0]
    moved.backward(minigrad.ones(3, dtype="float64", device=target))
    assert x.grad.device is SECOND and x.grad.dtype == np.float32 and x.grad.tolist() == [1.0] * 3


READS = {
    "to_host": to_host,
    "item": lambda array: minigrad.Tensor(array).item(),
    "tolist": lambda array: minigrad.Tensor(array).tolist(),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("seed", range(3))
def test_the_host_waits_for_the_device_of_an_array(strict_cupy, seed, name):
    """And not for the one that is current, or the current stream of that."""
    with machine(seed):
        with SECOND.current():
            array = strict_cupy.zeros(())
            array += 1.0
        with strict_cupy.cuda.Stream(non_blocking=True):
            assert READS[name](array) == 1.0


@pytest.mark.parametrize("seed", range(6))
def test_what_is_kept_between_steps_is_there_on_any_stream(cuda, strict_cupy, seed):
    """A constant, or a table, that a comm hook was the first to need, say."""
    kept = [lambda x: x * 2.5, lambda x: x * 0.0, lambda x: ops.avg_pool2d(x, 2)]
    with machine(seed):
        x = minigrad.ones(1, 1, 4, 4, device=cuda)
        strict_cupy.cuda.get_current_stream().synchronize()
        with strict_cupy.cuda.Stream(non_blocking=True):
            beside = [call(x) for call in kept]
        got = [call(x) for call in kept]
    for values in (beside, got):
        assert [float(value.data.memory.max()) for value in values] == [2.5, 0.0, 1.0]


def test_nothing_is_uploaded_twice(cuda, strict_cupy):
    """An upload takes as long as a launch, and can't be captured."""
    x, several = minigrad.ones(1, 1, 4, 4, device=cuda), [minigrad.ones(3, device=cuda).data for _ in range(3)]
    sent = []
    for _ in range(2):
        y = x * 0.0 + 1.5 - (-0.0)
        ops.avg_pool2d(y, 2, padding=1, count_include_pad=False)
        reduce_replicas_(several)
        sent.append(strict_cupy.syncs.uploads)
    assert sent[0] == sent[1] and several[0].tolist() == [9.0] * 3


def test_kernels_refuse_memory_of_another_gpu(cuda):
    here, there = (minigrad.ones(3, dtype="float64", device=place).data for place in (SECOND, FIRST))
    loader, addresses = kernels_for(here), minigrad.tensor([there.data.ptr] * 2, device=SECOND).data
    for file, name, args, reaches in (
        ("norm", "finish_sum", (there, np.int64(3), here), ()),
        ("norm", "finish_sum", (here, np.int64(3), there), ()),
        ("norm", "finish_sum", (there, np.int64(3), there), ()),
        ("reduce_replicas", "reduce_f64", (addresses, np.int32(2), np.int64(3)), [there]),
    ):
        with pytest.raises(StrictError, match="current device cuda:1, got one on cuda:0"):
            loader.launch(file, name, 1, 32, args, reaches=reaches)
    with pytest.raises(TypeError, match="addresses of the arrays named"):
        loader.launch("reduce_replicas", "reduce_f64", 1, 32, (addresses, np.int32(2), np.int64(3)), reaches=[here])
