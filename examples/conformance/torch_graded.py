"""PyTorch's DistributedDataParallel, a naive wrapper and minigrad's own, graded on the same virtual clusters.

    pip install torch
    python examples/conformance/torch_graded.py [--json FILE]

minigrad's and the naive one are graded by `minigrad.testing.grade`. PyTorch has no virtual clock, so it is measured by
the calls that it makes: on gloo, each rank a process, a comm hook notes for each bucket its bytes, and of how many
parameters the gradients were complete when it was launched; a hook on each parameter counts those. That is noted in
the last of three steps, since the first buckets are cut anew after the first step. Forward, backward in the order and
by the bytes in which the gradients came, the bucket's all_reduces between them and a wait for all at the end are then
replayed on the virtual cluster, by what computes the time of every grade. Its gradients are compared with those of one
device. What its hooks and copies cost does not count, as it does not for the others.

Each wrapper runs with the bucket cap, of those tried, that is best for it on that cluster.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_ddp import TorchAdapter, world

from minigrad import Tensor
from minigrad.autograd.tape import Reached
from minigrad.distributed import DDP
from minigrad.distributed.comm.wrappers import Call
from minigrad.distributed.simulate import Cluster, Link
from minigrad.testing import Limits, Workload, grade
from minigrad.testing.conformance import Processes, report
from minigrad.testing.conformance.outcome import outcomes
from minigrad.testing.grading import BASIC
from minigrad.testing.grading.figures import Measured, figures_of
from minigrad.testing.grading.table import Figure
from minigrad.testing.grading.notes import RankNotes, moments_of
from minigrad.testing.grading.steps import GradedRank

RANKS, SAMPLES = 4, 8
LAYERS, WIDTH = 8, 96  # of the workload that `grade` has by default
CLUSTERS = {
    "middling": Cluster.of_speeds([1] * RANKS, link=Link(1e-4, 1e9)),
    "long wires": Cluster.of_speeds([1] * RANKS, link=Link(5e-4, 1e9)),
    "thin wires": Cluster.of_speeds([1] * RANKS, link=Link(1e-5, 1e8)),
}
CAPS_BYTES = (1, 40_000, 80_000, 120_000, 160_000, 1_000_000)
Launched = list[tuple[int, int]]  # of each bucket: after how many gradients, and its bytes


class Naive:
    """One all_reduce for each parameter, after backward."""

    def __init__(self, module: Any, comm: Any) -> None:
        self.module, self.comm, self.samples = module, comm, 0
        for parameter in module.parameters():
            comm.broadcast(parameter.data).wait()

    def __call__(self, *inputs: Any) -> Any:
        """The forward."""
        self.samples = len(inputs[0])
        return self.module(*inputs)

    def finish(self) -> None:
        """Combine the gradients."""
        whole = np.array([float(self.samples)])
        self.comm.all_reduce(whole).wait()
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                part = parameter.grad.data * parameter.data.dtype.type(self.samples / whole[0])
                self.comm.all_reduce(part).wait()
                parameter.grad = Tensor(part)


# --------------------------------------------------------------------------------------------------- PyTorch's calls


def torch_model() -> Any:
    """The workload's model."""
    torch.manual_seed(0)
    layers: list[Any] = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def torch_batch(step: int, rank: int) -> Any:
    """Samples of a rank in a step."""
    rng = np.random.default_rng([step, rank])
    return torch.tensor(rng.standard_normal((SAMPLES, WIDTH)).astype(np.float32))


def calls_of_torch(place: Any, adapter: Any, cap_bytes: int) -> tuple[list[int], Launched, float]:
    """What a rank did in its last step: bytes of the gradients as they came, buckets; and the largest error of one."""
    model = torch_model()
    ddp = DistributedDataParallel(model, bucket_cap_mb=cap_bytes / 2**20)
    came: list[int] = []
    launched: Launched = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # PyTorch reads annotations, and wants its own types
        flat = bucket.buffer()
        launched.append((len(came), flat.nbytes))
        flat.div_(dist.get_world_size())
        return dist.all_reduce(flat, async_op=True).get_future().then(lambda done: done.value()[0])

    ddp.register_comm_hook(None, hook)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: came.append(p.nbytes))
    for step in range(3):
        came.clear()
        launched.clear()
        ddp.zero_grad()
        (ddp(torch_batch(step, place.rank)) ** 2).mean().backward()
    alone = torch_model()
    (alone(torch.cat([torch_batch(2, rank) for rank in range(RANKS)])) ** 2).mean().backward()
    pairs = zip(model.parameters(), alone.parameters())
    error = max(float((p.grad - right.grad).abs().max() / right.grad.abs().max()) for p, right in pairs)
    return came, launched, error


