"""Training steps of minigrad against PyTorch on the CPU. Run by hand, where PyTorch is installed:

    python -m tests.benchmarks.steps [workload ...] [--threads 1] [--rounds 5] [--seconds 0.5]

Both frameworks build the same model by the same code from the same weights. Each runs in a process of its own; they
take turns, round by round, and the medians of the rounds are compared. Before that the losses of the first four steps
must agree to 1e-5. minigrad keeps freed memory; with MINIGRAD_STEPS_PLAIN=1 in the environment it does not.

Workloads: a: MLP 64-64-10, batch 32, SGD. b: MLP 784-512-512-10, batch 128, Adam. c: CNN on 3x32x32, batch 64, SGD:
[conv3x3-BN-ReLU-maxpool2] 3->32->64, a residual conv3x3(64)-BN-ReLU, mean over pixels, linear 10. d: CNN on 1x8x8,
batch 64, SGD: conv3x3(32)-GN-ReLU, conv3x3(64)-GN-ReLU, maxpool2, linear 10.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

SHAPES = {"a": (32, 64), "b": (128, 784), "c": (64, 3, 32, 32), "d": (64, 1, 8, 8)}
CHECKED_STEPS = 4
TOLERANCE = 1e-5
MISLEADING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # they would give NumPy the kernels of an older processor


# --------------------------------------------------------------------------------------- one model, two frameworks


def build(nn, workload):
    """The model of a workload, from torch.nn or minigrad.nn."""
    if workload == "a":
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if workload == "b":
        return nn.Sequential(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
    if workload == "d":
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.GroupNorm(8, 32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.GroupNorm(8, 64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 16, 10),
        )

    def stage(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(*stage(64, 64))

        def forward(self, x):
            return self.body(x) + x

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    layers = [*stage(3, 32), nn.MaxPool2d(2), *stage(32, 64), nn.MaxPool2d(2), Residual(), Mean(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


def make_step(framework, workload):
    """A function that does one training step and returns the loss."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal(SHAPES[workload], dtype=np.float32)
    labels = rng.integers(0, 10, len(images))
    if framework == "torch":
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        nn, optim, tensor, no_grad = torch.nn, torch.optim, torch.from_numpy, torch.no_grad
    else:
        from minigrad import Tensor as tensor
        from minigrad import nn, no_grad, optim
        from minigrad.backend.memory import keep_freed_memory

        if not os.environ.get("MINIGRAD_STEPS_PLAIN"):
            keep_freed_memory()
    model, loss_of = build(nn, workload), nn.CrossEntropyLoss()
    with no_grad():
        for parameter in model.parameters():
            shape = tuple(parameter.shape)
            scale = 1.0 / np.sqrt(max(1, np.prod(shape[1:])))
            start = 1.0 if len(shape) == 1 else 0.0
            parameter.copy_(tensor((start + scale * rng.standard_normal(shape)).astype(np.float32)))
    x, y = tensor(images), tensor(labels)
    parameters = list(model.parameters())
    if workload == "b":
        optimizer = optim.Adam(parameters, lr=1e-3)
    else:
        optimizer = optim.SGD(parameters, lr=0.02, momentum=0.9)

    def step():
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


# ----------------------------------------------------------------------------------------------- parent and children


def serve(framework, workload):
    """Child: report the first losses, then the median time of a step for each number of seconds read from stdin."""
    step = make_step(framework, workload)
    print(json.dumps([step() for _ in range(CHECKED_STEPS)]), flush=True)
    for line in sys.stdin:
        times, end = [], time.perf_counter() + float(line)
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(json.dumps(statistics.median(times)), flush=True)


class Child:
    """One framework on one workload, in a process of its own."""

    def __init__(self, framework, workload, threads):
        environment = {name: value for name, value in os.environ.items() if name not in MISLEADING}
        environment.update({f"{name}_NUM_THREADS": str(threads) for name in ("OPENBLAS", "OMP", "MKL")})
        command = [sys.executable, "-m", "tests.benchmarks.steps", "--serve", framework, workload]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.losses = self.read()

    def read(self):
        """The next line it says."""
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.process.args)}: ended with {self.process.wait()}")
        return json.loads(line)

    def time_s(self, seconds):
        """The median time of a step, over this long."""
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        """End it, and wait until it has ended."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def compare(workload, threads, rounds, seconds):
    """Check the losses, then let both take turns; print medians in ms and their ratio."""
    children = [Child(framework, workload, threads) for framework in ("minigrad", "torch")]
    try:
        ours, theirs = (np.array(child.losses) for child in children)
        if not np.allclose(ours, theirs, rtol=TOLERANCE, atol=0.0):
            raise SystemExit(f"{workload}: expected the losses {theirs.tolist()}, got {ours.tolist()}")
        for child in children:
            child.time_s(seconds)
        times = [[child.time_s(seconds) for child in children] for _ in range(rounds)]
    finally:
        for child in children:
            child.close()
    mine, others = (statistics.median(column) * 1e3 for column in zip(*times))
    ratios = sorted(a / b for a, b in times)
    print(
        f"{workload}  minigrad {mine:8.3f} ms  torch {others:8.3f} ms  "
        f"ratio {statistics.median(ratios):.2f} [{ratios[0]:.2f}-{ratios[-1]:.2f}]",
        flush=True,
    )


def main():
    """Compare the workloads that were asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(SHAPES), metavar="workload", help="a, b, c or d")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each round and framework")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.workloads)
        return
    for workload in options.workloads:
        compare(workload, options.threads, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
