"""Optimizers and clipping on any parameters, in any layout, with gradients that come and go."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minigrad import Tensor
from minigrad.nn import Parameter
from minigrad.nn.flat import flatten
from minigrad.optim import LAMB, SGD, Adam, AdamW, clip_grad_norm_

sizes = st.lists(st.integers(0, 40), min_size=1, max_size=6)
seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from([np.float32, np.float64])
KINDS = {
    "SGD": lambda params: SGD(params, lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.1),
    "Adam": lambda params: Adam(params, lr=0.1, weight_decay=0.1),
    "LAMB": lambda params: LAMB(params, lr=0.1, maximize=True),
    "AdamW": lambda params: AdamW(params, lr=0.1, maximize=True),
}


def draw(rng, sizes, dtype):
    return [Parameter(rng.standard_normal(size).astype(dtype)) for size in sizes]


@given(sizes, seeds, dtypes, st.sampled_from(sorted(KINDS)), st.lists(st.integers(0, 63), max_size=5))
def test_any_layout_gives_the_bits_of_one_optimizer_for_each(sizes, seed, dtype, kind, masks):
    """masks: for each step, the bits of those parameters that have a gradient."""
    rng = np.random.default_rng(seed)
    params = draw(rng, sizes, dtype)
    twins = [Parameter(param.data.copy()) for param in params]
    flatten(params)
    order = rng.permutation(len(params))
    middle = int(rng.integers(len(params)))
    groups = [{"params": [params[i] for i in part]} for part in (order[:middle], order[middle:]) if len(part)]
    together, apart = KINDS[kind](groups), [KINDS[kind]([twin]) for twin in twins]
    for mask in masks:
        for i, (param, twin) in enumerate(zip(params, twins)):
            wanted = mask >> i & 1
            param.grad = Tensor(rng.standard_normal(param.shape).astype(dtype)) if wanted else None
            twin.grad = param.grad
        together.step()
        for optimizer in apart:
            optimizer.step()
        for param, twin in zip(params, twins):
            assert np.array_equal(param.data, twin.data)


norms = st.sampled_from([1.0, 1.5, 2.0, math.inf])


@given(sizes, seeds, norms, st.floats(0.01, 10.0), st.integers(0, 63), st.booleans())
def test_clipping_is_that_of_one_vector(sizes, seed, p, max_norm, mask, flat):
    rng = np.random.default_rng(seed)
    params = draw(rng, sizes, np.float64)
    if flat:
        flatten(params)
    for i, param in enumerate(params):
        param.grad = Tensor(rng.standard_normal(param.shape))
        if mask >> i & 1:
            param.grad = None
    kept = [param for param in params if param.grad is not None]
    vector = np.concatenate([np.zeros(1), *[param.grad.numpy().ravel() for param in kept]])
    expected = np.linalg.norm(vector, p)
    norm = clip_grad_norm_(params, max_norm, p).item()
    assert abs(norm - expected) <= 1e-12 * max(1.0, expected)
    after = np.concatenate([np.zeros(1), *[param.grad.numpy().ravel() for param in kept]])
    assert np.allclose(after, vector * min(1.0, max_norm / (expected + 1e-6)), rtol=1e-12, atol=0.0)
