"""Chains in blocks: every layout and size gives the values, dtype and order of elements of the whole."""

import numpy as np
import pytest

from minigrad.backend.blocks import BLOCK, filled, in_blocks


def fused(out, x, y):
    np.multiply(x, y, out=out)
    np.maximum(out, filled(0.25, out), out=out)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_any_size(size, rng):
    x, y = rng.standard_normal(size), rng.standard_normal(size)
    np.testing.assert_array_equal(in_blocks(fused, x, y), np.maximum(x * y, 0.25))


def test_no_axes():
    out = in_blocks(fused, np.array(2.0), np.array(3.0))
    assert out.shape == ()
    assert out == 6.0


@pytest.mark.parametrize("layouts", ["CC", "TT", "CT", "TC", "GG", "CG"])
def test_any_layout(layouts, rng):
    def draw(layout):
        x = rng.standard_normal((2, 150, 150))
        return {"C": x, "T": x.transpose(0, 2, 1).copy().transpose(0, 2, 1), "G": np.repeat(x, 2, axis=2)[:, :, ::2]}[
            layout
        ]

    x, y = map(draw, layouts)
    np.testing.assert_array_equal(in_blocks(fused, x, y), np.maximum(x * y, 0.25))


def test_the_layout_of_the_first_is_kept(rng):
    x = rng.standard_normal((150, 300)).T
    assert in_blocks(fused, x, x).strides == x.strides


def test_half_precision_is_computed_in_float32():
    seen = []

    def kernel(out, x):
        seen.append(x.dtype)
        np.multiply(x, 1e-3, out=out)

    out = in_blocks(kernel, np.full(3, 1e3, np.float16))
    assert out.dtype == np.float16
    assert seen == [np.float32]


def test_inputs_are_only_read(rng):
    x = rng.standard_normal(3 * BLOCK)
    x.flags.writeable = False
    in_blocks(fused, x, x)
