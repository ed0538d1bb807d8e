"""One checkout of minigrad against another, on the CPU: what did a change cost? Run by hand:

    git worktree add /tmp/before main~20
    python -m tests.benchmarks.checkouts /tmp/before [workload ...] [--rounds 120] [--seconds 0.1]

Each checkout runs in processes of its own, new ones every dozen rounds; they take turns, and change who begins. The
ratio is after / before; beside its median stands the 95 % interval of that, from the order of the rounds' ratios alone.
Then, exact: the calls of Python functions in one step, and the most bytes that it had allocated at once; the calls of a
workload of two ranks depend on how long they wait for each other.

Workloads: a, b, c, d: steps of `tests.benchmarks.steps`. wrapped: b by DDP in a world of one. ddp, small: b by
DDP on two ranks in shared memory, as wide as in `tests.benchmarks.ddp`, and an eighth of that, where a step is hardly
more than what the wrapper itself does. 4KB, 1MB, 25MB: an all-reduce of so much between two ranks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

STEPS, RANKS = ("a", "b", "c", "d", "wrapped"), ("ddp", "small", "4KB", "1MB", "25MB")
ROUNDS_A_PROCESS = 12  # then new ones: where memory lies makes a process 1 or 2 % faster or slower for all its life
BYTES = {"4KB": 4096, "1MB": 2**20, "25MB": 25 * 2**20}
MISLEADING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # they would give NumPy the kernels of an older processor
HERE = Path(__file__).parents[2]


# ------------------------------------------------------------------------------------------- a child: one process


def make_function(workload, rank, port):
    """What a workload repeats."""
    from minigrad.backend.memory import keep_freed_memory
    from minigrad.distributed import ShmCommunicator, SoloCommunicator
    from minigrad.distributed.comm.rendezvous import Rendezvous

    if workload in STEPS and workload != "wrapped":
        from steps import make_step  # this file is the script, and its folder on the path

        return make_step("minigrad", workload)
    keep_freed_memory()
    if workload == "wrapped":
        return wrapped_step(SoloCommunicator(), 512)
    meeting = Rendezvous(rank, 2, "127.0.0.1", port, b"benchmark", 60.0)
    comm = ShmCommunicator(rank, 2, meeting.all_gather, timeout_s=60.0)
    if workload in ("ddp", "small"):
        return wrapped_step(comm, 512 if workload == "ddp" else 64)
    array = comm.empty(BYTES[workload] // 4, "float32")
    return lambda: comm.all_reduce(array).wait()


def wrapped_step(comm, width):
    """A step of an MLP with Adam at 128 samples a rank."""
    import numpy as np

    import minigrad
    from minigrad import nn, optim
    from minigrad.distributed import DDP

    rng = np.random.default_rng(comm.rank)
    x = minigrad.Tensor(rng.standard_normal((128, 784), np.float32))
    y = minigrad.Tensor(rng.integers(0, 10, 128))
    layers = nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    model, loss_of = DDP(nn.Sequential(*layers), comm), nn.CrossEntropyLoss()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

    return step


def counted(function):
    """Python calls in one call of a function, the fewest of five, and the most bytes it had allocated at once.

    To look whether another rank has come is a call too, many where that rank begins later.
    """
    counts = [0] * 5

    def count(frame, event, argument):
        counts[i] += event == "call"

    for i in range(len(counts)):
        sys.setprofile(count)
        function()
        sys.setprofile(None)
    tracemalloc.start()
    function()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    function()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return min(counts), peak


def serve(workload, rank, port):
    """Answer each number of calls on stdin by the median time of one; 0 by what is counted."""
    function = make_function(workload, rank, port)
    import minigrad

    assert Path(minigrad.__file__).parents[1] == Path.cwd(), minigrad.__file__
    for _ in range(3):
        function()
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        print(json.dumps(statistics.median(times) if times else counted(function)), flush=True)


# -------------------------------------------------------------------------------------------------- the parent


class Checkout:
    """The processes of one checkout for one workload."""

    def __init__(self, folder, workload):
        environment = {name: value for name, value in os.environ.items() if name not in MISLEADING}
        environment.update({f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")})
        environment["PYTHONPATH"] = str(folder)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = str(probe.getsockname()[1])
        command = [sys.executable, __file__, "--serve", workload]
        self.processes = [
            subprocess.Popen(
                [*command, str(rank), port],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                cwd=folder,
            )
            for rank in range(1 + (workload in RANKS))
        ]

    def ask(self, calls):
        """What the first process answers, once all have."""
        for process in self.processes:
            process.stdin.write(f"{calls}\n")
            process.stdin.flush()
        lines = [process.stdout.readline() for process in self.processes]
        if not all(lines):
            raise SystemExit(f"{self.processes[0].args}: a process has ended")
        return json.loads(lines[0])

    def close(self):
        """End the processes."""
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait()
            process.stdout.close()


def interval(values):
    """The 95 % interval of a median, from order statistics: the ranks n/2 -+ 0.98 sqrt(n)."""
    values, half = sorted(values), 0.98 * math.sqrt(len(values))
    last = len(values) - 1
    return values[max(0, math.floor(last / 2 - half))], values[min(last, math.ceil(last / 2 + half))]


def measure(before, workload, rounds, seconds):
    """Seconds there and here, round by round in new processes, and what is counted in each."""
    old, new = Checkout(before, workload), Checkout(HERE, workload)
    try:
        calls = max(1, round(seconds / max(old.ask(5), 1e-9)))
        for checkout in (old, new):
            checkout.ask(calls)
        pairs = []
        for i in range(rounds):
            first, second = (old, new) if i % 2 else (new, old)
            times = {first: first.ask(calls), second: second.ask(calls)}
            pairs.append((times[old], times[new]))
        return pairs, (old.ask(0), new.ask(0))
    finally:
        old.close()
        new.close()


def compare(before, workload, rounds, seconds):
    """Print how the time of a workload here compares to that of another checkout."""
    pairs, left = [], rounds
    while left > 0:
        measured, counts = measure(before, workload, min(left, ROUNDS_A_PROCESS), seconds)
        pairs += measured
        left -= len(measured)
    ratios = [after / before for before, after in pairs]
    low, high = interval(ratios)
    medians = [statistics.median(column) * 1e3 for column in zip(*pairs)]
    print(
        f"{workload:>7}  before {medians[0]:8.3f} ms  after {medians[1]:8.3f} ms  "
        f"ratio {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]  "
        f"calls {counts[0][0]} -> {counts[1][0]}  bytes {counts[0][1]} -> {counts[1][1]}",
        flush=True,
    )


def main():
    """Compare the workloads that were asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="folder of the other checkout")
    parser.add_argument("workloads", nargs="*", metavar="workload", help=", ".join(STEPS + RANKS))
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each round and checkout")
    options = parser.parse_args()
    for workload in options.workloads or STEPS + RANKS:
        compare(Path(options.before).resolve(), workload, options.rounds, options.seconds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
