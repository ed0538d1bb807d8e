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


CASES = [
    _case("plain", HEADS),
    _case("causal", HEADS, is_causal=True),
    _case("mask", _hidden, scale=0.5),
    _case("added", lambda rng: [*HEADS(rng), *normal((2, 1, 4, 5))(rng)]),
    _case("matrices", normal((4, 3), (4, 3), (4, 3))),
]
