"""Products of matrices on a device that is no CPU, against those on the CPU: half precision, views, broadcasting."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, ops
from minigrad.backend.device import to_device, to_host
from minigrad.backend.dtypes import as_dtype
from minigrad.backend.gemm import bmm
from minigrad.testing import assert_close

# Of a unit in the result, for sums of about a hundred products.
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-13}
SHAPES = {
    "matrices": ((33, 40), (40, 17)),
    "batch": ((3, 33, 40), (3, 40, 17)),
    "two_batch_axes": ((2, 3, 33, 40), (2, 3, 40, 17)),
    "left_broadcast": ((33, 40), (5, 40, 17)),
    "both_broadcast": ((4, 1, 33, 40), (3, 40, 17)),
    "single_row": ((3, 1, 40), (3, 40, 1)),
    "nothing_to_add": ((3, 4, 0), (3, 0, 5)),
    "nothing_at_all": ((0, 4, 3), (0, 3, 5)),
}


def draw(shapes, dtype):
    """Normal values, the operands scaled so that results are about 1."""
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal(shape) / max(shapes[0][-1], 1) ** 0.25).astype(as_dtype(dtype)) for shape in shapes
    ]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", SHAPES)
def test_batched_product(cuda, dtype, name):
    a, b = draw(SHAPES[name], dtype)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    got = bmm(to_device(a, cuda), to_device(b, cuda))
    assert got.dtype == a.dtype
    assert_close(to_host(got).astype(np.float64), expected, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("transposed", [(True, False), (False, True), (True, True)])
def test_transposed_views(cuda, dtype, transposed):
    a, b = draw(((3, 4, 33, 40), (3, 4, 40, 17)), dtype)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    parts = []
    for x, turned in zip((a, b), transposed):
        stored = np.ascontiguousarray(x.swapaxes(-1, -2)) if turned else x
        there = to_device(stored, cuda)
        parts.append(there.swapaxes(-1, -2) if turned else there)
    got = bmm(*parts)
    assert_close(to_host(got).astype(np.float64), expected, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_on_heads_that_lie_side_by_side(cuda, dtype):
    """Queries and keys as (batch, time, heads, width), the heads brought forward by a view."""

    def scores(device):
        q, k = (to_device(x, device) for x in draw(((2, 9, 4, 16), (2, 9, 4, 16)), dtype))
        x, y = Tensor(q, requires_grad=True), Tensor(k, requires_grad=True)
        result = x.permute(0, 2, 1, 3) @ y.permute(0, 2, 3, 1)
        (result * result).sum().backward()
        return result.cpu().double(), x.grad.cpu().double(), y.grad.cpu().double()

    for got, expected in zip(scores(cuda), scores(minigrad.Device("cpu"))):
        assert_close(got, expected, tolerance=20 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_of_shared_heads(cuda, dtype):
    """Views of heads, a mask and dropout: the elements that a seed drops are those that it drops on a CPU."""

    def attended(device):
        query, key, value = (to_device(x, device) for x in draw(((2, 9, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16)), dtype))
        tensors = [Tensor(x, requires_grad=True) for x in (query, key, value)]
        mask = Tensor(to_device(np.arange(63).reshape(9, 7) % 3 > 0, device))
        minigrad.manual_seed(0)
        y = ops.scaled_dot_product_attention(*[x.transpose(1, 2) for x in tensors], mask, 0.25, enable_gqa=True)
        (y * y).sum().backward()
        return [x.cpu().double() for x in (y.detach(), *[x.grad for x in tensors])]

    for got, expected in zip(attended(cuda), attended(minigrad.Device("cpu"))):
        assert_close(got, expected, tolerance=20 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_into_memory_with_gaps(cuda, dtype):
    a, b = draw(((3, 5, 7), (3, 7, 4)), dtype)
    whole, turned = (minigrad.zeros(*shape, dtype=dtype, device=cuda).data for shape in ((3, 5, 6), (3, 4, 5)))
    bmm(to_device(a, cuda), to_device(b, cuda), whole[:, :, 1:5])
    bmm(to_device(a, cuda), to_device(b, cuda), turned.swapaxes(-1, -2))
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    found = to_host(whole).astype(np.float64)
    assert_close(found[:, :, 1:5], expected, tolerance=TOLERANCE[dtype])
    assert_close(to_host(turned).astype(np.float64).swapaxes(-1, -2), expected, tolerance=TOLERANCE[dtype])
    assert not found[:, :, 0].any() and not found[:, :, 5].any()


def test_tf32_only_on_request(cuda):
    """Ones and a bit that float32 keeps and TF32 rounds away; the stand-in takes both for float32."""
    x = minigrad.full((4, 64, 64), 1.0 + 2.0**-13, device=cuda)
    exact = (1.0 + 2.0**-13) ** 2 * 64
    for y in (x, x[0]):
        assert abs((y @ y).max().item() - exact) < 1e-4
        with minigrad.allow_tf32():
            assert abs((y @ y).max().item() - exact) < 0.1


def test_vectors_and_batches(cuda):
    rng = np.random.default_rng(0)
    for shapes in (((4,), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((3, 4), (4,))):
        for dtype in ("float16", "bfloat16", "float32"):
            here = [Tensor(rng.standard_normal(shape).astype(as_dtype(dtype))) for shape in shapes]
            got = ops.matmul(*[x.to(cuda) for x in here]).cpu()
            expected = ops.matmul(*here)
            assert got.dtype == expected.dtype
            assert_close(got.double(), expected.double(), tolerance=10 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_product_is_captured(cuda, dtype):
    """It runs at each launch of the graph, on what its operands hold then, and gives the bits that it gave before."""
    xp = cuda.xp
    a, b = (to_device(x, cuda) for x in draw(((33, 40), (40, 17)), dtype))
    before = to_host(bmm(a, b))
    stream, pool = xp.cuda.Stream(non_blocking=True), xp.cuda.MemoryPool()
    with stream, xp.cuda.using_allocator(pool.malloc):
        bmm(a, b)
        stream.begin_capture()
        out = bmm(a, b)
        graph = stream.end_capture()
        for _ in range(2):
            graph.launch(stream)
        assert np.array_equal(to_host(out), before)
        a *= a.dtype.type(2)
        graph.launch(stream)
        assert np.array_equal(to_host(out).astype(np.float64), 2 * before.astype(np.float64))
