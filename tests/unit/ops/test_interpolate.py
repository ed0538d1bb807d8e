"""Interpolation: what the cases beside PyTorch's values do not say."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, ops
from minigrad.ops.image_order import to_nhwc
from minigrad.ops.interpolate import MODES
from minigrad.testing import assert_close


def test_the_nearest_of_an_image_whose_length_is_kept_or_doubled_does_not_ask_for_the_scale():
    """As PyTorch 2.13; of a sequence it does."""
    x = Tensor(np.arange(3.0))
    row, image = x[None, None], x[None, None, None]
    assert ops.interpolate(row, scale_factor=1.3).tolist() == [[[0, 0, 1]]]
    assert ops.interpolate(image, scale_factor=(1.0, 1.3)).tolist() == [[[[0, 1, 2]]]]
    assert ops.interpolate(row, scale_factor=2.3).tolist() == [[[0, 0, 0, 1, 1, 2]]]
    assert ops.interpolate(image, scale_factor=(1.0, 2.3)).tolist() == [[[[0, 0, 1, 1, 2, 2]]]]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "linear"])
def test_half_precision_is_weighed_in_float32(mode):
    values = np.random.default_rng(0).standard_normal((2, 3, 9, 7)).astype(np.float16)
    half, wide = (Tensor(values.astype(dtype), requires_grad=True) for dtype in (np.float16, np.float32))
    found, expected = (ops.interpolate(x, (5, 11), mode=mode) for x in (half, wide))
    assert found.data.tobytes() == expected.data.astype(np.float16).tobytes()
    seed = np.random.default_rng(1).standard_normal(found.shape).astype(np.float16)
    found.backward(Tensor(seed))
    expected.backward(Tensor(seed.astype(np.float32)))
    assert half.grad.data.tobytes() == wide.grad.data.astype(np.float16).tobytes()


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_images_on_a_gpu_lie_with_their_channels_last(cuda, mode):
    x = minigrad.randn(2, 3, 4, 6, device=cuda)
    y = ops.interpolate(x, (7, 5), mode=mode)
    assert to_nhwc(y.data).data.ptr == y.data.data.ptr
    assert_close(y.cpu().numpy(), ops.interpolate(x.cpu(), (7, 5), mode=mode).numpy())
