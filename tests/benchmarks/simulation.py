"""How long simulating takes: ranks with true numbers, and very many without.

    python -m tests.benchmarks.simulation
"""

from __future__ import annotations

import time

import numpy as np

import minigrad
from minigrad import nn, optim
from minigrad.data import digits
from minigrad.distributed import DDP, Balance, Balancer, Reading, simulate
from minigrad.distributed.simulate import Cluster, Link, forecast

RANKS, MANY = 64, 100_000
SAMPLES = 32  # a rank, where there are many
JITTER = 0.02


def train_digits(comm, steps):
    """The digits MLP, 8 samples a rank, balanced."""
    images, labels = (minigrad.Tensor(array) for array in digits("train").arrays)
    minigrad.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    balancer = Balancer(comm)
    ddp = DDP(model, balancer.comm)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        with balancer.step(8 * comm.world_size) as rows:
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(images[rows]), labels[rows]).backward()
            optimizer.step()


def with_numbers(steps):
    """Seconds of a step of RANKS ranks."""
    began = time.perf_counter()
    simulate.run(train_digits, Cluster.of_speeds([3, 2, 1, 1] * (RANKS // 4), link=Link(1e-5, 1e9)), steps)
    return (time.perf_counter() - began) / steps


def without_numbers():
    """Seconds of a step of MANY ranks; of a step that a Balance observes; and of one in which it decides."""
    cluster = Cluster.of_speeds(np.linspace(1, 3, MANY), fixed_s=2e-3, jitter_fraction=JITTER)
    began = time.perf_counter()
    forecast(cluster, np.full(MANY, SAMPLES), 10)
    alone_s = (time.perf_counter() - began) / 10
    balance, batch, ends = Balance.start(MANY), SAMPLES * MANY, [time.perf_counter()]

    def strategy(state, batch_size, readings):
        nonlocal balance
        balance, _, reason = balance.observe(batch_size, [Reading(*row) for row in readings])
        shards = balance.shard_sizes(batch_size)
        ends.append(time.perf_counter())
        return state, shards, reason

    result = forecast(cluster, balance.shard_sizes(batch), 12, strategy=strategy)
    assert result.step_s[10] < 0.7 * result.step_s[8]
    seconds = np.diff(ends)
    return alone_s, float(np.median(seconds[:9])), float(seconds[9])


if __name__ == "__main__":
    print(f"{RANKS} ranks with true numbers: {with_numbers(10):.2f} s a step")
    alone_s, observed_s, decided_s = without_numbers()
    print(f"{MANY:,} ranks without: {alone_s:.3f} s a step; {observed_s:.2f} s where a Balance observes it")
    print(f"and {decided_s:.2f} s where it decides")
