"""Devices: their names, what is there, and how tensors move between them (on a stand-in for CuPy)."""

import sys

import numpy as np
import pytest

import minigrad
from minigrad import Device, Tensor, available_devices, ops, tensor
from minigrad.backend.device import array_module, load_cupy, to_host
from minigrad.errors import AutogradError, DeviceError


@pytest.mark.parametrize(
    "spec, kind, index, text",
    [("cpu", "cpu", 0, "cpu"), ("cuda", "cuda", 0, "cuda:0"), ("cuda:12", "cuda", 12, "cuda:12")],
)
def test_names(spec, kind, index, text):
    device = Device(spec)
    assert (device.type, device.index, str(device), repr(device)) == (kind, index, text, f"Device('{text}')")
    assert device == Device(text) == Device(device) and hash(device) == hash(Device(text)) and device != text


def test_the_cpu_is_always_there():
    assert Device("cpu").xp is np and available_devices()[0] == Device("cpu")
    with Device("cpu").current() as xp:
        assert xp is np


@pytest.fixture
def no_cupy(monkeypatch):
    """A machine on which CuPy is not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "cupy":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])


def test_without_cupy_the_error_says_what_is_there_and_what_to_install(no_cupy):
    assert available_devices() == [Device("cpu")]
    device = Device("cuda:1")  # naming it touches nothing
    with pytest.raises(DeviceError, match=r"one of the devices present \(cpu\), got cuda:1: .*minigrad\[cuda12\]"):
        device.xp
    for move in (lambda: tensor(1.0).cuda(), lambda: tensor(1.0).to("cuda"), lambda: minigrad.zeros(2, device="cuda")):
        with pytest.raises(DeviceError, match="not installed"):
            move()
    with pytest.raises(DeviceError, match="expected CuPy, which is not installed"):
        load_cupy()


def test_an_absent_gpu_is_named_with_those_present(strict_cupy):
    assert available_devices() == [Device("cpu"), Device("cuda:0"), Device("cuda:1")]
    with pytest.raises(DeviceError, match=r"expected one of the devices present \(cpu, cuda:0, cuda:1\), got cuda:2"):
        Device("cuda:2").xp


def test_objects_that_are_no_arrays_have_no_module():
    assert array_module(np.ones(2)) is array_module(np.float32(1)) is np


def test_tensors_move_and_gradients_come_back(cuda):
    x = minigrad.arange(3.0).requires_grad_()
    y = x.to("cuda:1")
    assert (str(y.device), y.requires_grad, str(x.device)) == ("cuda:1", True, "cpu")
    (y * y).backward(minigrad.ones(3, device="cuda:1"))
    assert x.grad.device == Device("cpu") and x.grad.tolist() == [0, 2, 4]
    assert y.to("cuda:1") is y and str(y.cuda(0).device) == "cuda:0" and y.detach().cpu().tolist() == [0, 1, 2]
    both = x.detach().to("cuda", "float64")
    assert (str(both.device), both.dtype.name) == ("cuda:0", "float64")
    assert x.detach().to(both).dtype == both.dtype


def test_creation_on_a_gpu(strict_cupy):
    tensors = [
        minigrad.zeros(2, device="cuda:1"),
        minigrad.full(2, 1.5, device="cuda:1"),
        minigrad.empty(2, device="cuda:1"),
        minigrad.eye(2, device="cuda:1"),
        minigrad.arange(3, device="cuda:1"),
        minigrad.linspace(0, 1, 3, device="cuda:1"),
        minigrad.randn(3, device="cuda:1"),
        minigrad.randint(3, size=(2,), device="cuda:1"),
        minigrad.randperm(3, device="cuda:1"),
        minigrad.tensor([1, 2], device="cuda:1"),
        minigrad.as_tensor(np.ones(2), device="cuda:1"),
        minigrad.zeros_like(minigrad.zeros(2, device="cuda:1")),
    ]
    assert {str(x.device) for x in tensors} == {"cuda:1"}
    assert all(isinstance(x.data, strict_cupy.ndarray) for x in tensors)


def test_one_seed_gives_the_same_values_everywhere(strict_cupy):
    for make in (minigrad.randn, minigrad.rand, minigrad.randperm):
        host, device = (make(5, rng=np.random.default_rng(1), device=place) for place in ("cpu", "cuda:1"))
        np.testing.assert_array_equal(host.numpy(), to_host(device.data))


def test_tensors_on_two_devices_are_refused_with_both_named(cuda):
    x, y = minigrad.ones(2), minigrad.ones(2, device="cuda:1")
    mask = minigrad.ones(2, device="cuda:1", dtype=bool)
    for call in (
        lambda: x + y,
        lambda: ops.cat([x, y]),
        lambda: ops.stack([x, y]),
        lambda: ops.where(mask, x, x),
        lambda: x.masked_fill(mask, 0),
        lambda: x[mask],
        lambda: x.gather(0, mask.long()),
        lambda: x.index_select(0, mask.long()),
        lambda: x.copy_(y),
    ):
        with pytest.raises(DeviceError, match=r"expected tensors on one device, got .*: move"):
            call()
    x.requires_grad_()
    with pytest.raises(DeviceError, match="grad: expected a gradient on cpu, got one on cuda:1"):
        x.grad = y


def test_leaving_a_gpu_takes_a_word(cuda):
    x = minigrad.ones(2, device="cuda:1")
    with pytest.raises(DeviceError, match=r"numpy: expected a tensor on cpu, got one on cuda:1: use \.cpu\(\) first"):
        x.numpy()
    assert x.tolist() == [1, 1] and x[0].item() == 1 and "device='cuda:1'" in repr(x)
    with pytest.raises(AutogradError, match=r"use \.detach\(\)"):
        x.requires_grad_().numpy()


def test_number_and_array_with_a_gpu_tensor(cuda, strict_cupy):
    x = minigrad.ones(2, device="cuda:1")
    assert str((2 * x + np.float64(1)).device) == "cuda:1" and (2 * x).dtype == np.float32
    assert str(ops.where(x.bool(), 1.0, 0.0).device) == "cuda:1"
    with pytest.raises(DeviceError, match="expected tensors on one device"):
        x + np.ones(2, np.float32)
    assert isinstance(strict_cupy.ones(2) + minigrad.ones(2, dtype="float64", device="cuda:1"), Tensor)
