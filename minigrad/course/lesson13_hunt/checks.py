"""Checks of lesson 13: on runs of minigrad, right ones and such with a planted bug."""

from __future__ import annotations

import copy
import functools
from contextlib import nullcontext
from typing import Any

import numpy as np

from minigrad import data, nn, optim
from minigrad.backend.random import manual_seed
from minigrad.course.lesson import Student, WrongError, expect
from minigrad.distributed import DDP, Communicator, run
from minigrad.distributed.record.fingerprint import fingerprint
from minigrad.tensor import Tensor
from minigrad.testing.mutants import MUTANTS, planted

Array = np.ndarray
BUGS = {  # planted, and their kinds
    "each rank counts as much": "weights",
    "zeroed gradients are kept": "old gradients",
    "buffers are left alone": "buffers",
    "every rank reads the first rank's part": "data",
    "a bucket lacks its last parameter": "not reduced",
    "the odd rank out is left out of sums": "weights",
    "every epoch has one order": "data",
    "the weight is that of the others": "weights",
    "a bucket begins one element late": "not reduced",
    "each rank shuffles by itself": "data",
}
RIGHT = ((3, 0), (2, 1), (4, 2), (1, 3))  # ranks and seed of runs without a bug
NEEDED = 8  # of ten
PARTING = (  # planted: bugs that part a run from the right one in its first step, in its second, in its second epoch
    "a bucket lacks its last parameter",
    "zeroed gradients are kept",
    "every epoch has one order",
)
RANKS, EPOCHS, STEPS, TIMEOUT_S = 3, 2, 3, 2.0
WHY = {
    "data": "compare what the ranks read, in an epoch and with the one before; the loss falls with wrong data too",
    "not reduced": "compare the ranks with each other, and not one of them with itself",
    "old gradients": "no weights make this gradient out of those of this step; the first step is right there",
    "weights": "the ranks agree, and on a wrong number: which weights would make it?",
    "buffers": "all gradients are right here, and the ranks still part",
}
BITS = "a fingerprint has 64 bits, and a float has 53: compare integers"


def trained(comm: Communicator, seed: int) -> list[dict[str, Any]]:
    """What one rank notes of a run: of each step, and the fingerprint of each of its buckets."""
    manual_seed(seed)
    net, alone = _net(), _net()
    ddp = DDP(net, comm, bucket_cap_bytes=128)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    x, y = (np.random.default_rng(seed).standard_normal((16 * comm.world_size, k)) for k in (3, 4))
    sampler = data.DistributedSampler(len(x), rank=comm.rank, world_size=comm.world_size, seed=seed)
    n, found = 2 + comm.rank, []
    for epoch in range(EPOCHS):
        order = list(sampler)
        for k in range(STEPS):
            rows = order[k * n : (k + 1) * n]
            alone.load_state_dict(net.state_dict())
            alone.zero_grad()
            _loss(alone, x[rows], y[rows]).backward()
            optimizer.zero_grad()
            loss = _loss(ddp, x[rows], y[rows])
            loss.backward()
            step = {"epoch": epoch, "loss": loss.item(), "samples": n, "read": rows, "own": _gradient(alone)}
            step |= {"combined": _gradient(net), "prints": _prints(ddp)}
            optimizer.step()
            found.append({**step, "buffers": np.concatenate([b.numpy().ravel() for b in net.buffers()])})
    return found


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4)).double()


def _loss(model: Any, x: Array, y: Array) -> Tensor:
    loss: Tensor = (model(Tensor(x)) - Tensor(y)).square().mean()
    return loss


def _gradient(module: nn.Module) -> Array:
    return np.concatenate([p.grad.numpy().ravel() for p in module.parameters() if p.grad is not None])


def _prints(ddp: DDP) -> list[int]:
    named = dict(ddp.module.named_parameters())
    found = []
    for bucket in ddp.plan.buckets:
        grads = [named[ddp.plan.names[i]].grad for i in bucket.entries]
        found.append(int(fingerprint(np.concatenate([grad.numpy().ravel() for grad in grads if grad is not None]))))
    return found


def steps_of(bug: str | None, world_size: int = RANKS, seed: int = 0) -> list[dict[str, Any]]:
    """The steps of a run, as `name_the_bug` gets them, and with the fingerprints of buckets by rank."""
    return copy.deepcopy(_made(bug, world_size, seed))


