"""Tensors on a device that is no CPU: made there, sent there and back, and never mixed."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor
from minigrad.errors import DeviceError
from minigrad.testing import assert_close


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 3)])
def test_round_trip(cuda, dtype, shape, rng):
    x = minigrad.tensor(np.asarray(rng.integers(0, 100, shape))).to(dtype)
    there = x.to(cuda)
    back = there.cpu()
    assert there.device == cuda and there.dtype == x.dtype and there.shape == shape
    assert str(back.device) == "cpu"
    assert_close(back, x)


def test_a_transposed_tensor_arrives_as_it_is(cuda, rng):
    x = Tensor(rng.standard_normal((3, 4)).T)
    assert_close(x.to(cuda).cpu(), x)


def test_the_gradient_comes_back_to_where_the_tensor_was(cuda):
    x = Tensor(np.arange(3.0), requires_grad=True)
    (x.to(cuda) * 2.0).cpu().sum().backward()
    assert x.grad.tolist() == [2.0] * 3 and str(x.grad.device) == "cpu"


def test_host_and_device_do_not_mix(cuda):
    with pytest.raises(DeviceError, match=str(cuda)):
        Tensor(np.ones(3)) + minigrad.ones(3, dtype="float64", device=cuda)
    with pytest.raises(DeviceError, match=str(cuda)):
        minigrad.ones(3, device=cuda).numpy()


def test_a_device_that_is_not_there(cuda):
    with pytest.raises(DeviceError, match="cuda:99.*|.*present"):
        minigrad.ones(3, device="cuda:99")


def test_seeds_give_the_same_numbers_as_on_the_cpu(cuda):
    def draw(device):
        minigrad.manual_seed(3)
        return [
            minigrad.randn(4, 5, device=device),
            minigrad.rand(4, 5, device=device),
            minigrad.randint(0, 10, (4, 5), device=device),
        ]

    for here, there in zip(draw("cpu"), draw(cuda)):
        assert there.device == cuda
        assert np.array_equal(here.numpy(), there.cpu().numpy())


def test_creation(cuda):
    for make in (
        lambda device: minigrad.zeros(2, 3, device=device),
        lambda device: minigrad.ones(2, 3, dtype="float64", device=device),
        lambda device: minigrad.full((2, 3), 2.5, device=device),
        lambda device: minigrad.arange(1, 9, 2, device=device),
        lambda device: minigrad.eye(3, device=device),
        lambda device: minigrad.tensor([[1, 2], [3, 4]], device=device),
        lambda device: minigrad.zeros_like(minigrad.ones(2, 3, device=device)),
    ):
        made = make(cuda)
        assert made.device == cuda
        assert_close(made, make("cpu"))


def test_repr_shows_values_dtype_and_device(cuda):
    text = repr(minigrad.tensor([1.5, 2.5], device=cuda))
    assert "1.5" in text and "float32" in text and str(cuda) in text


def test_dlpack_shares_memory(cuda, cupy):
    x = minigrad.ones(3, device=cuda)
    shared = cupy.from_dlpack(x)
    shared[0] = 7.0
    assert x.tolist() == [7.0, 1.0, 1.0]
    assert minigrad.from_dlpack(shared).device == cuda
