"""One case on our side, as arrays: its output, and the gradient of each float input for a recorded cotangent."""

import numpy as np

from minigrad import Tensor


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
