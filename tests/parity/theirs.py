"""One case on PyTorch's side, as arrays. Only the recorder and the tests under the marker `torch` import this."""

import ml_dtypes
import numpy as np
import torch

from tests.parity.compare import is_float


def run_theirs(case, dtype=np.float64, inputs=None):
    """Inputs, output, cotangent and input gradients of a case by name, computed in the given float dtype.

    Float inputs and the cotangent are numbers that float32 holds exactly, so that every dtype starts from the same;
    but for `inputs`, which are taken as they are.
    """
    if inputs is None:
        inputs = [value.astype(np.float32).astype(dtype) if is_float(value) else value for value in case.draw()]
    tensors = [as_torch(value) for value in inputs]
    output = case.theirs(torch, *tensors)
    found = {f"input.{i}": value for i, value in enumerate(inputs) if isinstance(value, np.ndarray)}
    found["output"] = as_numpy(output)
    if output.requires_grad and "NotImplemented" not in getattr(output.grad_fn, "name", str)():  # floor_divide
        found["cotangent"] = cotangent_for(case, found["output"])
        output.backward(torch.tensor(found["cotangent"]))
        for i, value in enumerate(inputs):
            if is_float(value):
                gradient = tensors[i].grad
                found[f"gradient.{i}"] = np.zeros_like(value) if gradient is None else as_numpy(gradient)
    return found


def cotangent_for(case, output):
    """A gradient for the output, the same in every run."""
    rng = np.random.Generator(np.random.Philox(key=1 + sum(case.id.encode())))
    return rng.standard_normal(output.shape, np.float32).astype(output.dtype)


def as_torch(value):
    """An array as a torch tensor, which gets a gradient where it is one of floats; any other argument as it is."""
    return torch.tensor(value, requires_grad=is_float(value)) if isinstance(value, np.ndarray) else value


def as_numpy(tensor):
    """A torch tensor as an array of its own memory."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return tensor.numpy().copy()
