"""Ranks of unequal speed behind a slow link: fewer reductions, as many as the link can bear.

    python examples/05_el_che.py
    python -m minigrad.distributed.launch -n 2 examples/05_el_che.py                     two processes of this machine
    python -m minigrad.distributed.launch -n 2 examples/05_el_che.py --device cuda       one process a GPU

Where a reduction takes longer than the step before it, each rank runs several whole batches in a round, the slowest
`anchor` of them and the others as many as they manage meanwhile; then the gradients are combined once. El Che finds
the anchor and the counts while the training runs: the march goes at the pace of the slowest.

A small network learns the handwritten digits on a virtual cluster of speeds 3:2:1, first with a reduction after each
batch of the slowest rank, then with El Che; the numbers are true, the time is modelled. It prints what changed the
counts, and why. It exits with 1 where the overhead misses its target, or where the network does not learn.

The training function is the same on real ranks: where a launcher started them, or a GPU is asked for, they train
without a model of time, and tell their decisions and whether the replicas ended with the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Sequence
from typing import Any

import minigrad
from minigrad import distributed, nn, optim
from minigrad.data import ArrayDataset, BatchSampler, RandomSampler, digits
from minigrad.distributed import DDP, CadenceConfig, Communicator, Rounds, simulate
from minigrad.distributed.simulate import Cluster, Link, Trace

SPEEDS = [3, 2, 1]
BATCH = 8  # samples; a rank runs whole batches
TARGET_OVERHEAD = 0.10  # of a reduction, over the computing before it
TOLERANCE = 0.03
LEARNT = 0.5  # accuracy of real ranks, at least


class Told:
    """Prints the decisions of El Che that change the counts."""

    def __init__(self) -> None:
        self._counts: Any = None

    def event(self, kind: str, **fields: Any) -> None:
        """One decision."""
        if fields["counts"] != self._counts:
            print(f"round {fields['round']:4}: {fields['reason']}", flush=True)
        self._counts = fields["counts"]


def train(
    comm: Communicator, data: ArrayDataset, epochs: int, config: CadenceConfig, told: Told | None = None
) -> nn.Module:
    """What a rank does; its replica afterwards."""
    minigrad.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(comm.device)
    rounds = Rounds(comm, config, timeline=told)
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
            images, labels = (minigrad.Tensor(array[indices]).to(ddp.comm.device) for array in data.arrays)
            loss = nn.functional.cross_entropy(ddp(images), labels) * (len(indices) / samples)
            loss.backward()


def on_ranks(comm: Communicator, data: ArrayDataset, epochs: int, config: CadenceConfig) -> bool:
    """Train on real ranks; whether all have one model, and that has learnt: how much depends on the rounds."""
    model = train(comm, data, epochs, config, Told() if comm.rank == 0 else None)
    bits = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    equal = len(set(comm.all_gather_object(hashlib.sha256(bits).hexdigest()))) == 1
    reached = accuracy(model)
    if comm.rank == 0:
        print(f"{comm.world_size} rank(s): replicas {'bit-equal' if equal else 'DIFFERENT'}, accuracy {reached:.3f}")
    return equal and reached >= LEARNT


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
    device = next(model.parameters()).device
    images, labels = (minigrad.Tensor(array).to(device) for array in digits("test").arrays)
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


def simulated(options: argparse.Namespace, data: ArrayDataset, epochs: int, target: float) -> bool:
    """Train on a virtual cluster, without El Che and with it; whether all targets were reached."""
    link = Link(latency_s=5e-4, bandwidth_bytes_s=options.bandwidth)
    cluster = Cluster.of_speeds(SPEEDS, per_sample_s=2e-3, jitter_fraction=0.02, link=link)

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
    return after <= TARGET_OVERHEAD + TOLERANCE and reached >= target


def main() -> int:
    """Read the command line, simulate both, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cuda: train on the GPU of each process that the launcher starts")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--bandwidth", type=float, default=2e6, help="of the link, bytes in a second")
    parser.add_argument("--smoke", action="store_true", help="six epochs, a lower target: takes seconds")
    options = parser.parse_args()
    epochs, target = (6, 0.7) if options.smoke else (options.epochs, 0.9)
    if epochs < 1:
        parser.error(f"expected at least one epoch, got {epochs}")
    comm, data = distributed.init(device=options.device), digits("train")
    if comm.world_size > 1 or comm.device.type != "cpu":
        config = CadenceConfig(anchor=1, overhead_target=TARGET_OVERHEAD, max_anchor=8)  # steps enough to learn
        return 0 if on_ranks(comm, data, epochs, config) else 1
    return 0 if simulated(options, data, epochs, target) else 1


if __name__ == "__main__":
    sys.exit(main())
