"""Cases for minigrad/ops/attention.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal


def _case(label, inputs, **options):
    return Case(
        "scaled_dot_product_attention",
        label,
        inputs,
        lambda *a: ops.scaled_dot_product_attention(*a, **options),
        lambda t, *a: t.nn.functional.scaled_dot_product_attention(*a, **options),
    )


HEADS = normal((2, 2, 4, 3), (2, 2, 5, 3), (2, 2, 5, 2))


def _hidden(rng):
    """A mask in which a query sees nothing."""
    return [*HEADS(rng), np.array([[True] * 5, [False] * 5, [True, False] * 2 + [True], [False, True] * 2 + [False]])]


def _square(rng):
    """Values as wide as keys, for which PyTorch takes both masks."""
    return [*normal((2, 2, 5, 3), (2, 2, 5, 3), (2, 2, 5, 3))(rng), rng.random((2, 1, 5, 5)) < 0.6]


CASES = [
    _case("plain", HEADS),
    _case("causal", HEADS, is_causal=True),
    _case("mask", _hidden, scale=0.5),
    _case("added", lambda rng: [*HEADS(rng), *normal((2, 1, 4, 5))(rng)]),
    _case("causal_and_mask", _square, is_causal=True),
    _case("matrices", normal((4, 3), (4, 3), (4, 3))),
    _case("broadcast", normal((2, 1, 4, 3), (3, 5, 3), (2, 2, 1, 5, 2)), scale=-1.5),
    _case("shared_heads", normal((2, 6, 4, 3), (2, 2, 5, 3), (2, 2, 5, 2)), enable_gqa=True),
    _case("shared_and_added", normal((6, 2, 3), (2, 2, 2, 3), (2, 2, 2), (6, 2, 2)), enable_gqa=True),
    _case("no_keys", normal((2, 3, 4), (2, 0, 4), (2, 0, 2))),
]
