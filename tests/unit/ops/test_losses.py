"""What losses refuse, and their edges."""

import numpy as np
import pytest

from minigrad import Tensor, ops
from minigrad.errors import IndexRangeError

LOGITS = Tensor(np.zeros((2, 3, 4)))
LABELS = np.zeros((2, 4), np.int64)


@pytest.mark.parametrize("loss", [ops.cross_entropy, ops.nll_loss])
@pytest.mark.parametrize("label", [3, 100, -1, -101])
def test_label_out_of_range(loss, label):
    labels = LABELS.copy()
    labels[1, 2] = label
    with pytest.raises(IndexRangeError, match=rf"labels in \[0, 3\), got {label} at position \(1, 2\) of \(2, 4\)"):
        loss(LOGITS, Tensor(labels))


def test_small_integers_are_labels_too():
    for dtype in (np.uint8, np.int8, np.int32):
        assert ops.cross_entropy(LOGITS, Tensor(LABELS.astype(dtype))).item() == pytest.approx(np.log(3.0))


def test_the_mean_of_nothing_is_nan_and_its_gradient_zero():
    for labels in (np.full((2, 4), -100), LABELS[:0]):
        x = Tensor(np.ones((len(labels), 3, 4)), True)
        loss = ops.cross_entropy(x, Tensor(labels))
        loss.backward()
        assert np.isnan(loss.item())
        assert not x.grad.numpy().any()


def test_ignored_rows_may_hold_anything():
    x = np.zeros((3, 2))
    x[1] = np.nan
    logits = Tensor(x, True)
    loss = ops.cross_entropy(logits, Tensor(np.array([0, -100, 1])), label_smoothing=0.1)
    loss.backward()
    assert loss.item() == pytest.approx(np.log(2.0))
    assert np.isfinite(logits.grad.numpy()).all()


def test_large_logits():
    x = Tensor(np.array([[1e4, 0.0], [-1e4, 0.0]], np.float32), True)
    loss = ops.cross_entropy(x, Tensor(np.array([1, 0])))
    loss.backward()
    assert loss.item() == 1e4
    np.testing.assert_array_equal(x.grad.numpy(), [[0.5, -0.5], [-0.5, 0.5]])


def test_binary_cross_entropy_far_out():
    x = Tensor(np.array([1e4, -1e4, 90.0], np.float32), True)
    loss = ops.binary_cross_entropy_with_logits(x, Tensor(np.array([1.0, 0.0, 0.0], np.float32)), reduction="none")
    loss.sum().backward()
    np.testing.assert_array_equal(loss.detach().numpy(), [0.0, 0.0, 90.0])
    np.testing.assert_array_equal(x.grad.numpy(), [0.0, 0.0, 1.0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_summed_wide(dtype):
    """The sum over 300 x 300 squares of 1 is more than float16 holds, their mean is 1."""
    x = Tensor(np.ones((300, 300), np.float32)).to(dtype).requires_grad_()
    loss = ops.mse_loss(x, x.detach() * 0.0)
    loss.backward()
    assert loss.dtype == x.dtype and x.grad.dtype == x.dtype
    assert loss.to("float32").item() == 1.0
    labels = Tensor(np.zeros(300, np.int64))
    assert ops.cross_entropy(x, labels).to("float32").item() == pytest.approx(np.log(300.0), rel=4e-3)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [-100, 1, 7])
def test_labels_that_all_count_give_what_they_give_with_weights_of_one(reduction, ignored):
    """Where no label is ignored they are looked at once; the numbers are those of class by class."""
    rng = np.random.default_rng(0)
    values, labels = rng.standard_normal((5, 3, 4)), rng.integers(0, 3, (5, 4))
    found = []
    for weight in (None, Tensor(np.ones(3))):
        x = Tensor(values, True)
        loss = ops.cross_entropy(x, Tensor(labels), weight, ignored, reduction)
        loss.sum().backward()
        found.append((loss.detach().numpy(), x.grad.numpy()))
    assert bool((found[0][1] == 0).any()) == (ignored == 1)
    for plain, weighted in zip(*found):
        np.testing.assert_allclose(plain, weighted, rtol=1e-13, atol=1e-16)
