"""Every differentiable operation against central differences, on read-only memory."""

import pytest

from minigrad import ops
from minigrad.testing import gradcheck
from tests.cases import CASES


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=lambda case: case.id)
def test_gradient(case):
    gradcheck(case.ours, case.draw())


def test_every_operation_has_a_case():
    assert set(ops.__all__) - {case.op for case in CASES} == set()
