from collections import namedtuple
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from minigrad import zeros
from minigrad.data import default_collate
from minigrad.errors import ArgumentError, AutogradError, DeviceError, DtypeError, ShapeError
from minigrad.tensor import Tensor

Pair = namedtuple("Pair", "image label")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.uint8, np.int64, bool])
@pytest.mark.parametrize("wrap", [Tensor, lambda array: array, lambda array: array[()]], ids=["tensor", "array", "row"])
@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
def test_arrays_and_tensors_are_stacked(dtype, wrap, shape):
    samples = [np.ones(shape, dtype), np.zeros(shape, dtype)]
    batch = default_collate([wrap(sample) for sample in samples])
    assert isinstance(batch, Tensor) and batch.dtype == dtype
    assert batch.data.tolist() == np.stack(samples).tolist()


@pytest.mark.parametrize(
    "samples, dtype",
    [
        ([1, 2], np.int64),
        ([1.5, 2.5], np.float32),
        ([True, False], bool),
        ([1, 0.5], np.float32),
        ([2, True], np.int64),
    ],
    ids=repr,
)
def test_python_numbers_become_a_tensor(samples, dtype):
    batch = default_collate(samples)
    assert batch.dtype == dtype and batch.tolist() == samples


def test_nested_samples_keep_their_form():
    batch = default_collate([{"pair": Pair(np.ones(2), i), "more": [(i, "a")]} for i in range(3)])
    assert isinstance(batch["pair"], Pair) and isinstance(batch["more"], list) and isinstance(batch["more"][0], tuple)
    assert batch["pair"].image.shape == (3, 2)
    assert batch["pair"].label.tolist() == [0, 1, 2]
    assert batch["more"][0][0].tolist() == [0, 1, 2]
    assert batch["more"][0][1] == ["a", "a", "a"]


@pytest.mark.parametrize(
    "samples, error, message",
    [
        ([], ArgumentError, "at least one sample, got none"),
        ([np.zeros(2), np.zeros(3)], ShapeError, r"one shape, got \(2,\) and \(3,\)"),
        ([np.zeros(2), np.zeros(2, np.float32)], DtypeError, "one dtype, got float64 and float32"),
        ([np.zeros(2), Tensor(np.zeros(2))], DtypeError, "one type, got ndarray and Tensor"),
        ([1, "a"], DtypeError, "one type, got int and str"),
        ([1, np.int64(2)], DtypeError, "one type, got int and int64"),
        ([Fraction(1, 2)], DtypeError, "int, float or bool, got Fraction"),
        ([2**70], ArgumentError, "fit into int64, got 1180591620717411303424"),
        ([(1, 2), (1,)], ShapeError, "one length, got 2 and 1"),
        ([{"a": 1}, {"b": 1}], ArgumentError, r"the keys \['a'\], got \['b'\]"),
        ([None, None], DtypeError, "got NoneType: pass collate_fn="),
        ([Tensor(np.zeros(2), requires_grad=True)], AutogradError, "use .detach()"),
    ],
    ids=lambda value: None if isinstance(value, type) else str(value)[:30],
)
def test_samples_that_do_not_fit_are_refused(samples, error, message):
    with pytest.raises(error, match=message):
        default_collate(samples)


def test_samples_on_a_gpu_are_stacked_there(cuda, strict_cupy):
    batch = default_collate([Tensor(strict_cupy.arange(2)), Tensor(strict_cupy.arange(2))])
    assert batch.device is cuda and batch.tolist() == [[0, 1], [0, 1]]


def test_samples_on_two_gpus_are_refused(strict_cupy):
    with pytest.raises(DeviceError, match="one device, got cuda:0 and cuda:1"):
        default_collate([zeros(2, device="cuda:0"), zeros(2, device="cuda:1")])
