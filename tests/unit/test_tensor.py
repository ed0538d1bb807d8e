"""A tensor seen by its user: what it shows, how it converts, which dtypes meet, what it refuses."""

import copy
import operator

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, ops, tensor
from minigrad.errors import (
    AutogradError,
    DtypeError,
    ShapeError,
)

# --------------------------------------------------------------------------------------------------- what it shows


def test_repr_shows_values_dtype_and_device():
    assert repr(tensor([1.5, 2.0])) == "tensor([1.5, 2. ], dtype=float32, device='cpu')"
    assert repr(tensor(3)) == "tensor(3, dtype=int64, device='cpu')"
    assert repr(tensor([[True]])) == "tensor([[ True]], dtype=bool, device='cpu')"
    assert repr(minigrad.zeros(0, 2)).startswith("tensor([]")
    assert repr(minigrad.ones(2, requires_grad=True)).endswith("device='cpu', requires_grad=True)")
    assert repr(minigrad.ones(1, dtype="bfloat16")) == "tensor([1], dtype=bfloat16, device='cpu')"


def test_repr_of_a_long_tensor_is_short():
    assert len(repr(minigrad.zeros(100_000))) < 200


def test_repr_of_a_matrix_is_aligned():
    first, second = repr(tensor([[1.0], [2.0]])).split("\n")
    assert first.index("[1.]") == second.index("[2.]")


def test_shape_and_size():
    x = minigrad.zeros(2, 3)
    assert (x.shape, x.size(), x.size(-1), x.ndim, x.dim(), x.numel(), len(x)) == ((2, 3), (2, 3), 3, 2, 2, 6, 2)
    assert x.dtype == minigrad.float32 == np.float32 and x.device == minigrad.Device("cpu") and x.is_leaf


def test_format_and_conversion_to_python():
    x = tensor(2.5)
    assert f"{x:.3f}" == "2.500" and f"{x}" == "2.5"
    assert (x.item(), float(x), int(x), bool(x), tensor(7).__index__(), "abc"[tensor(1)]) == (2.5, 2.5, 2, True, 7, "b")
    assert tensor([[1, 2]]).tolist() == [[1, 2]] and [row.tolist() for row in tensor([[1], [2]])] == [[1], [2]]
    assert isinstance(x.item(), float) and tensor([[4]]).item() == 4


# ------------------------------------------------------------------------------------------- to the outside world


def test_numpy_shares_memory():
    x = minigrad.zeros(3)
    x.numpy()[1] = 5
    assert x.tolist() == [0, 5, 0]
    assert np.shares_memory(np.asarray(x), x.data) and not np.shares_memory(np.array(x), x.data)
    assert np.asarray(x, np.float64).dtype == np.float64


@pytest.mark.parametrize("convert", [Tensor.numpy, np.asarray, np.from_dlpack])
def test_a_tensor_that_requires_grad_leaves_only_detached(convert):
    x = minigrad.ones(2, requires_grad=True)
    with pytest.raises(AutogradError, match=r"use \.detach\(\)"):
        convert(x)
    assert np.shares_memory(convert(x.detach()), x.data)


def test_dlpack_with_numpy():
    source = np.arange(6.0).reshape(2, 3)
    x = minigrad.from_dlpack(source)
    assert np.shares_memory(x.data, source) and np.shares_memory(np.from_dlpack(x), source)


@pytest.mark.torch
def test_dlpack_with_torch():
    import torch

    source = torch.arange(6.0)
    x = minigrad.from_dlpack(source)
    source[0] = 9
    assert x[0].item() == 9
    back = torch.from_dlpack(minigrad.tensor([1, 2]))
    assert back.dtype == torch.int64 and back.tolist() == [1, 2]


def test_deepcopy_is_a_leaf_with_memory_of_its_own():
    x = minigrad.ones(2, requires_grad=True)
    twin = copy.deepcopy([x, x])
    assert twin[0] is twin[1] and twin[0].requires_grad and not np.shares_memory(twin[0].data, x.data)


# ------------------------------------------------------------------------------------------------------- creation


