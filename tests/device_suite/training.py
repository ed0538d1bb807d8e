"""Training on a device that is no CPU: weights, gradients and steps as on the CPU, and no memory left behind."""

import gc

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.nn.flat import flatten
from minigrad.testing import assert_close
from tests.cases.models import MODELS, batch, training_step

OPTIMIZERS = {
    "sgd": lambda params: optim.SGD(params, lr=0.1),
    "momentum": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda params: optim.Adam(params, lr=0.01, weight_decay=0.01),
    "adamw": lambda params: optim.AdamW(params, lr=0.01, weight_decay=0.1),
}


def make(name, device, dtype="float64"):
    """A model of MODELS from seed 0 on a device."""
    minigrad.manual_seed(0)
    return MODELS[name][0](device, dtype)


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_gives_the_same_weights(cuda, name):
    here, there = make(name, "cpu"), make(name, cuda)
    moved = make(name, "cpu").to(cuda)
    for (key, value), copy, other in zip(
        here.state_dict().items(), there.state_dict().values(), moved.state_dict().values()
    ):
        assert copy.device == other.device == cuda
        assert np.array_equal(value.numpy(), copy.cpu().numpy()), key
        assert np.array_equal(value.numpy(), other.cpu().numpy()), key


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_equal_the_cpus(cuda, name, optimizer):
    models = [make(name, device) for device in ("cpu", cuda)]
    optimizers = [OPTIMIZERS[optimizer](model.parameters()) for model in models]
    for seed in range(3):
        losses = [
            training_step(model, opt, *batch(name, device, seed=seed))
            for model, opt, device in zip(models, optimizers, ("cpu", cuda))
        ]
        assert_close(losses[1], losses[0], tolerance=1e-10, what=f"loss {seed}")
    for (key, value), other in zip(models[0].state_dict().items(), models[1].state_dict().values()):
        assert_close(other, value, tolerance=1e-8, what=key)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_in_float32(cuda, name):
    gradients = []
    for device in ("cpu", cuda):
        model = make(name, device, "float32")
        x, labels = batch(name, device, "float32")
        minigrad.ops.cross_entropy(model(x), labels).backward()
        gradients.append({key: param.grad for key, param in model.named_parameters()})
    for key, value in gradients[0].items():
        assert_close(gradients[1][key], value, tolerance=1e-4, what=key)


def test_clipping_equals_the_cpus(cuda):
    norms, gradients = [], []
    for device in ("cpu", cuda):
        model = make("mlp", device)
        minigrad.ops.cross_entropy(model(batch("mlp", device)[0]), batch("mlp", device)[1]).backward()
        norms.append(optim.clip_grad_norm_(model.parameters(), 0.1))
        gradients.append([param.grad for param in model.parameters()])
    assert_close(norms[1], norms[0], tolerance=1e-10)
    for there, here in zip(gradients[1], gradients[0]):
        assert_close(there, here, tolerance=1e-10)


def test_the_flat_layout_lies_on_the_device(cuda, cupy):
    model = make("mlp", cuda)
    [buffer] = flatten(model.parameters())
    assert isinstance(buffer.data, cupy.ndarray) and isinstance(buffer.grad, cupy.ndarray)
    training_step(model, optim.SGD(model.parameters(), lr=0.1), *batch("mlp", cuda))
    for param in model.parameters():
        start, _ = buffer.span(param)
        assert param.data.data.ptr == buffer.data.data.ptr + start * 8
        assert param.grad_array.data.ptr == buffer.grad.data.ptr + start * 8


def test_a_state_dict_goes_from_one_device_to_the_other(cuda):
    here, there = make("cnn", "cpu"), make("cnn", cuda)
    training_step(here, optim.SGD(here.parameters(), lr=0.1), *batch("cnn"))
    there.load_state_dict(here.state_dict())
    for (key, value), other in zip(here.state_dict().items(), there.state_dict().values()):
        assert other.device == cuda
        assert_close(other, value, what=key)


@pytest.mark.parametrize("name", MODELS)
def test_memory_returns_to_its_level(cuda, cupy, name):
    model = make(name, cuda, "float32")
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    x, labels = batch(name, cuda, "float32")

    def level(steps):
        for _ in range(steps):
            loss = training_step(model, optimizer, x, labels)
        assert np.isfinite(loss.item())
        del loss
        optimizer.zero_grad()
        return cupy.get_default_memory_pool().used_bytes()

    gc.collect()
    gc.disable()  # reference counting alone has to do it
    try:
        first = level(3)
        assert level(100) == first
    finally:
        gc.enable()


def test_dropout_draws_the_same_mask_as_on_the_cpu(cuda):
    outputs = []
    for device in ("cpu", cuda):
        minigrad.manual_seed(5)
        outputs.append(nn.Dropout(0.5)(minigrad.ones(64, 8, device=device)))
    assert_close(outputs[1], outputs[0])


@pytest.mark.parametrize("optimizer", [optim.SGD, optim.Adam, optim.AdamW])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("masters", [False, True])
def test_parameters_of_16_bits(cuda, optimizer, dtype, masters):
    rng, steps = np.random.default_rng(0), 5
    start, *gradients = (minigrad.Tensor(rng.standard_normal(1000)).to(dtype) for _ in range(steps + 1))
    weights, states = [], []
    for device in ("cpu", cuda):
        weight = nn.Parameter(start.to(device).data.copy())
        opt = optimizer([weight], lr=0.01, weight_decay=0.01, master_weights=masters)
        for gradient in gradients:
            weight.grad = gradient.to(device)
            opt.step()
        weights.append(weight.detach().to("float32"))
        states.append(opt.state_dict()["state"].get(0, {}))
    assert_close(weights[1], weights[0], tolerance=1e-6 if masters else 2.0**-7)
    assert ("master_weights" in states[1]) == masters
    for name, value in states[0].items():
        if name != "step":
            assert_close(states[1][name], value, tolerance=1e-2 if name.startswith("exp") else 1e-5, what=name)
