"""Every operation gives what PyTorch gave: the output and the gradients, their shapes and dtypes."""

import numpy as np
import pytest

from minigrad import ops
from tests.cases import CASES, FAMILIES
from tests.parity import store
from tests.parity.compare import compare, float32_tolerance, is_float, run_ours

RECORDED = [(family, case) for family, cases in FAMILIES.items() for case in cases]


def recorded(family, case):
    """The recorded values of a case, and its arguments as they were then."""
    values = store.load(family)[0].get(case.id)
    if values is None:
        pytest.fail(f"{case.id} is not recorded: run python -m tests.parity.record {family}")
    return values, [values.get(f"input.{i}", value) for i, value in enumerate(case.draw())]


@pytest.mark.parametrize("family, case", RECORDED, ids=[case.id for _, case in RECORDED])
def test_float64(family, case):
    values, inputs = recorded(family, case)
    compare(run_ours(case, inputs, values.get("cotangent")), values, 1e-10)


@pytest.mark.parametrize("family, case", RECORDED, ids=[case.id for _, case in RECORDED])
def test_float32(family, case):
    """Against the float64 values, to 1e-4 and what rounding the inputs would change; and no result widens."""
    values, inputs = recorded(family, case)
    narrow = [value.astype(np.float32) if is_float(value) else value for value in inputs]
    dtype = np.dtype(store.load(family)[1][case.id])
    cotangent = values["cotangent"].astype(dtype) if "cotangent" in values else None
    found = run_ours(case, narrow, cotangent)
    assert found["output"].dtype == dtype
    assert [name for name in found if name != "output" and found[name].dtype != np.float32] == []
    wide = {name: array.astype(values[name].dtype) for name, array in found.items()}
    compare(wide, values, float32_tolerance(narrow))


@pytest.mark.parametrize("family, case", RECORDED, ids=[case.id for _, case in RECORDED])
def test_the_record_is_of_this_case(family, case):
    """A case whose arguments were changed has to be recorded again."""
    values, _ = recorded(family, case)
    arrays = {f"input.{i}": value for i, value in enumerate(case.draw()) if isinstance(value, np.ndarray)}
    assert {name: (array.shape, array.dtype) for name, array in arrays.items()} == {
        name: (array.shape, array.dtype) for name, array in values.items() if name.startswith("input.")
    }


def test_every_operation_is_recorded():
    covered = {case.op for family, case in RECORDED if case.id in store.load(family)[0]}
    assert set(ops.__all__) - covered == set()


def test_no_case_is_recorded_that_is_gone():
    extra = {family: set(store.load(family)[0]) - {case.id for case in cases} for family, cases in FAMILIES.items()}
    assert {family: ids for family, ids in extra.items() if ids} == {}


def test_each_case_has_an_id_of_its_own():
    ids = [case.id for case in CASES]
    assert sorted({case for case in ids if ids.count(case) > 1}) == []