@pytest.mark.parametrize(
    "data, dtype",
    [
        (1.5, "float32"),
        (3, "int64"),
        (True, "bool"),
        ([1, 2.5], "float32"),
        ([], "float32"),
        ([[True], [False]], "bool"),
        (np.float64(2.0), "float32"),
        ([np.float64(2.0)], "float32"),
        (np.float16(2.0), "float16"),
        (np.zeros(2), "float64"),
        ([np.zeros(2), np.ones(2)], "float64"),
        (np.zeros(2, np.uint8), "uint8"),
        (np.zeros(2, np.float32), "float32"),
    ],
)
def test_dtype_of_new_data(data, dtype):
    assert tensor(data).dtype.name == dtype
    assert minigrad.as_tensor(data).dtype.name == dtype
    assert tensor(data, dtype="float16").dtype.name == "float16"


def test_tensor_copies_and_as_tensor_does_not():
    array = np.zeros(3, np.float32)
    assert not np.shares_memory(tensor(array).data, array) and not np.shares_memory(tensor(tensor(array)).data, array)
    assert np.shares_memory(minigrad.as_tensor(array).data, array)
    assert np.shares_memory(minigrad.from_numpy(array).data, array)
    x = tensor(array)
    assert minigrad.as_tensor(x) is x and minigrad.as_tensor(x, "float64").dtype == np.float64
    assert tensor([tensor(1.0), tensor(2.0)]).tolist() == [1, 2]


@pytest.mark.parametrize("make", [tensor, minigrad.as_tensor, lambda data, dtype: tensor(1, dtype).new_tensor(data)])
def test_python_floats_are_not_rounded_to_float32_first(make):
    assert make([0.1, 5e-324], "float64").tolist() == [0.1, 5e-324]
    assert make([[2.0**24 + 1]], "int64").tolist() == [[2**24 + 1]]


@pytest.mark.parametrize("make", [tensor, minigrad.as_tensor])
def test_data_that_are_no_numbers_are_refused(make):
    with pytest.raises(ShapeError, match="expected nested lists of equal lengths, got ragged ones"):
        make([[1.0], [1.0, 2.0]])
    for data in ("text", None, {"a": 1}, [object()], ["1"], b"raw"):
        with pytest.raises(DtypeError, match="expected numbers, or lists or arrays of them, got"):
            make(data)
    for data in (1j, [2**63], np.zeros(2, "datetime64[s]")):
        with pytest.raises(DtypeError, match="expected one of bool"):
            make(data)


def test_filled_tensors():
    assert minigrad.zeros(2, 1).tolist() == [[0], [0]] and minigrad.ones((2,)).tolist() == [1, 1]
    assert minigrad.zeros().shape == minigrad.empty(()).shape == ()
    assert minigrad.full((2,), 7).dtype == np.int64 and minigrad.full(2, 0.5).tolist() == [0.5, 0.5]
    assert minigrad.full((), True).dtype == np.bool_ and minigrad.full(1, np.float64(0.5)).dtype == np.float32
    assert minigrad.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]] and minigrad.eye(2).shape == (2, 2)
    x = minigrad.ones(2, 2, dtype="int8")
    likes = [minigrad.zeros_like(x), minigrad.ones_like(x), minigrad.full_like(x, 3), minigrad.empty_like(x)]
    assert {(y.shape, y.dtype.name) for y in likes} == {((2, 2), "int8")}
    assert minigrad.randn_like(x, dtype=float).dtype == np.float32
    assert minigrad.ones(1, requires_grad=True).requires_grad


def test_sequences():
    assert minigrad.arange(4).tolist() == [0, 1, 2, 3] and minigrad.arange(4).dtype == np.int64
    assert minigrad.arange(2, 9, 3).tolist() == [2, 5, 8] and minigrad.arange(5, 2, -2).tolist() == [5, 3]
    assert minigrad.arange(0, 1, 0.25).tolist() == [0, 0.25, 0.5, 0.75] and minigrad.arange(1.0).dtype == np.float32
    assert minigrad.arange(0).shape == (0,) and minigrad.arange(3, dtype="float64").dtype == np.float64
    assert minigrad.linspace(0, 1, 5).tolist() == [0, 0.25, 0.5, 0.75, 1] and minigrad.linspace(2, 3, 0).shape == (0,)


