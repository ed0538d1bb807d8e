"""Runs that a coordinator directs, of the least that a rank can be: a linear model, that fails when it is told to."""

import random
import threading
from dataclasses import dataclass, field

import numpy as np

from minigrad import manual_seed, nn, optim, tensor
from minigrad.data import ChunkPool, SampleLedger
from minigrad.data.dispatch import Dispatch
from minigrad.distributed.comm.solo import SoloCommunicator
from minigrad.train import coordinator as c
from minigrad.train.epoch import EpochMeter
from minigrad.train.run.combining import CombinedGradients, CombinedParameters
from minigrad.train.run.coordinated import CoordinatedRank
from minigrad.train.run.directed import Directed
from minigrad.train.run.simulated import Simulated

X = np.random.default_rng(5).normal(size=(64, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.1


class RaisedError(Exception):
    """What a rank of a test fails of."""


@dataclass
class Trainee:
    """A rank's model."""

    meter: EpochMeter
    fails_at: int = -1  # the batch
    at: str = "backward"

    def __post_init__(self):
        manual_seed(3)
        self.model = nn.Linear(3, 1).to("float64")
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.device, self.batches = self.optimizer.params()[0].device, 0

    def backward(self, batches):
        n = 0.0
        for batch in batches:
            self.batches += 1
            if self.batches == self.fails_at and self.at == "backward":
                raise RaisedError(f"batch {self.batches}")
            if self.batches == self.fails_at and isinstance(self.at, threading.Event):
                self.at.wait(30.0)
            n += len(batch)
            with self.meter.batch(len(batch)):
                loss = (self.model(tensor(X[batch])).reshape(-1) - tensor(Y[batch])).square().mean()
                (loss * len(batch)).backward()
                self.meter.add_loss(loss)
        for param in self.model.parameters():
            param.grad_array /= n
        return n

    def apply(self):
        if self.batches >= self.fails_at > 0 and self.at == "apply":
            raise RaisedError(f"step {self.batches}")
        self.optimizer.step()
        self.optimizer.zero_grad()

    def drop_gradients(self):
        self.optimizer.zero_grad()

    def objects(self):
        return {"optimizer": self.optimizer}


@dataclass
class Heard:
    """What a rank was told."""

    epochs: list = field(default_factory=list)
    commits: list = field(default_factory=list)
    saved: list = field(default_factory=list)

    def epoch(self, metrics):
        self.epochs.append(metrics)

    def committed(self, commit, comm):
        self.commits.append(commit.round)

    def settled(self, commit, comm, together):
        assert commit.round == self.commits[-1]

    def save(self, order, comm, begun):
        self.saved.append((order.round, order.error, comm.world_size))


def rank_of(rank, letters, config, *, average="gradients", fails=None, patience_s=60.0, options=()):
    """The rank of a run."""
    meter = EpochMeter(SoloCommunicator())
    trainee = Trainee(meter, *(fails or {}).get(rank, ()))
    combining = CombinedGradients(trainee) if average == "gradients" else CombinedParameters(trainee, config.bound)
    pool, size = config.dispatch.pool, config.world_size
    ledger, heard = SampleLedger(pool.length, rank=rank, world_size=size), Heard()
    which = (rank, size, trainee, combining, meter, letters, pool, ledger, heard)
    return CoordinatedRank(*which, patience_s=patience_s, options=dict(options))


def config_of(
    policy, ranks, *, samples=64, batch_size=4, epochs=2, mode="progressive", on_failure="stop", timeout_s=10, **options
):
    """Options of a coordinator."""
    dispatch = Dispatch(ChunkPool(samples, batch_size, seed=1), ranks, mode, epochs=epochs, **options)
    return c.CoordinatorConfig(dispatch, policy, on_failure, timeout_s)


def on_threads(config, *, timeout_s=5.0, desk=None, cluster=None, **options):
    """Run it on threads, or in simulation; the ranks that have ended well, by rank, and the run."""

    def body(rank, letters):
        made = rank_of(rank, letters, config, **options)
        made.run()
        return made

    more = () if cluster is None else (cluster,)
    run = (Directed if cluster is None else Simulated)(config, body, *more, timeout_s=timeout_s, **(desk or {}))
    run.state = run.run()
    return run.results, run


def bits(rank):
    return [param.detach().numpy().tobytes() for param in rank.trainee.model.parameters()]


def drawn_fails(seed, ranks):
    """Which ranks fail, and at which batch."""
    rng = random.Random(seed)
    lost = rng.sample(range(ranks), rng.randint(1, ranks - 1))
    return {rank: (rng.randint(1, 12), rng.choice(["backward", "apply"])) for rank in lost}
