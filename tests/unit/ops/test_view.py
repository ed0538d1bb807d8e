"""A view of images that an operation made: they lie with their channels last, which a user can't tell."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor
from minigrad.errors import AutogradError, ShapeError
from minigrad.nn import functional as F
from minigrad.testing import assert_close

IMAGES = np.random.default_rng(0).standard_normal((2, 3, 5, 5))
FILTERS = np.random.default_rng(1).standard_normal((4, 3, 2, 2))
MAKERS = {
    "conv2d": lambda y: y,
    "relu": F.relu,  # which saves its output
    "pooled": lambda y: F.max_pool2d(y, 2),
    "sum": lambda y: y + 1,
}


def made(name, place=Tensor):
    x, weight = place(IMAGES.copy()), place(FILTERS.copy())
    weight.requires_grad_()
    return MAKERS[name](F.conv2d(x, weight)), weight


@pytest.mark.parametrize("recording", [True, False], ids=["recorded", "no_grad"])
@pytest.mark.parametrize("name", MAKERS)
def test_it_is_what_flatten_gives_on_one_memory(name, recording):
    results = []
    for flat in (lambda y: y.view(2, -1), lambda y: y.flatten(1)):
        with minigrad.set_grad_enabled(recording):
            y, weight = made(name)
            out = flat(y)
        if recording:
            (out * out).sum().backward()
        results.append((out.detach().numpy(), y.detach().numpy().reshape(2, -1), weight.grad))
    (ours, base, grad), (wanted, _, wanted_grad) = results
    assert np.array_equal(ours, wanted) and np.shares_memory(ours, base)
    assert grad is wanted_grad is None or grad.equal(wanted_grad)


def test_a_change_of_either_shows_in_the_other():
    with minigrad.no_grad():
        y, _ = made("conv2d")
        flat = y.view(-1)
        flat[0] = 7.0
        y[1, 3, 3, 3] = 9.0
    assert y[0, 0, 0, 0].item() == 7.0 and flat[-1].item() == 9.0


def test_what_was_saved_before_is_as_safe_as_before():
    y, _ = made("relu")
    flat = y.view(2, -1)
    with minigrad.no_grad():
        y.mul_(2.0)
    with pytest.raises(AutogradError, match="changed in place since"):
        flat.sum().backward()


@pytest.mark.parametrize("other", [lambda y: y[0], lambda y: y.detach(), lambda y: y.permute(0, 2, 3, 1)])
def test_images_on_whose_memory_another_tensor_lies_stay_there(other):
    y, _ = made("conv2d")
    seen = other(y)
    with pytest.raises(ShapeError, match="view: expected a shape that needs no copy"):
        y.view(2, -1)
    assert np.shares_memory(seen.data, y.data)


def test_an_array_of_a_user_stays_where_it_is():
    array = np.zeros((5, 2, 5, 3)).transpose(1, 3, 0, 2)  # as images lie
    for x in (Tensor(array), minigrad.from_numpy(array), minigrad.as_tensor(array)):
        with pytest.raises(ShapeError, match="use reshape"):
            x.view(2, -1)
        assert x.data is array


def test_on_a_gpu(cuda, strict_cupy):
    y, weight = made("relu", lambda array: Tensor(strict_cupy.asarray(array)))
    y.view(2, -1).sum().backward()
    assert_close(weight.grad.cpu().numpy(), _on_host("relu").numpy())


def _on_host(name):
    y, weight = made(name)
    y.view(2, -1).sum().backward()
    return weight.grad
