"""What cases can't say of attention: weights that are dropped at random, half precision, and what is kept."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, ops
from minigrad.autograd.tape import accumulate
from minigrad.backend.dtypes import as_dtype
from minigrad.errors import AutogradError
from minigrad.ops import attention, attention_blocks
from minigrad.ops.attention import attention_weights
from minigrad.testing import assert_close


def drawn(*shapes, dtype="float64"):
    rng = np.random.default_rng(0)
    return [Tensor(rng.standard_normal(shape).astype(as_dtype(dtype)), requires_grad=True) for shape in shapes]


def composed(query, key, value, p=0.0):
    """The same of other operations, grouped heads as copies."""
    key, value = (ops.repeat_interleave(x, query.shape[1] // x.shape[1], 1) for x in (key, value))
    weights = ops.softmax(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5, -1)
    return ops.dropout(weights, p) @ value


def grads_of(y, tensors):
    y.backward(Tensor(np.cos(np.arange(y.numel())).reshape(y.shape).astype(y.dtype)))
    found = [x.grad.numpy() for x in tensors]
    for x in tensors:
        x.grad = None
    return [y.detach().numpy(), *found]


def test_weights_are_dropped():
    query, key, value = (Tensor(np.random.default_rng(i).standard_normal((2, 3, 4))) for i in range(3))
    whole = ops.scaled_dot_product_attention(query, key, value).numpy()
    halves = [ops.scaled_dot_product_attention(query, key, value, dropout_p=0.5).numpy() for _ in range(400)]
    assert np.ptp(halves, axis=0).all() and abs(np.mean(halves, axis=0) - whole).max() < 0.5
    assert not ops.scaled_dot_product_attention(query, key, value, dropout_p=1.0).numpy().any()


@pytest.mark.parametrize("heads", [2, 4])
def test_a_seed_drops_what_dropout_of_the_weights_drops(heads):
    """With the gradients of those that stay."""
    tensors = drawn((2, 4, 5, 3), (2, heads, 6, 3), (2, heads, 6, 2))
    found = []
    for attend in (composed, lambda *x: ops.scaled_dot_product_attention(*x[:3], dropout_p=x[3], enable_gqa=True)):
        minigrad.manual_seed(3)
        found.append(grads_of(attend(*tensors, 0.4), tensors))
    for got, expected in zip(*found):
        assert_close(got, expected, tolerance=1e-12)


@pytest.mark.parametrize("dtype, tolerance", [("float16", 2e-3), ("bfloat16", 8e-3)])
def test_scores_of_half_precision_are_in_float32(dtype, tolerance):
    """Of about 100, which bfloat16 has in steps of 0.5: a weight would be off by half."""
    low = drawn((3, 8, 16), (3, 8, 16), (3, 8, 16), dtype=dtype)
    wide = [Tensor(x.detach().numpy().astype(np.float64), requires_grad=True) for x in low]
    expected = grads_of(ops.scaled_dot_product_attention(*wide, scale=8.0), wide)
    for got, value in zip(grads_of(ops.scaled_dot_product_attention(*low, scale=8.0), low), expected):
        assert got.dtype == as_dtype(dtype)
        scale = abs(value).max()
        assert_close(got.astype(np.float64) / scale, value / scale, tolerance=tolerance)


def test_one_array_of_weights_is_kept_and_heads_stay_side_by_side():
    """Nothing else of L x S but which are dropped; what merges the heads again is a view."""
    query, key, value = (x.transpose(1, 2) for x in drawn((2, 8, 3, 4), (2, 8, 3, 4), (2, 8, 3, 4)))
    y = ops.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=0.5)
    (weights,) = [x for x in y.node.saved if isinstance(x, np.ndarray) and x.shape[-1] == 8]
    mask, _ = next(x.drops for x in y.node.saved if hasattr(x, "drops"))
    assert weights.shape == mask.shape == (2, 3, 8, 8) and mask.dtype == bool
    assert np.shares_memory(y.transpose(1, 2).reshape(2, 8, 12).data, y.data)


def test_a_mask_of_floats_may_be_wider():
    low = drawn((2, 3), (2, 3), (2, 3), dtype="float16")
    (mask,) = drawn((2, 2), dtype="float32")
    ops.scaled_dot_product_attention(*low, mask).sum().backward()
    assert mask.grad.dtype == np.float32 and low[0].grad.dtype == np.float16


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_weights_that_are_given_have_the_gradients_of_softmax_and_dropout(p):
    """And leave theirs, which others may hold, as it was."""
    tensors, found = drawn((2, 4, 5, 3), (2, 4, 6, 3)), []
    apart = [lambda x, y: ops.dropout(ops.softmax(x @ y.transpose(-1, -2) / 3**0.5, -1), p)]
    for weigh in (*apart, lambda x, y: attention_weights(x, y, None, p)):
        minigrad.manual_seed(3)
        weights = weigh(*tensors)
        weights.retain_grad()
        found.append([*grads_of(weights, tensors), weights.grad.numpy()])
    for got, expected in zip(*found):
        assert_close(got, expected, tolerance=1e-12)
    given = minigrad.ones(2, 4, 5, 6, dtype="float64")
    attention_weights(*tensors, None, p).backward(given)
    assert (given.numpy() == 1).all()


def test_weights_that_were_changed_are_noticed():
    weights = attention_weights(*drawn((2, 3), (2, 3)))
    weights.mul_(2.0)
    with pytest.raises(AutogradError, match="changed in place"):
        weights.sum().backward()


def sizes(monkeypatch, few, many, queries, kept):
    monkeypatch.setattr(attention_blocks, "_FEW", few)
    monkeypatch.setattr(attention_blocks, "_MANY", many)
    monkeypatch.setattr(attention_blocks, "_QUERIES", queries)
    monkeypatch.setattr(attention_blocks, "_are_few", lambda *given: kept)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", [None, "bools", "floats", "rows"])
@pytest.mark.parametrize("lengths", [(7, 5), (5, 9)])
def test_blocks_of_any_size_give_what_one_gives(monkeypatch, lengths, mask, is_causal, p):
    """Of several heads, of one, or of a few queries; with weights that are kept, or computed anew."""
    queries, keys = lengths
    tensors = drawn((2, 3, queries, 4), (2, 3, keys, 4), (2, 3, keys, 6))
    shape = {"bools": (2, 1, queries, keys), "floats": (queries, keys), "rows": (2, 1, 1, keys)}.get(mask)
    rng = np.random.default_rng(5)
    drawn_mask = None if shape is None else rng.standard_normal(shape) if mask == "floats" else rng.random(shape) > 0.3
    given = None if drawn_mask is None else Tensor(drawn_mask)
    found = []
    monkeypatch.setattr(attention, "fits", lambda *given: False)
    for choice in (None, (1 << 18, 1 << 17, 128, True), (1 << 18, 1 << 17, 128, False), (80, 1 << 17, 128, False),
                   (1, 1 << 17, 128, True), (1, 2 * keys, 128, False), (1, 1 << 17, 3, False), (1, 1 << 17, 3, True)):
        if choice is not None:
            monkeypatch.undo()
            sizes(monkeypatch, *choice)
        minigrad.manual_seed(4)
        out = ops.scaled_dot_product_attention(*tensors, given, p, is_causal)
        found.append([out.detach().numpy(), *grads_of(out, tensors)])
    for others in found[1:]:
        for got, expected in zip(others, found[0]):
            assert_close(got, expected, tolerance=1e-12)


def test_long_sequences_keep_no_array_of_all_weights():
    query, key, value = drawn((2, 300, 4), (2, 300, 4), (2, 300, 4))
    y = ops.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert max(x.size for x in y.node.saved if isinstance(x, np.ndarray)) == 2 * 2 * 300


@pytest.mark.parametrize("far", [-1e4, -1e9, float(np.finfo(np.float32).min)])
def test_a_query_whose_keys_are_all_far_below_has_the_gradients_of_its_weights(monkeypatch, far):
    """A mask that adds a large number in the place of infinity leaves a hidden row equal weights."""
    tensors = drawn((1, 6, 4), (1, 5, 4), (1, 5, 3), dtype="float32")
    mask = np.zeros((6, 5), np.float32)
    mask[2] = far
    found = []
    for kept in (True, False):
        sizes(monkeypatch, 1, 10, 2, kept)
        found.append(grads_of(ops.scaled_dot_product_attention(*tensors, Tensor(mask)), tensors))
    for got, expected in zip(*found):
        assert_close(got, expected, tolerance=1e-6)


def test_gradients_of_queries_keys_and_values_of_one_tensor_are_written_where_they_belong(monkeypatch):
    """Where they come of one product, nothing is copied on the way back to it."""
    joint = drawn((2, 5, 3 * 2 * 4))[0]
    query, key, value = (joint * 1).reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind()
    written = []
    monkeypatch.setattr(attention_blocks, "accumulate", lambda edge, x: (written.append(x), accumulate(edge, x)))
    ops.scaled_dot_product_attention(query, key, value).sum().backward()
    assert len({x.base.__array_interface__["data"][0] for x in written}) == 1 and joint.grad is not None
