"""Runs that are killed and resumed: what they train, and all that one leaves behind."""

import re

import numpy as np

import minigrad
from minigrad import nn, optim
from minigrad.data import ArrayDataset
from minigrad.train import Trainer, record_scalar
from tests.distributed.resumed import exact

DATA = np.random.default_rng(0).standard_normal((44, 4)).astype(np.float32)


def normed(device):
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1)).to(device)


def plain(device):
    """Of batches of one sample too."""
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 1)).to(device)


def train_fn(model, batch):
    x, target = batch
    minigrad.rand(1 + minigrad.get_rng_state()["noise_key"])  # ranks come to different places of their streams
    loss = nn.functional.mse_loss(model(x), target)
    record_scalar("half", 0.5 * loss.detach())
    return loss


class Best:
    """A callback with a state."""

    def __init__(self):
        self.loss, self.begun = 9.0, []

    def before_epoch(self, worker):
        self.begun.append(worker.epoch)

    def after_epoch(self, metrics, worker):
        self.loss = min(self.loss, metrics.loss)

    def state_dict(self):
        return {"loss": self.loss}

    def load_state_dict(self, state):
        self.loss = state["loss"]


def start(checkpoint, callbacks=(), train_fn=train_fn, **options):
    options = {"ranks": 2, "batch_size": 4, "epochs": 2, "seed": 3, "progress": False, **options}
    data = ArrayDataset(DATA, DATA[:, :1].copy())
    make = options.pop("optimizer", lambda params: optim.Adam(params, lr=0.01))
    given = [checkpoint, *(callbacks or [Best()])]
    return Trainer.start(options.pop("model", normed), make, train_fn, data, callbacks=given, **options)


def left(run, checkpoint):
    """All that is left behind by a run, without seconds: what it gives, and its last checkpoint, of each rank."""
    state = run.join()
    told = {f"{n}": each for n, each in enumerate(exact(minigrad.load(checkpoint.latest(), every_rank=True)))}
    seconds = r"""["'](train_s|epoch_s|throughput|ended_s)["']: [-.e0-9]+"""
    states = {f"{rank} {name}": re.sub(seconds, "", repr(x)) for rank, of in told.items() for name, x in of.items()}
    for name in states:  # what a clock that began later told: the last digit of a difference may be another one
        if name.endswith(("rounds", "averager")):
            states[name] = re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.6f}", states[name])
    return {"given": exact({**state.params, **state.buffers}), **states}
