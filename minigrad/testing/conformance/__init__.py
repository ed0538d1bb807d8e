"""The faults of data parallelism as checks to which any wrapper can be put.

Write an `Adapter` of a few functions around your wrapper; `own.py` is one, and `Processes` runs any in processes. Each
check is a function of it that raises AssertionError where the wrapper has the fault that its docstring tells, one fault
a check. A hang or a crash is no refusal: an error counts where the same steps without the fault passed before it, in
the same run. What an adapter does not have raises NotImplementedError, and counts as skipped:

    @pytest.mark.parametrize("check", conformance.CHECKS)
    def test_conformance(check):
        check(MyAdapter())

    print(conformance.report(MyAdapter()))
"""

from minigrad.testing.conformance import buckets, failures, means, parameters, replicas, shards
from minigrad.testing.conformance.adapter import Adapter, Check, Extras, Replica, Setup
from minigrad.testing.conformance.checks import CHECKS
from minigrad.testing.conformance.outcome import NotOfferedError, Outcome, VerdictError
from minigrad.testing.conformance.own import MinigradAdapter
from minigrad.testing.conformance.processes import Processes
from minigrad.testing.conformance.report import Report, Row, report

__all__ = [
    "Adapter",
    "CHECKS",
    "Check",
    "Extras",
    "MinigradAdapter",
    "NotOfferedError",
    "Outcome",
    "Processes",
    "Replica",
    "Report",
    "Row",
    "Setup",
    "VerdictError",
    "buckets",
    "failures",
    "means",
    "parameters",
    "replicas",
    "report",
    "shards",
]
