"""A ResNet-18 of PyTorch loads as its state_dict is, and computes the same."""

import json

import numpy as np
import pytest
from safetensors import safe_open

import minigrad
from minigrad import nn
from minigrad.testing import assert_close
from tests.foreign import ForeignState, ForeignTensor
from tests.parity.resnet import extract, resnet18, run, state_value
from tests.parity.store import FOLDER


def recorded():
    """The values that are kept by name, and the listing of PyTorch's state_dict."""
    with safe_open(FOLDER / "resnet.safetensors", framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["listing"])


def as_tensor(array, dtype):
    return minigrad.tensor(array, dtype=dtype if array.ndim > 1 else None)


def assert_same(found, values, tolerance):
    """Each array, whole or in the extract that is kept of it; a tolerance is relative to what is largest in it."""
    assert found.keys() == values.keys()
    for name, array in found.items():
        expected = values[name]
        array = array if array.shape == expected.shape else extract(name, array)
        array, expected = np.asarray(array, np.float64), np.asarray(expected, np.float64)
        scale = max(abs(expected).max(), 1e-6)
        assert_close(array / scale, expected / scale, tolerance=tolerance, what=name)


def test_a_state_dict_of_pytorch_gives_what_pytorch_computes():
    """In the float32 of a usual model, against float64: 1.4e-6 apart."""
    values, listing = recorded()
    arrays = {name: state_value(name, shape) for name, shape, _ in listing["state"]}
    assert [array.dtype.name for array in arrays.values()] == [dtype for *_, dtype in listing["state"]]
    state = ForeignState({name: ForeignTensor(array) for name, array in arrays.items()}, listing["versions"])
    model = resnet18(nn)
    assert list(model.state_dict()) == list(state)
    assert model.load_state_dict(state) == ([], [])
    assert_same(run(minigrad, model, minigrad.tensor), values, 1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-9), ("float32", 1e-5)])
def test_a_model_of_pytorch_gives_what_pytorch_computes(dtype, tolerance):
    import torch

    from tests.parity.record_resnet import listing, make_theirs

    theirs = make_theirs()
    assert listing(theirs) == recorded()[1]
    model = resnet18(nn)
    assert model.load_state_dict(theirs.state_dict()) == ([], [])
    wide = getattr(torch, dtype)
    values = run(torch, theirs.to(wide), lambda array: torch.tensor(array, dtype=wide if array.ndim > 1 else None))
    found = run(minigrad, model.to(dtype), lambda array: as_tensor(array, dtype))
    assert_same(found, values, tolerance)
