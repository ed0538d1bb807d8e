"""Compares what a step of all ranks has left with what one process makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array, float64, is_float
from minigrad.distributed.inspect.twin.alone import (
    Begin,
    Gradients,
    LossFn,
    RankBatches,
    ShardResult,
    finished,
    run_part,
    stepped,
    values_of,
)
from minigrad.distributed.inspect.twin.compare import Difference, Expected, Floats, TwinReport, difference, ulps_off
from minigrad.distributed.inspect.twin.faults import Terms, explain, narrow, other_weights, usual_faults
from minigrad.nn.module import Module
from minigrad.optim.optimizer import Optimizer

Made = Iterator[tuple[str, Callable[[], Mapping[str, "Floats | None"]]]]

_FACTOR = "times {}: clipped (see before_step), not unscaled (see scaler), or divided by another number"
_CHANGE = "parameters change by {} times what they should: another learning rate, or gradients that were changed since"


@dataclass(frozen=True)
class Task:
    """How a step is made.

    Attributes:
        loss_fn: loss_fn(module, batch).
        optimizer, names: What steps, and the names of its parameters in its order; None where nothing does.
        mean: Whether gradients are weighted by samples; else they are added up.
        before_step: What is done to the gradients of a module between backward and step.
        ulps: See `Expected.allowed_ulps`.
    """

    loss_fn: LossFn
    optimizer: Optimizer | None
    names: tuple[str, ...]
    mean: bool
    before_step: Callable[[Module], Any] | None
    ulps: float


@dataclass(frozen=True)
class Left:
    """What a step has left on rank 0.

    Attributes:
        gradients, values: Of each parameter.
        before: The gradients that the step before had left; None where they are not known.
        hooked: The parameters that have hooks.
    """

    gradients: Gradients
    values: Mapping[str, Floats]
    before: Gradients | None
    hooked: tuple[str, ...] = ()


def judge(
    task: Task, begin: Begin, left: Left, told: Sequence[Any], arrays: Sequence[Sequence[Array]], step: int
) -> TwinReport:
    """What differs in a step.

    Args:
        task: How it is made.
        begin: The state in which it began.
        left: What it has left.
        told: What each rank told of it; see `RankWatch.told`.
        arrays: Those of each rank.
        step: Its number.
    """
    parts = [RankBatches.of(each["batches"], own, each["buffers"]) for each, own in zip(told, arrays)]
    apart = tuple(rank for rank, each in enumerate(told) if each["prints"] != told[0]["prints"])
    earlier = tuple(zip(*(each["earlier"] for each in told)))
    return replace(Judge(task, begin, parts, left, earlier).report(step), apart=apart)


class Judge:
    """Computes a step alone, and compares.

    Args:
        task: How it is made.
        begin: The state in which it began.
        parts: What each rank had.
        left: What it has left.
        earlier: See `Terms`.
    """

    def __init__(
        self, task: Task, begin: Begin, parts: Sequence[RankBatches], left: Left, earlier: Sequence[tuple[float, ...]]
    ) -> None:
        self._task, self._begin, self._parts, self._left, self._earlier = task, begin, parts, left, tuple(earlier)
        self._dtypes = {name: param.dtype for name, param in begin.module.named_parameters()}
        self._notes: list[str] = []
        self._differences: list[Difference] = []
        self._faults: list[str] = []  # for each kind of tensor of which some differ
        self._compared, self._largest = 0, 0.0
        self._right: Gradients = {}
        shards = [run_part(begin, part, task.loss_fn, exact=False) for part in parts]
        self._shards, self._exact_shards = shards, self._exactly()
        self._terms = self._terms_of(shards)
        self._exact_terms = None if self._exact_shards is None else self._terms_of(self._exact_shards)

    def report(self, step: int) -> TwinReport:
        """What differs."""
        self._compare_gradients()
        if self._task.optimizer is not None:
            self._compare_values()
        self._compare_buffers()
        found = tuple(self._differences)
        fault = self._faults[0] if self._faults else ""
        return TwinReport(step, found, self._compared, self._largest, fault, notes=tuple(self._notes))

    # ---------------------------------------------------------------------------------------------------- gradients

    def _exactly(self) -> list[ShardResult] | None:
        """All parts in float64; None where that is what they are in, or can't be computed."""
        floats = [x.dtype for x in (*self._begin.module.parameters(), *self._begin.module.buffers())]
        if all(dtype == float64 for dtype in floats if is_float(dtype)):
            return None
        try:
            return [run_part(self._begin, part, self._task.loss_fn, exact=True) for part in self._parts]
        except Exception as error:
            self._notes.append(f"float64 was left out: {type(error).__name__}: {error}")
            return None

    def _terms_of(self, shards: Sequence[ShardResult]) -> Terms:
        samples = tuple(tuple(micro.samples for micro in part.micros) for part in self._parts)
        gradients = [shard.gradients for shard in shards]
        return Terms(samples, gradients, self._task.mean, self._left.before, self._earlier)

    def _finished(self, gradients: Gradients, exact: bool = False) -> Gradients:
        """Gradients as the optimizer gets them, in the dtypes of the parameters unless exact."""
        if not exact:
            gradients = {name: _rounded(values, self._dtypes[name]) for name, values in gradients.items()}
        if self._task.before_step is None:
            return gradients
        return finished(self._begin, gradients, self._task.before_step, exact)

    def _expected_gradients(self) -> dict[str, Expected]:
        twin = self._finished(self._terms.total(self._terms.right))
        exact: Gradients = {}
        if self._exact_terms is not None:
            exact = self._finished(self._exact_terms.total(self._exact_terms.right), exact=True)
        found = {}
        for name, values in twin.items():
            if values is not None:
                found[name] = Expected(values, exact.get(name), self._terms.largest(name), self._dtypes[name])
        return found

    def _compare_gradients(self) -> None:
        if not sum(part.samples for part in self._parts):
            self._notes.append("no rank had samples: gradients were not compared")
            return
        expected, got = self._expected_gradients(), self._left.gradients
        self._right = {name: each.twin for name, each in expected.items()}
        if expected and all(values is None for values in got.values()):
            self._notes.append("gradients were dropped before Twin.step: they were not compared")
            return
        for name, values in got.items():
            if values is not None and name not in expected:
                expected[name] = Expected(np.zeros_like(values), None, 0.0, self._dtypes[name])
        present = {name: _or_zeros(got[name], each) for name, each in expected.items()}
        wrong = self._compare("gradient", present, expected)
        hooked = [name for name in wrong if name in self._left.hooked]
        if hooked:
            self._notes.append(f"hooks on the gradient of {', '.join(hooked)} were not run by the twin")
        if wrong and got[wrong[0]] is None:
            self._say("there is no gradient")
        elif wrong:
            faults = self._faulty(self._finished)
            words = explain(present, expected, wrong, faults, self._task.ulps, _FACTOR)
            words = words or narrow(present, expected, wrong)
            if not words and self._task.before_step is None:
                words = other_weights(self._terms, present, expected, wrong, self._task.ulps)
            self._say(words)

    def _faulty(self, then: Callable[[Gradients], Mapping[str, Floats | None]]) -> Made:
        """What each usual fault makes of the gradients, and something then of these."""
        for fault in usual_faults(self._terms):
            yield fault.words, partial(self._make, fault.factors, fault.before, then)

    def _make(self, factors: Any, before: float, then: Callable[..., Any]) -> Any:
        return then(self._terms.total(factors, before))

    # --------------------------------------------------------------------------------------------------- parameters

    def _compare_values(self) -> None:
        """The step with the gradients that there are: where those are wrong, the step itself may be right."""
        got, begun = self._left.gradients, values_of(self._begin.module)
        if self._begin.optimizer is not None and self._begin.optimizer.shared:
            names = ", ".join(self._begin.optimizer.shared)
            self._notes.append(f"{names} of the optimizer can't be copied: the twin's steps used the same one")
        known = any(values is not None for values in got.values())
        gradients = got if known else self._right
        if self._begin.scale != 1.0 and not _all_finite(gradients):  # the scaler leaves the step out
            twin, exact = begun, begun
        else:
            twin, exact = self._step(gradients), {}
            try:
                exact = self._step(gradients, exact=True)
            except Exception as error:
                self._notes.append(f"the step in float64 was left out: {type(error).__name__}: {error}")
        expected = {}
        for name, values in twin.items():
            largest = max(_size(values), _size(begun[name]))
            expected[name] = Expected(values, exact.get(name), largest, self._dtypes[name])
        wrong = self._compare("parameter", self._left.values, expected)
        if wrong:
            made = self._other_steps(gradients) if known else self._with_other_gradients(gradients)
            changes = {name: each.less(begun[name]) for name, each in expected.items()}
            moved = {name: values - begun[name] for name, values in self._left.values.items()}
            faults = ((words, partial(self._change, make, begun)) for words, make in made)
            self._say(explain(moved, changes, wrong, faults, self._task.ulps, _CHANGE))

    def _step(self, gradients: Gradients, exact: bool = False, steps: int = 1) -> dict[str, Floats]:
        return stepped(self._begin, self._task.names, gradients, exact, steps)

    def _change(self, make: Callable[[], Mapping[str, Floats | None]], begun: Mapping[str, Floats]) -> Gradients:
        return {name: None if values is None else values - begun[name] for name, values in make().items()}

    def _other_steps(self, gradients: Gradients) -> Made:
        yield "no step was made", partial(values_of, self._begin.module)
        yield "the step was made twice", partial(self._step, gradients, steps=2)
        if self._left.before is not None:
            yield "the step was made with the gradients of the step before", partial(self._step, self._left.before)

    def _with_other_gradients(self, gradients: Gradients) -> Made:
        yield from self._faulty(lambda made: self._step(self._finished(made)))
        yield from self._other_steps(gradients)

    # ------------------------------------------------------------------------------------------------------ buffers

    def _compare_buffers(self) -> None:
        """A rank keeps its own, or has those of one rank, or their mean; whichever fits all ranks best."""
        names = list(self._parts[0].after)
        if not names:
            return
        best: list[Difference] | None = None
        for way in self._ways(names):
            found = [
                each
                for name in names
                for rank, part in enumerate(self._parts)
                if (each := self._buffer_difference(name, rank, part, way[rank][name])) is not None
            ]
            if best is None or len(found) < len(best):
                best = found
        self._compared += len(names)
        if best:
            self._differences += best
            first = best[0]
            part = self._parts[first.rank]
            old = np.array_equal(part.after[first.name], part.buffers[first.name])
            self._say("a stale buffer: it is as before the step" if old else "")

    def _buffer_difference(self, name: str, rank: int, part: RankBatches, expected: Expected) -> Difference | None:
        return difference("buffer", name, rank, part.after[name].astype(np.float64), expected, self._task.ulps)

    def _ways(self, names: Sequence[str]) -> Iterator[list[dict[str, Expected]]]:
        """For each way to synchronise buffers what every rank then has."""
        own = [{name: self._own_buffer(rank, name) for name in names} for rank in range(len(self._parts))]
        active = [rank for rank, part in enumerate(self._parts) if part.samples] or [0]
        for root in (*active, *(rank for rank in range(len(own)) if rank not in active)):
            yield [own[root]] * len(own)
        mean = {}
        for name in names:
            each = [one[name] for one in own]
            floats = is_float(each[0].dtype)
            values = np.mean([one.twin for one in each], axis=0) if floats else each[active[0]].twin
            known = [one.exact for one in each if one.exact is not None]
            exact = np.mean(known, axis=0) if floats and len(known) == len(each) else None
            mean[name] = replace(each[0], twin=values, exact=exact, largest=max(one.largest for one in each))
        yield [mean] * len(own)
        yield own

    def _own_buffer(self, rank: int, name: str) -> Expected:
        values, dtype = self._shards[rank].buffers[name], self._parts[rank].after[name].dtype
        exact = None if self._exact_shards is None else self._exact_shards[rank].buffers[name]
        dtype = dtype if is_float(dtype) else float64
        return Expected(values, exact, max(_size(values), _size(self._parts[rank].buffers[name])), dtype)

    # ------------------------------------------------------------------------------------------------------- shared

    def _compare(self, kind: str, got: Mapping[str, Floats], expected: Mapping[str, Expected]) -> list[str]:
        """Compare tensors of rank 0, and return the names of those that differ."""
        found = []
        for name, each in expected.items():
            one = difference(kind, name, 0, got[name], each, self._task.ulps)
            self._compared += 1
            if one is not None:
                found.append(one)
            elif got[name].size:
                self._largest = max(self._largest, float(ulps_off(got[name], each).max()))
        self._differences += found
        return [one.name for one in found]

    def _say(self, words: str) -> None:
        """What explains the differences that were found last; what is told is of the first ones."""
        self._faults.append(words)


def _rounded(values: Floats | None, dtype: np.dtype[Any]) -> Floats | None:
    if values is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        rounded: Floats = values.astype(dtype).astype(np.float64)
        return rounded


def _or_zeros(values: Floats | None, like: Expected) -> Floats:
    return np.zeros_like(like.twin) if values is None else values


def _all_finite(gradients: Gradients) -> bool:
    return all(values is None or bool(np.isfinite(values).all()) for values in gradients.values())


def _size(values: Any) -> float:
    found = np.abs(np.asarray(values, np.float64))
    return float(np.max(found, initial=0.0, where=np.isfinite(found)))
