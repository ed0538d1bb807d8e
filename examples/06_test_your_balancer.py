"""Test a balancer of your own, and train with it: what a check finds in one that looks right.

    pip install hypothesis
    python examples/06_test_your_balancer.py

A balancer says how many samples of a batch each rank gets, from the speeds of the ranks. The one below is what many
would write first, and it does well on what they would try. `check_balancer` draws batches and speeds, looks for some
that break a rule that every balancer should keep, and makes them small. It finds three faults; the functions that come
with minigrad have none of them. The sound one then decides in training, on a virtual cluster: `Balancer(comm, sound)`.
It exits with 1 where a fault is missed, or the shards of that training are not those of the speeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from minigrad import nn, optim, randn
from minigrad.distributed import DDP, Balancer, Communicator, compute_shard_sizes, rebalance, simulate
from minigrad.testing import check_balancer

MIN_SHARE = 0.05  # what both balancers promise to every rank
MAX_RANKS = 16

FAULTS = {
    "one whole number >= 0 for each rank": (
        "A batch smaller than the number of ranks. Every rank but the last gets at least one sample, so the last is "
        "left with what remains, which may be less than nothing. Ranks may get none: DDP weights them by 0."
    ),
    "ranks of equal speed differ by at most one": (
        "Rounding. Each rank is rounded on its own, and the sum of all errors lands on the last, though it is no "
        "slower and no faster than its peers. Largest remainders spread it, one sample each."
    ),
    "no share is under the floor": (
        "The floor. Shares under it are raised to it, and then all are divided by their sum, which pushes those that "
        "were just raised under it again. Only the ranks above the floor may pay for it."
    ),
}


def naive(batch_size: int, throughputs: Sequence[float]) -> list[int]:
    """Shares by speed, none under 5 %, rounded, the rest to the last rank."""
    total = sum(throughputs)
    raised = [max(MIN_SHARE, speed / total) for speed in throughputs]
    shares = [share / sum(raised) for share in raised]
    sizes = [max(1, round(batch_size * share)) for share in shares[:-1]]
    return [*sizes, batch_size - sum(sizes)]


def sound(batch_size: int, throughputs: Sequence[float]) -> tuple[int, ...]:
    """The same, with the parts that minigrad has for it."""
    return compute_shard_sizes(batch_size, rebalance(throughputs, MIN_SHARE))


def faults_of(name: str, examples: int) -> str:
    """What the check has to say against a balancer; nothing where it keeps all rules."""
    balancer = naive if name == "naive" else sound
    try:
        check_balancer(balancer, min_ratio=MIN_SHARE, max_ranks=MAX_RANKS, max_batch=2000, max_examples=examples)
    except AssertionError as error:
        return str(error)
    return ""


def train(comm: Communicator) -> tuple[int, ...]:
    """A training whose batches the sound balancer divides; the shards that it ends with.

    What remembers more is a strategy: (state, batch_size, readings) -> (state, sizes, reason), with readings
    (samples, seconds) of each rank, and plain data as its state. It is tested and plugged in alike.
    """
    balancer = Balancer(comm, sound)
    ddp = DDP(nn.Linear(4, 1), balancer.comm)
    optimizer, batch = optim.SGD(ddp.parameters(), lr=0.01), randn(120, 4)
    for _ in range(12):
        with balancer.step(len(batch)) as rows:
            optimizer.zero_grad()
            ddp(batch[rows]).square().mean().backward()
            optimizer.step()
    return balancer.shard_sizes(len(batch))


def main() -> int:
    """Try both balancers, say what is wrong with the first, and train with the second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=300, help="inputs tried for each rule")
    parser.add_argument("--smoke", action="store_true", help="100 inputs: takes seconds")
    options = parser.parse_args()
    examples = 100 if options.smoke else options.examples
    print(f"looks right: 120 samples at speeds 3, 2, 1 -> {naive(120, [3.0, 2.0, 1.0])}")
    told = faults_of("naive", examples)
    missed = []
    for rule, words in FAULTS.items():
        lines = [line.strip() for line in told.splitlines() if line.strip().startswith(rule)]
        missed += [] if lines else [rule]
        print(f"\n{lines[0] if lines else 'MISSED: ' + rule}\n  {words}")
    left = faults_of("sound", examples)
    print(f"\ncompute_shard_sizes(batch, rebalance(speeds, {MIN_SHARE})): {left or 'every rule holds'}")
    trace = simulate.run(train, simulate.Cluster.of_speeds([3, 2, 1]))
    print(f"in training, at {trace.decisions[0]['reason']}: {trace.results[0]}")
    return 1 if missed or left or trace.results != [(60, 40, 20)] * 3 else 0


if __name__ == "__main__":
    sys.exit(main())
