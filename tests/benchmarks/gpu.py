"""minigrad beside PyTorch eager on one card, by hand: `python -m tests.benchmarks.gpu`, from the root of a checkout.

It writes a table under tests/benchmarks/results, in about three minutes. minigrad need not be installed.

Both start from the same weights and see the same batch; their first results are compared before anything is timed.
Packing and scaling of gradients have no like in PyTorch: beside them stands a copy of the same number of bytes within
the device, so that a ratio of 1 means the speed of memory.
Rounds of both alternate. A round is a number of steps between two synchronisations, so it holds the work of the
device and what of the host's work it does not hide. Arithmetic is float32 without TF32 on both sides.
"""

from __future__ import annotations

import argparse
import datetime
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import minigrad
from minigrad import Device, Tensor, nn, optim
from minigrad.backend.device import load_cupy, to_device
from minigrad.distributed import init
from minigrad.nn import functional as F
from tests.benchmarks.flat import FLAT, Run
from tests.benchmarks.workloads import TRAININGS, Training, train_step

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Workload:
    """One line of the table: how to build the step for minigrad and for torch, on a device; and as a captured one."""

    name: str
    ours: Callable[[Device], Run]
    theirs: Callable[[str], Run]
    captured: Callable[[Device], Run] | None = None


# -------------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Model:
    """A workload of tests/benchmarks/workloads.py: its training, from one start in both frameworks."""

    training: Training

    def ours(self, device: Device) -> Run:
        """A step of minigrad."""
        step, x, labels = self._ours(device)
        return lambda: step(x, labels)

    def captured(self, device: Device) -> Run:
        """The same as one CUDA graph; its batch lies where the graph reads it."""
        step = minigrad.capture(*self._ours(device))
        return lambda: step(*step.inputs)

    def _ours(self, device: Device) -> tuple[Any, Tensor, Tensor]:
        training = self.training
        model = training.build(nn)
        model.load_state_dict({key: Tensor(value) for key, value in training.weights().items()})
        model.to(device)
        x, labels = (Tensor(to_device(array, device)) for array in training.batch())
        optimizer = training.optimizer(optim, model.parameters())
        return lambda x, labels: train_step(model, optimizer, F.cross_entropy, x, labels), x, labels

    def theirs(self, device: str) -> Run:
        """A step of torch."""
        training = self.training
        model = training.build(torch.nn)
        model.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in training.weights().items()})
        model.to(device)
        x, labels = (torch.from_numpy(array).to(device) for array in training.batch())
        optimizer = training.optimizer(torch.optim, model.parameters())
        return lambda: train_step(model, optimizer, torch.nn.functional.cross_entropy, x, labels)


# ---------------------------------------------------------------------------------------------------- operations


@dataclass(frozen=True)
class Operation:
    """One function of (functional module, *inputs), forward and backward."""

    compute: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    labels: int = 0  # classes of an integer input that is added at the end

    def inputs(self) -> list[np.ndarray[Any, Any]]:
        """The arguments from one seed."""
        rng = np.random.default_rng(0)
        made: list[Any] = [rng.standard_normal(shape, np.float32) for shape in self.shapes]
        return made + ([rng.integers(0, self.labels, self.shapes[0][0])] if self.labels else [])

    def ours(self, device: Device) -> Run:
        """Forward and backward of minigrad."""
        tensors = [Tensor(to_device(x, device), x.dtype.kind == "f") for x in self.inputs()]
        seed = Tensor(to_device(np.ones(self.compute(F, *tensors).shape, np.float32), device))
        return lambda: _forward_backward(self.compute, F, tensors, seed)

    def theirs(self, device: str) -> Run:
        """Forward and backward of torch."""
        tensors = [torch.from_numpy(x).to(device).requires_grad_(x.dtype.kind == "f") for x in self.inputs()]
        functional = torch.nn.functional
        seed = torch.ones_like(self.compute(functional, *tensors))
        return lambda: _forward_backward(self.compute, functional, tensors, seed)


def _forward_backward(compute: Any, functional: Any, tensors: list[Any], seed: Any) -> Any:
    for x in tensors:
        x.grad = None
    output = compute(functional, *tensors)
    output.backward(seed)
    return output.detach().sum()


MODELS = {
    "MLP 784-512-512-10, batch 128, Adam": Model(TRAININGS["b"]),
    "CNN for digits 8x8, batch 128, Adam": Model(TRAININGS["digits"]),
    "residual CNN 32x32 (c), batch 64, SGD": Model(TRAININGS["c"]),
    "GPT of 2 layers, 128 wide (d), batch 16, AdamW": Model(TRAININGS["d"]),
    "LSTM of 128 (f), batch 32, Adam": Model(TRAININGS["f"]),
}
OPERATIONS = {
    "matmul 256": Operation(lambda f, x, y: x @ y, ((256, 256), (256, 256))),
    "matmul 4096": Operation(lambda f, x, y: x @ y, ((4096, 4096), (4096, 4096))),
    "matmul 96 of 512x64 by 64x512": Operation(lambda f, x, y: x @ y, ((96, 512, 64), (96, 64, 512))),
    "conv2d 64x64x32x32, 64 of 3x3": Operation(
        lambda f, x, w: f.conv2d(x, w, padding=1), ((64, 64, 32, 32), (64, 64, 3, 3))
    ),
    "layer_norm 8192x1024": Operation(
        lambda f, x, w, b: f.layer_norm(x, (1024,), w, b), ((8192, 1024), (1024,), (1024,))
    ),
    "cross_entropy 8192x1000": Operation(lambda f, x, labels: f.cross_entropy(x, labels), ((8192, 1000),), 1000),
}
WORKLOADS = [
    Workload(name, w.ours, w.theirs, getattr(w, "captured", None))
    for name, w in {**MODELS, **OPERATIONS, **FLAT}.items()
]