def replayed(ranks: Sequence[tuple[list[int], Launched, float]], cluster: Cluster, workload: Workload) -> Any:
    """The figures of steps that are each as the last one of PyTorch."""
    graded = []
    for rank, (came, launched, _) in enumerate(ranks):
        notes = RankNotes(cluster, rank)
        leaves = [SimpleNamespace(data=np.empty(nbytes // 4, np.float32)) for nbytes in came]
        for _ in range(workload.steps + 1):
            notes.begin_step()
            with notes.forward(SAMPLES):
                pass
            notes.begin(Reached(leaves, []))
            numbers = []
            for count, leaf in enumerate(leaves, 1):
                notes.leaf(leaf)
                for after, nbytes in launched:
                    if after == count:
                        numbers.append(notes.called(Call("all_reduce", "SUM", "float32", nbytes // 4, nbytes)))
            notes.end(None)
            for number in numbers:
                notes.waited(number)
        notes.begin_step()
        graded.append(GradedRank(notes, [], [], []))
    measured = Measured(graded, moments_of([one.notes.did for one in graded], cluster.link))
    return figures_of(measured, workload, cluster, Limits())


# --------------------------------------------------------------------------------------------------------- the table

Figures = dict[str, Figure]
Of = Callable[[Cluster, int], Figures]  # what a wrapper comes to on a cluster, with a cap


def by_grade(wrap: Callable[[int], Callable[..., Any]], workload: Workload) -> Of:
    """Figures of what minigrad can run."""

    def figures(cluster: Cluster, cap_bytes: int) -> Figures:
        found = grade(wrap(cap_bytes), cluster, workload=workload, checks=(), timeout_s=120.0)
        if not found.passed:
            raise SystemExit(str(found))
        return dict(found.figures)

    return figures


def by_calls(workload: Workload) -> Of:
    """Figures of PyTorch, whose calls are the same on every cluster."""
    seen: dict[int, Any] = {}

    def figures(cluster: Cluster, cap_bytes: int) -> Figures:
        if cap_bytes not in seen:
            run = Processes(world, 120.0, preload=["torch", "torch._dynamo"])
            adapter: Any = SimpleNamespace(run=run, timeout_s=240.0)
            found = outcomes(adapter, calls_of_torch, RANKS, cap_bytes)
            if any(one.kind != "value" or one.value[2] > 1e-4 for one in found):
                raise SystemExit("; ".join(map(str, found)))
            seen[cap_bytes] = [one.value for one in found]
        return dict(replayed(seen[cap_bytes], cluster, workload))

    return figures


def row_of(of: Of, caps: Sequence[int]) -> dict[str, Any]:
    """For each cluster the figures with the best cap."""
    row: dict[str, Any] = {}
    for name, cluster in CLUSTERS.items():
        cap, best = min(((cap, of(cluster, cap)) for cap in caps), key=lambda pair: pair[1]["step_s"].value)
        row[name] = {"cap_bytes": cap} | {what: [one.value, one.best, one.ratio] for what, one in best.items()}
    return row


def main() -> int:
    """Print the table, and write it as JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    workload = Workload(samples=(SAMPLES,) * RANKS)
    rows = {
        f"PyTorch {torch.__version__}": (by_calls(workload), CAPS_BYTES, report(TorchAdapter(), BASIC).names("passes")),
        "minigrad": (by_grade(lambda cap: _minigrad(cap), workload), CAPS_BYTES, _passes(DDP)),
        "naive": (by_grade(lambda cap: Naive, workload), CAPS_BYTES[:1], _passes(Naive)),
    }
    told: dict[str, Any] = {}
    print(f"{'':24}{'checks':>8}" + "".join(f"{name:>34}" for name in CLUSTERS))
    print(f"{'':24}{'':>8}" + f"{'step / best':>14}{'exposed':>12}{'calls':>8}" * len(CLUSTERS))
    for name, (of, caps, passes) in rows.items():
        told[name] = {"passes": passes, **row_of(of, caps)}
        cells = [told[name][cluster] for cluster in CLUSTERS]
        figures = [f"{c['step_s'][2]:>14.3f}{c['exposed_fraction'][0]:>12.3f}{c['calls'][0]:>8.1f}" for c in cells]
        print(f"{name:24}{len(passes):>5}/{len(BASIC)} " + "".join(figures))
    best = [told["minigrad"][cluster] for cluster in CLUSTERS]
    figures = [f"{1:>14.3f}{c['exposed_fraction'][1]:>12.3f}{c['calls'][1]:>8.1f}" for c in best]
    print(f"{'the best':32}" + "".join(figures))
    for name, found in told.items():
        print(f"{name}: does not pass {sorted({c.__name__[6:] for c in BASIC} - set(found['passes'])) or 'none'}")
    if options.json:
        options.json.write_text(json.dumps(told, indent=1))
    return 0


def _minigrad(cap_bytes: int) -> Callable[..., Any]:
    return lambda module, comm: DDP(module, comm, bucket_cap_bytes=cap_bytes)


def _passes(wrapper: Callable[..., Any]) -> list[str]:
    from minigrad.testing import WrapperAdapter

    return report(WrapperAdapter(wrapper), BASIC).names("passes")


if __name__ == "__main__":
    sys.exit(main())
