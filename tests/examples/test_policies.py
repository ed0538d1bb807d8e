"""examples/10_policies.py: what its table says, beside the algorithms written out in NumPy on the same batches."""

import re

import numpy as np
import pytest

import minigrad
from minigrad import nn
from minigrad.data import digits
from tests.examples.test_scripts import run_script

RATE, RANKS, STEPS = 0.2, 3, 96  # of SGD; steps of each rank in --smoke
SHAPES = [(32, 64), (32,), (10, 32), (10,)]


def rows(printed):
    """The losses in each line of the table, by policy."""
    return {line[:24].strip(): re.findall(r"\d+\.\d+", line[24:]) for line in printed.splitlines()[2:8]}


def begin():
    """The first values, as one vector."""
    minigrad.manual_seed(0)
    first, second = nn.Linear(64, 32), nn.Linear(32, 10)
    return np.concatenate([p.data.astype(np.float64).ravel() for m in (first, second) for p in m.parameters()])


def loss_and_gradient(theta, images, labels):
    """Of two layers with a ReLU between them, and the mean cross-entropy."""
    ends = np.cumsum([0, *map(np.prod, SHAPES)])
    w1, b1, w2, b2 = (theta[a:b].reshape(shape) for a, b, shape in zip(ends, ends[1:], SHAPES))
    x = images.reshape(len(images), -1)
    hidden = np.maximum(x @ w1.T + b1, 0.0)
    scores = np.exp(hidden @ w2.T + b2)
    chances = scores / scores.sum(1, keepdims=True)
    loss = -np.log(chances[np.arange(len(x)), labels]).mean()
    off = (chances - np.eye(10)[labels]) / len(x)
    back = off @ w2 * (hidden > 0)
    return loss, np.concatenate([part.ravel() for part in (back.T @ x, back.sum(0), off.T @ hidden, off.sum(0))])


def train(every, outer):
    """Losses on the test set where 72, 144 and 288 batches are computed and combined, as `outer(anchor, mean)` says."""
    train_set, test_set = (digits(part, dtype="float64").arrays for part in ("train", "test"))
    anchor, losses = begin(), {}
    thetas = [anchor] * RANKS
    for step in range(STEPS):
        for rank in range(RANKS):
            chosen = np.random.default_rng([rank, step]).choice(len(train_set[0]), 8, replace=False)
            batch = [array[chosen] for array in train_set]
            thetas[rank] = thetas[rank] - RATE * loss_and_gradient(thetas[rank], *batch)[1]
        if (step + 1) % every == 0:
            anchor = outer(anchor, sum(thetas) / RANKS)
            thetas = [anchor] * RANKS
        if step + 1 in (24, 48, 96):
            losses[step + 1] = loss_and_gradient(anchor, *test_set)[0]
    return [f"{loss:.3f}" for loss in losses.values()]


class Nesterov:
    """DiLoCo's outer optimizer, a rate of 0.7 and a momentum of 0.9."""

    velocity = 0.0

    def __call__(self, anchor, mean):
        self.velocity = 0.9 * self.velocity + (anchor - mean)
        return anchor - 0.7 * (anchor - mean + 0.9 * self.velocity)


@pytest.mark.parametrize("policy, every, outer", [
    ("gradients of each step", 1, lambda _, mean: mean),  # plain SGD: the mean of steps is the step of the mean
    ("parameters of every 8th", 8, lambda _, mean: mean),
    ("DiLoCo, every 16th", 16, Nesterov()),
])
def test_the_losses_are_those_of_the_algorithm(policy, every, outer):
    assert rows(run_script("10_policies.py", "--smoke"))[policy][:3] == train(every, outer)


def test_the_bytes_and_seconds_of_each_step_are_those_of_its_links():
    """19,328 bytes of parameters and 16 of samples in each of 96 steps, and 16 at the end, of 3 ranks. A ring of them
    takes 4 messages of a third: 1 ms and a byte a microsecond each; the slowest rank computes for 9 ms, but for noise.
    """
    *_, kilobytes, seconds = run_script("10_policies.py", "--smoke").splitlines()[2].split()
    assert int(kilobytes) == round(3 * (96 * (19328 + 16) + 16) / 1000)
    assert float(seconds) == pytest.approx(96 * (9 + 4 * (1 + 19.328 / 3) + 4 * (1 + 0.016 / 3)) / 1000, rel=0.01)


def test_too_few_steps_teach_nothing_and_every_run_has_the_same_losses():
    """A rank that nobody waits for is at one place in each run, too: after 24 steps of these 48, and of those 96."""
    printed = run_script("10_policies.py", "--steps", "48", exit_code=1)
    found, smoke = rows(printed), rows(run_script("10_policies.py", "--smoke"))
    assert [row[1] for row in found.values()] == [row[0] for row in smoke.values()] and len(found) == 6
    assert re.findall("BROKEN: (.*): ends with a loss of", printed) == [*found]
    assert printed.count("BROKEN") == 6  # and nothing else