# -------------------------------------------------------------------------------------------------------- timing


def synchronizer(device: Device) -> Callable[[], None]:
    """What waits until the device is idle."""
    if device.type == "cpu":
        return lambda: None
    return lambda: load_cupy().cuda.Device(device.index).synchronize()


def measure(run: Run, wait: Callable[[], None], seconds: float) -> float:
    """Seconds a step: as many steps as fill about the given time, between two synchronisations."""
    steps, passed = 1, 0.0
    while passed < seconds:
        steps = max(steps, int(steps * min(10.0, seconds / max(passed, 1e-6))) + 1) if passed else steps
        wait()
        start = time.perf_counter()
        for _ in range(steps):
            run()
        wait()
        passed = time.perf_counter() - start
    return passed / steps


def compare(workload: Workload, device: Device, rounds: int, seconds: float) -> list[list[float]]:
    """Seconds a step of minigrad, of torch, and of minigrad captured where that can be, a value for each round.

    Raises:
        SystemExit: the first results differ: it would be no comparison.
    """
    runs = [workload.ours(device), workload.theirs(str(device))]
    wait, captures = synchronizer(device), workload.captured is not None and device.type == "cuda"
    results = [[run() for run in runs] for _ in range(10)]
    if captures and workload.captured is not None:
        runs.append(workload.captured(device))  # which has made four steps
        for found in results[4:]:
            found.append(runs[2]().clone())
    for step, (mine, *others) in enumerate(results):
        for other in others if mine is not None else ():
            x, y = float(mine.item()), float(other.item())
            if not abs(x - y) <= 2e-2 * max(1.0, abs(y)):
                raise SystemExit(f"{workload.name}: expected equal results in step {step}, got {x} and {y}")
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, found in zip(runs, times):
            found.append(measure(run, wait, seconds))
    return times


def row(name: str, ours: list[float], theirs: list[float], captured: list[float] | None = None) -> str:
    """One line of the table: medians, spreads, and the median of the rounds' ratios with its spread."""
    graph = ("", "") if captured is None else (_milliseconds(captured), _ratio(captured, theirs))
    return "| " + " | ".join([name, *map(_milliseconds, (ours, theirs)), _ratio(ours, theirs), *graph]) + " |"


def _ratio(times: list[float], theirs: list[float]) -> str:
    ratios = [x / y for x, y in zip(times, theirs)]
    return f"**{statistics.median(ratios):.2f}** [{min(ratios):.2f}-{max(ratios):.2f}]"


def _milliseconds(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e3:.3f} [{min(times) * 1e3:.3f}-{max(times) * 1e3:.3f}]"


def card_name(device: Device) -> str:
    """What the device calls itself."""
    return torch.cuda.get_device_name(device.index) if device.type == "cuda" else "CPU"


def report(device: Device, date: str, rows: list[str]) -> str:
    """The page: what ran on what, and the table."""
    arrays = f"CuPy {load_cupy().__version__}" if device.type == "cuda" else f"NumPy {np.__version__}"
    return "\n".join(
        [
            f"# minigrad beside PyTorch eager: {card_name(device)}, {date}",
            "",
            f"minigrad {minigrad.__version__} on {arrays}; PyTorch {torch.__version__}, CUDA {torch.version.cuda}; "
            "float32, no TF32. Milliseconds a step: median [least-most] of interleaved rounds; "
            "ratio minigrad/PyTorch, lower is better. Operations: forward and backward. pack and scale stand beside a "
            "copy of as many bytes within the device, Adam beside PyTorch's fused one. Captured: the step of minigrad "
            "as one CUDA graph, beside PyTorch eager.",
            "",
            "| workload | minigrad, ms | PyTorch, ms | ratio | captured, ms | ratio |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Time all workloads, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="a folder, gets <card>-<date>.md, or a .md file")
    parser.add_argument("--device", type=Device, default=Device("cuda:0"), help="cuda:0 by default; cpu to try it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each framework in each round, at least")
    parser.add_argument("--only", default="", help="only workloads whose name contains this text")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    date = datetime.date.today().isoformat()
    chosen = [workload for workload in WORKLOADS if options.only in workload.name]
    rows = []
    init(backend="solo", device=options.device)
    for workload in tqdm(chosen, disable=None):
        rows.append(row(workload.name, *compare(workload, options.device, options.rounds, options.seconds)))
    page = report(options.device, date, rows)
    name = re.sub(r"[^a-z0-9]+", "-", card_name(options.device).lower()).strip("-")
    path = options.out if options.out.suffix == ".md" else options.out / f"{name}-{date}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
    print(page, path, sep="\n")


if __name__ == "__main__":
    main()
