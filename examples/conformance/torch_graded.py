"""PyTorch's DistributedDataParallel, a naive wrapper and minigrad's own, graded on lessons 5, 7 and 8 of the course.

    pip install torch
    python examples/conformance/torch_graded.py [--json FILE]

minigrad's and the naive one are graded by `minigrad.testing.grade`. PyTorch has no virtual clock, so it is measured by
the calls that it makes: on gloo, two ranks, each a process, a comm hook notes for each bucket its bytes, and of how
many parameters the gradients were complete when it was launched; a hook on each parameter counts those. That is noted
in the last of three steps, since buckets are cut anew after the first. Forward, backward in the order and
by the bytes in which the gradients came, the bucket's all_reduces between them and a wait for all at the end are then
replayed on the virtual cluster, by what computes the time of every grade. Its gradients are compared with those of one
device on the joined batch. What its hooks and copies cost does not count, as it does not for the others.

    lesson 5: how many of its conformance checks a wrapper passes, and its step, to the best there is
    lesson 7: its step with the cap that is best for it, to the best there is, on that lesson's clusters
    lesson 8: what part of a step is exposed with that lesson's cap, on that lesson's clusters
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_ddp import TorchAdapter, world

from minigrad import Tensor, nn
from minigrad.autograd.tape import Reached
from minigrad.course.lesson05_naive import checks as lesson5
from minigrad.course.lesson07_buckets import checks as lesson7
from minigrad.course.lesson08_overlap import checks as lesson8
from minigrad.distributed import DDP
from minigrad.distributed.comm.wrappers import Call
from minigrad.distributed.simulate import Cluster
from minigrad.testing import Limits, Workload, WrapperAdapter, grade
from minigrad.testing.conformance import Processes, report
from minigrad.testing.conformance.outcome import outcomes
from minigrad.testing.grading.figures import Measured, figures_of
from minigrad.testing.grading.notes import RankNotes, moments_of
from minigrad.testing.grading.steps import GradedRank
from minigrad.testing.grading.table import Figure

CAPS_BYTES = (1, 3_000, 8_500, 17_000, 34_000, 70_000, 140_000, 2**20)
Figures = dict[str, Figure]


class Task(NamedTuple):
    """What is trained, and where.

    Attributes:
        lesson, place: Whose, and the name of its cluster.
        sizes: Of a lesson of layers: their width, and how many; of lesson 7 elements of each parameter.
        caps: In bytes, of which the best counts.
    """

    lesson: int
    place: str
    cluster: Cluster
    workload: Workload
    sizes: tuple[int, ...]
    caps: tuple[int, ...]


class Scales(nn.Module):
    """The model of lesson 7, in float32: a parameter of each of these sizes, used in order of registration."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.params = nn.ParameterList([nn.Parameter(Tensor(np.ones(n, np.float32))) for n in sizes])

    def forward(self, x: Tensor) -> Any:
        """(N, 1) -> (N, 1)"""
        for param in self.params:
            x = x * param.mean()
        return x


def tasks() -> list[Task]:
    """Those of the three lessons."""
    found = [Task(5, "two ranks", lesson5.CLUSTER, Workload(), (96, 8), CAPS_BYTES)]
    for place, (elements, cluster) in lesson7.clusters().items():
        sizes = tuple(2 * n for n in elements)  # of float32, so that there are as many bytes
        samples = (lesson7.SAMPLES,) * cluster.world_size
        workload = Workload(model=partial(Scales, sizes), features=(1,), samples=samples)
        found.append(Task(7, place, cluster, workload, sizes, CAPS_BYTES))
    for place, (cluster, _) in lesson8.places().items():
        found.append(Task(8, place, cluster, lesson8.WORKLOAD, (32, 8), (lesson8.CAP_BYTES,)))
    return found


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

Launched = list[tuple[int, int]]  # of each bucket: after how many gradients, and its bytes
Did = tuple[list[int], Launched, float]  # bytes of the gradients as they came; the buckets; the largest error of one


