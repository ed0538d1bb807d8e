"""The steps that are graded, as one rank makes them: forward, backward and finish, seen and charged from outside."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from minigrad.autograd.before import watching_backwards
from minigrad.autograd.tape import Reached
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.run import be_rank
from minigrad.distributed.simulate.clock import VirtualClock
from minigrad.distributed.simulate.cluster import Cluster
from minigrad.nn.module import Module
from minigrad.nn.watch import watching_calls
from minigrad.tensor import Tensor
from minigrad.testing.grading.adapter import MakeWrapper, finish_step, wrapped
from minigrad.testing.grading.graded import GradedCommunicator
from minigrad.testing.grading.notes import BESIDE, BESIDE_EACH, RankNotes
from minigrad.testing.grading.turns import RankTurns
from minigrad.testing.grading.unchanged import changed_functions
from minigrad.testing.grading.workload import Truth, digest_of, gradients_of, loss_of, untouched, wrong_gradient


@dataclass(frozen=True)
class GradedRank:
    """What a rank did in the steps, the first of them apart.

    Attributes:
        notes: What it was noted to do.
        clock_s: What its clock said at the beginning of each step, and at the end.
        digests: Of the gradients after each step, until errors are planted.
        faults: What was wrong with a step, in words.
    """

    notes: RankNotes
    clock_s: list[float]
    digests: list[str]
    faults: list[str]


class _Heard:
    """Hears of backwards for notes, after the clock has; of the parameters of the model and no other leaves."""

    def __init__(
        self, clock: VirtualClock | None, notes: RankNotes, turn: Callable[[], None], module: Module
    ) -> None:
        self._clock, self._notes, self._turn = clock, notes, turn
        self._parameters = {id(p): p for p in module.parameters()}

    def begin(self, leaves: Reached) -> None:
        """See `BackwardListener`."""
        leaves = Reached((leaf for leaf in leaves if id(leaf) in self._parameters), leaves.numbers)
        if self._clock is not None:
            self._clock.begin(leaves)
        self._notes.begin(leaves)

    def leaf(self, leaf: Any) -> None:
        """See `BackwardListener`."""
        if id(leaf) not in self._parameters:
            return
        if self._clock is not None:
            self._clock.leaf(leaf)
        self._notes.leaf(leaf)
        self._turn()

    def end(self, error: BaseException | None) -> None:
        """See `BackwardListener`."""
        if self._clock is not None:
            self._clock.end(error)
        self._notes.end(error)


@dataclass
class GradedSteps:
    """One rank's way through the steps.

    Args:
        wrapper: Makes what is graded; None: the bare model.
        planted: Whether errors are planted in what comes back, from a step on.
        turns: See `GradedCommunicator`.
    """

    truth: Truth
    wrapper: MakeWrapper | None
    cluster: Cluster
    planted: bool = False
    turns: RankTurns | None = None

    def __call__(self, comm: Communicator, *_: Any) -> GradedRank:
        clock = comm.clock if isinstance(comm.clock, VirtualClock) else None
        module = self.truth.workload.build()
        notes = RankNotes(self.cluster, comm.rank, beside_gradients(module))
        graded = GradedCommunicator(comm, notes, self.turns)
        be_rank(graded)
        turn = (lambda: None) if self.turns is None else (lambda: self._pass_on(comm.rank))
        with watching_calls(None), watching_backwards(_Heard(clock, notes, turn, module)):
            return self._train(module, graded, notes, clock)

    def _pass_on(self, rank: int) -> None:
        assert self.turns is not None
        self.turns.pass_on(rank)

    def _train(
        self, module: Module, graded: GradedCommunicator, notes: RankNotes, clock: VirtualClock | None
    ) -> GradedRank:
        workload, seen, comm = self.truth.workload, GradedRank(notes, [], [], []), graded.inner
        ddp = module if self.wrapper is None else wrapped(self.wrapper, module, graded)
        for step in range(workload.steps + 1):
            if self._is_planted(step) and not self._is_planted(step - 1):
                graded.plant(self.truth.error_ratio(), self.truth.planted_seed)
            if step == 1 and self.turns is not None:
                self.turns.pass_on(comm.rank)
                if comm.rank == 0:
                    tracemalloc.reset_peak()
            notes.begin_step()
            seen.clock_s.append(comm.clock.now_s())
            for parameter in module.parameters():
                parameter.grad = None
            samples = self.truth.batch(step, comm.rank)
            charged = nullcontext() if clock is None else clock.call(len(samples))
            with notes.forward(len(samples)), charged:
                output = ddp(Tensor(samples))
            loss_of(output).backward()
            if self.wrapper is not None:
                finish_step(ddp)
            looks = comm.rank == 0 if self.planted else step == workload.steps  # it takes a while
            if looks and self.turns is None and (changed := changed_functions()):
                seen.faults.append(f"minigrad was changed in a step: {changed[0]} is not what its file says")
            self._judge(step, module, seen)
        notes.begin_step()
        seen.clock_s.append(comm.clock.now_s())
        return seen

    def _is_planted(self, step: int) -> bool:
        return self.planted and step >= self.truth.planted_from

    def _judge(self, step: int, module: Module, seen: GradedRank) -> None:
        """Look at the gradients after a step, and at how they came about."""
        notes = seen.notes
        if self.turns is not None:  # nothing is copied, for memory is measured
            grads = ((name, p.grad) for name, p in module.named_parameters())
            seen.digests.append(digest_of({name: None if grad is None else grad.data for name, grad in grads}))
            return
        found, right = gradients_of(module), self.truth.gradients[step]
        if notes.backwards != 1:
            seen.faults.append(f"expected one backward in a step, that of the caller, got {notes.backwards}")
        if notes.early > 0:
            seen.faults.append(f"{notes.early} elements were handed in before so many gradients were complete")
        if not self._is_planted(step):
            seen.digests.append(digest_of(found))
            wrong = wrong_gradient(found, right, self.truth.workload.tolerance)
            seen.faults.extend([f"after a step, {wrong}"] if wrong else [])
        elif untouched_by := untouched(found, right, self.truth.workload.tolerance):
            seen.faults.append(
                f"the gradient of {untouched_by!r} is right, but does not come from what the communicator gave back: "
                "it was exchanged outside the communicator, or as objects, or used before the wait() was over"
            )


def beside_gradients(module: Module) -> int:
    """Elements that may travel before gradients are there: counts, padding, and the buffers of the model."""
    buffers = sum(buffer.data.size for _, buffer in module.named_buffers())
    return BESIDE + BESIDE_EACH * sum(1 for _ in module.parameters()) + int(buffers)
