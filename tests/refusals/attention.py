"""What attention and its companions refuse, as operations and as layers."""

import numpy as np

from minigrad import Tensor, nn, ops
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.nn import functional as F
from tests.refusals import each

X, Y, ROW = Tensor(np.full((2, 3), 0.5)), Tensor(np.full((2, 3), 0.25)), Tensor(np.full(3, 0.5))
SIGNS, SINGLE = Tensor(np.array([1, -1])), Tensor(np.full((2, 3), 0.5, np.float32))
HEADS, SEEN = Tensor(np.ones((4, 2, 3))), Tensor(np.ones((2, 4)) > 0)


def attention(*args, **options):
    return ops.scaled_dot_product_attention(*args, **options)


def heads(query=HEADS, key=HEADS, value=HEADS, features=3, count=3, **options):
    arguments = {"training": False, **options}
    weight = arguments.pop("weight", Tensor(np.ones((9, 3))))
    added = arguments.pop("added", (None, None))
    last = Tensor(np.ones((3, 3)))
    return ops.multi_head_attention_forward(
        query, key, value, features, count, weight, None, *added, False, 0.0, last, None, **arguments
    )


ROWS = [
    *each(
        (lambda call: call(), ShapeError),
        (lambda: heads(ROW), r"of shape \(length, N, features\) or \(length, features\), got query \(3,\), key \(4,"),
        (lambda: heads(ROW, batch_first=True), r"expected query, key and value of shape \(N, length, features\) or"),
        (lambda: heads(features=6), r"expected query of 6 features, got query \(4, 2, 3\)"),
        (lambda: heads(key=HEADS[:3]), r"key and value of one length, and one number of samples, got .*, key \(3,"),
        (lambda: heads(key=HEADS[:, :1], value=HEADS[:, :1]), "and one number of samples, got"),
        (lambda: heads(weight=Tensor(np.ones((6, 3)))), r"in_proj_weight of shape \(9, 3\), got \(6, 3\)"),
        (lambda: heads(attn_mask=SEEN), r"attn_mask of shape \(4, 4\) or \(6, 4, 4\), got \(2, 4\)"),
        (lambda: heads(attn_mask=SEEN, is_causal=True, need_weights=False), r"attn_mask of shape \(4, 4\) or"),
        (lambda: heads(key_padding_mask=SEEN[:1]), r"key_padding_mask of shape \(2, 4\), got \(1, 4\)"),
    ),
    *each(
        (lambda call: call(), ArgumentError),
        (lambda: heads(count=2), "expected num_heads to divide the 3 features, got 2"),
        (lambda: heads(is_causal=True), "multi_head_attention_forward: expected attn_mask with is_causal"),
        (lambda: heads(added=(HEADS[:1, :1], None)), "expected bias_k and bias_v, or neither, got one of them"),
        (lambda: heads(need_weights=1), "expected need_weights to be True or False, got 1"),
        (lambda: F.multi_head_attention_forward(*[HEADS] * 3, 3, 3, *[HEADS] * 4, False, 0.0, HEADS, None,
                                                static_k=HEADS), "forward: expected no static_k, got"),
    ),
    *each(
        (lambda call: call(), DtypeError),
        (lambda: heads(key=1.0), "multi_head_attention_forward: expected key to be a tensor, got float"),
        (lambda: heads(weight=None), "expected in_proj_weight to be a tensor, got NoneType"),
        (lambda: heads(use_separate_proj_weight=True), "expected q_proj_weight to be a tensor, got NoneType"),
        (lambda: heads(attn_mask=Tensor(np.ones((4, 4), int))), "attn_mask to be a tensor of bools or floats, got "),
    ),
    # layers
    *each(
        (lambda call: call(), ArgumentError),
        (lambda: nn.MultiheadAttention(4, 3), "MultiheadAttention: expected num_heads to divide embed_dim, got 3 and"),
        (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(3, 1, 2), 1).double()(HEADS, is_causal=True),
         "expected attn_mask with is_causal"),
        (lambda: nn.MultiheadAttention(4, 0), "MultiheadAttention: expected num_heads"),
        (lambda: nn.MultiheadAttention(4, 2, 1.5), "MultiheadAttention: expected dropout"),
        (lambda: nn.MultiheadAttention(4, 2, kdim=0), "MultiheadAttention: expected kdim"),
        (lambda: nn.TransformerEncoderLayer(4, 2, activation="tanh"), "activation to be 'relu', 'gelu' or a function"),
        (lambda: nn.TransformerEncoderLayer(4, 2, 0), "TransformerEncoderLayer: expected dim_feedforward"),
        (lambda: nn.TransformerEncoder(nn.Sequential(), 0), "TransformerEncoder: expected num_layers"),
        (lambda: nn.TransformerEncoder(nn.Sequential(), 1, mask_check=None), "TransformerEncoder: expected mask_check"),
    ),
    (lambda: nn.TransformerEncoder(nn.Sequential, 1), DtypeError, "TransformerEncoder: expected modules as enc"),
    # attention
    *each(
        (attention, ShapeError),
        (X, X, ROW, r"attention: expected value of shape \(..., length, features\), got \(3,\)"),
        (X, Y, Tensor(np.ones((3, 3))), r"attention: .* got query \(2, 3\), key \(2, 3\) and value \(3, 3\)"),
        (X, Y, X, Tensor(np.ones((3, 3)) > 0), r"expected attn_mask to broadcast to \(2, 2\), got \(3, 3\)"),
        (HEADS, HEADS[:2], HEADS[:2], "batch axes that broadcast, got .*: heads that share keys are enable_gqa=True"),
    ),
    *each(
        (lambda *args: attention(*args, enable_gqa=True), ShapeError),
        (X, X, X, r"expected heads, \(..., heads, length, features\), with enable_gqa, got query \(2, 3\)"),
        (HEADS, HEADS[:3], HEADS[:3], r"equally many heads, a divisor of query's, got query \(4, 2, 3\), key \(3,"),
        (HEADS, HEADS[:2], HEADS[:1], r"and value of equally many heads, .* and value \(1, 2, 3\)"),
    ),
    *each(
        (attention, DtypeError),
        (X, Y, SIGNS[:, None], "attention: expected a float tensor"),
        (X, Y, None, "expected value to be a tensor, got NoneType"),
        (X, Y, SINGLE, "expected one dtype, got float64, float64 and float32"),
        (X, Y, X, SIGNS, "attention: expected a float tensor"),
        (X, Y, X, True, "attn_mask to be a tensor .*, got bool"),
        (SINGLE, SINGLE, SINGLE, X[:, :2], "attn_mask of bools, float32 or query's float32, got float64"),
    ),
    *each(
        (lambda *args: ops.rms_norm(*args), ShapeError),
        (X, 2, r"rms_norm: expected x of shape \(..., 2\), got \(2, 3\)"),
        (X, 3, Y, r"rms_norm: expected weight of shape \(3,\), got \(2, 3\)"),
    ),
    (lambda: ops.rms_norm(X, 3, ROW, -1.0), ArgumentError, "rms_norm: expected eps to be a number >= 0, got -1.0"),
    (lambda: ops.rms_norm(X, 3, SINGLE[0]), DtypeError, "rms_norm: .* got x float64 and float32 parameters"),
    (lambda: nn.RMSNorm(0), ArgumentError, "RMSNorm: expected normalized_shape of at least 1, got 0"),
    (lambda: nn.RMSNorm(3, eps=-1.0), ArgumentError, "RMSNorm: expected eps"),
    (lambda: attention(X, Y, X, scale="1"), ArgumentError, "attention: expected scale"),
    (lambda: attention(X, Y, X, dropout_p=-0.1), ArgumentError, r"expected dropout_p to be a number in \[0, 1\], got"),
    (lambda: attention(X, Y, X, enable_gqa=None), ArgumentError, "expected enable_gqa to be True or False"),
]
