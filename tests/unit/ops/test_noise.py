"""Dropout: what is dropped, how often, and that the expectation stays."""

import numpy as np
import pytest

from minigrad import Tensor, manual_seed, ops


def ones(*shape):
    return Tensor(np.ones(shape), True)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_rate_and_scale(p):
    out = ops.dropout(ones(1000, 1000), p, rng=np.random.default_rng(0)).data
    dropped = np.count_nonzero(out == 0.0) / out.size
    assert abs(dropped - p) < 5 * np.sqrt(p * (1 - p) / out.size) + 2.0**-17
    (scale,) = np.unique(out[out != 0.0])
    kept_fraction = round((1 - p) * 2**16) / 2**16
    assert scale * kept_fraction == pytest.approx(1.0, abs=1e-12)


def test_all_none_and_off():
    x = ones(3, 4)
    assert ops.dropout(x, 0.0) is x
    assert ops.dropout(x, 0.7, training=False) is x
    out = ops.dropout(x, 1.0)
    out.sum().backward()
    assert not out.data.any() and not x.grad.data.any()


def test_almost_all_still_has_a_finite_scale():
    out = ops.dropout(ones(2**18), 1.0 - 1e-9, rng=np.random.default_rng(0)).data
    assert set(np.unique(out)) <= {0.0, 2.0**16}


def test_gradient_passes_where_the_output_did():
    x = ones(50, 50)
    out = ops.dropout(x, 0.3)
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.data, out.data)


def test_the_seed_decides():
    draws = []
    for seed in (1, 1, 2):
        manual_seed(seed)
        draws.append(ops.dropout(ones(100), 0.5).data)
    assert np.array_equal(draws[0], draws[1]) and not np.array_equal(draws[0], draws[2])
    assert not np.array_equal(draws[2], ops.dropout(ones(100), 0.5).data)


def test_whole_channels():
    out = ops.dropout2d(ones(20, 30, 3, 3), 0.4, rng=np.random.default_rng(0)).data
    first = out[:, :, :1, :1]
    assert (out == first).all()
    assert 0.3 < np.mean(first == 0.0) < 0.5
