"""Ranks of unequal speed that are all done at one time: 3:2:1, until the fastest slows down by half.

    python examples/04_balance.py
    python examples/04_balance.py --plot balance.png        needs matplotlib
    python -m minigrad.distributed.launch -n 2 examples/04_balance.py                     two processes of this machine
    python -m minigrad.distributed.launch -n 2 examples/04_balance.py --device cuda       one process a GPU

A small network learns the handwritten digits on a virtual cluster: the numbers are true, the time is modelled. It
prints shares, step time and idle time before and after each change, and every decision with its reason. It exits with 1
where the balance misses its target, or where the parameters are not those of one device on the same batches.

The training function is the same on real ranks: where a launcher started them, or a GPU is asked for, they train
without a model of time, and tell their decisions and how far their parameters are from one device's.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

import minigrad
from minigrad import distributed, nn, optim
from minigrad.data import ArrayDataset, BatchSampler, RandomSampler, digits
from minigrad.distributed import DDP, Balancer, Communicator, SoloCommunicator, simulate
from minigrad.distributed.simulate import Cluster, Link, Trace

SPEEDS = [3, 2, 1]
BATCH = 120
FIRST_DECISION = 10  # steps
TARGET, TARGET_AFTER_CHANGE = 0.95, 0.90  # of the throughput of the best division into whole samples
ALLOWED_DIFFERENCE = 1e-10


class Told:
    """Prints the decisions of a balancer."""

    def event(self, kind: str, **fields: Any) -> None:
        """One decision."""
        print(f"step {fields['step']:4}: shards {fields['shards']}, {fields['reason']}", flush=True)


def train(
    comm: Communicator, data: ArrayDataset, steps: int, told: Told | None = None
) -> list[np.ndarray[Any, Any]]:
    """What a rank does; its parameters afterwards."""
    minigrad.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to("float64", comm.device)
    balancer = Balancer(comm, timeline=told)
    ddp = DDP(model, balancer.comm)  # so that the balancer can tell waiting from computing
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = BatchSampler(RandomSampler(data, seed=0), BATCH, drop_last=True)
    endless = itertools.chain.from_iterable(itertools.repeat(batches))  # epoch after epoch, each in another order
    for mine in balancer.deal(itertools.islice(endless, steps)):  # this rank's part of each batch
        images, labels = (minigrad.Tensor(array[mine]).to(comm.device) for array in data.arrays)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
    return [p.detach().cpu().numpy().copy() for p in model.parameters()]


def difference(params: list[np.ndarray[Any, Any]], expected: list[np.ndarray[Any, Any]]) -> float:
    """The largest of any parameter."""
    return max(float(np.abs(a - b).max()) for a, b in zip(params, expected))


def on_ranks(comm: Communicator, data: ArrayDataset, steps: int) -> bool:
    """Train on real ranks; whether the parameters of all are those of one device."""
    params = train(comm, data, steps, Told() if comm.rank == 0 else None)
    mine = difference(params, train(SoloCommunicator(comm.device), data, steps))
    off: float = max(comm.all_gather_object(mine))
    if comm.rank == 0:
        print(f"{comm.world_size} rank(s), {steps} steps")
        print(f"largest difference of a parameter to one device's: {off:.1e}")
    return off < ALLOWED_DIFFERENCE


def efficiency(trace: Trace, cluster: Cluster, first: int, last: int) -> float:
    """Throughput over steps [first, last), communication aside, over that of the best division of each batch."""
    best_s = sum(cluster.best_step_s(BATCH, step) for step in range(first, last))
    return best_s / sum(trace.slowest_s()[first:last])


def show(trace: Trace, cluster: Cluster, spans: dict[str, tuple[int, int]]) -> dict[str, float]:
    """A line for each stretch of the run; how near each comes to the best division."""
    print("                                    steps   samples of each rank    step ms   idle   of the best")
    found = {}
    for name, (first, last) in spans.items():
        shards = [rank.steps[last - 1].samples for rank in trace.ranks]
        step_ms = 1e3 * float(np.mean(trace.step_times_s()[first:last]))
        found[name] = efficiency(trace, cluster, first, last)
        print(
            f"{name:32} {first:4}-{last - 1:<4} {'  '.join(f'{n:3.0f}' for n in shards):>20} {step_ms:12.2f} "
            f"{trace.idle_fraction(first, last):6.1%} {found[name]:12.1%}"
        )
    for decision in trace.decisions:
        print(f"{decision['at_s']:8.3f} s  {decision['reason']}")
    return found


def draw(trace: Trace, path: Path) -> None:
    """Shares and step times, step by step."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    figure = Figure(figsize=(8, 5), layout="constrained")
    shares, times = figure.subplots(2, 1, sharex=True)
    samples = [[step.samples for step in rank.steps] for rank in trace.ranks]
    shares.stackplot(range(trace.steps()), samples, labels=[f"rank {i}" for i in range(len(samples))])
    shares.set_ylabel("samples")
    shares.legend(loc="lower right")
    times.plot([1e3 * seconds for seconds in trace.step_times_s()])
    times.set(xlabel="step", ylabel="step time, ms", ylim=(0, None))
    figure.savefig(path)
    print(f"plot: {path}")


def simulated(options: argparse.Namespace, steps: int) -> bool:
    """Train on a virtual cluster; whether all targets were reached."""
    change, recovered = steps - 80, steps - 20
    link = Link(latency_s=1e-4, bandwidth_bytes_s=1e9)
    cluster = Cluster.of_speeds(SPEEDS, per_sample_s=1e-3, fixed_s=2e-3, jitter_fraction=options.jitter, link=link)
    cluster = cluster.slow_down(rank=0, step=change, factor=2.0)
    data = digits("train", dtype="float64")

    trace = simulate.run(train, cluster, data, steps)
    names = ("before the first decision", "after it", "rank 0 has slowed down by half", "sixty steps later")
    ends = (0, FIRST_DECISION, change, recovered, steps)
    found = show(trace, cluster, dict(zip(names, zip(ends, ends[1:]))))
    if options.plot is not None:
        draw(trace, options.plot)

    alone = train(SoloCommunicator(), data, steps)
    off = max(difference(params, alone) for params in trace.results)
    print(f"largest difference of a parameter to one device's: {off:.1e}")
    good = found["after it"] >= TARGET and found["sixty steps later"] >= TARGET_AFTER_CHANGE
    print(f"targets: {TARGET:.0%} after the first decision, {TARGET_AFTER_CHANGE:.0%} sixty steps after the change")
    return good and off < ALLOWED_DIFFERENCE


def main() -> int:
    """Read the command line, simulate, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cuda: train on the GPU of each process that the launcher starts")
    parser.add_argument("--steps", type=int, default=300, help="at least 150 on the virtual cluster")
    parser.add_argument("--jitter", type=float, default=0.02, help="of a step's time, relative")
    parser.add_argument("--plot", type=Path, help="draw shares and step times into this file")
    parser.add_argument("--smoke", action="store_true", help="150 steps: takes seconds")
    options = parser.parse_args()
    steps = 150 if options.smoke else options.steps
    comm = distributed.init(device=options.device)
    if comm.world_size > 1 or comm.device.type != "cpu":
        return 0 if on_ranks(comm, digits("train", dtype="float64"), steps) else 1
    if steps < 150:
        parser.error(f"expected at least 150 steps, got {steps}")
    return 0 if simulated(options, steps) else 1


if __name__ == "__main__":
    sys.exit(main())
