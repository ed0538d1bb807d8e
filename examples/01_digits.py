"""Train a convolutional network on the 1,797 handwritten digits of the UCI set, on one rank or several.

    python examples/01_digits.py --ranks 2                                        two threads
    python -m minigrad.distributed.launch -n 2 examples/01_digits.py              two processes, shared memory
    mpirun -n 2 python -m mpi4py examples/01_digits.py                            two processes, MPI
    python -m minigrad.distributed.launch -n 2 examples/01_digits.py --device cuda      one process a GPU, NCCL

It prints loss and test accuracy by epoch, whether the replicas ended with the same bits, and how far they were from
one rank's parameters after 20 steps on the same global batches. It exits with 1 below its target.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from typing import Any

import numpy as np
from tqdm import tqdm

import minigrad
from minigrad import distributed, nn, optim
from minigrad.data import ArrayDataset, DataLoader, DistributedSampler, digits
from minigrad.distributed import Communicator, DistributedDataParallel, SoloCommunicator

GLOBAL_BATCH = 60  # divides among 1 to 6 ranks
COMPARED_STEPS = 20
TARGET_ACCURACY = 0.97
ALLOWED_DIFFERENCE = {"float32": 1e-4, "float64": 1e-11}


def make_model(dtype: str) -> nn.Module:
    """Three convolutions with group norm, and a linear layer: (N, 1, 8, 8) -> (N, 10)."""
    minigrad.manual_seed(0)  # the same weights on every rank
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AvgPool2d(2),  # (N, 32, 4, 4); smooth, so that rounding stays small: a maximum may jump between equals
        nn.Conv2d(32, 64, 3, padding=1),
        nn.GroupNorm(4, 64),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    ).to(dtype)


class Training:
    """One rank's replica, its share of the data and its optimizer."""

    def __init__(self, comm: Communicator, train: ArrayDataset, dtype: str, epochs: int) -> None:
        self.comm = comm
        self.ddp = DistributedDataParallel(make_model(dtype).to(comm.device), comm)
        # every rank's batches are its share of the global ones, so that W ranks see what one rank sees
        sampler = DistributedSampler(train, rank=comm.rank, world_size=comm.world_size, mode="exact")
        each = GLOBAL_BATCH // comm.world_size
        self.loader = DataLoader(train, batch_size=each, sampler=sampler, device=comm.device)
        self.optimizer = optim.SGD(self.ddp.module.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
        steps = -(-len(train) // GLOBAL_BATCH)
        self.schedule = optim.LRScheduler(self.optimizer, optim.CosineAnnealing(epochs * steps))
        self.loss_fn = nn.CrossEntropyLoss()

    def epoch(self, progress: tqdm | None = None, max_steps: int | None = None) -> float:
        """Train for an epoch, or max_steps of it; the mean loss over all samples of all ranks."""
        total, samples = minigrad.zeros(dtype="float64", device=self.comm.device), 0
        for step, (images, labels) in enumerate(self.loader):
            if step == max_steps:
                break
            self.optimizer.zero_grad()
            loss = self.loss_fn(self.ddp(images), labels)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            total += loss.detach().to("float64") * len(labels)  # there, so that nothing waits for a GPU
            samples += len(labels)
            if progress is not None:
                progress.update()
        return self.mean(total, samples)

    def mean(self, total: minigrad.Tensor, samples: int) -> float:
        """A sum over this rank's samples, as the mean over those of all ranks."""
        total = total.to("float64")
        both = minigrad.stack([total, minigrad.full_like(total, samples)])
        self.comm.all_reduce(both.data).wait()
        return float(both[0].item() / both[1].item())

    def accuracy(self, test: ArrayDataset) -> float:
        """The share of the test set that is classified right; every rank looks at its part."""
        part = slice(self.comm.rank, None, self.comm.world_size)
        images, labels = (minigrad.Tensor(array[part]).to(self.comm.device) for array in test.arrays)
        with minigrad.no_grad():
            return self.mean((self.ddp.module(images).argmax(dim=1) == labels).sum(), len(labels))

    def parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """A copy of every parameter."""
        return {name: p.detach().cpu().numpy().copy() for name, p in self.ddp.module.named_parameters()}

    def digests(self) -> list[str]:
        """A digest of the bits of all parameters, on every rank."""
        bits = b"".join(value.tobytes() for value in self.parameters().values())
        return self.comm.all_gather_object(hashlib.sha256(bits).hexdigest()[:16])


def difference_to_one_rank(comm: Communicator, train: ArrayDataset, dtype: str) -> float:
    """The largest difference of a parameter to one rank's, after the first steps on the same global batches."""
    several = Training(comm, train, dtype, epochs=1)
    several.epoch(max_steps=COMPARED_STEPS)
    alone = Training(SoloCommunicator(comm.device), train, dtype, epochs=1)
    alone.epoch(max_steps=COMPARED_STEPS)
    expected = alone.parameters()
    return max(float(np.abs(value - expected[name]).max()) for name, value in several.parameters().items())


def body(comm: Communicator, options: argparse.Namespace) -> bool:
    """What every rank runs; whether it reached the target."""
    if GLOBAL_BATCH % comm.world_size:
        raise SystemExit(f"expected a number of ranks that divides {GLOBAL_BATCH}, got {comm.world_size}")
    say = print if comm.rank == 0 else lambda *words, **kept: None
    train, test = digits("train", dtype=options.dtype), digits("test", dtype=options.dtype)
    training = Training(comm, train, options.dtype, options.epochs)
    say(f"{comm.world_size} rank(s), {options.dtype}, {len(train)} training and {len(test)} test images")
    say(" epoch    loss  accuracy      s")
    started = time.perf_counter()
    accuracy, losses = 0.0, list[float]()
    hidden = None if comm.rank == 0 else True  # None: shown on a terminal only
    with tqdm(total=options.epochs * len(training.loader), leave=False, disable=hidden) as bar:
        for epoch in range(options.epochs):
            losses.append(training.epoch(bar))
            accuracy = training.accuracy(test)
            with tqdm.external_write_mode():
                say(f"{epoch + 1:6} {losses[-1]:7.4f} {accuracy:9.4f} {time.perf_counter() - started:6.1f}", flush=True)
    say(f"first epoch's loss: {losses[0]:.12g}")
    digests = training.digests()
    equal = len(set(digests)) == 1
    difference = difference_to_one_rank(comm, train, options.dtype)
    say(f"test accuracy: {accuracy:.4f} (target {options.target})")
    say(f"replicas: {'bit-equal' if equal else 'DIFFERENT'}, parameters {' '.join(sorted(set(digests)))}")
    say(f"largest parameter difference to one rank after {COMPARED_STEPS} steps: {difference:.2e}")
    return accuracy >= options.target and equal and difference < ALLOWED_DIFFERENCE[options.dtype]


def main() -> int:
    """Read the command line, and run as the ranks that it asks for, or that the launcher started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1, help="thread ranks; a launcher's processes come instead")
    parser.add_argument("--device", help="cpu by default; cuda: the GPU of each process that the launcher starts")
    parser.add_argument("--dtype", choices=sorted(ALLOWED_DIFFERENCE), default="float32")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--smoke", action="store_true", help="two epochs, a lower target: takes seconds")
    parser.add_argument("--keep-memory", action="store_true", help="keep freed memory for the next step")
    options = parser.parse_args()
    if min(options.ranks, options.epochs) < 1:
        parser.error(f"expected --ranks and --epochs of at least 1, got {options.ranks} and {options.epochs}")
    if GLOBAL_BATCH % options.ranks:
        parser.error(f"expected --ranks to divide {GLOBAL_BATCH}, got {options.ranks}")
    if options.ranks > 1 and options.device not in (None, "cpu"):
        parser.error(f"expected the CPU for thread ranks, got --device {options.device}: start a process for each GPU")
    options.target = TARGET_ACCURACY
    if options.smoke:
        options.epochs, options.target = 2, 0.85
    if options.keep_memory and not minigrad.keep_freed_memory():
        parser.error("expected --keep-memory where the C library is glibc, got another")
    if options.ranks > 1:
        return 0 if all(distributed.run(body, options.ranks, options)) else 1
    return 0 if body(distributed.init(device=options.device), options) else 1


if __name__ == "__main__":
    sys.exit(main())
