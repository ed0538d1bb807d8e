"""Comparisons and logic: results, operators, errors."""

import numpy as np
import pytest

from minigrad import Tensor, ops
from minigrad.errors import DtypeError, ShapeError

COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
LOGIC = ["logical_and", "logical_or", "logical_xor"]
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]


@pytest.fixture
def x():
    return Tensor(np.array([1.0, 2.0, 3.0], np.float32), requires_grad=True)


@pytest.mark.parametrize("name", COMPARISONS + LOGIC)
def test_results_are_bool_and_without_gradient(name, x):
    y = getattr(ops, name)(x, 2)
    assert y.dtype == np.bool_
    assert not y.requires_grad


def test_operators(x):
    assert (x == 2).tolist() == [False, True, False]
    assert (x != 2).tolist() == [True, False, True]
    assert (2 < x).tolist() == [False, False, True]
    assert (2 >= x).tolist() == [True, True, False]
    assert (x == np.array([1.0, 0.0, 3.0], np.float32)).tolist() == [True, False, True]
    assert ((x > 1) & (x < 3) | ~(x >= 2) ^ True).tolist() == [False, True, True]
    assert (True & (x > 1)).tolist() == [False, True, True]
    assert (6 ^ Tensor(np.array([3]))).tolist() == [5]
    assert (4 | Tensor(np.array([3]))).tolist() == [7]


def test_what_is_no_operand_is_never_equal(x):
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711
    assert x != "x"
    assert x not in [None, "x"]


def test_tensors_stay_hashable(x):
    assert {x: 1}[x] == 1


def test_order_with_what_is_no_operand(x):
    with pytest.raises(DtypeError, match="lt: expected a tensor, an array or a number, got NoneType"):
        _ = x < None


def test_integers_meet_floats(x):
    assert (Tensor(np.array([1, 2, 4])) == x).tolist() == [True, True, False]
    assert (Tensor(np.array([1, 2])) > 1.5).tolist() == [False, True]


@pytest.mark.parametrize("name", COMPARISONS + LOGIC)
def test_two_float_dtypes_are_refused(name, x):
    with pytest.raises(DtypeError, match=f"{name}: expected operands of one float dtype, got float32 and float64"):
        getattr(ops, name)(x, Tensor(np.ones(3)))


@pytest.mark.parametrize("name", COMPARISONS + LOGIC + BITS)
def test_shapes_that_do_not_broadcast(name):
    with pytest.raises(ShapeError, match=rf"{name}: expected shapes that broadcast, got \(3,\) and \(2,\)"):
        getattr(ops, name)(Tensor(np.ones(3, int)), Tensor(np.ones(2, int)))


@pytest.mark.parametrize("name", BITS)
def test_bits_of_floats_are_refused(name, x):
    with pytest.raises(DtypeError, match=rf"{name}: expected bools or integers, got float32 \(3,\): compare it first"):
        getattr(ops, name)(x, 1)


def test_inverting_floats_is_refused(x):
    with pytest.raises(DtypeError, match=r"bitwise_not: expected bools or integers, got float32 \(3,\)"):
        _ = ~x


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_kinds_of_values(dtype):
    x = Tensor(np.array([0.0, np.inf, -np.inf, np.nan])).to(dtype)
    assert x.isnan().tolist() == [False, False, False, True]
    assert x.isinf().tolist() == [False, True, True, False]
    assert x.isfinite().tolist() == [True, False, False, False]
