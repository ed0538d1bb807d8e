"""Every layer, made by the same text, gives what PyTorch's gave: output, gradients of inputs and of parameters."""

import pytest

from tests.cases.layer_families import LAYER_FAMILIES
from tests.parity import store
from tests.parity.compare import compare, run_ours
from tests.parity.test_recorded import recorded

RECORDED = [(family, case) for family, cases in LAYER_FAMILIES.items() for case in cases]


@pytest.mark.parametrize("family, case", RECORDED, ids=[case.id for _, case in RECORDED])
def test_recorded(family, case):
    values, inputs = recorded(family, case)
    compare(run_ours(case, inputs, values.get("cotangent")), values, 1e-10)


def test_no_case_is_recorded_that_is_gone():
    for family, cases in LAYER_FAMILIES.items():
        ids = [case.id for case in cases]
        assert set(store.load(family)[0]) == set(ids) and len(set(ids)) == len(ids)
