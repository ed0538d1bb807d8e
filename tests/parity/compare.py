"""One case on our side, as arrays: its output, and the gradient of each float input for a given cotangent."""

import numpy as np

from minigrad import Tensor


def is_float(value):
    """Whether an argument of a case is an array to differentiate."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def as_tensor(value, requires_grad=False):
    """An array as a tensor on read-only memory; any other argument as it is."""
    if not isinstance(value, np.ndarray):
        return value
    copy = value.copy()
    copy.flags.writeable = False
    return Tensor(copy, requires_grad and is_float(value))


def run_ours(case, inputs, cotangent=None):
    """The output and the input gradients of a case by name; zeros where backward did not come."""
    tensors = [as_tensor(value, requires_grad=cotangent is not None) for value in inputs]
    output = case.ours(*tensors)
    found = {"output": output.data}
    if cotangent is not None:
        if output.requires_grad:
            output.backward(as_tensor(cotangent))
        for i, value in enumerate(inputs):
            if is_float(value):
                gradient = tensors[i].grad
                found[f"gradient.{i}"] = np.zeros_like(value) if gradient is None else gradient.data
    return found
