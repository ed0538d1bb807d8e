"""Grades for data-parallel wrappers, the same on every machine: are they right, and what do their steps cost.

`adapter` puts a wrapper to the conformance checks; `workload` is what it trains, `steps` does that on a rank, and
`ranks` on processes, on a virtual cluster and on threads that take turns. `graded` is the communicator that it gets;
from what that notes, `notes` computes times and `figures` what is told, beside what would be best, of `optimum`.
`unchanged` looks at minigrad itself; `grade` does all of it, and `table` has what comes out.
"""

from minigrad.testing.grading.adapter import WrapperAdapter
from minigrad.testing.grading.basic import BASIC
from minigrad.testing.grading.grade import grade
from minigrad.testing.grading.table import Figure, Grade, Limits
from minigrad.testing.grading.optimum import Best, best_step
from minigrad.testing.grading.workload import Workload

__all__ = ["BASIC", "Best", "Figure", "Grade", "Limits", "Workload", "WrapperAdapter", "best_step", "grade"]