def test_random_tensors():
    rng = np.random.default_rng(0)
    x = minigrad.randn(1000, rng=rng)
    assert x.dtype == np.float32 and abs(float(x.data.mean())) < 0.2 and 0.8 < x.data.std() < 1.2
    x = minigrad.rand(2, 500, rng=rng, dtype="float64")
    assert x.dtype == np.float64 and 0 <= x.data.min() and x.data.max() < 1
    x = minigrad.randint(-2, 3, (1000,), rng=rng)
    assert sorted(set(x.tolist())) == [-2, -1, 0, 1, 2] and x.dtype == np.int64
    assert set(minigrad.randint(2, size=(50,), rng=rng).tolist()) == {0, 1}
    assert set(minigrad.randint(2, (50,), rng=rng).tolist()) == {0, 1}
    assert sorted(minigrad.randperm(9, rng=rng).tolist()) == list(range(9))
    assert minigrad.rand(2, dtype="bfloat16").dtype == minigrad.bfloat16


# --------------------------------------------------------------------------------------------------- dtypes that meet


@pytest.mark.parametrize(
    "x, y, dtype",
    [
        ("float32", "int64", "float32"),
        ("int32", "float16", "float16"),
        ("bool", "float64", "float64"),
        ("int8", "int32", "int32"),
        ("uint8", "int8", "int16"),
        ("bool", "int64", "int64"),
        ("bfloat16", "int64", "bfloat16"),
    ],
)
def test_dtypes_meet(x, y, dtype):
    left, right = minigrad.ones(2, dtype=x), minigrad.ones(2, dtype=y)
    assert (left + right).dtype.name == (right * left).dtype.name == dtype


@pytest.mark.parametrize("x, y", [("float32", "float64"), ("float16", "float32"), ("bfloat16", "float16")])
def test_two_floats_are_refused_by_name(x, y):
    with pytest.raises(DtypeError, match=f"add: expected operands of one float dtype, got {x} and {y}"):
        minigrad.ones(2, dtype=x) + minigrad.ones(2, dtype=y)


@pytest.mark.parametrize(
    "x, number, dtype",
    [
        ("float32", 2.0, "float32"),
        ("float16", 2, "float16"),
        ("bfloat16", 0.5, "bfloat16"),
        ("float32", np.float64(2.0), "float32"),
        ("float32", np.float32(2.0), "float32"),
        ("float64", np.float16(2.0), "float64"),
        ("float32", np.int64(3), "float32"),
        ("int64", 2.0, "float32"),
        ("int8", 2, "int8"),
        ("bool", 2, "int64"),
        ("bool", True, "bool"),
        ("int64", True, "int64"),
        ("int64", np.float64(1.0), "float32"),
    ],
)
def test_a_number_is_weak(x, number, dtype):
    x = minigrad.ones(2, dtype=x)
    assert (x * number).dtype.name == (number * x).dtype.name == dtype
    assert isinstance(number * x, Tensor)


def test_integers_divide_as_float32():
    quotient = tensor([1, 2]) / 2
    assert quotient.dtype == np.float32 and quotient.tolist() == [0.5, 1]
    assert (tensor([1]) / tensor([2])).dtype == np.float32 and (tensor([1]) / tensor(2.0)).dtype == np.float32
    assert (tensor([7]) // 2).dtype == np.int64


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow])
def test_arrays_meet_tensors_on_either_side(op):
    x, y = np.asarray([2.0, 3.0], np.float32), np.asarray([[4.0], [5.0]], np.float32)
    for z in (op(x, Tensor(y)), op(Tensor(x), y)):
        assert isinstance(z, Tensor) and z.dtype == np.float32
        np.testing.assert_array_equal(z.numpy(), op(x, y))
    with pytest.raises(DtypeError, match="got float64 and float32"):
        op(x.astype(np.float64), Tensor(y))


