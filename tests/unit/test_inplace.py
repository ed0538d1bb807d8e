"""Changes in place: what they write, what they refuse, and what a rebinding operator does instead."""

import numpy as np
import pytest

import minigrad
from minigrad import no_grad, tensor
from minigrad.errors import AutogradError, DtypeError, IndexRangeError, ShapeError


def test_each_returns_the_tensor_it_changed():
    x = minigrad.zeros(2, 2)
    memory = x.data
    for change in (
        lambda: x.fill_(2),
        lambda: x.add_(1),
        lambda: x.add_(tensor([1.0, 2.0]), alpha=0.5),
        lambda: x.mul_(tensor([[2.0], [4.0]])),
        lambda: x.copy_(x + 1),
    ):
        assert change() is x
    assert x.data is memory and x.tolist() == [[8, 9], [15, 17]]
    assert x.zero_() is x and x.tolist() == [[0, 0], [0, 0]]


def test_assignment_by_every_kind_of_index():
    x = minigrad.zeros(3, 3)
    x[0] = 1
    x[1, 1:] = tensor([2.0, 3.0])
    x[tensor([2]), 0] = 4
    x[..., -1] = np.asarray([5.0, 6.0, 7.0], np.float32)
    x[x == 0] = np.float64(-1)
    assert x.tolist() == [[1, 1, 5], [-1, 2, 6], [4, -1, 7]]


@pytest.mark.parametrize(
    "change",
    [
        lambda x, v: x.add_(v),
        lambda x, v: x.mul_(v),
        lambda x, v: x.copy_(v),
        lambda x, v: x.__setitem__(slice(1), v),
        lambda x, v: x[:1].fill_(0) if x.requires_grad else x.copy_(v),
    ],
)
@pytest.mark.parametrize("which", ["x", "value", "output"])
def test_refused_while_recording(change, which):
    x, value = minigrad.ones(2), minigrad.ones(1)
    (value if which == "value" else x).requires_grad_()
    if which == "output":
        x = x * 1
    with pytest.raises(AutogradError, match=r"expected recording to be off, .*use no_grad\(\)"):
        change(x, value)
    assert x.tolist() == [1, 1]
    with no_grad():
        change(x, value)


@pytest.mark.parametrize("symbol", ["+", "-", "*", "/", "**", "@"])
def test_augmented_assignment_rebinds_and_is_recorded(symbol):
    x = minigrad.ones(2, 2, requires_grad=True)
    names = {"x": x, "y": minigrad.full((2, 2), 2.0)}
    exec(f"x {symbol}= y", names)
    assert names["x"] is not x and names["x"].requires_grad and x.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda x: x.copy_(minigrad.ones(3)), ShapeError, r"copy_: .* fits into \(2,\) there, got \(3,\)"),
        (lambda x: x.copy_(minigrad.ones(1, 2)), ShapeError, r"copy_: .* fits into \(2,\) there, got \(1, 2\)"),
        (lambda x: x.add_(minigrad.ones(1, 1)), ShapeError, r"add_: .* fits into \(2,\) there, got \(1, 2\)"),
        (lambda x: x.add_(minigrad.ones(2, 2)), ShapeError, r"add_: expected a value that fits into \(2,\) there, got"),
        (lambda x: x.copy_(x.double()), DtypeError, "copy_: .*got float32 and float64"),
        (lambda x: x.int().copy_(x), DtypeError, "copy_: expected a value that fits into int32, got float32"),
        (lambda x: x.int().copy_(x.long()), DtypeError, "copy_: expected a value that fits into int32, got int64"),
        (lambda x: x.int().fill_(0.5), DtypeError, "fill_: expected a value that fits into int32, got float32"),
        (lambda x: x.bool().fill_(2), DtypeError, "fill_: expected a value that fits into bool, got int64"),
        (lambda x: x.to("uint8").fill_(300), DtypeError, "fill_: expected a number that fits into uint8, got 300"),
        (lambda x: x.copy_("text"), DtypeError, "copy_: expected a tensor, an array or a number, got str"),
        (lambda x: x.__setitem__(2, 0), IndexRangeError, r"setitem: expected an index into shape \(2,\), got"),
        (lambda x: x.__setitem__(0.5, 0), DtypeError, "setitem: expected integers, slices"),
        (lambda x: x.expand(3, 2).fill_(0), AutogradError, r"fill_: expected memory that may be written, .*\(3, 2\)"),
    ],
)
def test_refusals(call, kind, message):
    x = minigrad.ones(2)
    with pytest.raises(kind, match=message):
        call(x)
    assert x.tolist() == [1, 1]


def test_integers_and_bools_fit_into_floats():
    x = minigrad.zeros(2)
    assert x.copy_(tensor([1, 2])).tolist() == [1, 2] and x.copy_(tensor([True, False])).tolist() == [1, 0]
    assert minigrad.zeros(1, dtype="int64").copy_(minigrad.ones(1, dtype="int32")).tolist() == [1]


def test_overlapping_copy():
    x = minigrad.arange(5.0)
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3]


def test_subtraction_and_division_in_place():
    x = minigrad.full((2,), 6.0)
    assert x.sub_(tensor([1.0, 2.0]), alpha=2).div_(2) is x and x.tolist() == [2, 1]
    with pytest.raises(DtypeError, match="div_: expected a value that fits into int64, got float32"):
        tensor([4]).div_(2)


def test_every_operator_has_a_method_of_its_name():
    x, y = tensor([5.0, -3.0]), tensor([2.0, 2.0])
    assert x.add(y).tolist() == [7, -1] and x.sub(y).tolist() == [3, -5] and x.mul(y).tolist() == [10, -6]
    assert x.div(y).tolist() == [2.5, -1.5] and x.neg().tolist() == [-5, 3]
    assert x.floor_divide(y).tolist() == [2, -2] and x.remainder(y).tolist() == [1, 1]
