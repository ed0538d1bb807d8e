"""A run that is killed in the middle of an epoch, and goes on: the same bits, and each sample once.

    python examples/11_resume.py
    python examples/11_resume.py --kill-at 20 --every 3     killed behind its 20th step, with checkpoints at every third
    python -m minigrad.distributed.launch -n 2 examples/11_resume.py --train run      one of its runs, as two processes

Two ranks learn the handwritten digits with noise, momentum, a schedule and running statistics: all that a run has to
remember. One run is left alone. Another is killed, by a signal that nobody can catch, and leaves what it has written;
the same call, with resume=True, goes on from there. Then three ranks go on from there: their batches are others, so
that the bits are too, but each sample still counts once in its epoch.

It exits with 1 where a promise is broken: the resumed run ends in other bits, or a sample is missing or comes twice.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import minigrad
from minigrad import nn, optim
from minigrad.data import ArrayDataset, digits
from minigrad.distributed import merge_ledger
from minigrad.train import Checkpoint, EpochMetrics, Trainer

RANKS, BATCH, EPOCHS, SAMPLES = 2, 16, 2, 400
STEPS = EPOCHS * -(-SAMPLES // (RANKS * BATCH))


def make_model(device: minigrad.Device) -> nn.Module:
    """With running statistics, and with noise."""
    layers = nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)
    return nn.Sequential(*layers).to(device)


def make_optimizer(params: list[Any]) -> optim.Optimizer:
    """With a memory."""
    return optim.Adam(params, lr=0.01)


def loss_of(model: nn.Module, batch: Any) -> minigrad.Tensor:
    """The mean over the batch."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


class Killer:
    """A loss that ends the process behind so many steps, as `kill -9` does."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self, model: nn.Module, batch: Any) -> minigrad.Tensor:
        """One rank counts: the last one."""
        if minigrad.distributed.get_rank() == minigrad.distributed.get_world_size() - 1:
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
        return loss_of(model, batch)


class Audit:
    """Whether each sample counted once, by the ledgers of all ranks.

    Attributes:
        words: What they say of each epoch.
    """

    def __init__(self) -> None:
        self.words: dict[int, str] = {}

    def after_epoch(self, metrics: EpochMetrics, worker: Any) -> None:
        """Called on all ranks."""
        merge_ledger(worker.comm, worker.ledger)
        if worker.rank == 0:
            self.words = {epoch: str(worker.ledger.audit(epoch)) for epoch in range(worker.epoch)}


def train(folder: Path, every: int, ranks: int | None = RANKS, kill_at: int | None = None) -> tuple[str, list[str]]:
    """A run, which goes on from what is in the folder: its bits, and what its ledgers say of each epoch.

    Args:
        ranks: So many threads; None where a launcher has started processes.
    """
    images, labels = digits("train").arrays
    audit = Audit()
    run = Trainer.start(
        make_model,
        make_optimizer,
        loss_of if kill_at is None else Killer(kill_at),
        ArrayDataset(images[:SAMPLES], labels[:SAMPLES]),
        batch_size=BATCH,
        epochs=EPOCHS,
        ranks=ranks,
        seed=0,
        schedule=optim.StepDecay(10, gamma=0.7),
        callbacks=[Checkpoint(folder, every=every, on="step"), audit],
        resume=True,
    )
    state = run.join()
    values = b"".join(value.numpy().tobytes() for value in {**state.params, **state.buffers}.values())
    return hashlib.sha256(values).hexdigest()[:16], [*audit.words.values()]


def killed(folder: Path, every: int, kill_at: int) -> int:
    """Let another process train until it is killed: how it ended."""
    options = ["--train", str(folder), "--every", str(every), "--kill-at", str(kill_at), "--ranks", str(RANKS)]
    return subprocess.run([sys.executable, __file__, *options], check=False).returncode


def show(every: int, kill_at: int, root: Path) -> int:
    """The four runs; how many promises they broke."""
    whole, _ = train(root / "whole", every)
    print(f"left alone:             ends in {whole}")
    ended = killed(root / "killed", every, kill_at)
    latest = Checkpoint(root / "killed", on="step").latest()
    number = 0 if latest is None else int(latest.stem.partition("-")[2])
    how = signal.Signals(-ended).name if ended < 0 else f"itself, with {ended}"
    print(f"killed behind step {kill_at}:  ended by {how}, the last checkpoint is of step {number}")
    shutil.copytree(root / "killed", root / "elsewhere")
    resumed, words = train(root / "killed", every)
    print(f"resumed on {RANKS} ranks:     ends in {resumed}")
    _, others = train(root / "elsewhere", every, RANKS + 1)
    print(f"resumed on {RANKS + 1} ranks:     {'; '.join(others)}")
    each_once = [f"epoch {epoch} of {SAMPLES} samples: each once" for epoch in range(EPOCHS)]
    wrong = (number != kill_at - kill_at % every) + (resumed != whole) + (words != each_once) + (others != each_once)
    print("BROKEN: see above" if wrong else "the same bits, and each sample once")
    return wrong


def main() -> int:
    """Read the command line, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=5, help="steps between two checkpoints")
    parser.add_argument("--kill-at", type=int, default=None, help="steps before the kill, 17 by default")
    parser.add_argument("--train", metavar="DIR", help="only train, with checkpoints in this folder")
    parser.add_argument("--ranks", type=int, default=None, help="with --train: so many threads, not a launcher's ranks")
    parser.add_argument("--smoke", action="store_true", help="as it is")
    options = parser.parse_args()
    kill_at = 17 if options.kill_at is None else options.kill_at
    if options.every < 1 or not (options.train or options.every <= kill_at < STEPS):
        parser.error(f"expected 1 <= --every <= --kill-at < {STEPS}, got {options.every} and {kill_at}")
    if options.train:
        bits, words = train(Path(options.train), options.every, options.ranks, options.kill_at)
        print(bits, *words, sep="\n")
        return 0
    with TemporaryDirectory() as root:
        return int(show(options.every, kill_at, Path(root)) > 0)


if __name__ == "__main__":
    sys.exit(main())
