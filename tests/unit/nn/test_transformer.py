"""What cases can't say of MultiheadAttention and the encoder: initial values, copies, dropout, what is copied."""

import math

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn
from minigrad.testing import assert_close


def drawn(*shape, dtype=np.float32):
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(dtype), requires_grad=True)


def test_projections_start_as_pytorch_has_them():
    minigrad.manual_seed(0)
    layer = nn.MultiheadAttention(64, 4, add_bias_kv=True)
    bound = math.sqrt(6 / (64 + 3 * 64))
    assert 0.99 * bound < np.abs(layer.in_proj_weight.data).max() <= bound
    assert 0.99 / 8 < np.abs(layer.out_proj.weight.data).max() <= 1 / 8
    assert not layer.in_proj_bias.data.any() and not layer.out_proj.bias.data.any()
    apart = nn.MultiheadAttention(64, 4, kdim=32, vdim=16)
    assert np.abs(apart.v_proj_weight.data).max() > math.sqrt(6 / (64 + 64)) and apart.in_proj_weight is None
    before = layer.out_proj.weight.clone()
    layer.reset_parameters()
    assert not minigrad.equal(layer.out_proj.weight, before)


def test_layers_of_an_encoder_start_alike_and_are_apart():
    layer = nn.TransformerEncoderLayer(4, 2, 8, activation=nn.GELU())
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(4))
    first, second = (list(part.parameters()) for part in encoder.layers)
    assert len(list(encoder.parameters())) == 2 * len(first) + 2 and layer not in list(encoder.modules())
    for a, b, own in zip(first, second, layer.parameters()):
        assert np.array_equal(a.data, b.data) and np.array_equal(a.data, own.data)
        assert len({id(a), id(b), id(own)}) == 3 and not np.shares_memory(a.data, b.data)
    assert encoder.layers[0].activation is not encoder.layers[1].activation


@pytest.mark.parametrize("batch_first", [False, True])
def test_one_tensor_given_three_times_is_projected_at_once(batch_first):
    """To what three tensors of its values give; the heads come out of the product, and are merged, as views."""
    layer, x = nn.MultiheadAttention(8, 2, batch_first=batch_first), drawn(3, 5, 8)
    y, weights = layer(x, x, x, need_weights=False)
    assert weights is None
    attention = y.node.inputs[0].inputs[0].inputs[0]
    query = attention.saved[0]
    assert query.shape == ((3, 2, 5, 4) if batch_first else (5, 2, 3, 4)) and query.data.base.shape[-1] == 24
    assert_close(y, layer(x, x.clone(), x.clone())[0], tolerance=1e-6)
    assert_close(y, layer(x, x, x)[0], tolerance=1e-6)


def test_weights_are_dropped_in_training_alone():
    layer, x = nn.MultiheadAttention(8, 2, dropout=0.5), drawn(6, 3, 8)
    _, weights = layer(x, x, x, average_attn_weights=False)
    assert 0.2 < (weights.detach().numpy() == 0).mean() < 0.8
    assert (layer.eval()(x, x, x)[1].detach().numpy() > 0).all()


def test_a_hint_of_causality_changes_nothing_but_the_way():
    layer, x = nn.MultiheadAttention(8, 2).double(), drawn(5, 3, 8, dtype=np.float64)
    later = minigrad.ones(5, 5, dtype=bool).triu(1)
    expected = layer(x, x, x, attn_mask=later)[0]
    assert_close(layer(x, x, x, need_weights=False, attn_mask=later, is_causal=True)[0], expected, tolerance=1e-12)
    assert_close(layer(x, x, x, attn_mask=later, is_causal=True)[0], expected, tolerance=1e-12)
    padding = Tensor(np.arange(5) >= np.array([5, 3, 4])[:, None])
    both = [layer(x, x, x, padding, False, later, is_causal=hint)[0] for hint in (True, False)]
    assert_close(*both, tolerance=1e-12)
    assert not np.allclose(both[0].data, expected.data)


def test_a_place_that_sees_nothing_gives_no_weights():
    layer, x = nn.MultiheadAttention(8, 2), drawn(3, 2, 8)
    padding = Tensor(np.array([[False] * 3, [True] * 3]))
    output, weights = layer(x, x, x, padding)
    assert not weights.detach().numpy()[1].any() and np.isfinite(output.detach().numpy()).all()
    output.sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_masks_of_two_float_dtypes_meet_in_the_wider():
    layer, x, bias = nn.MultiheadAttention(8, 2).half(), drawn(3, 2, 8, dtype=np.float16), drawn(3, 3)
    hidden = Tensor(np.array([[False] * 3, [False, False, True]]))
    both = minigrad.where(hidden[:, None, None], -math.inf, bias.detach()).repeat_interleave(2, 1).reshape(4, 3, 3)
    expected = layer(x, x, x, need_weights=False, attn_mask=both)[0]
    for padding in (hidden, minigrad.where(hidden, -math.inf, 0.0).half()):
        output, _ = layer(x, x, x, padding, False, bias)
        assert output.dtype == np.float16 and np.array_equal(output.data, expected.data)
    output.sum().backward()
    assert bias.grad.dtype == np.float32 and bias.grad.abs().sum() > 0


def test_keys_that_a_layer_adds_are_seen_whatever_masks_hide():
    """Bools and the floats that they stand for give the same."""
    layer, x = nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True), drawn(3, 2, 8)
    padding = Tensor(np.array([[False, False, True], [True] * 3]))
    found = [layer(x, x, x, mask) for mask in (padding, minigrad.where(padding, -math.inf, 0.0))]
    assert np.array_equal(found[0][0].data, found[1][0].data) and np.array_equal(found[0][1].data, found[1][1].data)
    weights = found[0][1].detach().numpy()
    assert (weights[:, :, 3:] > 0).all() and not weights[1, :, :3].any() and (weights[0, :, :2] > 0).all()


@pytest.mark.parametrize("norm_first", [False, True])
def test_dropout_is_where_pytorch_has_it(norm_first):
    """After each of the two parts, on the weights of attention, and behind the activation; in training alone."""
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, 0.4, norm_first=norm_first, layer_norm_eps=0.5), drawn(5, 3, 8)
    assert layer.self_attn.dropout == 0.4 and layer.norm1.eps == layer.norm2.eps == 0.5
    for training in (True, False):
        drops = iter([nn.functional.dropout] * 3 if training else [lambda x, p: x] * 3)
        layer.train(training)
        minigrad.manual_seed(1)
        found = layer(x)
        minigrad.manual_seed(1)

        def attended(x):
            return next(drops)(layer.self_attn(x, x, x, need_weights=False)[0], 0.4)

        def fed(x):
            return next(drops)(layer.linear2(next(drops)(layer.linear1(x).relu(), 0.4)), 0.4)

        if norm_first:
            y = x + attended(layer.norm1(x))
            y = y + fed(layer.norm2(y))
        else:
            y = layer.norm1(x + attended(x))
            y = layer.norm2(y + fed(y))
        assert_close(found, y, tolerance=1e-6)
