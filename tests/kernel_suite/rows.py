"""Cross-entropy of rows, against their formulas in float64."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused import cross_entropy
from tests.kernel_suite.values import DTYPES, SIZES, ULP, draw

IGNORED = -7
ROWS = 5


def tolerance(dtype, length=1):
    return {"f64": 1e-14, "f32": 2e-6}.get(dtype, ULP[dtype]) * max(1.0, length**0.5 / 20)


def assert_near(actual, expected, bound, what):
    actual = to_host(actual).astype(np.float64)
    assert actual.shape == expected.shape
    assert np.array_equal(np.isnan(actual), np.isnan(expected)), what
    error = np.nanmax(np.abs(actual - expected), initial=0.0)
    assert error <= bound * max(1.0, np.nanmax(np.abs(expected), initial=0.0)), f"{what}: {error}"


def expected_losses(x, labels, weight, smoothing):
    """Losses of rows, their factors, and the gradient of their sum, all in float64."""
    x, classes = x.astype(np.float64), x.shape[1]
    w = np.ones(classes) if weight is None else weight.astype(np.float64)
    shifted = x - x.max(axis=1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    target = np.full(x.shape, smoothing / classes)
    kept = labels != IGNORED
    inside = np.where(kept, labels, 0)
    target[np.arange(len(x)), inside] += 1 - smoothing
    target *= w
    target[~kept] = 0
    losses = -(target * log_softmax).sum(axis=1)
    return losses, np.where(kept, w[inside], 0.0), np.exp(log_softmax) * target.sum(axis=1)[:, None] - target


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_of_rows(on, dtype, weighted, smoothing):
    for classes in SIZES:
        rng = np.random.default_rng(classes)
        x = draw(classes, (ROWS, classes), dtype, spread=4)
        labels = rng.integers(0, classes, ROWS)
        labels[3] = IGNORED
        weight = rng.uniform(0.5, 2, classes).astype(DTYPES[dtype]) if weighted else None
        device_weight = None if weight is None else on(weight)
        losses, rows = cross_entropy.row_losses(on(x), on(labels), device_weight, IGNORED, smoothing)
        want, factors, gradient = expected_losses(x, labels, weight, smoothing)
        bound = tolerance("f64" if dtype == "f64" else "f32", classes)
        assert_near(losses, want, bound, "losses")
        assert_near(rows.factors, factors, bound, "factors")
        each, half = np.arange(1, ROWS + 1), np.asarray(0.5, x.dtype)
        got = cross_entropy.row_gradients(rows, on(each.astype(x.dtype)))
        assert_near(got, gradient * each[:, None], tolerance(dtype, classes), "of each")
        for reduction, divisor in (("mean", factors.sum()), ("sum", 1.0)):
            args = (on(x), on(labels), device_weight, IGNORED, smoothing, reduction)
            loss, rows = cross_entropy.row_losses(*args)
            assert loss.dtype == x.dtype and loss.shape == ()
            assert_near(loss, np.asarray(want.sum() / divisor), max(bound, tolerance(dtype)), reduction)
            got = cross_entropy.row_gradients(rows, on(half))
            assert_near(got, 0.5 * gradient / divisor, tolerance(dtype, classes), f"of {reduction}")


def test_the_last_block_reduces_the_losses_of_all(on):
    """Time and again: the blocks count themselves from 0 each time."""
    for rows in (1, 8, 9, 300, 5000):
        x, labels = draw(rows, (rows, 7)), np.arange(rows) % 7
        want, _, _ = expected_losses(x, labels, None, 0.0)
        for reduction, expected in (("mean", want.mean()), ("sum", want.sum())):
            loss, _ = cross_entropy.row_losses(on(x), on(labels), None, IGNORED, 0.0, reduction)
            assert_near(loss, np.asarray(expected), 1e-6, reduction)


def test_smoothed_losses_of_logits_far_from_zero(on):
    for classes in (33, 2000):
        x, labels = draw(classes, (ROWS, classes)) + np.float32(3000), np.arange(ROWS)
        x[:, 0] = np.arange(ROWS) * 2000 - 4000  # from far below the others to far above
        losses, _ = cross_entropy.row_losses(on(x), on(labels), None, IGNORED, 0.2)
        assert_near(losses, expected_losses(x, labels, None, 0.2)[0], 1e-5, "losses")


@pytest.mark.parametrize("classes", [3, 2000])
def test_a_label_that_is_no_class_gives_nan(on, classes):
    for bad in (-1, classes, 2**40):
        x, labels = draw(0, (ROWS, classes)), np.array([0, 1, bad, 2, IGNORED])
        args, found = (on(np.ones(classes, np.float32)), IGNORED, 0.1), on(np.zeros(4, np.uint64))
        losses, rows = cross_entropy.row_losses(on(x), on(labels), *args, found=found)
        gradient = to_host(cross_entropy.row_gradients(rows, on(np.ones(ROWS, np.float32))))
        assert np.isnan(to_host(losses)).tolist() == [False, False, True, False, False]
        assert np.isnan(gradient).all(axis=1).tolist() == [False, False, True, False, False]
        assert to_host(found).view(np.int64).tolist() == [1, bad, 0, classes]
        assert np.isnan(to_host(cross_entropy.row_losses(on(x), on(labels), *args, "mean")[0]))


def test_labels_that_are_classes_or_ignored_are_not_kept(on):
    found = on(np.zeros(4, np.uint64))
    cross_entropy.row_losses(on(draw(0, (3, 4))), on(np.array([0, IGNORED, 3])), None, IGNORED, 0.0, "mean", found)
    assert not to_host(found).any()


def test_an_ignored_row_counts_for_nothing_even_if_it_is_nan(on):
    x, labels = draw(0, (ROWS, 40)), np.array([IGNORED, 1, 2, 3, 4])
    x[0] = np.nan
    mean, rows = cross_entropy.row_losses(on(x), on(labels), None, IGNORED, 0.0, "mean")
    gradient = to_host(cross_entropy.row_gradients(rows, on(np.float32(1.0).reshape(()))))
    assert np.isfinite(to_host(mean)) and np.isfinite(gradient).all() and not gradient[0].any()


def test_the_mean_of_no_rows_is_nan(on):
    for count in (3, 0):
        args = (on(draw(0, (count, 4))), on(np.full(count, IGNORED)), None, IGNORED, 0.0, "mean")
        mean, rows = cross_entropy.row_losses(*args)
        assert np.isnan(to_host(mean)) and to_host(rows.divisor) == 0
        assert not to_host(cross_entropy.row_gradients(rows, on(np.float32(1.0).reshape(())))).any()


def test_large_logits_do_not_overflow(on):
    x = np.array([[1e4, 0, -1e4], [-3e38, -3e38, -3e38]], np.float32)
    losses, rows = cross_entropy.row_losses(on(x), on(np.array([0, 2])), None, IGNORED, 0.0)
    np.testing.assert_allclose(to_host(losses), [0.0, np.log(3)], rtol=1e-6)


def test_logits_that_are_not_finite(on):
    """-inf is a class that can't be; nothing but -inf, +inf and NaN give NaN."""
    inf = np.inf
    for length in (40, 1500):
        x = np.zeros((5, length), np.float32)
        x[0, 1:] = -inf
        x[1], x[2, 7], x[3, 35] = -inf, inf, np.nan
        losses, rows = cross_entropy.row_losses(on(x), on(np.zeros(5, np.int64)), None, IGNORED, 0.0)
        assert np.isnan(to_host(losses)).tolist() == [False, True, True, True, False]
        np.testing.assert_allclose(to_host(losses)[[0, 4]], [0.0, np.log(length)], rtol=1e-6)
        gradient = to_host(cross_entropy.row_gradients(rows, on(np.ones(5, np.float32))))
        assert np.isnan(gradient).any(axis=1).tolist() == [False, True, True, True, False]
