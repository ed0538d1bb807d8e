"""Checks that are made once: what counts as another call, and that nothing is let through that was refused before."""

import numpy as np
import pytest

import minigrad
from minigrad import nn
from minigrad.errors import ArgumentError, DtypeError, IndexRangeError, MinigradError, ShapeError
from minigrad.nn import functional as F
from minigrad.ops import operands
from minigrad.ops.operands import once


@pytest.fixture
def counted():
    """A check that notes its calls, and those without once."""
    calls = []

    @once
    def check(who, tensors, *options):
        calls.append((who, tensors, options))
        if "bad" in options:
            raise ArgumentError("check: expected no bad option, got one")
        return len(calls)

    return check, calls


def test_the_same_call_is_checked_once(counted):
    check, calls = counted
    x, other = minigrad.ones(2, 3), minigrad.zeros(2, 3)
    assert check("who", (x, None), 1, (2, 3)) == check("who", (other, None), 1, (2, 3)) == 1
    assert len(calls) == 1


@pytest.mark.parametrize(
    "who, tensors, options",
    [
        ("who", (minigrad.ones(3, 2),), (1, (2, 3))),
        ("who", (minigrad.ones(2, 3, dtype="float64"),), (1, (2, 3))),
        ("who", (nn.Parameter(np.ones((2, 3), np.float32)),), (1, (2, 3))),
        ("who", (minigrad.ones(2, 3), minigrad.ones(1)), (1, (2, 3))),
        ("other", (minigrad.ones(2, 3),), (1, (2, 3))),
        ("who", (minigrad.ones(2, 3),), (True, (2, 3))),
        ("who", (minigrad.ones(2, 3),), (1.0, (2, 3))),
        ("who", (minigrad.ones(2, 3),), (np.int64(1), (2, 3))),
        ("who", (minigrad.ones(2, 3),), (1, (2, 3.0))),
        ("who", (minigrad.ones(2, 3),), (1, [2, 3])),
        ("who", (np.ones((2, 3), np.float32),), (1, (2, 3))),
    ],
    ids=["shape", "dtype", "class", "more", "name", "bool", "float", "numpy", "inside", "list", "array"],
)
def test_another_call_is_checked(counted, who, tensors, options):
    check, calls = counted
    check("who", (minigrad.ones(2, 3),), 1, (2, 3))
    check(who, tensors, *options)
    assert len(calls) == 2


def test_a_refused_call_is_refused_again(counted):
    check, calls = counted
    for _ in range(2):
        with pytest.raises(ArgumentError):
            check("who", (minigrad.ones(2),), "bad")
    assert len(calls) == 2


def test_few_answers_are_kept(counted, monkeypatch):
    monkeypatch.setattr(operands, "_MOST", 3)
    check, calls = counted
    for option in (*range(4), 3, 0):
        check("who", (minigrad.ones(2),), option)
    assert [options for _, _, options in calls] == [(0,), (1,), (2,), (3,), (0,)]


IMAGES, ROWS, LABELS = minigrad.ones(2, 4, 6, 6), minigrad.ones(2, 4), minigrad.tensor([1, 3])
VECTOR, KERNELS = minigrad.ones(4), minigrad.ones(2, 4, 3, 3)
TAKEN_AND_REFUSED = {
    "layer_norm": (lambda n: F.layer_norm(ROWS, n), (4,), (4.0,), DtypeError),
    "layer_norm_shape": (lambda w: F.layer_norm(ROWS, (4,), w), VECTOR, minigrad.ones(3), ShapeError),
    "layer_norm_array": (lambda w: F.layer_norm(ROWS, (4,), w), VECTOR, np.ones(4, np.float32), DtypeError),
    "rms_norm": (lambda eps: F.rms_norm(ROWS, (4,), None, eps), 1.0, True, ArgumentError),
    "batch_norm": (lambda m: F.batch_norm(IMAGES, None, None, training=True, momentum=m), 1, True, ArgumentError),
    "batch_norm_switch": (lambda t: F.batch_norm(IMAGES, VECTOR, VECTOR, training=t), True, 1, ArgumentError),
    "group_norm": (lambda n: F.group_norm(IMAGES, n), 1, True, ArgumentError),
    "dropout": (lambda p: F.dropout(ROWS, p), 1, True, ArgumentError),
    "dropout_switch": (lambda t: F.dropout(ROWS, 0.5, t), False, 0, ArgumentError),
    "conv2d": (lambda s: F.conv2d(IMAGES, KERNELS, stride=s), (1, 1), (1, True), ArgumentError),
    "max_pool2d": (lambda k: F.max_pool2d(IMAGES, k), 1, 1.0, ArgumentError),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), IMAGES, IMAGES.int(), DtypeError),
    "attention": (lambda v: F.scaled_dot_product_attention(ROWS, ROWS, v), ROWS, minigrad.ones(3, 4), ShapeError),
    "smoothing": (lambda s: F.cross_entropy(ROWS, LABELS, label_smoothing=s), 1, True, ArgumentError),
    "ignore_index": (lambda i: F.cross_entropy(ROWS, LABELS, ignore_index=i), 1, 1.0, ArgumentError),
    "labels": (lambda y: F.cross_entropy(ROWS, y), LABELS, minigrad.tensor([1, 4]), IndexRangeError),
    "label_shape": (lambda y: F.cross_entropy(ROWS, y), LABELS, minigrad.tensor([1]), ShapeError),
    "weight": (lambda w: F.cross_entropy(ROWS, LABELS, w), VECTOR, minigrad.ones(3), ShapeError),
}


@pytest.mark.parametrize("name", TAKEN_AND_REFUSED)
def test_what_looks_like_a_call_before_is_refused_all_the_same(name):
    call, taken, refused, error = TAKEN_AND_REFUSED[name]
    assert issubclass(error, MinigradError)
    for _ in range(2):
        call(taken)
        with pytest.raises(error):
            call(refused)
