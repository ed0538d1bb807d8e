"""Lesson 12, the picture: how far each way of sending leads away from a training in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.backend.dtypes import Array
from minigrad.course.drawing import curves
from minigrad.course.lesson12_wire.solution import Done, feedback_hook
from minigrad.distributed import (
    DDP,
    Communicator,
    CompressionState,
    GradBucket,
    bf16_compress_hook,
    fp16_compress_hook,
    run,
)
from minigrad.nn.functional import mse_loss
from minigrad.optim import SGD
from minigrad.tensor import Tensor

_STEPS = 30


def top_k_hook(state: dict[Any, Any], bucket: GradBucket, comm: Communicator) -> Done:
    """The largest eighth of the elements, by value and place; the rest is gone."""
    return _sum_of_largest(bucket, comm)[0]


def top_k_feedback_hook(state: dict[Any, Any], bucket: GradBucket, comm: Communicator) -> Done:
    """The same; the rest is added to the next gradients."""
    flat = bucket.buffer()
    flat += state.get(bucket.index(), 0.0)  # by bucket, as the plan is the same all the time
    done, state[bucket.index()] = _sum_of_largest(bucket, comm)
    return done


def _sum_of_largest(bucket: GradBucket, comm: Communicator) -> tuple[Done, Array]:
    """Leaves their sum in the bucket; returns what was not sent."""
    flat = bucket.buffer()
    count = max(1, len(flat) // 8)
    chosen = np.argsort(-np.abs(flat), kind="stable")[:count].astype(np.int32)
    places, values = np.empty(comm.world_size * count, np.int32), np.empty(comm.world_size * count, flat.dtype)
    comm.all_gather(places, chosen).wait()
    comm.all_gather(values, flat[chosen]).wait()
    rest = flat.copy()
    rest[chosen] = 0
    flat[...] = 0
    np.add.at(flat, places, values)
    return Done(), rest


RUNGS: Mapping[str, tuple[str, Callable[[], Any] | None, Callable[..., Any] | None]] = {
    "float64": ("float64", None, None),
    "float32": ("float32", None, None),
    "float16 with feedback": ("float32", dict, feedback_hook),
    "float16": ("float32", CompressionState, fp16_compress_hook),
    "bfloat16": ("float32", CompressionState, bf16_compress_hook),
    "top 1/8 with feedback": ("float32", dict, top_k_feedback_hook),
    "top 1/8": ("float32", dict, top_k_hook),
}


def trained(rung: str) -> tuple[list[Array], list[float]]:
    """The parameters after each step of a training on two ranks, flat, in float64; and the losses before them."""
    dtype, make_state, hook = RUNGS[rung]

    def body(comm: Communicator) -> tuple[list[Array], list[float]]:
        rng = np.random.default_rng(0)
        model = nn.Sequential(nn.Linear(4, 32, bias=False), nn.Tanh(), nn.Linear(32, 1, bias=False)).to(dtype)
        for param in model.parameters():
            param.data[...] = rng.standard_normal(param.shape) / np.sqrt(param.shape[1])
        x = rng.standard_normal((64, 4))
        target = np.sin(x.sum(axis=1, keepdims=True))
        inputs, targets = (Tensor(np.split(part, 2)[comm.rank].astype(dtype)) for part in (x, target))
        ddp, optimizer = DDP(model, comm), SGD(model.parameters(), lr=0.1)
        if make_state is not None and hook is not None:
            ddp.register_comm_hook(make_state(), hook)
        states, losses = list[Array](), list[float]()
        for _ in range(_STEPS):
            optimizer.zero_grad()
            loss = mse_loss(ddp(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            states.append(np.concatenate([param.data.reshape(-1).astype(np.float64) for param in model.parameters()]))
        return states, losses

    found = run(body, 2)
    return found[0][0], [sum(pair) / 2 for pair in zip(*(losses for _, losses in found))]


def distances(states: list[Array], exact: list[Array]) -> list[float]:
    """After each step, |difference to the exact parameters| / |those| (2-norms)."""
    return [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(states, exact)]


def picture() -> str:
    """A line for each rung below float64."""
    exact, _ = trained("float64")
    lines = {name: list(enumerate(distances(trained(name)[0], exact), 1)) for name in RUNGS if name != "float64"}
    title = "How far from the training that sends float64"
    return curves(title, lines, x="step", y="relative distance of the parameters", log_y=True)
