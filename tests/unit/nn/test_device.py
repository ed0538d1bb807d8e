"""Modules on the second of two devices, while the first is current; tests/device_suite has the rest."""

import copy

import numpy as np
import pytest

from minigrad import nn
from minigrad.nn.flat import flatten
from minigrad.testing import assert_close
from tests.device_suite.modules import on


@pytest.fixture
def model(strict_cupy):
    """A network of every layer that has parameters or buffers, on cuda:1."""
    place = {"device": "cuda:1"}
    return nn.Sequential(
        nn.Embedding(5, 4, padding_idx=0, **place),
        nn.Linear(4, 4, **place),
        nn.BatchNorm1d(4, **place),
        nn.Conv2d(1, 2, 3, **place),
        nn.GroupNorm(1, 4, **place),
        nn.LayerNorm(4, **place),
    )


def test_all_is_made_copied_and_flattened_there(model):
    assert on(model) == {"cuda:1"}
    flatten(model.parameters())
    twin = copy.deepcopy(model)
    assert on(twin) == {"cuda:1"}
    [buffer] = flatten(twin.parameters())
    assert str(buffer.device) == "cuda:1" and buffer.data.device.id == buffer.grad.device.id == 1


def test_state_and_gradients_stay_there(model):
    here = copy.deepcopy(model).cpu()
    model.load_state_dict(here.state_dict())
    assert on(model) == {"cuda:1"}
    for param in model.parameters():
        param.grad = param.detach()
    model.zero_grad(set_to_none=False)
    assert {str(param.grad.device) for param in model.parameters()} == {"cuda:1"}
    assert on(model.to("cuda:0")) == {"cuda:0"}
    for one, other in zip(model.state_dict().values(), here.state_dict().values()):
        assert_close(one, other, tolerance=0)


def test_a_dtype_changes_there(model):
    assert on(model.double()) == {"cuda:1"}
    assert {param.dtype for param in model.parameters()} == {np.dtype(np.float64)}
