"""A run with checkpoints that is killed and resumed: what a rank does, for threads and, as a script, for processes."""

import os
import signal
import sys

import minigrad
from minigrad import distributed, nn
from minigrad.train import Checkpoint
from tests.distributed.resumed import EPOCHS, everything, exact, number_of


def train(comm, folder, killed_at=None, kill=None, background=True):
    """Train on from the newest checkpoint, with one every second step; the losses, and all that is left behind."""
    run, losses = everything(comm), []
    with Checkpoint(folder, every=2, keep=2, on="step", background=background) as checkpoint:
        rest = checkpoint.load_latest(into=run) or {"epoch": 0, "step": 0}
        first = step = rest["step"]
        ddp, optimizer, schedule, scaler, loader = run.values()
        for epoch in range(rest["epoch"], EPOCHS):
            for x, target in loader:
                if step == killed_at:
                    kill(comm.rank)
                minigrad.rand(1 + comm.rank)  # ranks come to different places of their streams
                loss = nn.functional.mse_loss(ddp(x), target)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                schedule.step()
                step += 1
                losses.append(loss.item())
                checkpoint.save_if_due({**run, "epoch": epoch, "step": step}, step)
    states = {name: exact(thing.state_dict()) for name, thing in run.items()}
    return first, losses, repr(minigrad.get_rng_state()), states


def number(first, losses, *rest):
    """A number for how a run has ended, wherever it began."""
    return number_of(0, losses, *rest)


def kill(rank):
    """End the process of rank 0, which writes; the launcher ends the other."""
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def main(folder, how):
    """What the launcher starts."""
    ended = train(distributed.init(), folder, 5 if how == "killed" else None, kill)
    print("ended", ended[0], number(*ended))


if __name__ == "__main__":
    main(*sys.argv[1:])
