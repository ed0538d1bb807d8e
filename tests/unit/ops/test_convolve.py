"""What conv2d refuses, and how its memory lies."""

import numpy as np
import pytest

from minigrad import Tensor, no_grad, ops
from minigrad.errors import AutogradError
from minigrad.ops import columns
from minigrad.ops.convolve import _geometry
from minigrad.testing import assert_close


def tensor(*shape, dtype=np.float32):
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(dtype))


def test_channels_lie_last_in_memory():
    """The order that pooling and normalization work in: between them nothing is transposed."""
    out = ops.max_pool2d(ops.conv2d(tensor(2, 3, 6, 6), tensor(4, 3, 3, 3), padding=1), 2)
    assert out.shape == (2, 4, 3, 3)
    assert out.data.transpose(2, 0, 3, 1).flags.c_contiguous


def test_changed_weight_is_noticed():
    x, weight = tensor(1, 1, 3, 3), tensor(1, 1, 2, 2)
    weight.requires_grad_()
    out = ops.conv2d(x, weight).sum()
    with no_grad():
        weight.mul_(2.0)
    with pytest.raises(AutogradError, match="conv2d saved"):
        out.backward()


def test_the_gradient_of_a_weight_is_written_into_its_flat_view():
    from minigrad import nn
    from minigrad.nn.flat import flatten

    layer = nn.Conv2d(2, 3, 3)
    (flat,) = flatten(layer.parameters())
    layer(tensor(2, 2, 5, 5)).sum().backward()
    assert layer.weight.grad_array is layer.weight.grad_view
    start, stop = flat.span(layer.weight)
    np.testing.assert_array_equal(flat.grad[start:stop].reshape(layer.weight.shape), layer.weight.grad.numpy())


def test_a_large_batch_is_the_sum_of_its_parts():
    """Larger than the blocks in which a CPU multiplies."""
    x, weight = tensor(40, 16, 24, 24), tensor(32, 16, 3, 3)
    whole = [Tensor(a.data, True) for a in (x, weight)]
    ops.conv2d(*whole, padding=1).sum().backward()
    gradients = []
    for part in range(0, 40, 8):
        pieces = [Tensor(x.data[part : part + 8], True), Tensor(weight.data, True)]
        ops.conv2d(*pieces, padding=1).sum().backward()
        gradients.append([p.grad.numpy() for p in pieces])
    np.testing.assert_allclose(whole[0].grad.numpy(), np.concatenate([g[0] for g in gradients]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(whole[1].grad.numpy(), sum(g[1] for g in gradients), rtol=1e-3, atol=1e-1)


def test_half_precision_of_a_large_kernel_is_summed_in_float32():
    """Each pixel is a sum over 49 taps: rounded at each, it would be off by three times as much."""
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(np.float16) for shape in ((2, 8, 12, 12), (8, 6, 7, 7)))
    found = ops.conv_transpose2d(Tensor(x), Tensor(weight), padding=1).data
    expected = ops.conv_transpose2d(Tensor(x.astype(np.float32)), Tensor(weight.astype(np.float32)), padding=1).data
    assert found.dtype == np.float16 and np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


GEOMETRIES = [  # channels, outputs, kernel, padding, dilation
    (8, 4, (3, 3), (1, 1), (1, 1)),
    (8, 4, (3, 2), (2, 0), (1, 2)),
    (4, 16, (5, 3), (0, 1), (1, 1)),
    (2, 3, (3, 3), (1, 2), (2, 1)),
    (3, 2, (1, 1), (0, 0), (1, 1)),
    (1, 1, (2, 4), (1, 3), (1, 1)),
]


@pytest.mark.parametrize("case", GEOMETRIES, ids=str)
def test_the_input_gradient_is_gathered_as_it_is_scattered(case):
    """The convolution with the turned kernel against a sum of shares."""
    channels, outputs, kernel, padding, dilation = case
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((outputs, channels, *kernel))
    inputs = Tensor(np.empty((3, channels, 9, 8))), Tensor(weight)
    geometry = _geometry("conv2d", inputs, 1, padding, dilation, 1)
    assert columns._turned(geometry) is not None
    grad = rng.standard_normal((1, geometry.out_shape[1] * geometry.pixels, outputs))
    expected = columns._scattered(grad, columns._taps(weight, 1, whole=False), geometry)
    assert_close(columns.input_gradient(grad, weight, geometry), expected)


def test_the_input_gradient_is_scattered_where_it_can_not_be_gathered():
    def turned(stride=1, padding=0, groups=1, outputs=4):
        inputs = Tensor(np.empty((2, 4, 9, 9))), Tensor(np.empty((outputs, 4 // groups, 3, 3)))
        return columns._turned(_geometry("conv2d", inputs, stride, padding, 1, groups))

    assert turned() is not None and turned(outputs=24) is not None
    assert turned(stride=2) is turned(padding=3) is turned(groups=2) is turned(outputs=25) is None


@pytest.mark.parametrize("stride,dilation,groups", [(1, 1, 1), (2, 1, 1), (3, 2, 1), (2, 3, 2)])
def test_strips_of_any_size_give_the_same(stride, dilation, groups, monkeypatch):
    """Of several rows, of some samples of one row, of one sample: against all in one."""
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((5, 4, 13, 11)), rng.standard_normal((6, 4 // groups, 3, 2))
    monkeypatch.setattr(columns, "_STRIP", 0)
    found = []
    for most in (100_000, 150, 30, 1):
        monkeypatch.setattr(columns, "_LEAST_PIXELS", most)
        x, weight = (Tensor(array, requires_grad=True) for array in arrays)
        out = ops.conv2d(x, weight, None, stride, 2, dilation, groups)
        (out * out).sum().backward()
        found.append((out.data, x.grad.data, weight.grad.data))
    for others in found[1:]:
        for one, other in zip(found[0], others):
            assert_close(other, one)
    geometry = _geometry("conv2d", (x, weight), stride, 2, dilation, groups)
    assert len(list(columns._strips(x.data, geometry))) == 5 * geometry.out_shape[1]  # a sample of a row
