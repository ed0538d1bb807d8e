"""Other parts of the batch, and other ranks, for recorded steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from minigrad.arguments import as_integer, check_shares
from minigrad.distributed.balance.cost import CostModel, Reading, fit_cost
from minigrad.distributed.balance.shares import compute_shard_sizes
from minigrad.distributed.inspect.programs import OwnStep, Programs
from minigrad.errors import ArgumentError

_WHO = "replay"
_COMPUTING = ("forward", "backward")


def sources_of(programs: Programs, world_size: int | None) -> list[int]:
    """Which recorded rank each one follows."""
    ranks = sorted(programs.steps)
    if world_size is None:
        return ranks
    count = as_integer(_WHO, "world_size", world_size, 1)
    if any(list(about["ranks"]) != ranks for about in programs.about.values()):
        raise ArgumentError(f"{_WHO}: expected world_size where each wrapper has all ranks, got some of a group")
    return [ranks[rank % len(ranks)] for rank in range(count)]


def with_shares(steps: Mapping[int, tuple[OwnStep, ...]], shares: Sequence[float]) -> dict[int, tuple[OwnStep, ...]]:
    """What ranks do with other parts of the batch."""
    check_shares(_WHO, shares)
    if len(shares) != len(steps):
        raise ArgumentError(f"{_WHO}: expected a share for each of {len(steps)} ranks, got {len(shares)}")
    models = {rank: _cost_of(rank, own) for rank, own in steps.items()}
    made: dict[int, list[OwnStep]] = {rank: [] for rank in steps}
    for at in range(len(next(iter(steps.values())))):
        here = {rank: own[at] for rank, own in steps.items()}
        samples = {rank: samples_of(step) for rank, step in here.items()}
        whole = sum(samples.values())
        sizes: Sequence[float] = [share * whole for share in shares]
        if whole == int(whole):
            sizes = compute_shard_sizes(int(whole), shares)
        for (rank, step), size in zip(here.items(), sizes):
            before_s = models[rank].time_s(samples[rank])
            factor = models[rank].time_s(size) / before_s if before_s else 1.0
            made[rank].append(_scaled(step, factor, size / samples[rank] if samples[rank] else 1.0))
    return {rank: tuple(own) for rank, own in made.items()}


def samples_of(step: OwnStep) -> float:
    """What a rank computed on in a step."""
    return sum(each.samples for each in step.passes)


def computing_s(step: OwnStep) -> float:
    """Seconds of its forward and backward."""
    works = [work for each in step.passes for work in each.before] + list(step.after)
    leaves_s = sum(seconds for each in step.passes for _, seconds in each.leaves)
    return leaves_s + sum(work.seconds for work in works if work.kind in _COMPUTING)


def working_s(step: OwnStep) -> float:
    """Seconds of all that it did before its passes, in their leaves and after them; handing buckets in aside."""
    works = [work for each in step.passes for work in each.before] + list(step.after)
    return sum(work.seconds for work in works) + sum(seconds for each in step.passes for _, seconds in each.leaves)


def _cost_of(rank: int, steps: Sequence[OwnStep]) -> CostModel:
    pairs = [(samples_of(step), computing_s(step)) for step in steps]
    readings = [Reading(samples, seconds) for samples, seconds in pairs if samples and seconds]
    if not readings:
        raise ArgumentError(f"{_WHO}: expected shares of ranks that all computed, got rank {rank}, which did not")
    return fit_cost(readings)


def _scaled(step: OwnStep, factor: float, grown: float) -> OwnStep:
    """A step whose forward and backward take so many times as long, on so many times the samples."""

    def works(some: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(w._replace(seconds=w.seconds * factor) if w.kind in _COMPUTING else w for w in some)

    passes = []
    for each in step.passes:
        leaves = tuple((name, seconds * factor) for name, seconds in each.leaves)
        passes.append(replace(each, before=works(each.before), leaves=leaves, samples=each.samples * grown))
    return replace(step, passes=tuple(passes), after=works(step.after))
