"""Batch, group and instance norm by kernels: how much work they are, and that they do what a CPU does."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn, ops
from minigrad.autograd import checkpoint
from minigrad.testing import assert_close
from tests.strict_cupy import counted

RNG = np.random.default_rng(0)
IMAGES, SLOPES = (RNG.standard_normal((3, 4, 5, 2)) for _ in range(2))


def on_the_device(values, device):
    """Images whose memory is as kernels want it, a leaf."""
    rows = Tensor(np.ascontiguousarray(values.transpose(0, 2, 3, 1))).to(device)
    return Tensor(rows.data.transpose(0, 3, 1, 2))


LAYERS = {
    "batch": lambda: nn.BatchNorm2d(4, dtype="float64"),
    "no_affine": lambda: nn.BatchNorm2d(4, affine=False, dtype="float64"),
    "no_bias": lambda: nn.BatchNorm2d(4, bias=False, dtype="float64"),
    "no_running": lambda: nn.BatchNorm2d(4, track_running_stats=False, dtype="float64"),
    "group": lambda: nn.GroupNorm(2, 4, dtype="float64"),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True, dtype="float64"),
}


def trained(layer, x, slopes):
    """The output, and what a step leaves: gradients, and what the layer remembers."""
    x.requires_grad_()
    y = layer(x)
    y.backward(slopes)
    return y, lambda: [y, x.grad, *(param.grad for param in layer.parameters()), *layer.buffers()]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_two_pieces_of_work_each_way_and_a_cpus_numbers(cuda, name):
    _, expected = trained(LAYERS[name](), Tensor(IMAGES.copy()), Tensor(SLOPES))
    layer, x, slopes = LAYERS[name]().to(cuda), on_the_device(IMAGES, cuda), on_the_device(SLOPES, cuda)
    with counted() as work:
        y, got = trained(layer, x, slopes)
    parts = ("moments", "normalize", "sums", "gradients")
    assert work.pieces == {f"channel_norm_{part}_f64": 1 for part in parts}
    assert work.waits == work.uploads == 0
    for one, other in zip(got(), expected(), strict=True):
        assert_close(one.detach().cpu().numpy(), other.detach().cpu().numpy())
    assert y.data.transpose(0, 2, 3, 1).flags.c_contiguous, "images stay as kernels want them"


@pytest.mark.parametrize("frozen", [False, True])
def test_evaluation_is_one_piece_forward(cuda, frozen):
    results = []
    for device in ("cpu", cuda):
        layer = nn.BatchNorm2d(4, dtype="float64")
        with minigrad.no_grad():
            layer.running_mean.copy_(minigrad.tensor(IMAGES[0, :, 0, 0].copy()))
        layer = layer.to(device).eval().requires_grad_(not frozen)
        x, slopes = (Tensor(values.copy()).to(device) for values in (IMAGES, SLOPES))
        if device != "cpu":
            x, slopes = on_the_device(IMAGES, cuda), on_the_device(SLOPES, cuda)
        x.requires_grad_()
        if device == "cpu":
            results.append(layer(x))
            results[0].backward(slopes)
        else:
            with counted() as forward:
                y = layer(x)
            with counted() as backward:
                y.backward(slopes)
            assert forward.total == 1 and backward.total == (1 if frozen else 2)
            assert_close(y.detach().cpu().numpy(), results[0].detach().cpu().numpy())
        results.append([x.grad, *(param.grad for param in layer.parameters() if not frozen)])
    for one, other in zip(results[1], results[2]):
        assert_close(other.detach().cpu().numpy(), one.detach().cpu().numpy())


@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_wide_statistics_of_halves_are_not_rounded(cuda, norm):
    """As float16 this mean would be 300, the one variance infinite and the other one 0."""
    ops_of = {
        "batch": lambda x, *running: ops.batch_norm(x, *running),
        "instance": lambda x, *running: ops.instance_norm(x, *running, use_input_stats=False),
    }
    found = []
    for device in ("cpu", cuda):
        x = minigrad.full((2, 2, 3, 1), 300.0, dtype="float16", device=device)
        running = [minigrad.tensor(values, device=device) for values in ([299.9, 299.9], [1e5, 1e-8])]
        found.append(ops_of[norm](x, *running).cpu().numpy())
    assert 0.0 < found[0][0, 0, 0, 0] < 1e-3 and found[0][0, 1, 0, 0] > 30
    assert_close(found[1], found[0], tolerance=1e-3)


def test_fixed_statistics_give_a_finite_gradient_where_x_is_infinite(cuda):
    x = minigrad.tensor([[np.inf, np.nan], [1.0, 2.0]], device=cuda).requires_grad_()
    layer = nn.BatchNorm1d(2, eps=0.0).to(cuda).eval()
    layer(x).sum().backward()
    assert x.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert layer.bias.grad.tolist() == [2.0, 2.0] and not np.isfinite(layer.weight.grad.cpu().numpy()).any()


def test_gradients_are_written_to_their_place_in_a_flat_layout(cuda):
    layer = nn.BatchNorm2d(4, dtype="float64").to(cuda)
    optimizer = minigrad.optim.SGD(layer.parameters(), lr=0.1)
    x, slopes = on_the_device(IMAGES, cuda).requires_grad_(), on_the_device(SLOPES, cuda)
    layer(x).backward(slopes)
    place, once = layer.weight.grad.data, layer.weight.grad.cpu().numpy().copy()
    optimizer.zero_grad()
    x.grad = None
    with counted() as work:
        layer(x).backward(slopes)
    assert work.pieces["channel_norm_gradients_f64"] == 1 and work.places["autograd/tape.py:accumulate"] == 0
    assert layer.weight.grad.data is place or np.shares_memory(layer.weight.grad.data.memory, place.memory)
    assert np.array_equal(layer.weight.grad.cpu().numpy(), once)
    layer(x).backward(slopes)
    assert_close(layer.weight.grad.cpu().numpy(), 2 * once)


def test_one_tensor_as_weight_and_bias_gets_both_gradients(cuda):
    results = []
    for device in ("cpu", cuda):
        both, x = Tensor(np.arange(1.0, 5.0)).to(device).requires_grad_(), Tensor(IMAGES).to(device)
        ops.group_norm(x, 2, both, both).backward(Tensor(SLOPES).to(device))
        results.append(both.grad.cpu().numpy())
    assert_close(results[1], results[0])


def test_recomputing_moves_and_counts_once(cuda):
    layer = nn.BatchNorm2d(4, dtype="float64").to(cuda)
    checkpoint(layer, on_the_device(IMAGES, cuda).requires_grad_()).sum().backward()
    once = nn.BatchNorm2d(4, dtype="float64")
    once(Tensor(IMAGES))
    assert layer.num_batches_tracked.item() == 1
    assert_close(layer.running_var.cpu().numpy(), once.running_var.cpu().numpy())


def test_running_statistics_of_another_dtype_move_too(cuda):
    moved = []
    for device in ("cpu", cuda):
        mean, variance = (Tensor(np.ones(4, np.float32)).to(device) for _ in range(2))
        ops.batch_norm(Tensor(IMAGES).to(device), mean, variance, training=True)
        moved.append((mean.cpu().numpy(), variance.cpu().numpy()))
    assert_close(moved[1][0], moved[0][0], tolerance=1e-6)
    assert_close(moved[1][1], moved[0][1], tolerance=1e-6)


def test_running_statistics_of_instances(cuda):
    moved = []
    for device in ("cpu", cuda):
        layer = nn.InstanceNorm2d(4, track_running_stats=True, dtype="float64").to(device)
        layer(Tensor(IMAGES).to(device))
        out = layer.eval()(Tensor(IMAGES).to(device))
        moved.append([*(one.detach().cpu().numpy() for one in layer.buffers()), out.detach().cpu().numpy()])
    for one, other in zip(*moved):
        assert_close(other, one)


def test_an_empty_batch_launches_nothing_and_changes_nothing(cuda):
    layer = nn.BatchNorm2d(4, dtype="float64").to(cuda)
    x = Tensor(np.zeros((0, 4, 5, 2))).to(cuda).requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == x.shape and layer.weight.grad.tolist() == [0.0] * 4
    assert layer.num_batches_tracked.item() == 0 and layer.running_var.tolist() == [1.0] * 4


ROWS = {
    "layer": (lambda: nn.LayerNorm(6, dtype="float64"), "layer_norm"),
    "two_axes": (lambda: nn.LayerNorm((3, 6), dtype="float64"), "layer_norm"),
    "no_bias": (lambda: nn.LayerNorm(6, bias=False, dtype="float64"), "layer_norm"),
    "rms": (lambda: nn.RMSNorm(6, dtype="float64"), "layer_norm"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_norm_of_rows_is_one_piece_forward_and_two_backward(cuda, name):
    make, kernel = ROWS[name]
    values, slopes = (RNG.standard_normal((4, 3, 6)) for _ in range(2))
    _, expected = trained(make(), Tensor(values.copy()), Tensor(slopes))
    layer, x = make().to(cuda), Tensor(values).to(cuda)
    with counted() as work:
        _, got = trained(layer, x, Tensor(slopes).to(cuda))
    uploads = work.pieces.pop("upload", 0)
    assert work.pieces == {f"{kernel}_{part}_f64": 1 for part in ("forward", "backward", "finish")} and not uploads
    for one, other in zip(got(), expected(), strict=True):
        assert_close(one.detach().cpu().numpy(), other.detach().cpu().numpy())


@pytest.mark.parametrize("role", ["weight", "bias"])
def test_rows_that_are_their_own_weight_or_bias_get_both_gradients_beside_another_one(cuda, role):
    results = []
    for device in ("cpu", cuda):
        x = Tensor(np.arange(1.0, 5.0)).to(device).requires_grad_()
        rows = x * 1.0
        y = ops.layer_norm(rows, 4, **{role: rows})
        (y * Tensor(SLOPES[0, :, 0, 0]).to(device) + rows * 2.0).sum().backward()
        results.append(x.grad.cpu().numpy())
    assert_close(results[1], results[0])
