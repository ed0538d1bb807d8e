"""Whole networks, each written once for `torch.nn` and for `minigrad.nn`; and what is kept of what they compute.

A network is a module with `make(nn)`, which makes it of the layers of a package, `state_value(name, shape)`, which
draws what a tensor of its state_dict holds, `run(package, model, as_tensor)`, which gives all that it computes, and
`WHOLE`, the names of what is recorded whole: of all else a few elements and the norm are. Weights are drawn by name,
from a stream for each, so that none need be kept.
"""

import numpy as np

from tests.parity import bert, gpt, resnet, tagger
from tests.parity.streams import stream

MODELS = {"bert": bert, "gpt": gpt, "resnet": resnet, "tagger": tagger}
ELEMENTS = 12


def extract(name, array):
    """Some elements of an array, at places that its name says, and its norm; all of them where they are few."""
    flat = np.asarray(array, np.float64).reshape(-1)
    places = stream(f"places of {name}").integers(0, flat.size, ELEMENTS)
    return np.append(flat[places] if flat.size > ELEMENTS else flat, np.linalg.norm(flat))