class TorchScales(torch.nn.Module):
    """As `Scales`."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.params = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(n)) for n in sizes])

    def forward(self, x: Any) -> Any:
        """(N, 1) -> (N, 1)"""
        for param in self.params:
            x = x * param.mean()
        return x


def torch_model(lesson: int, sizes: tuple[int, ...]) -> Any:
    """The model of a task."""
    torch.manual_seed(0)
    if lesson == 7:
        return TorchScales(sizes)
    width, count = sizes
    layers: list[Any] = []
    for _ in range(count):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU() if lesson == 5 else torch.nn.Tanh()]
    return torch.nn.Sequential(*layers)


def torch_batch(lesson: int, sizes: tuple[int, ...], step: int, rank: int) -> Any:
    """Eight samples of a rank in a step."""
    rng = np.random.default_rng([step, rank])
    return torch.tensor(rng.standard_normal((8, 1 if lesson == 7 else sizes[0])).astype(np.float32))


def calls_of_torch(place: Any, adapter: Any, asked: Sequence[tuple[int, tuple[int, ...], int]]) -> list[Did]:
    """What a rank did in its last step, for each lesson, sizes and cap."""
    return [_last_step(place.rank, *each) for each in asked]


def _last_step(rank: int, lesson: int, sizes: tuple[int, ...], cap_bytes: int) -> Did:
    model = torch_model(lesson, sizes)
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
        (ddp(torch_batch(lesson, sizes, step, rank)) ** 2).mean().backward()
    alone = torch_model(lesson, sizes)
    joined = torch.cat([torch_batch(lesson, sizes, 2, other) for other in range(dist.get_world_size())])
    (alone(joined) ** 2).mean().backward()
    pairs = list(zip(model.parameters(), alone.parameters()))
    return came, launched, max(float((p.grad - q.grad).abs().max() / q.grad.abs().max()) for p, q in pairs)


def seen_of_torch() -> dict[tuple[int, tuple[int, ...], int], Did]:
    """What rank 0 did for all tasks and caps; rank 1 has to have done the same."""
    asked = sorted({(task.lesson, task.sizes, cap) for task in tasks() for cap in task.caps})
    adapter: Any = SimpleNamespace(run=Processes(world, 240.0, preload=["torch", "torch._dynamo"]), timeout_s=300.0)
    found = outcomes(adapter, calls_of_torch, 2, asked)
    if any(one.kind != "value" for one in found):
        raise SystemExit("; ".join(map(str, found)))
    for mine, other in zip(*(one.value for one in found)):
        if mine[:2] != other[:2] or max(mine[2], other[2]) > 1e-4:
            raise SystemExit(f"ranks did not do the same, or gradients are wrong: {mine}, {other}")
    return dict(zip(asked, found[0].value))


def replayed(did: Did, cluster: Cluster, workload: Workload) -> Figures:
    """The figures of steps on each rank that are as this one."""
    came, launched, _ = did
    graded = []
    for rank, samples in enumerate(workload.samples_of(cluster.world_size)):
        notes = RankNotes(cluster, rank)
        leaves = [SimpleNamespace(data=np.empty(nbytes // 4, np.float32)) for nbytes in came]
        for _ in range(workload.steps + 1):
            notes.begin_step()
            with notes.forward(samples):
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


def graded_with(wrapper: Callable[..., Any], task: Task) -> Figures:
    """Figures of what minigrad can run."""
    found = grade(wrapper, task.cluster, workload=task.workload, checks=(), timeout_s=120.0)
    if not found.passed:
        raise SystemExit(f"lesson {task.lesson}, {task.place}: {found}")
    return dict(found.figures)


def with_cap(cap_bytes: int) -> Callable[..., Any]:
    """minigrad's wrapper with buckets of so many bytes."""
    return lambda module, comm: DDP(module, comm, bucket_cap_bytes=cap_bytes)


def main() -> int:
    """Print the table, and write its figures as JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    seen = seen_of_torch()
    adapters: list[Any] = [TorchAdapter(), WrapperAdapter(Naive), WrapperAdapter(DDP)]
    names = [f"PyTorch {torch.__version__.partition('+')[0]}", "naive", "minigrad"]
    reports = [report(adapter, lesson5.CHECKS) for adapter in adapters]
    rows = [["lesson", "", *names, "the best"]]
    rows.append(["5", "checks passed", *(f"{len(r.names('passes'))} of {len(lesson5.CHECKS)}" for r in reports), ""])
    kept: dict[str, Any] = {n: {"not passed": sorted({*_names(r)})} for n, r in zip(names, reports)}
    for task in tasks():
        tried = [
            [replayed(seen[task.lesson, task.sizes, cap], task.cluster, task.workload) for cap in task.caps],
            [graded_with(Naive, task)],
            [graded_with(with_cap(cap), task) for cap in task.caps],
        ]
        best = [min(each, key=lambda figures: figures["step_s"].value) for each in tried]
        for name, figures in zip(names, best):
            kept[name][f"lesson {task.lesson}, {task.place}"] = {k: [f.value, f.best] for k, f in figures.items()}
        if task.lesson == 8:
            exposed = [f"{100 * figures['exposed_fraction'].value:.1f} %" for figures in best]
            optimum = f"{100 * best[0]['exposed_fraction'].best:.1f} %"
            rows.append(["8", f"exposed, {task.place}", *exposed, optimum])
        else:
            steps = [f"{figures['step_s'].ratio:.3f}" for figures in best]
            rows.append([str(task.lesson), f"step / best, {task.place}", *steps, "1"])
    for row in rows:
        print("| " + " | ".join(row) + " |")
        if row is rows[0]:
            print("|" + "---|" * len(row))
    for name in names:
        print(f"{name}: does not pass {', '.join(kept[name]['not passed']) or 'none'}")
    if options.json:
        options.json.write_text(json.dumps(kept, indent=1))
    return 0


def _names(found: Any) -> list[str]:
    return [f"{row.name} ({row.verdict})" for row in found.rows if row.verdict != "passes"]


if __name__ == "__main__":
    sys.exit(main())
