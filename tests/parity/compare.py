"""One case on our side, as arrays: its output, and the gradient of each float input for a recorded cotangent."""

import numpy as np

from minigrad import Tensor
from minigrad.testing import assert_close


def is_float(value):
    """Whether an argument of a case is an array to differentiate."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def as_tensor(value):
    """An array as a tensor on read-only memory, which gets a gradient where it is one of floats; the rest as it is."""
    if not isinstance(value, np.ndarray):
        return value
    copy = value.copy()
    copy.flags.writeable = False
    return Tensor(copy, requires_grad=is_float(value))


def run_ours(case, inputs, cotangent=None):
    """The output of a case and, given a cotangent, its input gradients by name; zeros where backward did not come."""
    tensors = [as_tensor(value) for value in inputs]
    output = case.ours(*tensors)
    found = {"output": output.data}
    assert output.requires_grad == (cotangent is not None)
    if cotangent is not None:
        output.backward(as_tensor(cotangent))
        for i, value in enumerate(inputs):
            if is_float(value):
                gradient = tensors[i].grad
                found[f"gradient.{i}"] = np.zeros_like(value) if gradient is None else gradient.data
    return found


def compare(found, values, tolerance):
    """Check what `run_ours` found against PyTorch's values of the same names.

    Where PyTorch's gradient is NaN, as that of logsumexp over -inf alone is, ours may be better.
    """
    assert found.keys() == {name for name in values if name == "output" or name.startswith("gradient.")}
    for name, array in found.items():
        expected = values[name]
        if name != "output":
            expected = np.where(np.isnan(expected), array, expected)
        assert_close(array, expected, tolerance=tolerance if is_float(expected) else 0.0, what=name)


def float32_tolerance(inputs):
    """1e-4, and what rounding the inputs would change."""
    largest = max((abs(value[np.isfinite(value)]).max(initial=0.0) for value in inputs if is_float(value)), default=0.0)
    return 1e-4 + largest * np.finfo(np.float32).eps
