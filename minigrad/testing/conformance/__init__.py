"""The faults of data parallelism as checks to which any wrapper can be put.

Write an `Adapter` of a few functions around your wrapper; `own.py` is one. Each check is a function of it that raises
AssertionError where the wrapper has the fault that its docstring tells:

    @pytest.mark.parametrize("check", conformance.CHECKS)
    def test_conformance(check):
        check(MyAdapter())
"""

from minigrad.testing.conformance import buckets, failures, means, parameters, replicas
from minigrad.testing.conformance.adapter import Adapter, Check, Replica, Setup
from minigrad.testing.conformance.own import MinigradAdapter

CHECKS: tuple[Check, ...] = tuple(
    value
    for module in (means, parameters, buckets, replicas, failures)
    for name, value in vars(module).items()
    if name.startswith("check_")
)

__all__ = [
    "Adapter",
    "CHECKS",
    "Check",
    "MinigradAdapter",
    "Replica",
    "Setup",
    "buckets",
    "failures",
    "means",
    "parameters",
    "replicas",
]
