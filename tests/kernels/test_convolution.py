"""Convolution by kernels: gradients, parts of a bounded workspace, where memory lies, what a GPU is given to do."""

import numpy as np
import pytest

import minigrad
from minigrad import ops
from minigrad.backend.fused import convolution
from minigrad.backend.kernels import using_kernels
from minigrad.errors import AutogradError
from minigrad.ops.image_order import to_nhwc
from minigrad.testing import assert_close, gradcheck
from tests.kernels.cuda_on_cpu import HostKernels
from tests.strict_cupy import counted

FORMS = {
    "plain": (ops.conv2d, (2, 2, 3, 4), (2, 2, 2, 3), {"padding": 1}),
    "groups": (ops.conv2d, (1, 4, 4, 3), (4, 2, 2, 2), {"groups": 2, "stride": 2, "dilation": (1, 2), "padding": 1}),
    "pointwise": (ops.conv2d, (2, 2, 2, 2), (3, 2, 1, 1), {}),
    "row": (ops.conv1d, (2, 2, 5), (2, 2, 3), {"padding": "same"}),
    "transposed": (ops.conv_transpose2d, (1, 2, 2, 3), (2, 2, 2, 3), {"stride": (2, 1), "padding": 1}),
    "transposed_row": (ops.conv_transpose1d, (2, 2, 3), (2, 1, 2), {"groups": 2, "stride": 3, "output_padding": 1}),
}
LARGE = {
    "plain": (ops.conv2d, (5, 8, 9, 13), (12, 8, 3, 3), {"padding": 1}),
    "groups": (ops.conv2d, (3, 6, 15, 14), (4, 3, 3, 2), {"groups": 2, "stride": (1, 2)}),
    "transposed": (ops.conv_transpose2d, (4, 6, 14, 12), (6, 5, 3, 2), {"padding": 1}),
}


def arrays(form, dtype=np.float64):
    """Images, a weight and a bias."""
    op, image, weight, options = form
    rng = np.random.default_rng(0)
    outputs = weight[1] * options.get("groups", 1) if "transpose" in op.__name__ else weight[0]
    return [rng.standard_normal(shape).astype(dtype) for shape in (image, weight, (outputs,))]


def results(form, place, dtype=np.float64):
    """The output and the gradients of images, weight and bias, each as the user sees it."""
    op, _, _, options = form
    inputs = [place(array) for array in arrays(form, dtype)]
    for tensor in inputs:
        tensor.requires_grad_()
    y = op(*inputs, **options)
    seed = np.random.default_rng(1).standard_normal(y.shape).astype(dtype)
    y.backward(place(seed))
    return [y.detach(), *(tensor.grad for tensor in inputs)]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_gradients(form):
    op, _, _, options = form
    with using_kernels(HostKernels(order=11)) as loader:
        gradcheck(lambda *inputs: op(*inputs, **options), arrays(form))
    assert loader.launches


@pytest.mark.parametrize("form", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_any_workspace_gives_the_same(cuda, form, dtype, monkeypatch):
    def run():
        found = results(form, lambda array: minigrad.tensor(array, device=cuda), dtype)
        return [tensor.cpu().numpy() for tensor in found]

    sizes = []
    gather = convolution.gather
    bounds = convolution.BOUNDS._replace(least_rows=32)
    monkeypatch.setattr(convolution, "BOUNDS", bounds)
    monkeypatch.setattr(convolution, "gather", lambda *args: sizes.append(args[2]) or gather(*args))
    expected, launches = run(), len(sizes)
    assert all(np.array_equal(one, other) for one, other in zip(expected, run()))  # the same bits each time
    for workspace in (8_000, 2_500):
        monkeypatch.setattr(convolution, "BOUNDS", bounds._replace(workspace=workspace))
        sizes.clear()
        found = run()
        assert len(sizes) > launches
        y, dx, dweight, dbias = (one.tobytes() == other.tobytes() for one, other in zip(found, expected))
        assert dweight and dbias, workspace
        for one, other in zip(found, expected):
            assert_close(one, other, tolerance=1e-5 if dtype == np.float32 else 2e-3)


def test_the_workspace_is_kept(cuda, monkeypatch):
    bounds = convolution.BOUNDS._replace(workspace=50_000, least_rows=32)
    monkeypatch.setattr(convolution, "BOUNDS", bounds)
    gather, spread, nbytes = convolution.gather, convolution.spread, []

    def noted(columns, *others):
        nbytes.append(columns.nbytes)
        return columns, *others

    monkeypatch.setattr(convolution, "gather", lambda *args: noted(*gather(*args)))
    monkeypatch.setattr(convolution, "spread", lambda *args: spread(*noted(*args)))
    results(LARGE["plain"], lambda array: minigrad.tensor(array, device=cuda), np.float32)
    assert len(nbytes) >= 10 and 40_000 < max(nbytes) <= 50_000


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_outputs_lie_with_their_channels_last(cuda, form):
    y, _, dweight, _ = results(form, lambda array: minigrad.tensor(array, device=cuda))
    assert to_nhwc(y.data).data.ptr == y.data.data.ptr and dweight.data.flags.c_contiguous


def count(run):
    """The pieces of device work and what run() returned."""
    with counted() as work:
        result = run()
    return work.total, result


def test_pieces_of_work(cuda):
    """A gather, which turns the weight as well, and a product; back a gather, two products, a sum and a spread."""
    x = minigrad.randn(2, 3, 6, 6, device=cuda).requires_grad_()
    weight = minigrad.randn(4, 3, 3, 3, device=cuda).requires_grad_()
    point = minigrad.randn(5, 4, 1, 1, device=cuda).requires_grad_()
    x.requires_grad_(), weight.requires_grad_()
    pieces, y = count(lambda: ops.conv2d(x, weight, padding=1))
    assert pieces == 2
    pieces, z = count(lambda: ops.conv2d(y, point))
    assert pieces == 1
    seed = z.detach()
    pieces, _ = count(lambda: z.backward(seed))
    assert pieces == 5 + 3


def test_frozen_parts_cost_nothing(cuda):
    x, weight = minigrad.randn(2, 3, 6, 6, device=cuda), minigrad.randn(4, 3, 3, 3, device=cuda)
    seed = ops.conv2d(x, weight).detach()
    for tensor, pieces in ((x, 3), (weight, 3)):
        tensor.requires_grad_()
        y = ops.conv2d(x, weight)
        assert count(lambda: y.backward(seed))[0] == pieces
        tensor.requires_grad_(False)


def test_changed_images_are_noticed(cuda):
    """The columns are gathered again in backward."""
    x, weight = minigrad.ones(1, 1, 3, 3, device=cuda), minigrad.ones(1, 1, 2, 2, device=cuda).requires_grad_()
    y = ops.conv2d(x, weight)
    x.mul_(2.0)
    with pytest.raises(AutogradError, match="conv2d saved"):
        y.sum().backward()
