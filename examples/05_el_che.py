"""Ranks of unequal speed behind a slow link: fewer reductions, as many as the link can bear.

    python examples/05_el_che.py

Where a reduction takes longer than the step before it, each rank runs several whole batches in a round, the slowest
`anchor` of them and the others as many as they manage meanwhile; then the gradients are combined once. El Che finds
the anchor and the counts while the training runs: the march goes at the pace of the slowest.

A small network learns the handwritten digits on a virtual cluster of speeds 3:2:1, first with a reduction after each
batch of the slowest rank, then with El Che; the numbers are true, the time is modelled. It prints what changed the
counts, and why. It exits with 1 where the overhead misses its target, or where the network does not learn.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

import minigrad
from minigrad import nn, optim
from minigrad.data import ArrayDataset, BatchSampler, RandomSampler, digits
from minigrad.distributed import DDP, CadenceConfig, Communicator, Rounds, simulate
from minigrad.distributed.simulate import Cluster, Link, Trace

SPEEDS = [3, 2, 1]
BATCH = 8  # samples; a rank runs whole batches
TARGET_OVERHEAD = 0.10  # of a reduction, over the computing before it
TOLERANCE = 0.03


def train(comm: Communicator, data: ArrayDataset, epochs: int, config: CadenceConfig) -> nn.Module:
    """What a rank does; its replica afterwards."""
    minigrad.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    rounds = Rounds(comm, config)
    ddp = DDP(model, rounds.comm)
    optimizer = optim.Adam(model.parameters(), lr=0.02)
    batches = BatchSampler(RandomSampler(data, seed=0), BATCH, drop_last=True)  # speeds are told by batches
    for _ in range(epochs):
        for mine in rounds.deal(list(batches)):  # this rank's batches until the next reduction
            optimizer.zero_grad()
            accumulate(ddp, data, mine)
            ddp.flush()  # now the gradient is that of the mean over the samples of all ranks
            optimizer.step()
    return model


def accumulate(ddp: DDP, data: ArrayDataset, batches: Sequence[Sequence[int]]) -> None:
    """The gradient of the mean over the samples of these batches, of this rank alone."""
    samples = sum(map(len, batches))
    with ddp.no_sync():
        for indices in batches:
            images, labels = (minigrad.Tensor(array[indices]) for array in data.arrays)
            loss = nn.functional.cross_entropy(ddp(images), labels) * (len(indices) / samples)
            loss.backward()


def overhead(trace: Trace, first: int, last: int) -> float:
    """What the rank that came last waited for the reduction, over its computing, in rounds [first, last).

    The round that ends an epoch has the batches that are left; those where not all ranks got one do not count.
    """
    rounds = zip(*(rank.steps[first:last] for rank in trace.ranks))
    full = [steps for steps in rounds if all(step.samples for step in steps)]
    waited_s: list[float] = [min(step.idle_s + step.exposed_s for step in steps) for steps in full]
    return sum(waited_s) / sum(max(step.compute_s for step in steps) for steps in full) if full else math.inf


def accuracy(model: nn.Module) -> float:
    """The share of the test set that is classified right."""
    images, labels = (minigrad.Tensor(array) for array in digits("test").arrays)
    with minigrad.no_grad():
        right = int((model(images).argmax(dim=1) == labels).sum().item())
    return right / len(labels)


def show(name: str, trace: Trace, first: int) -> float:
    """A line for a run, from round `first` on; its overhead."""
    last = trace.steps() - 1  # the last round has what is left
    found, seconds = overhead(trace, first, last), max(rank.steps[-1].end_s for rank in trace.ranks)
    speed, idle, reached = trace.throughput(first, last), trace.idle_fraction(first, last), accuracy(trace.results[0])
    print(
        f"{name:24} {trace.steps():5} reductions {seconds:7.2f} s {speed:8.0f} samples/s, overhead {found:6.1%}, "
        f"idle {idle:4.1%}, accuracy {reached:.3f}"
    )
    return found


def main() -> int:
    """Read the command line, simulate both, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--bandwidth", type=float, default=2e6, help="of the link, bytes in a second")
    parser.add_argument("--smoke", action="store_true", help="six epochs, a lower target: takes seconds")
    options = parser.parse_args()
    epochs, target = (6, 0.7) if options.smoke else (options.epochs, 0.9)
    if epochs < 1:
        parser.error(f"expected at least one epoch, got {epochs}")
    link = Link(latency_s=5e-4, bandwidth_bytes_s=options.bandwidth)
    cluster = Cluster.of_speeds(SPEEDS, per_sample_s=2e-3, jitter_fraction=0.02, link=link)
    data = digits("train")

    config = CadenceConfig(anchor=1, overhead_target=TARGET_OVERHEAD)
    plain = simulate.run(train, cluster, data, epochs, CadenceConfig.fixed(1))
    march = simulate.run(train, cluster, data, epochs, config)
    settled = march.steps() // 2
    before, after = show("anchor 1, always", plain, 0), show("El Che, once settled", march, settled)
    told = ""
    for decision in march.decisions:
        if decision["counts"] != told:
            print(f"  round {decision['round']:3}, {decision['at_s']:6.3f} s: {decision['reason']}")
        told = decision["counts"]
    reached = accuracy(march.results[0])
    print(f"overhead {before:.0%} -> {after:.1%} (target {TARGET_OVERHEAD:.0%}); accuracy {reached:.3f} ({target})")
    return 0 if after <= TARGET_OVERHEAD + TOLERANCE and reached >= target else 1


if __name__ == "__main__":
    sys.exit(main())
