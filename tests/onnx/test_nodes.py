"""ONNX's node tests agree, none fails, and the table is what a run gives: python -m pytest -m onnx tests/onnx."""

import pytest

from tests.onnx.reasons import REASONS
from tests.onnx.run import FUNCTIONS, node_tests, outcome_of
from tests.onnx.table import TABLE, written


@pytest.fixture(scope="module")
def cases():
    return node_tests()


@pytest.mark.onnx
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_node_agrees_or_is_not_expressed(cases):
    outcomes = [outcome_of(case) for case in cases]
    assert [outcome for outcome in outcomes if outcome.verdict == "fails"] == []
    assert written(outcomes) == TABLE.read_text(), "run python -m tests.onnx"


@pytest.mark.onnx
@pytest.mark.parametrize("change", ["value", "shape", "dtype"])
def test_another_answer_fails(cases, change):
    """Or the comparison would notice nothing."""
    [case] = [case for case in cases if case.name == "test_softmax_axis_1"]
    [(inputs, [right])] = case.data_sets
    wrong = {"value": right + 1e-3, "shape": right[None], "dtype": right.astype("float64")}[change]
    case.data_sets[0] = (inputs, [wrong])
    try:
        assert outcome_of(case).verdict == "fails"
    finally:
        case.data_sets[0] = (inputs, [right])


def test_a_type_of_node_has_a_function_or_a_reason():
    assert sorted(FUNCTIONS.keys() & REASONS.keys()) == []
