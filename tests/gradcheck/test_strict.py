"""Every operation on the stand-in for CuPy: NumPy's results, and no wait for the GPU from forward to backward.

Here a case fails that would fail on a GPU; see tests/strict_cupy for what that is.
"""

import contextlib

import numpy as np
import pytest

from minigrad import Device, Tensor
from minigrad.backend.dtypes import is_float
from minigrad.testing import assert_close
from tests.cases import CASES

# A size that only the data knows has to be read back from the device.
WAITS: dict[str, str] = {}


def on_device(array, cupy, requires_grad):
    """A tensor on the stand-in's cuda:0, on memory that must not change."""
    data = cupy.asarray(array)
    data.memory.flags.writeable = False
    return Tensor(data, requires_grad)


def evaluate(case, make):
    """The output of a case, and the gradients of its inputs under a fixed cotangent."""
    inputs = [make(x, x.dtype == np.float64 and case.differentiable) if isinstance(x, np.ndarray) else x
              for x in case.draw()]
    output = case.ours(*inputs)
    if output.requires_grad:
        cotangent = np.random.default_rng(1).standard_normal(output.shape).astype(output.dtype)
        output.backward(make(np.asarray(cotangent), False))
    return output.data, [x.grad_array if isinstance(x, Tensor) else None for x in inputs]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_operation(case, strict_cupy):
    expected, expected_grads = evaluate(case, lambda x, wanted: Tensor(x.copy(), wanted))
    with contextlib.nullcontext() if case.id in WAITS else strict_cupy.no_sync():
        got, grads = evaluate(case, lambda x, wanted: on_device(x, strict_cupy, wanted))
    assert isinstance(got, strict_cupy.ndarray)
    assert_close(got, expected, what="output")
    for i, (grad, expected_grad) in enumerate(zip(grads, expected_grads)):
        assert (grad is None) == (expected_grad is None), f"gradient {i}"
        if grad is not None:
            assert isinstance(grad, strict_cupy.ndarray)
            assert_close(grad, expected_grad, what=f"gradient {i}")


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=lambda case: case.id)
def test_float32_stays_float32(case, strict_cupy):
    """No float64 slips in: on a GPU it is 2 to 64 times slower, and promotes all that follows."""
    inputs = [
        on_device(x.astype(np.float32) if is_float(x.dtype) else x, strict_cupy, is_float(x.dtype))
        if isinstance(x, np.ndarray)
        else x
        for x in case.draw()
    ]
    output = case.ours(*inputs)
    assert output.dtype == np.float32
    if output.requires_grad:
        output.backward(on_device(np.ones(output.shape, np.float32), strict_cupy, False))
    for x in inputs:
        if isinstance(x, Tensor) and x.grad_array is not None:
            assert x.grad_array.dtype == np.float32


def test_exceptions_are_cases():
    assert set(WAITS) - {case.id for case in CASES} == set()


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_numbers_follow_their_partner(device, strict_cupy):
    """Kept constants are of one device."""
    for place in ("cuda:0", device):
        with Device(place).current():
            x = Tensor(strict_cupy.ones(3), requires_grad=True)
            ((2.5 - x) * 0.0 + 2.5 * x).backward(Tensor(strict_cupy.ones(3)))
            assert str(x.grad.device) == place and x.grad_array.memory.tolist() == [2.5] * 3
