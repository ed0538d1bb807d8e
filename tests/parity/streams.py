"""Random streams by name, and what every network computes in the same way."""

import zlib

import numpy as np


def stream(name):
    """A generator of its own for each name."""
    return np.random.Generator(np.random.Philox(key=zlib.crc32(name.encode())))


def as_arrays(found, model):
    """What was found, and the gradient of each parameter and the buffers, as arrays by name."""
    found |= {f"gradient/{name}": param.grad for name, param in model.named_parameters()}
    found |= {f"buffer/{name}": buffer for name, buffer in model.named_buffers()}
    return {name: value.numpy() for name, value in found.items()}
