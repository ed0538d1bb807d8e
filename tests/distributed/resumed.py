"""A run that can be killed and resumed: what a rank does, for threads and, as a script, for processes."""

import hashlib
import os
import signal
import sys

import numpy as np

import minigrad
from minigrad import distributed, nn, optim
from minigrad.data import DataLoader, DistributedSampler
from minigrad.distributed import DistributedDataParallel

EPOCHS = 2
DATA = np.random.default_rng(0).standard_normal((28, 4)).astype(np.float32)


class Blurred:
    """Samples with noise of their own, so that batches are made ahead in a thread."""

    def __len__(self):
        return len(DATA)

    def __getitem__(self, place):
        return DATA[place] + 0.1 * minigrad.randn(4).numpy(), DATA[place, :1]


class Killed(Exception):
    """What stands for the end of a rank that is a thread."""


def everything(comm):
    """All that a rank trains with."""
    minigrad.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
    model.to(comm.device)
    ddp = DistributedDataParallel(model, comm, buffer_cadence=3)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    sampler = DistributedSampler(len(DATA), seed=3)
    return {
        "model": ddp,
        "optimizer": optimizer,
        "schedule": optim.LRScheduler(optimizer, optim.StepDecay(3, gamma=0.5)),
        "scaler": optim.GradScaler(2.0**4, growth_interval=3),
        "loader": DataLoader(Blurred(), batch_size=4, sampler=sampler, prefetch=2, device=comm.device),
    }


def train(comm, path, killed_at=None, kill=None, resumes=False):
    """Train, saving after each step; what the losses were from the first step here on, and all that is left behind."""
    run, step, losses = everything(comm), 0, []
    epoch = 0
    if resumes:
        rest = minigrad.load(path, into=run)
        epoch, step = rest["epoch"], rest["step"]
    ddp, optimizer, schedule, scaler, loader = run.values()
    for epoch in range(epoch, EPOCHS):
        for x, target in loader:
            if step == killed_at:
                kill(comm.rank)
            minigrad.rand(1 + comm.rank)  # ranks come to different places of their streams
            with minigrad.autocast("float16"):
                loss = nn.functional.mse_loss(ddp(x), target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            optim.clip_grad_norm_(ddp.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            step += 1
            losses.append(loss.item())
            minigrad.save({**run, "epoch": epoch, "step": step}, path)
    states = {name: thing.state_dict() for name, thing in run.items()}
    return step, losses, repr(minigrad.get_rng_state()), {name: exact(state) for name, state in states.items()}


def exact(state):
    """A state with the bits of its tensors for these."""
    if isinstance(state, dict):
        return {key: exact(value) for key, value in state.items()}
    if isinstance(state, list):
        return [*map(exact, state)]
    return state.cpu().numpy().tobytes().hex() if hasattr(state, "numpy") else state


def kill(rank):
    """End this process without a word; its launcher ends the others."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def number_of(step, losses, *rest):
    """A number for how a run has ended."""
    return hashlib.sha256(repr((step, losses[-2:], rest)).encode()).hexdigest()


def main(path, how):
    """What the launcher starts."""
    comm = distributed.init()
    step, losses, *rest = train(comm, path, 5 if how == "killed" else None, kill, how == "resumed")
    print("ended", number_of(step, losses, *rest))


if __name__ == "__main__":
    main(*sys.argv[1:])
