"""A whole network of PyTorch, loaded from its state_dict by name, computes the same here."""

import numpy as np
import pytest

from minigrad import nn
from minigrad.errors import StateDictError
from minigrad.nn.flat import flatten
from tests.parity.cnn import build
from tests.parity.cnn_ours import assert_same
from tests.parity.store import FOLDER


def recorded():
    return {name: value.data for name, value in nn.load_file(FOLDER / "cnn_values.safetensors").items()}


def loaded():
    model = build(nn)
    assert model.load_state_dict(nn.load_file(FOLDER / "cnn_state.safetensors")) == ([], [])
    return model


def test_same_names_in_the_same_order():
    state = nn.load_file(FOLDER / "cnn_state.safetensors")
    assert sorted(build(nn).state_dict()) == sorted(state)
    assert {name: (x.shape, x.dtype) for name, x in build(nn).state_dict().items()} == {
        name: (x.shape, x.dtype) for name, x in state.items()
    }


def test_same_values_in_float64():
    assert_same(loaded().double(), recorded(), 1e-10)


def test_same_values_in_float32_and_in_a_flat_layout():
    model = loaded()
    flatten(model.parameters())
    values = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in recorded().items()}
    assert_same(model, values, 1e-4)


def test_a_renamed_layer_is_named():
    state = nn.load_file(FOLDER / "cnn_state.safetensors")
    state["head.weight"] = state.pop("fc2.weight")
    with pytest.raises(StateDictError, match="\n  missing fc2.weight\n  unexpected head.weight$"):
        build(nn).load_state_dict(state)
