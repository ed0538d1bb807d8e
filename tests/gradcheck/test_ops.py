"""Every differentiable operation against central differences, on read-only memory."""

import pytest

from minigrad import ops
from minigrad.testing import gradcheck
from tests.cases import CASES
from tests.parity.compare import as_tensor


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=lambda case: case.id)
def test_gradient(case):
    gradcheck(case.ours, case.draw())


def test_every_operation_has_a_case():
    assert set(ops.__all__) - {case.op for case in CASES} == set()


def test_every_operation_that_gives_a_gradient_is_checked():
    """A case may be left out of the check, at a kink for example, but not all cases of an operation."""
    checked = {case.op for case in CASES if case.differentiable}
    others = [case for case in CASES if case.op not in checked]
    assert [case.id for case in others if case.ours(*map(as_tensor, case.draw())).requires_grad] == []
