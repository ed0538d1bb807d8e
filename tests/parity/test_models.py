"""Whole networks of PyTorch load as their state_dict is, and compute the same."""

import json

import numpy as np
import pytest
from safetensors import safe_open

import minigrad
from minigrad import nn
from minigrad.testing import assert_close
from tests.foreign import ForeignState, ForeignTensor
from tests.parity.models import MODELS, extract
from tests.parity.store import path_of


def recorded(name):
    """The values that are kept of a network by name, and the listing of PyTorch's state_dict."""
    with safe_open(path_of(name), framework="numpy") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["listing"])


def assert_same(found, values, tolerance):
    """Each array, whole or in the extract that is kept of it; a tolerance is relative to what is largest in it."""
    assert found.keys() == values.keys()
    for name, array in found.items():
        expected = values[name]
        array = array if array.shape == expected.shape else extract(name, array)
        array, expected = np.asarray(array, np.float64), np.asarray(expected, np.float64)
        scale = max(abs(expected).max(), 1e-6)
        assert_close(array / scale, expected / scale, tolerance=tolerance, what=name)


@pytest.mark.parametrize("name", MODELS)
def test_a_state_dict_of_pytorch_gives_what_pytorch_computes(name):
    """In the float32 of a usual model, against float64."""
    values, listing = recorded(name)
    arrays = {key: MODELS[name].state_value(key, shape) for key, shape, _ in listing["state"]}
    assert [array.dtype.name for array in arrays.values()] == [dtype for *_, dtype in listing["state"]]
    state = ForeignState({key: ForeignTensor(array) for key, array in arrays.items()}, listing["versions"])
    model = MODELS[name].make(nn)
    assert list(model.state_dict()) == list(state)
    assert model.load_state_dict(state) == ([], [])
    assert_same(MODELS[name].run(minigrad, model, minigrad.tensor), values, 1e-5)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # of its own encoder, in evaluation
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-9), ("float32", 1e-5)])
def test_a_model_of_pytorch_gives_what_pytorch_computes(name, dtype, tolerance):
    import torch

    from tests.parity.record_models import as_theirs, listing, make_theirs

    theirs = make_theirs(MODELS[name])
    assert listing(theirs) == recorded(name)[1]
    model = MODELS[name].make(nn)
    assert model.load_state_dict(theirs.state_dict()) == ([], [])
    wide = getattr(torch, dtype)
    values = MODELS[name].run(torch, theirs.to(wide), lambda array: as_theirs(array, wide))
    found = MODELS[name].run(minigrad, model.to(dtype), lambda array: as_ours(array, dtype))
    assert_same(found, values, tolerance)


def as_ours(array, dtype):
    return minigrad.tensor(array, dtype=dtype if array.dtype.kind == "f" else None)
