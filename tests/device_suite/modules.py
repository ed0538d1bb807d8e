"""Modules on a device that is no CPU: made there, moved, copied, loaded and saved."""

import copy

import numpy as np
import pytest

from minigrad import Device, Tensor, nn
from minigrad.errors import LayoutError
from minigrad.nn.flat import flatten
from minigrad.testing import assert_close
from tests.cases.models import MODELS, batch


def on(module):
    """The devices of all that a module holds."""
    return {str(x.device) for x in (*module.parameters(), *module.buffers())}


@pytest.mark.parametrize("name", MODELS)
def test_a_module_moves_there_and_back(cuda, name):
    model = MODELS[name][0]()
    before = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    first = next(model.parameters())
    first.grad = Tensor(np.ones(first.shape, np.float32))
    assert on(model.to(cuda, "float64")) == {str(cuda)} and first.grad.device == cuda
    assert first.dtype == first.grad.dtype == np.float64
    assert on(model.cpu().float()) == {"cpu"} and first.grad.device == Device("cpu")
    for key, value in model.state_dict().items():
        assert_close(value, before[key], tolerance=0, what=key)


@pytest.mark.parametrize("name", MODELS)
def test_state_goes_between_devices(cuda, name, tmp_path):
    here, there = MODELS[name][0](), MODELS[name][0](cuda)
    flatten(there.parameters())
    there.load_state_dict(here.state_dict())
    nn.save_file(there.state_dict(), tmp_path / "there")
    loaded = nn.load_file(tmp_path / "there", cuda)
    for key, value in here.state_dict().items():
        assert loaded[key].device == cuda
        assert_close(loaded[key], value, tolerance=0, what=key)
    nn.init.zeros_(here.get_parameter("0.weight"))
    here.load_state_dict(loaded)
    assert_close(here.get_parameter("0.weight"), loaded["0.weight"], tolerance=0)


def test_shared_tensors_are_stored_once_from_a_device(cuda, tmp_path):
    weight = Tensor(np.ones((2, 3), np.float32)).to(cuda)
    nn.save_file({"b": weight, "a": weight, "c": weight.data[:1]}, tmp_path / "shared")
    loaded = nn.load_file(tmp_path / "shared")
    assert loaded["a"].data is loaded["b"].data and loaded["c"].shape == (1, 3)


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_is_on_the_same_device(cuda, name):
    model = MODELS[name][0](cuda)
    flatten(model.parameters())
    twin = copy.deepcopy(model)
    assert on(twin) == {str(cuda)}
    x, _ = batch(name, cuda, "float32")
    assert_close(twin.eval()(x), model.eval()(x), tolerance=0)


def test_a_flat_layout_does_not_move_from_a_device(cuda):
    model = nn.Linear(3, 2, device=cuda)
    flatten(model.parameters())
    assert model.to(cuda) is model
    with pytest.raises(LayoutError, match=f"got weight .* on {cuda} to move to cpu"):
        model.cpu()


def test_gradients_are_zeroed_there(cuda):
    model = nn.Linear(3, 2, device=cuda)
    model.weight.grad = Tensor(np.ones((2, 3), np.float32)).to(cuda)
    held = model.weight.grad
    model.zero_grad(set_to_none=False)
    assert_close(held, np.zeros((2, 3), np.float32))
