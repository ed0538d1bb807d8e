"""What data parallelism costs: a step on two ranks against the same step of one rank. Run by hand, with PyTorch:

    python -m tests.benchmarks.ddp [--rounds 15] [--pin] [--batch 128]

The MLP 784-512-512-10 with Adam, at 128 samples a rank. Everything runs in the same two processes, which take turns,
round by round; the ratios are those of one round. `alone`: rank 0 steps, rank 1 sleeps. `apart`: both step, each for
itself, so that they compete for caches and memory. `ddp`: both step, and combine their gradients.
Wanted: ddp at most 1.25 times alone.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys

import numpy as np

from tests.benchmarks.ranks import interleaved, meet, part, run_ranks, spread

CALLS = 50


def build(nn):
    """The model, from torch.nn or minigrad.nn."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def minigrad_steps(comm, batch):
    """A step without and with the wrapper."""
    import minigrad
    from minigrad import nn, optim
    from minigrad.distributed import DDP

    rng = np.random.default_rng(comm.rank)
    x = minigrad.Tensor(rng.standard_normal((batch, 784), np.float32))
    y = minigrad.Tensor(rng.integers(0, 10, batch))
    return [stepper(model, nn, optim, x, y) for model in (build(nn), DDP(build(nn), comm))]


def torch_steps(rank, batch):
    """The same for PyTorch and gloo."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(batch, 784, generator=generator)
    y = torch.randint(0, 10, (batch,), generator=generator)
    plain = build(torch.nn)
    wrapped = DistributedDataParallel(copy.deepcopy(plain))
    return [stepper(model, torch.nn, torch.optim, x, y) for model in (plain, wrapped)]


def stepper(model, nn, optim, x, y):
    """One training step as a function."""
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

    return step


def serve(rank, ports, rounds, batch, pin):
    """One rank."""
    from minigrad.backend.memory import keep_freed_memory

    keep_freed_memory()
    comm = meet(rank, ports, pin)
    compare(comm, rank, rounds, batch)
    part(comm)


def compare(comm, rank, rounds, batch):
    """Time the steps; the first rank prints."""
    frameworks = {"minigrad": minigrad_steps(comm, batch), "torch": torch_steps(rank, batch)}
    functions = {}
    for name, (plain, wrapped) in frameworks.items():
        functions[name, "alone"] = plain if rank == 0 else None
        functions[name, "apart"] = plain
        functions[name, "ddp"] = wrapped
    times = interleaved(functions, rounds, CALLS)
    for name in frameworks if rank == 0 else ():
        columns = {kind: times[name, kind] for kind in ("alone", "apart", "ddp")}
        listed = "  ".join(f"{kind} {statistics.median(column) * 1e3:6.2f} ms" for kind, column in columns.items())
        to_alone = spread([d / a for d, a in zip(columns["ddp"], columns["alone"])])
        to_apart = spread([d / a for d, a in zip(columns["ddp"], columns["apart"])])
        print(f"{name:>8}  {listed}  ddp/alone {to_alone}  ddp/apart {to_apart}", flush=True)


def main():
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=128, help="samples a rank")
    parser.add_argument("--pin", action="store_true", help="give each rank a core of its own")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is None:
        run_ranks("tests.benchmarks.ddp", sys.argv[1:])
    else:
        serve(options.rank, options.ports, options.rounds, options.batch, options.pin)


if __name__ == "__main__":
    main()
