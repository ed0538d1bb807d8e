"""Data parallelism by kernels is what it is without: whole trainings on two ranks, on NumPy arrays."""

import numpy as np
import pytest

import minigrad
from minigrad import nn, ops, optim
from minigrad.backend.dtypes import as_dtype
from minigrad.backend.kernels import using_kernels
from minigrad.distributed import (
    DDP,
    CompressionState,
    Ddp,
    average_gradients,
    bf16_compress_hook,
    fp16_compress_hook,
    fp16_predivide_hook,
    run,
)
from minigrad.distributed.ddp.hooks import GradBucket
from tests.distributed.models import Mlp, data, mean_loss
from tests.kernels.cuda_on_cpu import HostKernels

HOOKS = {"plain": None, "fp16": fp16_compress_hook, "bf16": bf16_compress_hook, "predivide": fp16_predivide_hook}
CUTS = [slice(0, 3), slice(3, 11)]  # unequal shards: no weight is 1 or a power of two


def two_ranks(body, order=7):
    """What body(comm) returns on two ranks without kernels, and with them; and the names of those that ran."""
    expected = run(body, 2, timeout_s=20.0)
    with using_kernels(HostKernels(order, 64, 3)) as loader:
        got = run(body, 2, timeout_s=20.0)
    return expected, got, [name.rsplit("_", 1)[0] for name in loader.launches]


def same_bits(got, expected):
    return all(np.array_equal(a, b) for x, y in zip(got, expected) for a, b in zip(x, y))


def train(comm, dtype, hook, optimizer="adamw", steps=3, **options):
    """The parameters after some steps of a smooth MLP, whose forward and backward launch no kernel."""
    ddp = DDP(Mlp(0, (13, 20, 5), as_dtype(dtype)), comm, bucket_cap_bytes=500, **options)
    if hook is not None:
        ddp.register_comm_hook(CompressionState(measure_error=False), hook)
    make = {"adamw": optim.AdamW, "sgd": lambda params: optim.SGD(params, lr=1e-3, momentum=0.9)}[optimizer]
    opt = make(ddp.parameters())
    for step in range(steps):
        inputs, targets = (array.astype(as_dtype(dtype)) for array in data(11, step, 13, 5))
        opt.zero_grad()
        mean_loss(ddp(minigrad.Tensor(inputs[CUTS[comm.rank]])), targets[CUTS[comm.rank]]).backward()
        opt.step()
    return [param.detach().numpy().copy() for param in ddp.parameters()]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_training_gives_the_same_bits(hook, dtype):
    expected, got, launched = two_ranks(lambda comm: train(comm, dtype, HOOKS[hook], "sgd"))
    assert same_bits(got, expected) and same_bits(got[:1], got[1:])
    weighted_by = {"float16": "pack_f16", "bfloat16": "pack_bf16"}.get(dtype, "scale")  # 16 bits add up in float32
    assert {weighted_by} <= set(launched) if hook == "plain" else {"sgd"} <= set(launched)


@pytest.mark.parametrize("hook", HOOKS)
def test_adamw_gives_the_same_bits(hook):
    expected, got, _ = two_ranks(lambda comm: train(comm, "float32", HOOKS[hook]))
    assert same_bits(got, expected)


@pytest.mark.parametrize("hook", ["fp16", "bf16"])
def test_a_compressed_bucket_is_packed_and_unpacked_and_scaled_nowhere_else(hook):
    def body(comm):
        return train(comm, "float32", HOOKS[hook], steps=1)

    _, _, launched = two_ranks(body)
    assert launched.count("scale") == 0
    assert launched.count("pack_f32") == launched.count("unpack_" + {"fp16": "f16", "bf16": "bf16"}[hook]) == 2 * 3


