"""What the framework does by kernels is what it does without: every operation, and training from end to end."""

import functools

import numpy as np
import pytest

import minigrad
from minigrad import nn, ops, optim
from minigrad.backend.dtypes import as_dtype
from minigrad.backend.kernels import using_kernels
from minigrad.distributed import collectives
from minigrad.testing import assert_close
from tests.cases import CASES
from tests.cases.evaluate import evaluate
from tests.kernels.cuda_on_cpu import HostKernels

CONVOLUTIONS = {"conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"}
NORMS = {"batch_norm", "group_norm", "instance_norm", "layer_norm"}
SOFTMAX = {"log_softmax", "multi_head_attention_forward", "scaled_dot_product_attention", "softmax", "softmin"}
BY_KERNELS = {"cross_entropy", "dropout", "embedding", "index_select", *NORMS, *CONVOLUTIONS, *SOFTMAX}
ILL = {"group_norm-vectors": 10.0}  # two numbers to a statistic, close together: both ways are off
FUSED = [case for case in CASES if case.id.split("-")[0] in BY_KERNELS]


def in_both_ways(run, order=7):
    """What run() returns without kernels, and with them."""
    expected = run()
    with using_kernels(HostKernels(order, 64, 3)) as loader:
        got = run()
    assert loader.launches, "no kernel ran"
    return expected, got


@pytest.mark.parametrize("case", FUSED, ids=lambda case: case.id)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5)])
def test_operation(case, dtype, tolerance):
    expected, expected_grads = evaluate(case, np.asarray, dtype)
    with using_kernels(HostKernels(order=7)):
        got, grads = evaluate(case, np.asarray, dtype)
    tolerance *= ILL.get(case.id, 1.0)
    assert_close(got, expected, tolerance=tolerance, what="output")
    for i, (grad, expected_grad) in enumerate(zip(grads, expected_grads)):
        assert (grad is None) == (expected_grad is None)
        if grad is not None:
            assert_close(grad, expected_grad, tolerance=tolerance, what=f"gradient {i}")


OPTIMIZERS = {
    "sgd": functools.partial(optim.SGD, lr=0.1),
    "nesterov": functools.partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": functools.partial(optim.Adam, lr=0.01, weight_decay=0.01),
    "adamw": functools.partial(optim.AdamW, lr=0.01, weight_decay=0.1),
}


def train(make_optimizer, dtype):
    """The losses and the parameters of an MLP with layer norm and dropout, trained with clipping."""
    minigrad.manual_seed(3)
    layers = [nn.Linear(13, 20), nn.LayerNorm(20), nn.ReLU(), nn.Dropout(0.3), nn.Linear(20, 5)]
    model = nn.Sequential(*layers).to(dtype=dtype)
    optimizer = make_optimizer(model.parameters())
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(5):
        x = minigrad.Tensor(rng.standard_normal((17, 13)).astype(dtype))
        labels = minigrad.Tensor(rng.integers(0, 5, 17))
        optimizer.zero_grad()
        loss = ops.cross_entropy(model(x), labels, label_smoothing=0.1)
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), [param.detach().numpy() for param in model.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 2e-5)])
def test_training_gives_the_same_parameters(name, dtype, tolerance):
    (losses, params), (fused_losses, fused_params) = in_both_ways(lambda: train(OPTIMIZERS[name], dtype))
    assert_close(fused_losses, losses, tolerance=tolerance)
    for fused, param in zip(fused_params, params):
        assert_close(fused, param, tolerance=tolerance)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_update_gives_the_same_bits(name, dtype):
    """The arithmetic of optimizers is the same, operation by operation."""

    def update():
        rng = np.random.default_rng(0)
        weight = nn.Parameter(rng.standard_normal(1000).astype(dtype))
        optimizer = OPTIMIZERS[name]([weight])
        for _ in range(3):
            weight.grad = minigrad.Tensor(rng.standard_normal(1000).astype(dtype))
            optimizer.step()
        return weight.detach().numpy().copy()

    expected, got = in_both_ways(update)
    assert np.array_equal(expected, got)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("masters", [False, True])
