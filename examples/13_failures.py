"""Ranks that fail: what three strategies leave of the throughput, on a virtual cluster.

    python examples/13_failures.py

Each rank works for a time that is drawn, then fails, and is back after a repair. First four ranks train a small model
with true numbers; then 100,000 are played without. Goodput is of plain steps without failures: local steps, which wait
for the network more rarely, can have more than 1. A strategy that trains most samples does not always learn most of
them: losses are told by the same time on the clock.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from tqdm import tqdm

import minigrad
from minigrad import nn, optim
from minigrad.distributed.simulate import (
    Cluster,
    Course,
    Link,
    LocalSteps,
    Rehearsal,
    Restart,
    Shrink,
    Strategy,
    goodput,
)

FEW = Cluster.of_speeds([1.0] * 4, per_sample_s=0.01, link=Link(latency_s=0.002, bandwidth_bytes_s=1e8))
MANY = Cluster.of_speeds([1.0] * 100_000, per_sample_s=0.1, link=Link(1e-5, 1e10, "tree"))
SAMPLES, NBYTES = 8, 4e6
STRATEGIES: dict[str, Strategy] = {
    "restart, checkpoint of 10 steps": Restart(10, save_s=0.05, load_s=0.5),
    "restart, checkpoint of 100 steps": Restart(100, save_s=0.05, load_s=0.5),
    "shrink": Shrink(detect_s=0.5, join_s=0.2),
    "local steps, 8": LocalSteps(8, detect_s=0.5, join_s=0.2),
}


def train(model: nn.Module, rank: int, step: int) -> minigrad.Tensor:
    """The loss of a rank in a step: of a net that learns the sine of a third of a sum."""
    x = np.random.default_rng((rank, step)).standard_normal((SAMPLES, 8))
    wanted = np.sin(x.sum(axis=1, keepdims=True) / 3)
    loss: minigrad.Tensor = (model(minigrad.tensor(x)) - minigrad.tensor(wanted)).square().mean()
    return loss


def make_model() -> nn.Module:
    """8 - 64 - 1, in float64."""
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).to("float64")


def main() -> int:
    """Print both tables; 0 where every strategy has learnt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a short time on the clock")
    options = parser.parse_args()
    horizon_s, learnt = 30.0 if options.smoke else 120.0, True
    failures = FEW.failures(mtbf_s=30.0, repair_s=6.0, seed=0)
    print(f"{FEW.world_size} ranks, {horizon_s:g} s, each works for {failures.mtbf_s:g} s on average")
    print(f"{'':34}goodput  failures  samples lost  loss at first  in the end")
    minigrad.manual_seed(0)
    untrained = float(np.mean([train(make_model(), 0, step).item() for step in range(10)]))
    for name, strategy in tqdm(STRATEGIES.items(), leave=False, disable=None):
        found = goodput(FEW, failures, strategy, samples=SAMPLES, nbytes=NBYTES, horizon_s=horizon_s)
        course = Course(FEW, failures, strategy, SAMPLES, NBYTES, horizon_s)
        done = Rehearsal(course, make_model, lambda params: optim.Adam(params, lr=3e-3), train, FEW.world_size).run()
        last = float(np.mean([point.loss for point in done.losses[-10:]]))
        learnt &= last < untrained
        with tqdm.external_write_mode():
            print(f"{name:34}{found.goodput_ratio:7.2f}{found.failed:10}{found.lost:14}{untrained:15.3f}{last:12.3f}")
    seconds = 100.0 if options.smoke else 1000.0
    failures = MANY.failures(mtbf_s=2e7, repair_s=60.0, seed=0)
    print(f"\n{MANY.world_size} ranks, {seconds:g} s, each fails in {failures.mtbf_s:g} s: one of them every 200 s")
    for name, strategy in STRATEGIES.items():
        found = goodput(MANY, failures, strategy, samples=SAMPLES, nbytes=1e8, horizon_s=seconds)
        print(f"{name:34}{found.goodput_ratio:7.2f}{found.failed:10}{found.lost:14}")
    return 0 if learnt else 1


if __name__ == "__main__":
    sys.exit(main())
