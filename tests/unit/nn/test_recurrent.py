"""Recurrent layers, cells and packed sequences: what the cases beside PyTorch's values do not say."""

import math

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, manual_seed, nn, ops
from minigrad.errors import AutogradError
from minigrad.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    unpack_sequence,
    unpad_sequence,
)
from minigrad.ops import stretches
from minigrad.testing import assert_close

KINDS, LENGTHS = ["RNN", "GRU", "LSTM"], [2, 5, 1, 4]


def normal(*shape, seed=0, dtype=np.float64, grad=False):
    values = np.asarray(np.random.default_rng(seed).standard_normal(shape))
    return Tensor(values.astype(dtype), requires_grad=grad)


def parts(last):
    """The tensors of a state."""
    return list(last) if isinstance(last, tuple) else [last]


# -------------------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    "layer, text",
    [
        (nn.RNN(2, 3), "RNN(2, 3)"),
        (nn.RNN(2, 3, 1, "relu", False, True), "RNN(2, 3, bias=False, batch_first=True)"),
        (nn.GRU(2, 3, 2, dropout=0.5), "GRU(2, 3, num_layers=2, dropout=0.5)"),
        (nn.LSTM(2, 3, bidirectional=True, proj_size=2), "LSTM(2, 3, proj_size=2, bidirectional=True)"),
        (nn.RNNCell(2, 3, False, "relu"), "RNNCell(2, 3, bias=False, nonlinearity=relu)"),
        (nn.GRUCell(2, 3), "GRUCell(2, 3)"),
        (nn.LSTMCell(2, 3, bias=False), "LSTMCell(2, 3, bias=False)"),
    ],
)
def test_repr(layer, text):
    assert repr(layer) == text


def test_parameters_have_the_names_of_pytorch_and_start_uniform_within_one_over_root_hidden():
    manual_seed(0)
    layer = nn.LSTM(30, 40, 2, bidirectional=True, proj_size=5)
    kinds, places = ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"], ["0", "0_reverse", "1", "1_reverse"]
    assert list(layer.state_dict()) == [f"{kind}_l{place}" for place in places for kind in kinds]
    assert [len(weights) for weights in layer.all_weights] == [5] * 4 and layer.flatten_parameters() is None
    for module in (layer, nn.GRU(30, 40), nn.RNNCell(30, 40)):
        for param in module.parameters():
            assert 0.8 / math.sqrt(40) < np.abs(param.data).max() <= 1 / math.sqrt(40)
            assert abs(param.data.mean()) < 0.5 / math.sqrt(40)
    assert {param.dtype.name for param in nn.GRU(2, 3, dtype="float64").parameters()} == {"float64"}


def test_dropout_is_between_layers_and_in_training_alone():
    manual_seed(0)
    x, layer = normal(5, 3, 4, dtype=np.float32), nn.GRU(4, 6, 2, dropout=0.5)
    twin = nn.GRU(4, 6, 2)
    twin.load_state_dict(layer.state_dict())
    dropped, last = layer(x)
    expected, kept = twin(x)
    assert_close(last[0], kept[0].data, tolerance=0)  # that of the first layer
    assert np.abs(dropped.data - expected.data).max() > 0.01 and dropped.data.all()
    assert_close(layer.eval()(x)[0], expected.data, tolerance=0)
    with pytest.warns(UserWarning, match="LSTM: expected num_layers > 1 for dropout=0.1, got 1") as caught:
        nn.LSTM(2, 3, dropout=0.1)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_called_at_each_step_is_a_layer_and_each_parameter_is_told_once(kind):
    layer, cell, x = getattr(nn, kind)(3, 4).double(), getattr(nn, f"{kind}Cell")(3, 4).double(), normal(5, 2, 3)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    output, last = layer(x)
    state, steps, told = None, [], []
    for step in x:
        state = cell(step, state)
        steps.append(parts(state)[0])
    assert_close(minigrad.stack(steps), output.data)
    for one, other in zip(parts(state), parts(last)):
        assert_close(one, other.data[0])
    (output * output).sum().backward()
    sum((step * step).sum() for step in steps).backward(on_leaf=told.append)
    assert sorted(map(id, told)) == sorted(map(id, cell.parameters()))
    for param, other in zip(cell.parameters(), layer.parameters()):
        assert_close(param.grad, other.grad.data)


# ---------------------------------------------------------------------------------------------------------- tape


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_single_outputs_add_up_to_that_of_all(kind):
    layer, x = getattr(nn, kind)(3, 4).double(), normal(5, 2, 3, grad=True)
    output, last = layer(x)
    outputs = [output, *parts(last)]
    seeds = [normal(*one.shape, seed=1 + i) for i, one in enumerate(outputs)]
    for one, seed in zip(outputs, seeds):
        one.backward(seed, retain_graph=True)
    apart = [value.grad.data.copy() for value in (x, *layer.parameters())]
    x.grad = None
    layer.zero_grad()
    sum((one * seed).sum() for one, seed in zip(outputs, seeds)).backward()
    for value, expected in zip((x, *layer.parameters()), apart):
        assert_close(value.grad, expected)


