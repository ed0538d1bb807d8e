"""SyncBatchNorm, hooks and the list collectives on the stand-in for CuPy: what NumPy allows and CuPy would not."""

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import (
    CompressionState,
    Ddp,
    Fault,
    FaultInjecting,
    GradBucket,
    SoloCommunicator,
    SyncBatchNorm,
    ThreadWorld,
    average_gradients,
    bf16_compress_hook,
    collectives,
    fp16_compress_hook,
    fp16_predivide_hook,
)
from minigrad.errors import ArgumentError
from minigrad.backend.device import to_host


def test_sync_batch_norm_waits_for_nothing(cuda, strict_cupy):
    layer = SyncBatchNorm(3, SoloCommunicator(cuda), device=cuda)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((4, 3, 2, 2)).astype(np.float32)
    x = minigrad.Tensor(inputs).to(cuda).requires_grad_()
    with strict_cupy.no_sync():
        y = layer(x)
        (y * y * y).sum().backward()
    plain = nn.BatchNorm2d(3)
    there = minigrad.Tensor(inputs, requires_grad=True)
    z = plain(there)
    (z * z * z).sum().backward()
    np.testing.assert_allclose(to_host(y.data), z.data, atol=1e-5)
    np.testing.assert_allclose(to_host(x.grad_array), there.grad_array, atol=1e-4)
    np.testing.assert_allclose(to_host(layer.running_var.data), plain.running_var.data, rtol=1e-5)


@pytest.mark.parametrize("hook", [fp16_compress_hook, bf16_compress_hook, fp16_predivide_hook])
def test_compression_waits_for_nothing(hook, cuda, strict_cupy):
    gradients = minigrad.ones(6, device=cuda).data
    state, bucket = CompressionState(), GradBucket(0, gradients, [], True, "")
    with strict_cupy.no_sync():
        hook(state, bucket, SoloCommunicator(cuda)).wait()
    assert to_host(gradients).tolist() == [1.0] * 6
    assert state.relative_error == 0.0 and state.bytes_sent * 2 == state.bytes_before


def test_a_replica_and_the_function_on_a_device(cuda):
    model = nn.Sequential(nn.Linear(3, 2, device=cuda), nn.BatchNorm1d(2, device=cuda))
    ddp = Ddp.wrap([model], [cuda])
    ddp.sync_params()
    optim.SGD(model.parameters(), lr=0.1)
    model(minigrad.ones(4, 3, device=cuda)).sum().backward()
    ddp.weighted_all_reduce_gradients([4])
    average_gradients(model.parameters(), SoloCommunicator(cuda), 4)
    assert to_host(model[1].bias.grad_array).tolist() == [4.0, 4.0]


def test_replicas_that_share_a_device_are_combined_in_its_memory(cuda, strict_cupy):
    """Where asked: NCCL would refuse them."""
    inputs, cuts = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32), [slice(0, 3), slice(3, 8)]
    found = []
    for device in ("cpu", cuda):
        minigrad.manual_seed(0)
        models = [nn.Linear(3, 2).to(device) for _ in cuts]
        ddp = Ddp.wrap(models, [device, device], collectives=collectives)
        ddp.sync_params()
        shards = [minigrad.Tensor(inputs[cut]).to(device) for cut in cuts]
        with strict_cupy.no_sync():
            for model, shard in zip(models, shards):
                (model(shard) * model(shard)).mean().backward()
            ddp.weighted_all_reduce_gradients([3, 5])
        found += [to_host(model.weight.grad_array) for model in models]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[2], found[3])
    np.testing.assert_allclose(found[2], found[0], rtol=1e-5)
    with pytest.raises(ArgumentError, match="each GPU once, got cuda:1, cuda:1: pass collectives=minigrad"):
        Ddp.wrap(models, [cuda, cuda])


def test_faults_on_a_device(cuda):
    world = ThreadWorld(1)
    (comm,) = world.communicators([cuda])
    faulty = FaultInjecting(comm, [Fault("corrupt", rank=0, bit=31), Fault("nan", rank=0, element=1)])
    x = minigrad.ones(2, device=cuda).data
    faulty.all_reduce(x).wait()
    assert to_host(x).tolist() == [-1.0, 1.0]
    faulty.all_reduce(x).wait()
    assert to_host(x)[0] == -1.0 and np.isnan(to_host(x)[1])
