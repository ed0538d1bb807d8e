"""Train a DCGAN on the 1,797 handwritten digits of the UCI set: two networks, each with a DDP wrapper of its own.

    python examples/09_gan.py --ranks 2                                           two threads
    python -m minigrad.distributed.launch -n 2 examples/09_gan.py                 two processes, shared memory
    mpirun -n 2 python -m mpi4py examples/09_gan.py                               two processes, MPI
    python -m minigrad.distributed.launch -n 2 examples/09_gan.py --device cuda   one process a GPU, NCCL

The discriminator learns to tell digits from what the generator makes of noise, the generator to be taken for digits
(Goodfellow et al., 2014; Radford et al., 2015). Each global batch and its noise are divided among the ranks, and batch
norm is synchronised, so that W ranks see what one rank sees. It exits with 1 where the images are too far from real
digits, by mean and covariance of their pixels, or where a small classifier misses one of the ten among them.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import minigrad
from minigrad import Tensor, distributed, nn, optim
from minigrad.data import ArrayDataset, DataLoader, DistributedSampler, digits
from minigrad.distributed import Communicator, DistributedDataParallel

GLOBAL_BATCH = 60  # divides among 1 to 6 ranks
NOISE = 16  # numbers that an image is made of
JUDGED = 500
TARGET = 0.2  # of the distance between digits and noise


def make_generator() -> nn.Module:
    """Noise (N, NOISE, 1, 1) to images (N, 1, 8, 8) in [-1, 1]."""
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 64, 2, bias=False),  # (N, 64, 2, 2)
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1, bias=False),  # (N, 32, 4, 4)
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def make_discriminator() -> nn.Module:
    """Images (N, 1, 8, 8) to a logit each, (N, 1, 1, 1): above 0 for what is taken for a digit."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, stride=2, padding=1),  # (N, 32, 4, 4)
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, stride=2, padding=1, bias=False),  # (N, 64, 2, 2)
        nn.BatchNorm2d(64),
        nn.LeakyReLU(0.2),
        nn.Conv2d(64, 1, 2),
    )


def start_weights(module: nn.Module) -> None:
    """The initial values of DCGAN: all weights near 0, those of norms near 1."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d) and module.weight is not None:
        nn.init.normal_(module.weight, 1.0, 0.02)


class Training:
    """One rank's two replicas, their optimizers and its share of the data."""

    def __init__(self, comm: Communicator, train: ArrayDataset) -> None:
        self.comm, self.steps = comm, 0
        minigrad.manual_seed(0)  # the same weights on every rank
        self.generator, self.discriminator = (
            DistributedDataParallel(
                distributed.convert_sync_batchnorm(make().apply(start_weights).to(comm.device), comm), comm
            )
            for make in (make_generator, make_discriminator)
        )
        self.optimizers = [
            optim.Adam(ddp.module.parameters(), lr=0.002, betas=(0.5, 0.999))
            for ddp in (self.generator, self.discriminator)
        ]
        sampler = DistributedSampler(train, rank=comm.rank, world_size=comm.world_size, mode="exact")
        each = GLOBAL_BATCH // comm.world_size
        self.loader = DataLoader(train, batch_size=each, sampler=sampler, device=comm.device)
        self.loss_fn = nn.BCEWithLogitsLoss()

    def noise(self, images: Tensor) -> Tensor:
        """As much as there are images: this rank's rows of what all ranks together get in this step."""
        rng = np.random.Generator(np.random.Philox(key=self.steps))
        rows = rng.standard_normal((GLOBAL_BATCH, NOISE, 1, 1), np.float32)[self.comm.rank :: self.comm.world_size]
        return Tensor(rows[: len(images)]).to(self.comm.device)

    def step(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """A step of the discriminator on digits and on what the generator makes, one of the generator; both losses."""
        self.steps += 1
        real = minigrad.ones(len(images), device=self.comm.device)
        made = minigrad.zeros_like(real)
        fakes = self.generator(self.noise(images))
        self.optimizers[1].zero_grad()
        told = self.loss_fn(self.discriminator(images).flatten(), real)
        told.backward()  # two backwards before a step: their gradients add up
        caught = self.loss_fn(self.discriminator(fakes.detach()).flatten(), made)
        caught.backward()
        self.optimizers[1].step()
        self.optimizers[0].zero_grad()
        fooled = self.loss_fn(self.discriminator(fakes).flatten(), real)  # gives the discriminator gradients too,
        fooled.backward()  # which are combined, and cleared by its next zero_grad
        self.optimizers[0].step()
        return (told + caught).detach(), fooled.detach()

    def epoch(self, progress: tqdm) -> list[float]:
        """Train for an epoch; the mean losses of the discriminator and the generator, over all ranks."""
        total, samples = minigrad.zeros(3, dtype="float64", device=self.comm.device), 0
        for images, _ in self.loader:
            losses = self.step(images * 2.0 - 1.0)
            total += minigrad.stack([*losses, minigrad.ones_like(losses[0])]).to("float64") * len(images)
            samples += len(images)
            progress.update()
        self.comm.all_reduce(total.data).wait()
        lost, fooled, count = total.tolist()
        return [lost / count, fooled / count]

    def images(self, count: int) -> Tensor:
        """Images of noise that was in no step, the same on every rank."""
        rng = np.random.Generator(np.random.Philox(key=2**32))
        noise = Tensor(rng.standard_normal((count, NOISE, 1, 1), np.float32)).to(self.comm.device)
        module = self.generator.module.eval()
        with minigrad.no_grad():
            found: Tensor = (module(noise) + 1.0) / 2.0
        module.train()
        return found

    def digests(self) -> list[str]:
        """A digest of the bits of both networks, buffers too, on every rank."""
        states = [ddp.module.state_dict().values() for ddp in (self.generator, self.discriminator)]
        bits = b"".join(tensor.detach().cpu().numpy().tobytes() for state in states for tensor in state)
        return self.comm.all_gather_object(hashlib.sha256(bits).hexdigest()[:16])


class Judge:
    """A small classifier of digits, trained on real ones; each rank trains the same one."""

    def __init__(self, train: ArrayDataset, device: Any) -> None:
        minigrad.manual_seed(1)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
        optimizer = optim.Adam(self.model.parameters(), lr=0.01)
        images, labels = (Tensor(array).to(device) for array in train.arrays)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(images), labels).backward()
            optimizer.step()

    def kinds(self, images: Tensor) -> int:
        """How many of the ten digits at least one image in a hundred is taken for."""
        with minigrad.no_grad():
            found = self.model(images).argmax(1).cpu().numpy()
        return int((np.bincount(found, minlength=10) * 100 >= len(found)).sum())