@pytest.mark.parametrize("shape", [(5, 2, 3), (1, 5, 3), (5, 3)])
def test_outputs_may_be_changed_in_place_and_a_changed_weight_is_noticed(shape):
    layer, x = nn.LSTM(3, 4, batch_first=True).double(), normal(*shape)
    output, (h, c) = layer(x)
    before = output.data.copy()
    output += 1
    h = h * 2
    (output.sum() + h.sum() + c.sum()).backward()
    expected = [param.grad.data.copy() for param in layer.parameters()]
    layer.zero_grad()
    output, (h, c) = layer(x)
    assert_close(output, before, tolerance=0)
    (output.sum() + 2 * h.sum() + c.sum()).backward()
    for param, values in zip(layer.parameters(), expected):
        assert_close(param.grad, values)
    output, _ = layer(x)
    with minigrad.no_grad():
        layer.weight_hh_l0.mul_(2)
    with pytest.raises(AutogradError, match=r"lstm saved, got .* since, its input of shape \(16, 4\)"):
        output.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_no_sequence_at_all_gives_zeros(kind):
    """As a rank gets them whose shard is empty."""
    layer, x = getattr(nn, kind)(3, 4, 2, bidirectional=True), normal(5, 0, 3, dtype=np.float32, grad=True)
    output, last = layer(x)
    assert output.shape == (5, 0, 8) and {one.shape for one in parts(last)} == {(4, 0, 4)}
    output.sum().backward()
    assert x.grad.shape == x.shape and not any(param.grad.data.any() for param in layer.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_summed_in_float32(kind):
    layer, x = getattr(nn, kind)(8, 8), normal(6, 3, 8, dtype=np.float32)
    expected, _ = layer(x)
    found, last = layer.half()(x.half())
    assert {one.dtype.name for one in (found, *parts(last))} == {"float16"}
    assert_close(found.float(), expected.data, tolerance=2e-3)
    found.float().sum().backward()
    assert {param.grad.dtype.name for param in layer.parameters()} == {"float16"}


def test_relu_lets_nothing_through_where_it_is_0_and_all_where_it_is_none():
    """As PyTorch 2.13: infinity times 0 would be NaN."""
    weights = Tensor(np.array([[1.0], [-1.0]])), Tensor(np.zeros((2, 2)))
    for value, seed, expected in ((2.0, [1.0, np.inf], 1.0), (np.nan, [1.0, 3.0], -2.0)):
        x = Tensor(np.full((1, 1, 1), value), requires_grad=True)
        ops.rnn(x, None, *weights, nonlinearity="relu")[0].backward(Tensor(np.array([[seed]])))
        assert x.grad.item() == expected


# -------------------------------------------------------------------------------------------------------- packing


def test_the_rows_of_a_packed_batch():
    """As PyTorch 2.13 packs it."""
    x = Tensor(np.array([[1, 2, 0], [3, 0, 0], [4, 5, 6]], np.float32), requires_grad=True)
    packed = pack_padded_sequence(x, [2, 1, 3], batch_first=True, enforce_sorted=False)
    assert packed.data.tolist() == [4, 1, 3, 5, 2, 6] and packed.batch_sizes.tolist() == [3, 2, 1]
    assert packed.sorted_indices.tolist() == [2, 0, 1] and packed.unsorted_indices.tolist() == [1, 2, 0]
    padded, lengths = pad_packed_sequence(packed, batch_first=True, padding_value=-1.0, total_length=4)
    assert padded.tolist() == [[1, 2, -1, -1], [3, -1, -1, -1], [4, 5, 6, -1]] and lengths.tolist() == [2, 1, 3]
    (padded * padded).sum().backward()
    assert x.grad.tolist() == [[2, 4, 0], [6, 0, 0], [8, 10, 12]]
    assert [one.tolist() for one in unpack_sequence(packed)] == [[1, 2], [3], [4, 5, 6]]
    assert [one.tolist() for one in unpad_sequence(x, lengths, batch_first=True)] == [[1, 2], [3], [4, 5, 6]]
    equals = pack_padded_sequence(minigrad.ones(3, 4), [2, 3, 2, 3], enforce_sorted=False)
    assert equals.sorted_indices.tolist() == [1, 3, 0, 2]
    in_order = pack_sequence([Tensor(np.arange(3)), Tensor(np.arange(2))])
    assert in_order.data.tolist() == [0, 0, 1, 1, 2] and in_order.sorted_indices is None
    assert pad_packed_sequence(in_order)[0].tolist() == [[0, 0], [1, 1], [2, 0]]
    again = PackedSequence(packed.data * 2, *packed[1:3])
    assert again.unsorted_indices.tolist() == [1, 2, 0] and again.double().data.dtype == np.float64
    assert again.to("float16").data.dtype == np.float16 and not again.cpu().is_cuda


@pytest.mark.parametrize("kind, options", [*((kind, {}) for kind in KINDS), ("LSTM", {"proj_size": 2})])
def test_each_sequence_of_a_packed_batch_gets_what_it_gets_alone(kind, options):
    """In both directions, from a state of its own, whatever stands in the padding; no gradient comes back there."""
    layer = getattr(nn, kind)(3, 4, 2, batch_first=True, bidirectional=True, **options).double()
    x, h = normal(4, 5, 3), normal(4, 4, options.get("proj_size", 4), seed=1)
    state = (h, normal(4, 4, 4, seed=2)) if kind == "LSTM" else h
    for row, length in zip(x.data, LENGTHS):
        row[length:] = np.nan
    x.requires_grad_()
    packed = pack_padded_sequence(x, Tensor(np.array(LENGTHS)), batch_first=True, enforce_sorted=False)
    output, last = layer(packed, state)
    assert output.data.shape == (12, 2 * h.shape[2]) and output.sorted_indices is packed.sorted_indices
    output, lengths = pad_packed_sequence(output, batch_first=True)
    assert lengths.tolist() == LENGTHS
    for k, length in enumerate(LENGTHS):
        own = [one[:, k] for one in parts(state)]
        alone, ends = layer(x.detach()[k, :length], tuple(own) if kind == "LSTM" else own[0])
        assert_close(output[k, :length], alone.data)
        assert not output.data[k, length:].any()
        for one, other in zip(parts(last), parts(ends)):
            assert_close(one[:, k], other.data)
    (output.sum() + sum(one.sum() for one in parts(last))).backward()
    there = np.arange(5) < np.array(LENGTHS)[:, None]
    assert np.isfinite(x.grad.data).all() and not x.grad.data[~there].any() and x.grad.data[there].all()


def test_packed_sequences_on_a_device(cuda):
    """With states of their own, on the device of the rank, and without a wait for it but for the lengths."""

    def run(device):
        manual_seed(1)
        layer = nn.LSTM(3, 4, 2, bidirectional=True, device=device).double()
        x, state = normal(5, 4, 3), [normal(4, 4, 4, seed=seed) for seed in (1, 2)]
        x, *state = (one.to(device).requires_grad_() for one in (x, *state))
        output, (h, c) = layer(pack_padded_sequence(x, LENGTHS, enforce_sorted=False), tuple(state))
        padded, _ = pad_packed_sequence(output, padding_value=1.0)
        cell = nn.GRUCell(4, 2, device=device).double()
        ((padded * padded).sum() + h.sum() + (c * c).sum() + cell(h[0]).sum()).backward()
        made = [padded, h, c, x.grad, *(one.grad for one in state), *(param.grad for param in layer.parameters())]
        assert {str(one.device) for one in (*made, output.sorted_indices)} == {str(device)}
        return made

    for one, other in zip(run(cuda), run("cpu")):
        assert_close(one.cpu(), other.data)


def test_rows_of_steps_say_what_a_layer_takes():
    """The operations take rows as they are, so that no padding is computed with."""
    weights = [normal(16, 3), normal(16, 4)]
    packed = pack_padded_sequence(normal(5, 4, 3), sorted(LENGTHS, reverse=True))
    output, h, c = ops.lstm(packed.data, None, *weights, batch_sizes=packed.batch_sizes)
    assert (output.shape, h.shape, c.shape) == ((12, 4), (4, 4), (4, 4))
    assert_close(output[-1], h.data[0])  # the longest comes first, and ends last


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_one_by_one_and_many_at_once_give_the_same(kind, options, monkeypatch):
    """What does not depend on the steps before is computed for a stretch of them: of a packed batch too."""

    def run(longest):
        monkeypatch.setattr(stretches, "_LONGEST", longest)
        manual_seed(2)
        layer = getattr(nn, kind)(3, 4, **options).double()
        x = normal(9, 5, 3, grad=True)
        output, last = layer(pack_padded_sequence(x, [9, 8, 8, 8, 2]))
        whole, _ = layer(x)
        sum((one * one).sum() for one in (output.data, whole, *parts(last))).backward()
        return [output.data, x.grad, *(param.grad for param in layer.parameters())]

    for one, other, between in zip(run(1), run(1 << 16), run(200)):
        assert_close(one, other.data)
        assert_close(between, other.data)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
@pytest.mark.filterwarnings("error")
def test_a_gate_that_is_far_out_is_0_or_1(kind):
    layer = getattr(nn, kind)(2, 3)
    x = Tensor(np.array([[[1e30, -1e30]], [[-1e30, 1e30]]], np.float32), requires_grad=True)
    output, _ = layer(x)
    output.sum().backward()
    assert np.isfinite(output.detach().numpy()).all() and np.isfinite(x.grad.numpy()).all()
