"""pack, scale_ and unpack read each element once and write each once, and touch nothing else."""

import numpy as np
import pytest

from minigrad.backend.fused import grad_scale
from minigrad.backend.fused.grad_scale import Placement, pack, scale_, unpack
from tests.kernel_suite.grad_scale import places
from tests.kernel_suite.values import DTYPES, SIZES


@pytest.fixture
def touched(cpu_kernels):
    """touched(array): the reads and writes of its elements so far, as two sets of numbers."""
    cpu_kernels.counts = {}

    def touched(array):
        counts = cpu_kernels.counts.get(array.ctypes.data)
        return set(counts.reads.tolist()), set(counts.writes.tolist())

    return touched


ONCE, NEVER = {1}, {0}


@pytest.mark.parametrize("source, wire", [("f32", "bf16"), ("f32", "f32"), ("f64", "f32"), ("f16", "f32")])
@pytest.mark.parametrize("shift", [0, 1])
def test_pack_and_unpack(touched, source, wire, shift, monkeypatch):
    monkeypatch.setattr(grad_scale, "CHUNK", 500)
    offsets, length = places()
    arrays = [np.ones(size + shift, DTYPES[source])[shift:] for size in SIZES]
    bucket, squares = np.zeros(length, DTYPES[wire]), np.zeros(1)
    pack(Placement(arrays, offsets), bucket, np.array([0.5]), np.zeros(1, np.uint32))
    assert [touched(array) for array in arrays] == [(ONCE, NEVER)] * len(arrays)
    assert touched(bucket)[0] == NEVER
    unpack(bucket, np.array([0.5]), Placement(arrays, offsets), np.zeros(1, np.uint32), squares)
    assert [touched(array) for array in arrays] == [(NEVER, ONCE)] * len(arrays)
    assert touched(bucket)[1] == NEVER


@pytest.mark.parametrize("dtype", DTYPES)
def test_places_in_the_bucket(cpu_kernels, touched, dtype):
    """Elements between the arrays are neither read nor written."""
    offsets, length = places()
    arrays = [np.ones(size, DTYPES[dtype]) for size in SIZES]
    bucket = np.zeros(length, DTYPES[dtype])
    expected = np.zeros(length, np.uint8)
    for array, offset in zip(arrays, offsets):
        expected[offset : offset + array.size] = 1
    pack(Placement(arrays, offsets), bucket, np.array([0.5]))
    assert np.array_equal(cpu_kernels.counts[bucket.ctypes.data].writes, expected)
    unpack(bucket, np.array([0.5]), Placement(arrays, offsets))
    assert np.array_equal(cpu_kernels.counts[bucket.ctypes.data].reads, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0, 1])
def test_scale(touched, dtype, shift):
    for size in SIZES:
        x = np.ones(size + shift, DTYPES[dtype])[shift:]
        scale_(x, np.array([0.5]), np.zeros(1, np.uint32))
        assert touched(x) == (ONCE, ONCE)
