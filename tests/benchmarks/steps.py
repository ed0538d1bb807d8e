"""Training steps of minigrad against PyTorch on the CPU. Run by hand, where PyTorch is installed:

    python -m tests.benchmarks.steps [workload ...] [--threads 1 2] [--rounds 5] [--seconds 0.5] [--out FILE]

Both frameworks build the same model by the same code from the same weights: tests/benchmarks/workloads.py has a to f
and digits. minigrad runs as it is, and with `keep_freed_memory()`; PyTorch as it is, with a fused optimizer, and where
there are images with channels last, alone and together. Each runs in a process of its own; they take turns, round by
round. Of PyTorch's the one with the least median stands in the table, and the ratios are those of the rounds: median,
least and most. Before anything is timed the losses of the first four steps must agree to 1e-5. Memory is the most that
the process held above what it held after its imports.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tests.benchmarks.workloads import TRAININGS, train_step

CHECKED_STEPS = 4
TOLERANCE = 1e-5
MISLEADING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # they would give NumPy the kernels of an older processor
OURS = ("minigrad", "minigrad kept")
HEADER = """\
| | threads | minigrad, ms | kept, ms | PyTorch, ms | its best | ratio | kept, ratio | MB | kept | PyTorch | ratio |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def theirs(workload):
    """The variants of PyTorch."""
    images = len(TRAININGS[workload].shape) == 4
    return ("torch", "torch fused", *(("torch last", "torch fused last") if images else ()))


# ------------------------------------------------------------------------------------------------------- children


def make_step(variant, workload):
    """A function that does one training step and returns the loss, and the bytes held before the model was made."""
    training, framework = TRAININGS[workload], variant.split()[0]
    images, labels = training.batch()
    weights = training.weights()
    if framework == "torch":
        import torch
        from torch import nn, optim

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        tensor = torch.from_numpy
    else:
        from minigrad import Tensor as tensor
        from minigrad import nn, optim
        from minigrad.backend.memory import keep_freed_memory

        if "kept" in variant:
            keep_freed_memory()
    base = held_bytes("VmRSS")
    model = training.build(nn)
    model.load_state_dict({key: tensor(np.array(value)) for key, value in weights.items()})
    x, labels = tensor(images), tensor(labels)
    if "last" in variant:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    options = {"fused": True} if "fused" in variant else {}
    optimizer = training.optimizer(optim, model.parameters(), **options)
    criterion = nn.CrossEntropyLoss()
    return lambda: train_step(model, optimizer, criterion, x, labels).item(), base


def held_bytes(name):
    """A figure of this process's memory, as Linux counts it: VmRSS now, or VmHWM at most so far."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024


def serve(variant, workload):
    """Report the first losses; then, for each number of seconds from stdin, a step's median time and the memory."""
    step, base = make_step(variant, workload)
    print(json.dumps([step() for _ in range(CHECKED_STEPS)]), flush=True)
    for line in sys.stdin:
        times, end = [], time.perf_counter() + float(line)
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(json.dumps([statistics.median(times), held_bytes("VmHWM") - base]), flush=True)


class Child:
    """One variant of one framework on one workload, in a process of its own."""

    def __init__(self, variant, workload, threads):
        environment = {name: value for name, value in os.environ.items() if name not in MISLEADING}
        environment.update({f"{name}_NUM_THREADS": str(threads) for name in ("OPENBLAS", "OMP", "MKL")})
        command = [sys.executable, "-m", "tests.benchmarks.steps", "--serve", variant, workload]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.times, self.nbytes = [], 0
        self.losses = self.read()

    def read(self):
        """The next line it says."""
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.process.args)}: ended with {self.process.wait()}")
        return json.loads(line)

    def measure(self, seconds):
        """Take one round of this long."""
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        time_s, self.nbytes = self.read()
        self.times.append(time_s)

    def close(self):
        """End it, and wait until it has ended."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


# --------------------------------------------------------------------------------------------------------- parent


def compare(workload, threads, rounds, seconds):
    """Check the losses, then let all take turns; the measured children by variant.

    Raises:
        SystemExit: the losses differ: it would be no comparison.
    """
    children = {}
    try:
        for variant in (*OURS, *theirs(workload)):
            children[variant] = Child(variant, workload, threads)
        expected = children["torch"].losses
        for variant, child in children.items():
            if not np.allclose(child.losses, expected, rtol=TOLERANCE, atol=0.0):
                raise SystemExit(f"{workload}: expected of {variant} the losses {expected}, got {child.losses}")
            child.measure(seconds)
            child.times.clear()
        for _ in range(rounds):
            for child in children.values():
                child.measure(seconds)
    finally:
        for child in children.values():
            child.close()
    return children


def row(workload, threads, children):
    """A line of the table."""
    best = min(theirs(workload), key=lambda variant: statistics.median(children[variant].times))
    other = children[best]
    mine = [children[variant] for variant in OURS]
    ratios = []
    for child in mine:
        found = sorted(a / b for a, b in zip(child.times, other.times))
        ratios.append(f"**{statistics.median(found):.2f}** [{found[0]:.2f}-{found[-1]:.2f}]")
    times = [f"{statistics.median(child.times) * 1e3:.3f}" for child in (*mine, other)]
    memory = [f"{child.nbytes / 1e6:.0f}" for child in (*mine, other)]
    share = f"{mine[0].nbytes / max(other.nbytes, 1):.2f}"
    name = best.removeprefix("torch").strip() or "as it is"
    return "| " + " | ".join([workload, str(threads), *times, name, *ratios, *memory, share]) + " |"


def processor():
    """What the processor calls itself."""
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.processor()


def page(rows):
    """What ran on what, and the table."""
    import torch

    return "\n".join(
        [
            f"# Training steps on a CPU: {processor()}, {os.cpu_count()} cores",
            "",
            f"`python -m tests.benchmarks.steps`. NumPy {np.__version__}, Python {platform.python_version()}; PyTorch "
            f"{torch.__version__}. float32; milliseconds a step, medians of interleaved rounds; ratio minigrad / "
            "PyTorch, lower is better: median [least-most] of the rounds. \"kept\" is with `keep_freed_memory()`. MB: "
            "the most held above what was held after the imports; its ratio is that without keeping.",
            "",
            HEADER,
            *rows,
            "",
        ]
    )


def main():
    """Compare the workloads that were asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(TRAININGS), metavar="workload", help=", ".join(TRAININGS))
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each round and variant")
    parser.add_argument("--out", type=Path, help="a file that gets the table")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.workloads)
        return
    print(HEADER, flush=True)
    rows = []
    for threads in options.threads:
        for workload in tqdm(options.workloads, disable=None):
            rows.append(row(workload, threads, compare(workload, threads, options.rounds, options.seconds)))
            print(rows[-1], flush=True)
    if options.out:
        options.out.write_text(page(rows))


if __name__ == "__main__":
    main()
