"""Record what PyTorch computes with the network of `resnet.py`, in float64. Run by hand:

    python -m tests.parity.record_resnet
"""

import json

import torch
from safetensors.numpy import save_file

from tests.parity.resnet import extract, resnet18, run, state_value
from tests.parity.store import FOLDER


def make_theirs():
    """The network of PyTorch with the weights of `state_value`."""
    model = resnet18(torch.nn)
    state = {name: torch.from_numpy(state_value(name, tuple(x.shape))) for name, x in model.state_dict().items()}
    model.load_state_dict(state)
    return model


def listing(model):
    """What its state_dict holds, in order: name, shape, dtype; and the version of each layer."""
    state = model.state_dict()
    return {
        "state": [[name, list(x.shape), str(x.dtype).removeprefix("torch.")] for name, x in state.items()],
        "versions": {path: metadata["version"] for path, metadata in state._metadata.items()},
    }


def main():
    """Write the file."""
    model = make_theirs().double()
    found = run(torch, model, lambda array: torch.tensor(array, dtype=torch.float64 if array.ndim > 1 else None))
    kept = {name: extract(name, array) for name, array in found.items()}
    kept |= {name: found[name] for name in ("evaluated", "output")}
    metadata = {"listing": json.dumps(listing(make_theirs()))}
    save_file({name: array.copy() for name, array in kept.items()}, FOLDER / "resnet.safetensors", metadata)
    print((FOLDER / "resnet.safetensors").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
