"""Every layer, made by the same text, gives what PyTorch's gave: output, gradients of inputs and of parameters."""

import pytest

from tests.cases.layers import LAYERS
from tests.parity import store
from tests.parity.compare import compare, run_ours
from tests.parity.test_recorded import recorded


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.id)
def test_recorded(case):
    values, inputs = recorded("layers", case)
    compare(run_ours(case, inputs, values.get("cotangent")), values, 1e-10)


def test_no_case_is_recorded_that_is_gone():
    ids = [case.id for case in LAYERS]
    assert set(store.load("layers")[0]) == set(ids) and len(set(ids)) == len(ids)