def test_an_mlp_with_every_kernel(monkeypatch):
    """Layer norm, dropout, cross-entropy, weighting, clipping and AdamW, on two ranks."""

    def body(comm):
        minigrad.manual_seed(3)
        layers = [nn.Linear(13, 20), nn.LayerNorm(20), nn.ReLU(), nn.Dropout(0.3), nn.Linear(20, 5)]
        ddp = DDP(nn.Sequential(*layers), comm, bucket_cap_bytes=500)
        ddp.register_comm_hook(CompressionState(), bf16_compress_hook)
        opt = optim.AdamW(ddp.parameters(), lr=0.01)
        rng = np.random.default_rng(0)
        for _ in range(4):
            x, labels = rng.standard_normal((11, 13)).astype(np.float32), rng.integers(0, 5, 11)
            opt.zero_grad()
            mine = CUTS[comm.rank]
            ops.cross_entropy(ddp(minigrad.Tensor(x[mine])), minigrad.Tensor(labels[mine])).backward()
            optim.clip_grad_norm_(ddp.parameters(), 0.5)
            opt.step()
        return [param.detach().numpy().copy() for param in ddp.parameters()]

    expected, got, launched = two_ranks(body)
    assert same_bits(got[:1], got[1:])
    for one, other in zip(got[0], expected[0]):
        # 4 steps of at most lr each; a gradient that bfloat16 rounds the other way moves its element by less than lr
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-3)
    whole = {f"{layer}_{part}" for layer in ("cross_entropy", "layer_norm") for part in ("forward", "backward")}
    assert whole | {"dropout", "pack_f32", "unpack_bf16", "adam", "squares"} <= set(launched)


@pytest.mark.parametrize("way", ["average_gradients", "replicas", "shards"])
def test_other_ways_to_combine(way):
    inputs, targets = data(11, 0, 13, 5, np.float32)

    def loss(model, part):
        return mean_loss(model(minigrad.Tensor(inputs[part])), targets[part])

    def body(comm):
        models = [Mlp(0, (13, 20, 5), np.float32) for _ in CUTS]
        if way == "shards":
            shards = [slice(5 * comm.rank, 5 * comm.rank + 2), slice(5 * comm.rank + 2, 5 * comm.rank + 5)]
            ddp = DDP(models[0], comm)
            ddp.backward_shards(lambda part: loss(ddp, part), shards, [2, 3])
        elif way == "average_gradients":
            loss(models[0], CUTS[comm.rank]).backward()
            average_gradients(models[0].parameters(), comm, 3 + 5 * comm.rank)
        else:
            replicas = Ddp.wrap(models, ["cpu", "cpu"])
            for model, part in zip(models, CUTS):
                loss(model, part).backward()
            replicas.weighted_all_reduce_gradients([3, 8])
        return [param.grad_array.copy() for param in models[0].parameters()]

    expected, got, launched = two_ranks(body)
    assert same_bits(got, expected) and "scale" in launched


@pytest.mark.parametrize("hook", HOOKS)
def test_no_samples_weigh_zero_even_over_nan(hook):
    def body(comm):
        ddp = DDP(Mlp(0, dtype=np.float32), comm, track_nonfinite=True)
        if HOOKS[hook] is not None:
            ddp.register_comm_hook(CompressionState(), HOOKS[hook])
        bad = float("nan") if comm.rank == 1 else 1.0
        with ddp.samples(4 * (comm.rank == 0)):
            (ddp(minigrad.Tensor(data(2, 0, dtype=np.float32)[0])) * bad).sum().backward()
        assert ddp.nonfinite_gradients() == []
        return [param.grad_array.copy() for param in ddp.parameters()]

    expected, got, _ = two_ranks(body)
    assert same_bits(got, expected) and all(np.isfinite(grad).all() for grad in got[1])


# -------------------------------------------------------------------------------------------------------- accesses


def counted(run_it, arrays):
    """run_it() under kernels that count: the reads and writes of the elements of each array, as sets of numbers."""
    with using_kernels(HostKernels(7, 64, 3)) as loader:
        loader.counts = {}
        run_it()
    found = [loader.counts.get(array.ctypes.data) for array in arrays]
    return [(set(c.reads.tolist()), set(c.writes.tolist())) if c is not None else None for c in found]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_weighting_a_bucket_reads_and_writes_each_element_once(dtype):
    gradients = np.ones(1000, as_dtype(dtype))
    bucket = GradBucket(0, gradients, [], True, "")

    def use():
        bucket.begin(np.array([0.25]), np.zeros(1, np.uint32))
        bucket.buffer()
        bucket.buffer()

    assert counted(use, [gradients]) == [({1}, {1})]
    assert set(gradients.astype(float)) == {0.25}


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_compressing_a_bucket_reads_and_writes_each_element_once_each_way(wire):
    gradients, sent = np.ones(1000, np.float32), np.zeros(1000, as_dtype(wire))
    bucket = GradBucket(0, gradients, [], True, "")
    bucket.begin(np.array([0.25]), np.zeros(1, np.uint32))
    assert counted(lambda: bucket.pack(sent, 0.5), [gradients, sent]) == [({1}, {0}), ({0}, {1})]
    assert counted(lambda: bucket.unpack(sent, 2.0), [gradients, sent]) == [({0}, {1}), ({1}, {0})]
    assert set(bucket.buffer()) == {0.25}
