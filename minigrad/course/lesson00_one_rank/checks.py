"""The check of lesson 0: any number of ranks trains as one device does."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import nn, tensor
from minigrad.course.lesson import Student, WrongError, expect
from minigrad.distributed import Communicator, SoloCommunicator, run

Array = np.ndarray
SAMPLES, STEPS, LR = 11, 6, 0.1
SIZES = (1, 2, 3, 4)
TIMEOUT_S = 2.0


class WatchedModel(nn.Module):
    """A small network that notes how many rows it ran on."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.first = nn.Linear(3, 4, dtype=np.float64)
        self.second = nn.Linear(4, 2, dtype=np.float64)
        for parameter in self.parameters():
            parameter.data[...] = 0.5 * rng.standard_normal(parameter.shape)
        self.rows: list[int] = []

    def forward(self, x: Any) -> Any:
        """Two layers."""
        self.rows.append(len(x))
        return self.second(nn.functional.tanh(self.first(x)))


def by_hand(x: Array, y: Array) -> tuple[list[float], Array]:
    """The losses and the final weights of one device: no DDP, no optimizer, no communicator."""
    model, losses = WatchedModel(0), []
    for _ in range(STEPS):
        losses.append(step(model, x, y))
    return losses, _weights(model)


def step(model: nn.Module, x: Array, y: Array) -> float:
    """One step of gradient descent, and the loss before it."""
    loss = nn.functional.mse_loss(model(tensor(x)), tensor(y))
    model.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data[...] -= LR * parameter.grad.data
    return float(loss.item())


def check_train(student: Student) -> str:
    """Whether 1 to 4 ranks end where one device does."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, 3)) + np.linspace(0, 2, SAMPLES)[:, np.newaxis]
    y = np.stack([np.sin(x.sum(axis=1)), x[:, 0]], axis=1)
    losses, weights = by_hand(x, y)
    _compared("train, SoloCommunicator", 1, [_trained(student, SoloCommunicator(), x, y)], losses, weights)
    for world_size in SIZES:
        results = run(lambda comm: _trained(student, comm, x, y), world_size, timeout_s=TIMEOUT_S)
        _compared(f"train, {SAMPLES} samples on {world_size} ranks", world_size, results, losses, weights)
    return f"{STEPS} steps of {SAMPLES} samples on 1 to 4 ranks: weights, losses of one device, last {losses[-1]:.4f}"


def _trained(student: Student, comm: Communicator, x: Array, y: Array) -> tuple[Any, Array, list[int]]:
    model = WatchedModel(comm.rank)  # other ranks begin elsewhere
    losses = student.train(comm, model, x.copy(), y.copy(), LR, STEPS)
    return losses, _weights(model), model.rows


def _weights(model: nn.Module) -> Array:
    return np.concatenate([parameter.data.reshape(-1) for parameter in model.parameters()])


def _compared(what: str, ranks: int, results: list[Any], losses: list[float], weights: Array) -> None:
    """Compare what each rank has come to with one device."""
    for rank, (got, ended, rows) in enumerate(results):
        most = -(-SAMPLES // ranks)
        expect(len(rows) == STEPS, f"{what}: expected one forward a step, {STEPS}, got {len(rows)} on rank {rank}")
        expect(max(rows) <= most, f"{what}: expected a forward of at most {most} samples on a rank, got {max(rows)}: "
               "each rank works on its own part, comm.rank and comm.world_size say which")
        floats = isinstance(got, list) and [type(loss) for loss in got] == [float] * STEPS
        expect(floats, f"{what}: expected a list of {STEPS} Python floats, got {got!r:.80}")
        expect(np.array_equal(ended, results[0][1]), f"{what}: expected the same weights on all ranks, got others on "
               f"rank {rank} than on rank 0: do gradients travel, and do all begin with the weights of rank 0?")
    seen = sum(rows[0] for _, _, rows in results)
    expect(seen == SAMPLES, f"{what}: expected all {SAMPLES} samples in a step, got {seen}: a division drops the rest")
    got, ended, _ = results[0]
    off = float(np.abs(ended - weights).max())
    if not off <= 1e-9:
        raise WrongError(f"{what}: expected the weights that one device comes to, got weights up to {off:.1g} off. Is "
                         "each rank's gradient weighted by its samples, does it start from 0 in each step, is lr what "
                         "was given?")
    for rank, (own, _, _) in enumerate(results):
        if not np.allclose(own, losses, rtol=1e-9):
            raise WrongError(
                f"{what}: expected losses over all samples, {losses[0]:.6g} first, got {own[0]:.6g} on rank {rank}: "
                "a rank's own loss is over its part; add up loss times samples, and samples, over the ranks"
            )
        expect(own == got, f"{what}: expected the same losses on all ranks, got others on rank {rank} than on rank 0")