def distance(images: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> float:
    """|m - m'|² + tr(C + C' - 2 (C C')^½) of means and covariances of pixels (Dowson and Landau, 1982)."""
    rows = [array.reshape(len(array), -1).astype(np.float64) for array in (images, others)]
    (mean, spread), (mean2, spread2) = [(row.mean(0), np.cov(row, rowvar=False)) for row in rows]
    roots = np.sqrt(np.linalg.eigvals(spread @ spread2).real.clip(0))
    return float(((mean - mean2) ** 2).sum() + np.trace(spread + spread2) - 2 * roots.sum())


def draw(images: Tensor, path: str) -> str:
    """Write a picture of 80 images where matplotlib is; what was done, in words."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return "no picture: matplotlib is not installed"
    matplotlib.use("agg")
    from matplotlib import pyplot

    rows = images.cpu().numpy().reshape(8, 10, 8, 8).transpose(0, 2, 1, 3).reshape(64, 80).repeat(6, 0).repeat(6, 1)
    pyplot.imsave(path, rows, cmap="gray_r")
    return f"picture: {path}"


def body(comm: Communicator, options: argparse.Namespace) -> bool:
    """What every rank runs; whether it reached the target."""
    if GLOBAL_BATCH % comm.world_size:
        raise SystemExit(f"expected a number of ranks that divides {GLOBAL_BATCH}, got {comm.world_size}")
    say = print if comm.rank == 0 else lambda *words, **kept: None
    train, test = digits("train"), digits("test")
    training, judge = Training(comm, train), Judge(train, comm.device)
    say(f"{comm.world_size} rank(s), {len(train)} digits")
    say(" epoch  discriminator  generator      s")
    started = time.perf_counter()
    hidden = None if comm.rank == 0 else True  # None: shown on a terminal only
    with tqdm(total=options.epochs * len(training.loader), leave=False, disable=hidden) as bar:
        for epoch in range(options.epochs):
            lost, fooled = training.epoch(bar)
            with tqdm.external_write_mode():
                say(f"{epoch + 1:6} {lost:14.4f} {fooled:10.4f} {time.perf_counter() - started:6.1f}", flush=True)
    digests = training.digests()
    equal = len(set(digests)) == 1
    images = training.images(JUDGED)
    kinds, real = judge.kinds(images), train.arrays[0]
    noise = distance(real, np.random.default_rng(0).random((JUDGED, 1, 8, 8)))
    ratio = distance(real, images.cpu().numpy()) / noise
    say(f"replicas: {'bit-equal' if equal else 'DIFFERENT'}, state {' '.join(sorted(set(digests)))}")
    say(f"distance to real digits: {ratio:.4f} of that of noise (target {options.target})")
    say(f"  that of real digits that no one trained on: {distance(real, test.arrays[0]) / noise:.4f}")
    say(f"digits among the images: {kinds} of 10")
    if options.png and comm.rank == 0:
        say(draw(images[:80], options.png))
    return equal and ratio <= options.target and (kinds == 10 or options.smoke)


def main() -> int:
    """Read the command line, and run as the ranks that it asks for, or that the launcher started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1, help="thread ranks; a launcher's processes come instead")
    parser.add_argument("--device", help="cpu by default; cuda: the GPU of each process that the launcher starts")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--png", help="write a picture of the images to this file, where matplotlib is")
    parser.add_argument("--smoke", action="store_true", help="three epochs, a lower target: takes seconds")
    options = parser.parse_args()
    if min(options.ranks, options.epochs) < 1:
        parser.error(f"expected --ranks and --epochs of at least 1, got {options.ranks} and {options.epochs}")
    if GLOBAL_BATCH % options.ranks:
        parser.error(f"expected --ranks to divide {GLOBAL_BATCH}, got {options.ranks}")
    if options.ranks > 1 and options.device not in (None, "cpu"):
        parser.error(f"expected the CPU for thread ranks, got --device {options.device}: start a process for each GPU")
    if options.png and not Path(options.png).resolve().parent.is_dir():
        parser.error(f"expected --png in a folder that is there, got {options.png}")
    options.target = TARGET
    if options.smoke:
        options.epochs, options.target = 3, 0.5
    if options.ranks > 1:
        return 0 if all(distributed.run(body, options.ranks, options)) else 1
    return 0 if body(distributed.init(device=options.device), options) else 1


if __name__ == "__main__":
    sys.exit(main())
