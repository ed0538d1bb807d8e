"""Mixed precision on a device that is no CPU: skipped steps leave no trace there, and training goes as on the CPU."""

import math

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn, ops, optim
from minigrad.backend.device import to_device
from minigrad.stamp import mark_changed
from minigrad.testing import assert_close
from tests.cases.models import MODELS, batch
from tests.device_suite.training import OPTIMIZERS, make


def give(params, values, scaler):
    """Gradients of a scaled loss; None where there is to be none."""
    for param, value in zip(params, values):
        array = None if value is None else np.full(param.shape, value * scaler.get_scale(), param.dtype)
        param.grad = None if array is None else Tensor(to_device(array, param.device))


def run(device, make_optimizer, rows):
    """Parameters and state after a step for each row of gradients."""
    params = [nn.Parameter(to_device(np.ones(size, np.float32), device)) for size in (5, 40)]
    optimizer, scaler = make_optimizer(params), optim.GradScaler(64.0, growth_interval=3)
    for row in rows:
        optimizer.zero_grad()
        give(params, row, scaler)
        scaler.step(optimizer)
        scaler.update()
    state = optimizer.state_dict()["state"]
    arrays = {f"{i}.{key}": value for i, entry in state.items() for key, value in entry.items()}
    return {**arrays, **{str(i): param.detach() for i, param in enumerate(params)}}, scaler.state_dict()


BAD = math.inf
ROWS = {
    "none_skipped": [(1.0, 2.0), (0.5, -1.0), (0.25, 3.0)],
    "first_skipped": [(BAD, 2.0), (0.5, -1.0), (0.25, 3.0)],
    "several_skipped": [(1.0, 2.0), (1.0, BAD), (math.nan, 1.0), (0.5, -1.0), (-BAD, BAD), (0.25, 3.0)],
    "one_joins_late": [(1.0, None), (BAD, None), (1.0, None), (1.0, 2.0), (1.0, BAD), (0.5, 3.0)],
    "one_pauses": [(1.0, 2.0), (BAD, 1.0), (1.0, None), (1.0, None), (1.0, 2.0), (0.5, 3.0)],
    "nothing_at_first": [(None, None), (BAD, None), (1.0, 2.0)],
    "grows": [(1.0, 2.0)] * 7,
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_skipped_steps_leave_no_trace(cuda, name, rows):
    expected, scale = run(minigrad.Device("cpu"), OPTIMIZERS[name], ROWS[rows])
    got, device_scale = run(cuda, OPTIMIZERS[name], ROWS[rows])
    assert device_scale == scale and got.keys() == expected.keys()
    for key, value in expected.items():
        assert_close(got[key], value, tolerance=2e-6, what=key)


def test_a_plain_step_between_scaled_ones(cuda):
    """The number of a step is that of updates, whoever made them."""

    def counts(device):
        param = nn.Parameter(to_device(np.ones(3, np.float32), device))
        optimizer, scaler = optim.Adam([param], lr=0.1), optim.GradScaler(4.0)
        for value in (1.0, BAD, 2.0):
            give([param], [value], scaler)
            scaler.step(optimizer)
            scaler.update()
        param.grad = Tensor(to_device(np.ones(3, np.float32), device))
        optimizer.step()
        give([param], [BAD], scaler)
        scaler.step(optimizer)
        return optimizer.state_dict()["state"][0]["step"], param.detach()

    (here, expected), (there, got) = counts(minigrad.Device("cpu")), counts(cuda)
    assert here == there == 3
    assert_close(got, expected, tolerance=1e-6)


class Sign(optim.Optimizer):
    """An optimizer that knows nothing of skipping."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.5})

    def update(self, group, step, param, grad):
        param -= group["lr"] * grad


def test_an_optimizer_that_knows_nothing_of_it(cuda):
    param = nn.Parameter(to_device(np.ones(3, np.float32), cuda))
    optimizer, scaler = Sign([param]), optim.GradScaler(4.0)
    for value in (BAD, 1.0, math.nan):
        give([param], [value], scaler)
        scaler.step(optimizer)
        scaler.update()
    assert param.tolist() == [0.5] * 3 and scaler.get_scale() == 1.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_training_converges(cuda, name, dtype):
    model = make(name, cuda, "float32")
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    scaler = optim.GradScaler(enabled=dtype == "float16")
    x, labels = batch(name, cuda, "float32")
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with minigrad.autocast(dtype):
            loss = ops.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    assert losses[0].item() > 1.0 and losses[-1].item() < 0.1


def test_first_gradients_under_autocast_are_near_those_of_float32(cuda):
    gradients = []
    for dtype in ("float32", "bfloat16", "float16"):
        model = make("cnn", cuda, "float32")
        x, labels = batch("cnn", cuda, "float32")
        with minigrad.autocast(dtype if dtype != "float32" else "bfloat16", enabled=dtype != "float32"):
            loss = ops.cross_entropy(model(x), labels)
        loss.backward()
        gradients.append(np.concatenate([p.grad.cpu().numpy().ravel() for p in model.parameters()]))
    exact, rough, fine = gradients
    assert np.linalg.norm(rough - exact) < 0.1 * np.linalg.norm(exact)
    assert np.linalg.norm(fine - exact) < 0.02 * np.linalg.norm(exact)


def test_a_parameter_changed_in_place_is_converted_again(cuda):
    layer = nn.Linear(2, 1, bias=False, device=cuda)
    x = minigrad.ones(1, 2, device=cuda)
    with minigrad.autocast():
        layer(x)
        layer.weight.data[...] = 3.0
        mark_changed(layer.weight)
        assert layer(x).item() == 6.0
