"""Softmax of rows and rows of attention, against their formulas in float64."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused import attention, softmax
from tests.kernel_suite.rows import assert_near, tolerance
from tests.kernel_suite.values import DTYPES, SIZES, draw

BATCH, QUERIES = (2, 3), 4


def exact_softmax(x):
    """Of rows in float64, 0 where all of one is -inf."""
    with np.errstate(invalid="ignore"):
        exps = np.exp(x - np.maximum(x.max(axis=-1, keepdims=True), np.finfo(np.float64).min))
    total = exps.sum(axis=-1, keepdims=True)
    return exps / np.where(total == 0, 1, total)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_rows(on, dtype):
    for length in SIZES:
        x, grad = draw(length, (2, 3, length), dtype, spread=4), draw(length + 1, (2, 3, length), dtype)
        y, g = exact_softmax(x.astype(np.float64)), grad.astype(np.float64)
        bound = tolerance(dtype, length) * 2
        got = softmax.softmax_rows(on(x))
        assert_near(got, y, bound, "softmax")
        y = to_host(got).astype(np.float64)
        dx = y * (g - (g * y).sum(-1, keepdims=True))
        assert_near(softmax.softmax_gradient(on(grad), got), dx, bound, "gradient")
        got = softmax.softmax_rows(on(x), logs=True)
        shifted = x.astype(np.float64) - x.max(axis=-1, keepdims=True).astype(np.float64)
        assert_near(got, shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)), bound, "logarithm")
        dx = g - np.exp(to_host(got).astype(np.float64)) * g.sum(-1, keepdims=True)
        assert_near(softmax.softmax_gradient(on(grad), got, logs=True), dx, bound, "gradient of the logarithm")


@pytest.mark.parametrize("logs", [False, True])
def test_softmax_of_what_is_not_finite(on, logs):
    for length in (40, 1500):
        x = np.zeros((5, length), np.float32)
        x[0, 1:], x[1], x[2, 7], x[3, 35] = -np.inf, -np.inf, np.inf, np.nan
        got = to_host(softmax.softmax_rows(on(x), logs))
        first = np.array([0.0] + [-np.inf] * (length - 1), np.float32)
        assert np.array_equal(got[0], first if logs else np.exp(first))
        assert np.isnan(got[1:4]).any(axis=1).all() and np.isfinite(got[4]).all()


MASKS = {
    "none": None,
    "of_keys": (1,),
    "of_queries_and_keys": (QUERIES, 1),
    "of_a_batch": (2, 1, 1, 1),
    "of_heads": (3, QUERIES, 1),
    "of_all": (2, 3, QUERIES, 1),
}


def expected_weights(x, factor, causal, mask):
    scores = x.astype(np.float64) * factor
    if mask is not None:
        scores = scores + (np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask.astype(np.float64))
    if causal:
        scores[..., np.arange(x.shape[-1]) > np.arange(x.shape[-2])[:, None]] = -np.inf
    return exact_softmax(scores)


def check_attention(on, dtype, name, causal, bools, lengths=SIZES):
    wide = DTYPES["f64" if dtype == "f64" else "f32"]
    for length in lengths:
        rng = np.random.default_rng(length)
        x = draw(length, (*BATCH, QUERIES, length), "f32", spread=3).astype(wide)
        mask = None
        if MASKS[name] is not None:
            shape = (*MASKS[name][:-1], length)
            mask = rng.random(shape) < 0.5 if bools else rng.standard_normal(shape).astype(np.float32)
        want = expected_weights(x, 0.7, causal, mask)
        bound, exact = tolerance(dtype, length) * 2, tolerance("f64" if dtype == "f64" else "f32", length) * 4
        there = on(x)
        out = there if wide == DTYPES[dtype] else on(np.zeros(x.shape, DTYPES[dtype]))
        weights = attention.weigh(there, 0.7, causal, None if mask is None else on(mask), out)
        assert weights is out
        assert_near(weights, want, bound, "weights")
        h, w = draw(length + 1, x.shape, "f32").astype(wide), to_host(weights).astype(np.float64)
        dscores = w * (h - (w * h).sum(-1, keepdims=True, dtype=np.float64))
        there = on(h)
        out = there if wide == DTYPES[dtype] else on(np.zeros(x.shape, DTYPES[dtype]))
        assert_near(attention.score_gradient(there, weights, 0.7, out), dscores * 0.7, bound, "gradient")
        there, out = on(h), on(np.zeros(x.shape, DTYPES[dtype]))
        attention.score_gradient(there, weights, -2.0, out, there)
        assert_near(out, dscores * -2.0, bound, "gradient beside that of the scores")
        assert_near(there, dscores, exact, "gradient of the scores")


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_rows(on, dtype):
    check_attention(on, dtype, "none", False, False)
    check_attention(on, dtype, "of_all", True, True, (5, 33))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("bools", [False, True])
def test_masks_of_attention(on, name, bools):
    check_attention(on, "f32", name, False, bools, (5, 33))
    check_attention(on, "f32", name, True, bools, (5, 1030))


def test_masks_of_many_batch_axes(on):
    for shape in ((2, 1, 3, 1, 5, 6), (2, 1, 2, 5, 1), (3, 1, 1, 1)):
        x = draw(0, (2, 2, 3, 2, 5, 6))
        mask = np.random.default_rng(0).random(shape) < 0.5
        got = attention.weigh(on(x), 1.0, False, on(mask), on(x))
        assert_near(got, expected_weights(x, 1.0, False, mask), 1e-5, "weights")


def test_attention_of_what_is_not_finite(on):
    """A row that sees no key is 0; +inf, NaN, and a NaN that is hidden, give NaN, as sums of a mask and scores do."""
    for length in (6, 1500):
        x = np.zeros((1, 5, length), np.float32)
        x[0, 0], x[0, 1, 3], x[0, 2, 3], x[0, 3, 3] = -np.inf, np.inf, np.nan, np.nan
        mask = np.ones((5, length), bool)
        mask[3, 3] = mask[4] = False
        got = to_host(attention.weigh(on(x), 1.0, False, on(mask), on(x)))[0]
        assert np.isnan(got).any(axis=1).tolist() == [False, True, True, True, False]
        assert not got[0].any() and not got[4].any()


def test_attention_that_is_not_aligned(on):
    x = on(draw(0, 2 * 3 * 8 + 1))[1:].reshape(2, 3, 8)
    want = expected_weights(to_host(x), 1.0, True, None)
    assert_near(attention.weigh(x, 1.0, True, None, on(np.zeros((2, 3, 8), np.float32))), want, 1e-5, "weights")
