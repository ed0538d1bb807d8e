"""What conv2d refuses, and how its memory lies."""

import numpy as np
import pytest

from minigrad import Tensor, no_grad, ops
from minigrad.errors import ArgumentError, AutogradError, DtypeError, ShapeError


def tensor(*shape, dtype=np.float32):
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(dtype))


@pytest.mark.parametrize(
    "x, weight, options, error, message",
    [
        ((2, 3, 5, 5), (4, 3, 7, 3), {}, ShapeError, r"window \(7, 3\).*\(5, 5\)"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"dilation": 3}, ShapeError, r"window \(7, 7\)"),
        ((2, 3, 0, 5), (4, 3, 1, 1), {}, ShapeError, r"\(2, 3, 0, 5\)"),
        ((2, 3, 5, 5), (4, 2, 3, 3), {}, ShapeError, r"2 channels.*\(2, 3, 5, 5\)"),
        ((2, 3, 5, 5), (4, 3, 3), {}, ShapeError, r"\(4, 3, 3\)"),
        ((5, 5), (4, 3, 3, 3), {}, ShapeError, r"\(5, 5\)"),
        ((2, 3, 5, 5), (4, 3, 0, 3), {}, ShapeError, r"empty axes.*\(4, 3, 0, 3\)"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"groups": 3}, ArgumentError, r"divide the 4 output channels, got 3"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"groups": 0}, ArgumentError, r"groups.*got 0"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"stride": 0}, ArgumentError, r"stride.*>= 1.*got 0"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"stride": (1, 2, 3)}, ArgumentError, r"stride.*\(1, 2, 3\)"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"stride": 1.5}, ArgumentError, r"stride.*1.5"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"padding": -1}, ArgumentError, r"padding.*>= 0.*got -1"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"padding": "full"}, ArgumentError, r"'same', 'valid'.*'full'"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"padding": "same", "stride": 2}, ArgumentError, r"stride 1.*\(2, 2\)"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"dilation": 0}, ArgumentError, r"dilation.*got 0"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"bias": tensor(3)}, ShapeError, r"bias of shape \(4,\), got \(3,\)"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"bias": tensor(4, dtype=np.float64)}, DtypeError, r"float32.*float64"),
        ((2, 3, 5, 5), (4, 3, 3, 3), {"bias": 0.0}, DtypeError, r"tensors, got float"),
    ],
)
def test_refuses(x, weight, options, error, message):
    with pytest.raises(error, match=f"conv2d: expected .*{message}"):
        ops.conv2d(tensor(*x), tensor(*weight), **options)


def test_integers_are_refused():
    with pytest.raises(DtypeError, match="conv2d: expected a float tensor, got int64"):
        ops.conv2d(Tensor(np.zeros((1, 1, 3, 3), np.int64)), tensor(1, 1, 2, 2))


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
