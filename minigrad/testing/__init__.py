"""What users need to test their own operations and training loops. No library code imports it."""

from minigrad.testing.balancer import check_balancer
from minigrad.testing.compare import assert_close
from minigrad.testing import endings as _endings  # adds its cases to the contract  # noqa: F401
from minigrad.testing import groups as _groups  # so do these  # noqa: F401
from minigrad.testing import messages as _messages  # and these  # noqa: F401
from minigrad.testing import rooted as _rooted  # and these  # noqa: F401
from minigrad.testing.contract import check_communicator
from minigrad.testing.gradcheck import gradcheck
from minigrad.testing.grading import Grade, Limits, Workload, WrapperAdapter, grade
from minigrad.testing.ring import RingAllReduce
from minigrad.testing.schedules import Failing, schedules
from minigrad.testing.tape import saved_bytes

__all__ = [
    "Failing",
    "Grade",
    "Limits",
    "RingAllReduce",
    "Workload",
    "WrapperAdapter",
    "assert_close",
    "check_balancer",
    "check_communicator",
    "gradcheck",
    "grade",
    "saved_bytes",
    "schedules",
]
