from collections import namedtuple

import ml_dtypes
import numpy as np
import pytest

from minigrad import zeros
from minigrad.data import default_collate
from minigrad.errors import DeviceError
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


def test_samples_on_a_gpu_are_stacked_there(cuda, strict_cupy):
    batch = default_collate([Tensor(strict_cupy.arange(2)), Tensor(strict_cupy.arange(2))])
    assert batch.device is cuda and batch.tolist() == [[0, 1], [0, 1]]


def test_samples_on_two_gpus_are_refused(strict_cupy):
    with pytest.raises(DeviceError, match="one device, got cuda:0 and cuda:1"):
        default_collate([zeros(2, device="cuda:0"), zeros(2, device="cuda:1")])