def test_matmul_of_an_array_and_a_tensor():
    x = np.eye(2, dtype=np.float32)
    assert isinstance(Tensor(x) @ x, Tensor) and isinstance(x @ Tensor(x), Tensor)


# -------------------------------------------------------------------------------------------------------- shapes


def test_views_share_memory_and_copies_do_not():
    x = minigrad.arange(6.0).reshape(2, 3)
    views = [x.T, x.flatten(), x[0], x[0, 0], x[:, 1:], x[..., None], x.expand(4, 2, 3), x.split(1)[1], x.unbind(1)[2]]
    assert all(np.shares_memory(view.data, x.data) for view in views)
    copies = [x.T.reshape(-1), x.flip(0), x[[0]], x[x > 1], x.clone(), x.tile(1), ops.cat([x]), x.roll(0, 0), x.tril()]
    assert not any(np.shares_memory(copied.data, x.data) for copied in copies)
    assert x.contiguous() is x and not np.shares_memory(x.T.contiguous().data, x.data)


def test_an_element_is_a_view():
    x = minigrad.zeros(2, 2)
    x[1, 0].fill_(7)
    assert x.tolist() == [[0, 0], [7, 0]]


def test_split_and_chunk_lengths():
    x = minigrad.arange(7)
    assert [part.tolist() for part in x.split(3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [len(part) for part in x.chunk(4)] == [2, 2, 2, 1] and [len(part) for part in x.chunk(6)] == [2, 2, 2, 1]
    assert [len(part) for part in x[:0].split(3)] == [0] and [len(part) for part in x[:0].chunk(2)] == [0, 0]


def test_to_gives_itself_where_nothing_changes():
    x = minigrad.ones(2)
    assert x.to("cpu") is x.to(np.float32) is x.to(x) is x.float() is x.cpu() is x
    kinds = [x.double(), x.half(), x.bfloat16(), x.int(), x.long(), x.bool()]
    assert [y.dtype.name for y in kinds] == ["float64", "float16", "bfloat16", "int32", "int64", "bool"]


def test_to_carries_the_gradient_back():
    x = minigrad.ones(2, requires_grad=True)
    (x.to("float64") * 3).backward(minigrad.ones(2, dtype="float64"))
    assert x.grad.dtype == np.float32 and x.grad.tolist() == [3, 3]
    assert not x.long().requires_grad


# ------------------------------------------------------------------------------------------------------- indexing


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("rows", [1, 7])
def test_repeated_rows_are_added(rows, dtype):
    """Also where one row is named from both ends, and where a gradient is there already."""
    weight = minigrad.zeros(rows, 3, dtype=dtype, requires_grad=True)
    index = tensor([0, -1, rows - 1, 0, 0])
    for _ in range(2):
        weight[index].backward(minigrad.ones(5, 3, dtype=dtype))
    expected = np.zeros((rows, 3))
    np.add.at(expected, index.numpy(), 2.0)
    assert weight.grad.dtype.name == dtype
    np.testing.assert_array_equal(weight.grad.double().numpy(), expected)


def test_many_half_floats_are_added_in_float32():
    """A float16 sum of ones stops at 2048."""
    weight = minigrad.zeros(2, 1, dtype="float16", requires_grad=True)
    ops.embedding(weight, minigrad.zeros(5000, dtype=int)).backward(minigrad.ones(5000, 1, dtype="float16"))
    assert weight.grad.tolist() == [[5000], [0]]


def test_the_padding_row_gets_no_gradient():
    weight = minigrad.ones(3, 2, requires_grad=True)
    ops.embedding(weight, tensor([0, 1, 1]), padding_idx=-2).backward(minigrad.ones(3, 2))
    assert weight.grad.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_an_index_changed_after_it_was_used_is_noticed():
    x, index = minigrad.ones(3, requires_grad=True), tensor([0, 1])
    y = x[index]
    index[0] = 2
    with pytest.raises(AutogradError, match="data changed in place"):
        y.backward(minigrad.ones(2))
