"""Every operation on the stand-in for CuPy: NumPy's results, and no wait for the GPU from forward to backward.

Here a case fails that would fail on a GPU; see tests/strict_cupy for what that is.
"""

import contextlib

import numpy as np
import pytest

import minigrad
from minigrad import Device
from minigrad.testing import assert_close
from tests.cases import CASES
from tests.cases.evaluate import evaluate

# A size that only the data knows has to be read back from the device: of an operation, or of one case of it.
WAITS: dict[str, str] = {
    "nonzero": "as many rows as there are",
    "argwhere": "as many rows as there are",
    "masked_select": "as many elements as the mask holds",
    "unique": "as many as differ",
    "bincount": "as many as the greatest says",
    "allclose": "a Python bool",
    "equal": "a Python bool",
    "where-alone": "as many as there are",
    **{f"repeat_interleave-{case}": "as many as the tensor says" for case in ("tensor", "tensor_flat", "tensor_one")},
    "getitem-mask": "as many elements as the mask holds",
    "getitem-mask_rows": "as many rows as the mask holds",
    "getitem-mask_columns": "as many columns as the mask holds",
    "getitem-mask_empty": "as many rows as the mask holds",
    "setitem-mask": "as many values as the mask holds",
    "one_hot-guess": "as many classes as the greatest label says",
}


@pytest.fixture
def frozen(strict_cupy, cuda):
    """Takes an array to the stand-in's device, on memory that must not change."""

    def place(array):
        data = strict_cupy.asarray(array)
        data.memory.flags.writeable = False
        return data

    return place


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_operation(case, strict_cupy, frozen):
    expected, expected_grads = evaluate(case, np.asarray)
    with contextlib.nullcontext() if {case.id, case.op} & WAITS.keys() else strict_cupy.no_sync():
        got, grads = evaluate(case, frozen)
    assert isinstance(got, strict_cupy.ndarray)
    assert_close(got, expected, what="output")
    for i, (grad, expected_grad) in enumerate(zip(grads, expected_grads)):
        assert (grad is None) == (expected_grad is None), f"gradient {i}"
        if grad is not None:
            assert isinstance(grad, strict_cupy.ndarray)
            assert_close(grad, expected_grad, what=f"gradient {i}")


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=lambda case: case.id)
def test_narrow_floats_stay_narrow(case, frozen):
    """No float64 slips in: on a GPU it is 2 to 64 times slower, and promotes all that follows."""
    for dtype in ("float32", "bfloat16"):
        output, grads = evaluate(case, frozen, dtype)
        assert {array.dtype.name for array in (output, *grads) if array is not None} == {dtype}


def test_exceptions_are_cases():
    assert set(WAITS) - {name for case in CASES for name in (case.id, case.op)} == set()


def test_numbers_follow_their_partner(strict_cupy):
    """Kept constants are of one device."""
    for place in ("cuda:0", "cuda:1"):
        with Device(place).current():
            x = minigrad.ones(3, device=place).requires_grad_()
            ((2.5 - x) * 0.0 + 2.5 * x).backward(minigrad.ones(3, device=place))
        assert str(x.grad.device) == place and x.grad.tolist() == [2.5] * 3
