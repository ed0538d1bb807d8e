"""Small steps to capture: a model without products, so that it needs no cuBLAS, and what is compared of a training."""

from __future__ import annotations

import contextlib

import numpy as np

import minigrad
from minigrad import nn, optim
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter

OPTIMIZERS = {
    "momentum": lambda params: optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: optim.Adam(params, lr=0.1),
    "adamw, amsgrad": lambda params: optim.AdamW(params, lr=0.1, weight_decay=0.1, amsgrad=True),
    "two groups": lambda params: optim.Adam([{"params": params[:1], "lr": 0.2}, {"params": params[1:]}], lr=0.1),
}


class Scaled(Module):
    """tanh of scaled inputs, batch norm where wanted, dropout, and scaled outputs."""

    def __init__(self, norm=False, p=0.5):
        super().__init__()
        rng = np.random.default_rng(0)
        self.first = Parameter(rng.standard_normal(6).astype(np.float32))
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.drop = nn.Dropout(p)
        self.second = Parameter(rng.standard_normal(6).astype(np.float32))

    def forward(self, x):
        return self.drop(self.norm((x * self.first).tanh())) * self.second


def batch(device, number, shape=(4, 6)):
    """The inputs of a step."""
    x = np.random.default_rng(number).standard_normal(shape).astype(np.float32)
    return minigrad.tensor(x, device=device)


def train_step(model, optimizer, scaler=None, max_norm=None, net=None):
    """A step as a function of its inputs; it returns the loss."""
    net = model if net is None else net

    def step(x):
        optimizer.zero_grad()
        loss = (net(x) ** 2).mean()
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        if max_norm is not None:
            optim.clip_grad_norm_(model.parameters(), max_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        return loss

    return step


def started(step, example, captured, warmup=1):
    """The step, captured or not, after as many runs on the example."""
    if captured:
        return minigrad.capture(step, example, warmup=warmup)
    for _ in range(warmup + 1):
        step(example)
    return step


def state(model, optimizer):
    """All that a training leaves, as plain data: values, state of the optimizer, options, and random streams."""
    saved = optimizer.state_dict()
    kept = [{k: v.tolist() if hasattr(v, "tolist") else v for k, v in each.items()} for each in saved["state"].values()]
    values = {name: value.tolist() for name, value in model.state_dict().items()}
    return values, kept, saved["param_groups"], minigrad.get_rng_state()


def train(device, captured, make="adam", steps=7, norm=False, scaled=False, max_norm=None, between=None):
    """Losses and state of a training with a schedule of rates.

    Args:
        between: Called with (number, model, optimizer) after each step.
    """
    minigrad.manual_seed(3)
    model = Scaled(norm).to(device)
    optimizer = OPTIMIZERS[make](list(model.parameters()))
    scaler = optim.GradScaler(init_scale=2.0**10, growth_interval=3) if scaled else None
    schedule = optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    step = started(train_step(model, optimizer, scaler, max_norm), batch(device, 0), captured)
    losses = []
    for number in range(steps):
        x = batch(device, number)
        if scaled and number == 4:
            x = x * float("inf")  # a step that does not count
        loss = step(x)
        losses.append(repr(loss.item()))
        schedule.step()
        if between is not None:
            between(number, model, optimizer)
    return losses, *state(model, optimizer), None if scaler is None else scaler.state_dict()


def orders(seeds):
    """A block for each order of the machine; none first."""
    from tests.strict_cupy import machine

    return [contextlib.nullcontext(), *map(machine, seeds)]
