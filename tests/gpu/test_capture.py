"""Captured steps on a GPU: what the function itself does, to rounding, and faster to launch."""

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, SoloCommunicator
from minigrad.errors import CaptureError

pytestmark = pytest.mark.gpu

MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5)), (16, 20)),
    "cnn": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(128, 5)),
        ),
        (16, 1, 8, 8),
    ),
}
OPTIMIZERS = {
    "momentum": lambda params: optim.SGD(params, lr=0.05, momentum=0.9),
    "adamw": lambda params: optim.AdamW(params, lr=0.01),
}


def batches(cuda, shape, count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        x, labels = rng.standard_normal(shape).astype(np.float32), rng.integers(0, 5, shape[0])
        yield minigrad.tensor(x, device=cuda), minigrad.tensor(labels, device=cuda)


def train(cuda, model, make, captured, scaled=False, wraps=False):
    """Losses and parameters of ten steps with a schedule."""
    build, shape = MODELS[model]
    minigrad.manual_seed(1)
    net = build().to(cuda)
    called = DDP(net, SoloCommunicator(cuda), bucket_cap_bytes=1024) if wraps else net
    optimizer = OPTIMIZERS[make](net.parameters())
    scaler = optim.GradScaler(init_scale=256.0, growth_interval=4, enabled=scaled)
    schedule = optim.lr_scheduler.StepLR(optimizer, 3, 0.5)

    def step(x, labels):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(called(x), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    (first, *rest), losses = list(batches(cuda, shape, 11)), []
    if captured:
        step = minigrad.capture(step, *first, warmup=3)
    else:
        for _ in range(4):
            step(*first)
    for x, labels in rest:
        losses.append(step(x, labels).item())
        schedule.step()
    return losses, {name: value.cpu().numpy() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("model, make, scaled, wraps", [
    ("mlp", "momentum", False, False),
    ("mlp", "adamw", True, False),
    ("cnn", "momentum", False, True),
    ("cnn", "adamw", False, False),
])
def test_captured_steps_are_those_of_the_function(cuda, model, make, scaled, wraps):
    losses, state = train(cuda, model, make, False, scaled, wraps)
    captured_losses, captured_state = train(cuda, model, make, True, scaled, wraps)
    np.testing.assert_allclose(captured_losses, losses, rtol=1e-3, atol=1e-4)
    for name, value in state.items():
        np.testing.assert_allclose(captured_state[name], value, rtol=1e-2, atol=1e-3, err_msg=name)


def test_after_a_refusal_training_goes_on(cuda):
    net = nn.Linear(20, 5).to(cuda)
    optimizer = optim.SGD(net.parameters(), lr=0.05)
    x, labels = next(batches(cuda, (16, 20), 1))

    def step(x, labels):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    def reading(x, labels):
        return step(x, labels).item()

    with pytest.raises(CaptureError, match="item: expected a captured step to do what a graph can repeat"):
        minigrad.capture(reading, x, labels)
    run = minigrad.capture(step, x, labels)
    losses = [run(x, labels).item() for _ in range(3)]
    assert losses[0] > losses[1] > losses[2] and all(time_s > 0.0 for time_s in run.times_s())
