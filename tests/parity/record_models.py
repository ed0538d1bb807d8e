"""Record what PyTorch computes with the networks of `models.py`, in float64. Run by hand:

    python -m tests.parity.record_models [name ...]
"""

import json
import sys

import torch
from safetensors.numpy import save_file

from tests.parity.models import MODELS, extract
from tests.parity.store import path_of


def make_theirs(model):
    """The network of PyTorch with the weights of `state_value`."""
    made = model.make(torch.nn)
    made.load_state_dict(
        {name: torch.from_numpy(model.state_value(name, tuple(x.shape))) for name, x in made.state_dict().items()}
    )
    return made


def listing(made):
    """What its state_dict holds, in order: name, shape, dtype; and the version of each layer."""
    state = made.state_dict()
    return {
        "state": [[name, list(x.shape), str(x.dtype).removeprefix("torch.")] for name, x in state.items()],
        "versions": {path: metadata["version"] for path, metadata in state._metadata.items() if "version" in metadata},
    }


def main(names):
    """Write the files of these networks, or of all."""
    for name in names or MODELS:
        model = MODELS[name]
        found = model.run(torch, make_theirs(model).double(), lambda array: as_theirs(array, torch.float64))
        kept = {what: array if what in model.WHOLE else extract(what, array) for what, array in found.items()}
        metadata = {"listing": json.dumps(listing(make_theirs(model)))}
        save_file({what: array.copy() for what, array in kept.items()}, path_of(name), metadata)
        print(name, path_of(name).stat().st_size, "bytes")


def as_theirs(array, dtype):
    """An array as a tensor of PyTorch; floats in a dtype."""
    return torch.tensor(array, dtype=dtype if array.dtype.kind == "f" else None)


if __name__ == "__main__":
    main(sys.argv[1:])