@functools.cache
def _made(bug: str | None, world_size: int, seed: int) -> list[dict[str, Any]]:
    mutant = next((mutant for mutant in MUTANTS.values() if mutant.name == bug), None)
    with nullcontext() if mutant is None else planted(mutant):
        ranks = run(trained, world_size, seed, timeout_s=TIMEOUT_S)
    steps = []
    for parts in zip(*ranks):
        step = {name: [part[name] for part in parts] for name in parts[0]}
        arrays = {name: np.array(step[name]) for name in ("loss", "samples", "own", "combined", "buffers")}
        prints = [list(of_bucket) for of_bucket in zip(*step["prints"])]
        steps.append({**step, **arrays, "epoch": parts[0]["epoch"], "prints": prints})
    return steps


# -------------------------------------------------------------------------------------------------- 13.1


def check_first_difference(student: Student) -> str:
    """Whether the first difference is found: in drawn tables, and in runs of minigrad beside the right one."""
    rng = np.random.default_rng(13)
    one = rng.integers(2**62, 2**64, (4, 3, 2), dtype=np.uint64)
    _part(student, one, one.copy(), None, "two equal runs")
    _part(student, one.tolist(), one[:3].tolist(), (3, 0, 0), "equal runs, of which one ended after three steps")
    _part(student, one[:1], one, (1, 0, 0), "equal runs, of which one ended after one step")
    bit = one.copy()
    bit[2, 1, 1] ^= np.uint64(1)
    _part(student, one, bit, (2, 1, 1), f"runs that part in one bit; {BITS}")
    _part(student, one.tolist(), bit.tolist(), (2, 1, 1), f"runs that part in one bit; {BITS}")
    tables = 40
    for _ in range(tables):
        other = one.copy()
        places = rng.integers(0, one.shape, (3, 3))
        for place in places:
            other[tuple(place)] += np.uint64(1 + place.sum())
        where = tuple(int(i) for i in np.argwhere(other != one)[0])
        _part(student, one, other, where, "runs that differ in several places")
        _part(student, other.tolist(), one.tolist(), where, "runs that differ in several places")
    right = [step["prints"] for step in steps_of(None)]
    for bug in PARTING:
        planted_one = [step["prints"] for step in steps_of(bug)]
        differ = np.argwhere(np.array(right, np.uint64) != np.array(planted_one, np.uint64))
        where = tuple(int(i) for i in differ[0])
        _part(student, right, planted_one, where, f"a right run, and {bug!r}")
    return f"{2 * tables} tables and {len(PARTING)} runs with a planted bug: the first difference of each"


def _part(student: Student, run: Any, other: Any, where: Any, what: str) -> None:
    got = student.first_difference(run, other)
    why = "a tuple, and no list" if isinstance(got, list) else "steps come first, then buckets, then ranks"
    expect(
        got == where and (got is None or isinstance(got, tuple)),
        f"first_difference: {what}: expected {where}, got {got!r}: {why}",
    )


# -------------------------------------------------------------------------------------------------- 13.2


def check_name_the_bug(student: Student) -> str:
    """Whether right runs are right, and at least eight of ten planted bugs are named."""
    for world_size, seed in RIGHT:
        steps = [_shown(step) for step in steps_of(None, world_size, seed)]
        got = student.name_the_bug(steps)
        told = f"name_the_bug: a right run of {world_size} ranks: expected 'right', got {got!r}"
        expect(got in WHY or got == "right", f"{told}, which is no kind: {', '.join(map(repr, WHY))} or 'right'")
        off = max(_off(step) for step in steps)
        rounding = off and got in ("weights", "old gradients")
        why = f": its gradients are up to {off:.0e} off Σ n·g / Σ n, which is rounding" if rounding else ""
        expect(got == "right", f"{told}{why}; a tool that blames right programs is not believed again")
    missed, kinds = [], set()
    for bug, kind in BUGS.items():
        got = student.name_the_bug([_shown(step) for step in steps_of(bug)])
        if got == kind:
            kinds.add(kind)
        else:
            missed.append(f"{bug!r} is {kind!r}, got {got!r}: {WHY[kind]}")
    named = len(BUGS) - len(missed)
    if named < NEEDED:
        listed = "; ".join(missed[:3])
        raise WrongError(f"name_the_bug: expected {NEEDED} of {len(BUGS)} planted bugs named, got {named}. {listed}")
    for kind in WHY:
        expect(kind in kinds, f"name_the_bug: expected a bug of each kind named, got none of {kind!r}: {WHY[kind]}")
    return f"named {named} of {len(BUGS)} planted bugs, and blamed none of {len(RIGHT)} right runs"


def _shown(step: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in step.items() if name != "prints"}


def _off(step: dict[str, Any]) -> float:
    weights = step["samples"] / step["samples"].sum()
    return float(np.abs(weights @ step["own"] - step["combined"][0]).max())
