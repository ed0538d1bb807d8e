"""A grade: is a data-parallel wrapper right, and what do its steps cost, beside the best that they could."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context

from minigrad.arguments import as_real
from minigrad.distributed.simulate.cluster import Cluster, check_cluster
from minigrad.errors import ArgumentError
from minigrad.testing.conformance.adapter import Check
from minigrad.testing.conformance.outcome import NotOfferedError, Outcome
from minigrad.testing.conformance.report import report
from minigrad.testing.grading.adapter import MakeWrapper, WrapperAdapter
from minigrad.testing.grading.basic import BASIC
from minigrad.testing.grading.figures import GradingError, Measured, figures_of
from minigrad.testing.grading.table import Figure, Grade, Limits
from minigrad.testing.grading.ranks import on_processes, on_virtual, peak_bytes, told_of
from minigrad.testing.grading.steps import GradedRank, GradedSteps
from minigrad.testing.grading.unchanged import changed_functions
from minigrad.testing.grading.workload import Truth, Workload, check_workload, part_of

MOST_PROCESSES = 4
FINE, FINE_BYTES = 0.25, 65536.0  # copies of the gradients, or of all ranks: less is the interpreter's own matter


def grade(
    wrapper: MakeWrapper,
    cluster: Cluster,
    limits: Limits | None = None,
    *,
    workload: Workload | None = None,
    checks: Sequence[Check] = BASIC,
    timeout_s: float = 30.0,
) -> Grade:
    """Grade a data-parallel wrapper: whether it is right, then what its steps cost on a virtual cluster.

    Right is what passes the conformance checks, whose gradients after a step are those of one device on the joined
    batch, and which gives the same bits on processes over shared memory, whose ranks share nothing. What it costs is
    the same on every machine: time is virtual, and computed from the order of calls and of gradients alone. A gradient
    counts where it comes from what the communicator gave back; in the last steps errors are planted in that.

    Args:
        wrapper: `wrapper(module, comm)` gives an object that is called as the module is; see `WrapperAdapter`.
        cluster: Of at least 2 ranks.
        limits: What it has to keep; by default it has to be right.
        workload: What it trains.
        checks: Conformance checks that are asked. What the wrapper does not offer is told, and is no fault.
        timeout_s: Real seconds for the whole, > 0; what has not ended by then has failed.

    Raises:
        ArgumentError: an argument is none of these; what the wrapper raises is in the grade.

    Example:
        >>> from minigrad.distributed import DDP
        >>> from minigrad.distributed.simulate import Cluster, Link
        >>> from minigrad.testing import Limits, grade
        >>> cluster = Cluster.of_speeds([1, 1], link=Link(1e-4, 1e9))
        >>> grade(DDP, cluster, Limits(step_ratio=1.2), checks=()).passed
        True
    """
    check_cluster("grade", cluster)
    if cluster.world_size < 2:
        raise ArgumentError("grade: expected a cluster of at least 2 ranks, got 1")
    if not callable(wrapper):
        raise ArgumentError(f"grade: expected a function that wraps a module, got {wrapper!r:.100}")
    if limits is not None and not isinstance(limits, Limits):
        raise ArgumentError(f"grade: expected Limits, got {limits!r:.100}")
    until = time.monotonic() + as_real("grade", "timeout_s", timeout_s, above=0.0, finite=True)
    grading = _Grading(wrapper, cluster, limits or Limits(), check_workload(workload), until)
    if isinstance(checks, str) or not isinstance(checks, Iterable):
        raise ArgumentError(f"grade: expected checks as a sequence of functions, got {checks!r:.100}")
    asked = list(checks)
    if bad := [check for check in asked if not callable(check) or not hasattr(check, "__name__")]:
        raise ArgumentError(f"grade: expected checks as functions, got {bad[0]!r:.100}")
    return copy_context().run(grading.grade, tuple(asked))


class _Grading:
    """One grading, step by step."""

    def __init__(
        self, wrapper: MakeWrapper, cluster: Cluster, limits: Limits, workload: Workload, until: float
    ) -> None:
        self.wrapper, self.cluster, self.limits, self.workload = wrapper, cluster, limits, workload
        self.until = until
        self.truth: Truth  # of the steps that were measured
        self.figures: dict[str, Figure] = {}
        self.passes: list[str] = []
        self.not_offered: list[str] = []

    def grade(self, checks: tuple[Check, ...]) -> Grade:
        """Do it all, as far as it goes."""
        failed: list[str] = []
        try:
            self._unchanged()
            self._conforms(checks)
            measured = self._right()
            self.figures |= figures_of(measured, self.workload, self.cluster, self.limits)
            if self.limits.peak_ratio is not None:
                self._hold(measured)
            self._unchanged()
        except GradingError as error:
            failed.append(str(error))
        failed += [figure.over(name) for name, figure in self.figures.items() if figure.over(name)]
        return Grade(self.figures, tuple(failed), tuple(self.passes), tuple(self.not_offered))

    def _left_s(self) -> float:
        left_s = self.until - time.monotonic()
        if left_s <= 0.0:
            raise GradingError("out of time: what was asked took longer than timeout_s")
        return left_s

    def _unchanged(self) -> None:
        if changed := changed_functions():
            some = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            raise GradingError(f"minigrad was changed in this process: {some} is not what its file says")

    def _conforms(self, checks: tuple[Check, ...]) -> None:
        """Put the wrapper to the checks, one after the other."""
        for check in checks:
            adapter = WrapperAdapter(self.wrapper, timeout_s=min(10.0, self._left_s()))
            row = report(adapter, [check]).rows[0]
            if row.verdict == "passes":
                self.passes.append(row.name)
            elif row.verdict == "does not have it":
                self.not_offered.append(f"{row.name}: {row.message}")
            else:
                told = row.message.splitlines()[0]
                cause = "" if " raised " in told else f" (asked is: {row.cause})"
                raise GradingError(f"{row.name}, {row.verdict}: {told}{cause}")

    def _right(self) -> Measured:
        """The steps on processes, and on the virtual cluster; what was measured there."""
        small = part_of(self.cluster, MOST_PROCESSES)
        truth = Truth(self.workload, small.world_size)
        steps = GradedSteps(truth, self.wrapper, small)
        apart = self._ranks("processes over shared memory", lambda s: on_processes(steps, s))
        together = self._virtual(truth, small)
        for rank, (one, other) in enumerate(zip(apart, together.ranks)):
            if one.digests[: len(other.digests)] != other.digests:
                raise GradingError(
                    f"rank {rank}: expected the same bits on threads and on processes over shared memory, got others: "
                    "something goes from rank to rank outside the communicator, or differs by kind of rank"
                )
        if small is self.cluster:
            return together
        return self._virtual(Truth(self.workload, self.cluster.world_size), self.cluster)

    def _virtual(self, truth: Truth, cluster: Cluster) -> Measured:
        steps, carried = GradedSteps(truth, self.wrapper, cluster, planted=True), list[int]()

        def start(timeout_s: float) -> list[Outcome]:
            found, nbytes = on_virtual(steps, timeout_s)
            carried.append(nbytes)
            return found

        self.truth = truth
        return Measured.of(self._ranks("the virtual cluster", start), cluster, carried[0], truth.counts)

    def _ranks(self, where: str, start: Callable[[float], list[Outcome]]) -> list[GradedRank]:
        """What ranks did in the steps, where all came to the end and nothing was wrong."""
        try:
            found = start(self._left_s())
        except NotOfferedError as error:
            raise GradingError(f"on {where}: {error}") from error
        if problem := told_of(found):
            raise GradingError(f"on {where}: {problem}")
        seen: list[GradedRank] = [one.value for one in found]
        for rank, one in enumerate(seen):
            if one.faults:
                raise GradingError(f"on {where}, rank {rank}: {one.faults[0]}")
        return seen

    def _hold(self, measured: Measured) -> None:
        """The most memory, beside that of the bare model, whose first run is to warm up."""
        truth, world_size = self.truth, self.cluster.world_size
        held = list[int]()
        for wrapper in (None, None, self.wrapper):

            def start(timeout_s: float, wrapper: MakeWrapper | None = wrapper) -> list[Outcome]:
                nbytes, found = peak_bytes(truth, wrapper, self.cluster, timeout_s)
                held.append(nbytes)
                return found

            seen = self._ranks("threads in turn", start)
        for rank, (one, other) in enumerate(zip(seen, measured.ranks)):
            if one.digests[: len(other.digests)] != other.digests or one.notes.handed_in() != other.notes.handed_in():
                raise GradingError(
                    f"rank {rank}: expected the same gradients and calls where memory is measured, got others: what is "
                    "measured has to be what is graded"
                )
        fine = max(FINE * truth.gradient_bytes, FINE_BYTES / world_size)
        peak = round((held[2] - held[1]) / world_size / fine) * fine
        self.figures["peak_bytes"] = Figure(peak, float(truth.gradient_bytes), self.limits.peak_ratio)
