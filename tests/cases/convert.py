"""Cases for minigrad/ops/convert.py."""

import numpy as np

import minigrad
from tests.cases.case import Case, normal

CASES = [
    Case("to", "same", normal((2, 3)), lambda x: x.to(x.device) * 2, lambda t, x: x.to(x.device) * 2),
    Case("to", "like", normal((2, 3), (1,)), lambda x, y: x.to(y) * 2, lambda t, x, y: x.to(y) * 2),
    Case(
        "to",
        "there_and_back",
        normal((2, 3)),
        lambda x: (x.to(minigrad.float32) * 3).to("float64", x.device),
        lambda t, x: (x.to(t.float32) * 3).to(t.float64),
        differentiable=False,  # float32 is too coarse for central differences
    ),
    Case(
        "to",
        "integers",
        lambda rng: [rng.integers(-5, 5, (2, 3))],
        lambda x: x.double() / 2,
        lambda t, x: x.double() / 2,
        differentiable=False,
    ),
    Case(
        "to",
        "truncate",
        lambda rng: [np.asarray([-1.7, -0.2, 0.0, 1.7])],
        lambda x: x.long(),
        lambda t, x: x.long(),
        differentiable=False,
    ),
    Case("clone", "plain", normal((2, 3)), lambda x: x.clone(), lambda t, x: x.clone()),
    Case("contiguous", "row_order", normal((2, 3)), lambda x: x.contiguous() * 2, lambda t, x: x.contiguous() * 2),
    Case("contiguous", "transposed", normal((2, 3)), lambda x: x.T.contiguous(), lambda t, x: x.T.contiguous()),
]