def test_parameters_of_16_bits_are_updated_in_one_launch(name, dtype, masters):
    def update():
        rng = np.random.default_rng(0)
        weight = nn.Parameter(rng.standard_normal(1000).astype(as_dtype(dtype)))
        optimizer = OPTIMIZERS[name]([weight], master_weights=masters)
        for step in range(4):
            weight.grad = minigrad.Tensor(rng.standard_normal(1000).astype(as_dtype(dtype)))
            optimizer.step()
            if step == 1:
                weight.data[10:20] = 2.0
        return weight.detach().numpy().copy()

    expected, got = in_both_ways(update)
    assert np.array_equal(expected, got)
    with using_kernels(HostKernels()) as loader:
        update()
    assert len(loader.launches) == 4


@pytest.mark.parametrize("p", [2.0, float("inf"), 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_clipping(p, dtype):
    def clip():
        rng = np.random.default_rng(0)
        weights = [nn.Parameter(np.zeros(n, dtype)) for n in (5, 700)]
        for weight in weights:
            weight.grad = minigrad.Tensor(rng.standard_normal(weight.shape).astype(dtype))
        norm = optim.clip_grad_norm_(weights, 1.0, p)
        return norm.numpy(), [weight.grad.numpy() for weight in weights]

    norm, grads = clip()
    with using_kernels(HostKernels()):
        fused_norm, fused_grads = clip()
    assert_close(fused_norm, norm, tolerance=1e-6)
    for fused, grad in zip(fused_grads, grads):
        assert_close(fused, grad)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
def test_replicas_in_memory(dtype):
    def all_reduce():
        rng = np.random.default_rng(0)
        arrays = [(rng.standard_normal((7, 9)) * 100).astype(dtype) for _ in range(5)]
        collectives.all_reduce(arrays)
        return arrays

    expected = all_reduce()
    with using_kernels(HostKernels()) as loader:
        got = all_reduce()
    assert all(np.array_equal(x, y) for x, y in zip(got, expected))
    assert len(loader.launches) == (dtype != "int64")


def test_which_operations_have_kernels():
    def launched(run):
        with using_kernels(HostKernels()) as loader:
            run()
        return [name.rsplit("_", 1)[0] for name in loader.launches]

    x = minigrad.Tensor(np.ones((4, 6), np.float32), requires_grad=True)
    labels = minigrad.Tensor(np.arange(4))
    parts = [f"cross_entropy_{part}" for part in ("forward", "backward")]
    assert launched(lambda: ops.cross_entropy(x, labels).backward()) == parts
    assert launched(lambda: ops.layer_norm(x, 6).sum().backward()) == ["layer_norm_forward", "layer_norm_backward"]
    assert launched(lambda: ops.rms_norm(x, 6).sum().backward()) == ["layer_norm_forward", "layer_norm_backward"]
    norm = [f"channel_norm_{part}" for part in ("moments", "normalize", "sums", "gradients")]
    assert launched(lambda: ops.batch_norm(x, None, None, training=True).sum().backward()) == norm
    assert launched(lambda: ops.group_norm(x, 2).sum().backward()) == norm
    assert launched(lambda: ops.dropout(x, 0.5).sum().backward()) == ["dropout", "dropout"]
    images, kernel = minigrad.ones(1, 2, 4, 4), minigrad.ones(3, 2, 3, 3, requires_grad=True)
    parts = [f"convolution_{part}" for part in ("columns", "columns", "weight")]
    assert launched(lambda: ops.conv2d(images, kernel).sum().backward()) == parts
    weight = nn.Parameter(np.ones(5, np.float32))
    weight.grad = minigrad.Tensor(np.ones(5, np.float32))
    assert launched(optim.SGD([weight], lr=0.1).step) == ["sgd"]
    assert launched(optim.Adam([weight]).step) == ["adam"]
    assert launched(lambda: optim.clip_grad_norm_([weight], 1.0)) == ["squares", "finish"]
