"""Every operation gives the same whatever the order of its inputs in memory, and keeps their dtype."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, ops
from minigrad.backend.dtypes import as_dtype
from minigrad.testing import assert_close
from tests.cases import CASES
from tests.cases.evaluate import evaluate
from tests.strict_cupy import counted


def columns_first(x):
    return np.asfortranarray(x)


def backwards(x):
    turn = (slice(None, None, -1),) * x.ndim
    return x[turn].copy()[turn]


def every_second(x):
    wide = np.zeros([2 * n for n in x.shape], x.dtype)
    part = wide[(slice(None, None, 2),) * x.ndim]
    part[...] = x
    return part


def first_axis_last(x):
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0)


def not_aligned(x):
    memory = np.zeros(x.nbytes + 1, np.uint8)[1:]
    moved = memory.view(x.dtype).reshape(x.shape)
    moved[...] = x
    return moved


ORDERS = {backwards: 1, every_second: 1, not_aligned: 1, columns_first: 2, first_axis_last: 3}  # from so many axes on


def read_only(order):
    def place(x):
        placed = order(x) if x.ndim else x.copy()
        placed.flags.writeable = False
        return placed

    return place


# `view` is there to refuse what would need a copy
@pytest.mark.parametrize("case", [c for c in CASES if c.op != "view" and c.id != "reshape-chain"], ids=lambda c: c.id)
def test_the_order_in_memory_does_not_matter(case):
    expected, expected_gradients = evaluate(case, read_only(np.copy))
    most = max((x.ndim for x in case.draw() if isinstance(x, np.ndarray)), default=0)
    for order in (order for order, axes in ORDERS.items() if axes <= most):
        output, gradients = evaluate(case, read_only(order))
        assert_close(output, expected, what=f"{order.__name__}: output")
        for i, (gradient, wanted) in enumerate(zip(gradients, expected_gradients)):
            assert (gradient is None) == (wanted is None)
            if wanted is not None:
                assert_close(gradient, wanted, what=f"{order.__name__}: gradient {i}")


# `to` gives the dtype that was asked for, `bincount` float64 of halves, as in PyTorch
@pytest.mark.parametrize("case", [c for c in CASES if c.op not in ("to", "bincount")], ids=lambda c: c.id)
def test_the_dtype_of_the_inputs_is_kept(case):
    with np.errstate(all="ignore"):
        in_double, double_gradients = evaluate(case, np.copy)
        for dtype in map(as_dtype, ("float16", "bfloat16", "float32")):
            output, gradients = evaluate(case, np.copy, dtype.name)
            if in_double.dtype == np.float64:
                assert output.dtype == dtype
            assert [g if g is None else g.dtype for g in gradients] == [
                g if g is None else dtype for g in double_gradients
            ]


@pytest.mark.parametrize("shape", [(2, 3), (1, 3, 2)], ids=str)
def test_cross_entropy_of_logits_in_another_order(shape):
    """The smallest inputs whose rows of classes do not lie in row order: a transposed matrix, one image."""
    logits = np.arange(6.0).reshape(shape)
    labels = np.zeros(np.delete(shape, 1), np.int64)
    gradients = []
    for order in (np.ascontiguousarray, np.asfortranarray):
        x = Tensor(order(logits), requires_grad=True)
        ops.cross_entropy(x, Tensor(labels), reduction="sum").backward()
        gradients.append(x.grad.numpy())
    assert_close(gradients[1], gradients[0])
    assert_close(gradients[0].sum(axis=1), np.zeros(labels.shape))  # softmax less one, over the classes


IMAGE = (2, 3, 4, 5)
ALONE = ["relu", "tanh", "sigmoid", "silu", "gelu", "leaky_relu", "elu", "softplus", "hardtanh", "mish", "exp", "log1p",
         "sqrt", "sin", "neg"]
OF_TWO = ["add", "sub", "mul", "div", "maximum"]


def channels_last(device, shape=IMAGE):
    """Images as convolutions on a GPU give them."""
    x = minigrad.rand(shape[0], *shape[2:], shape[1], device=device)
    return Tensor(x.data.transpose(0, 3, 1, 2)).requires_grad_()


def is_channels_last(x):
    return x.data.transpose(0, 2, 3, 1).flags.c_contiguous and not x.data.flags.c_contiguous


@pytest.mark.parametrize("name", ALONE)
def test_on_a_gpu_results_and_gradients_of_images_lie_as_they_do(cuda, name):
    x = channels_last(cuda)
    y = getattr(ops, name)(x)
    assert is_channels_last(y)
    node = y.node
    node.backward(node, channels_last(cuda).data)  # as backward calls it: x.grad is laid out anew by the leaf
    assert x.grad_array.strides == x.data.strides
    assert_close(y, getattr(ops, name)(x.detach().cpu()))


@pytest.mark.parametrize("name", OF_TWO)
@pytest.mark.parametrize("shape", [IMAGE, (2, 3, 1, 1), (3, 1, 1), ()], ids=str)
def test_on_a_gpu_two_operands_give_what_lies_as_the_one_that_is_no_rows(cuda, name, shape):
    x, y = channels_last(cuda), minigrad.rand(*shape, device=cuda) + 1.0
    assert is_channels_last(getattr(ops, name)(x, y)) and is_channels_last(getattr(ops, name)(y, x))
    x = channels_last(cuda, (1, 3, 4, 5))
    larger = channels_last(cuda)
    assert is_channels_last(getattr(ops, name)(x, larger))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_on_a_gpu_what_is_joined_stays_in_its_order(cuda, axis):
    x, y = channels_last(cuda), channels_last(cuda)
    joined = ops.cat([x, y, x], axis)
    assert is_channels_last(joined)
    assert_close(joined, ops.cat([one.detach().cpu() for one in (x, y, x)], axis))
    assert ops.cat([x, minigrad.rand(*IMAGE, device=cuda)], axis).data.flags.c_contiguous


def test_on_a_gpu_rows_stay_rows(cuda):
    x = minigrad.rand(*IMAGE, device=cuda)
    for y in (ops.relu(x), x + 1.0, x * x, ops.gelu(x)):
        assert y.data.flags.c_contiguous


def test_on_a_gpu_gradients_that_meet_lie_as_the_first(cuda):
    x = channels_last(cuda)
    z = x * 1.0
    w = z + ops.relu(z)
    grad = channels_last(cuda).data
    w.node.backward(w.node, grad)
    relu = w.node.inputs[1]
    relu.backward(relu, relu.grad_array)
    assert w.node.inputs[0].grad_array.strides == x.data.strides


def test_on_a_gpu_dropout_keeps_the_order_and_drops_as_on_a_cpu(cuda):
    x = channels_last(cuda)
    minigrad.manual_seed(0)
    y = minigrad.nn.functional.dropout(x, 0.4)
    minigrad.manual_seed(0)
    assert_close(y, minigrad.nn.functional.dropout(x.detach().cpu(), 0.4))
    assert is_channels_last(y)


POOLS = {
    "max": lambda x: ops.max_pool2d(x, 2),
    "wide max": lambda x: ops.max_pool2d(x, 3, 1, 1, ceil_mode=True),
    "average": lambda x: ops.avg_pool2d(x, 2, 1, 1, count_include_pad=False),
    "adaptive": lambda x: ops.adaptive_avg_pool2d(x, (2, 3)),
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_on_a_gpu_pools_are_one_kernel_each_way_of_images_as_they_lie(cuda, pool):
    x = channels_last(cuda)
    grad = channels_last(cuda, pool(x).shape).data
    with counted() as work:
        y = pool(x)
        y.node.backward(y.node, grad)
    assert work.total == 2 and is_channels_last(y) and x.grad_array.strides == x.data.strides
    with counted() as work:
        pool(minigrad.rand(*IMAGE, device=cuda))
    assert work.total == 2  # one to lay the channels last


@pytest.mark.parametrize("keepdim", [False, True])
def test_on_a_gpu_the_mean_over_pixels_is_one_kernel_each_way(cuda, keepdim):
    x = channels_last(cuda)
    with counted() as work:
        y = x.mean((2, 3), keepdim=keepdim)
        y.node.backward(y.node, y.data)
    assert work.total == 2 and x.grad_array.strides == x.data.strides
    rows = x.detach().cpu().requires_grad_()
    expected = rows.mean((2, 3), keepdim=keepdim)
    expected.backward(expected.detach())
    assert_close(y, expected)
    assert_close(x.grad, rows.grad)


@pytest.mark.parametrize("dim", [1, (1, 2), (0, 2, 3), None])
def test_on_a_gpu_other_means_are_right_of_images(cuda, dim):
    x = channels_last(cuda)
    assert_close(x.mean(dim), x.detach().cpu().mean(dim))
