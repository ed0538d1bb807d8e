"""Indexing and its gradient against NumPy, for any mixture of indexes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minigrad import Tensor


@st.composite
def indexes(draw):
    """A shape, and an index into it as NumPy takes it: integers, slices, None, Ellipsis, integer arrays, masks."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    picked = tuple(draw(st.lists(st.integers(0, 3), min_size=0, max_size=2)))  # what all arrays broadcast to
    parts = []
    for length in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["integer", "slice", "array", "mask"]))
        if kind == "integer":
            parts.append(draw(st.integers(-length, length - 1)))
        elif kind == "slice":
            step = draw(st.sampled_from([None, 1, 2, -1]))
            parts.append(slice(draw(st.none() | st.integers(-5, 5)), draw(st.none() | st.integers(-5, 5)), step))
        elif kind == "array" or any(isinstance(part, np.ndarray) for part in parts):
            parts.append(rng.integers(-length, length, picked))
        else:
            parts.append(rng.random(length) < 0.5)
            picked = (int(parts[-1].sum()),)
    if len(parts) < len(shape) and draw(st.booleans()):
        parts.insert(len(parts), ...)
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), None)
    return shape, tuple(parts), rng


@given(indexes())
def test_values_and_gradients_are_numpys(drawn):
    shape, index, rng = drawn
    array = rng.standard_normal(shape)
    x = Tensor(array, requires_grad=True)
    y = x[tuple(Tensor(part) if isinstance(part, np.ndarray) else part for part in index)]
    np.testing.assert_array_equal(y.detach().numpy(), array[index])
    expected, grad = np.zeros(shape), np.asarray(rng.standard_normal(y.shape))
    np.add.at(expected, index, grad)
    y.backward(Tensor(grad))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=0, atol=1e-12)


@given(st.integers(1, 5), st.integers(0, 12), st.integers(0, 2), st.integers(0, 2**32))
def test_index_select_adds_repeated_slices(length, count, dim, seed):
    rng = np.random.default_rng(seed)
    shape = (2, 3, 2)[:dim] + (length,) + (2, 3, 2)[dim:]
    x = Tensor(rng.standard_normal(shape), requires_grad=True)
    index = rng.integers(0, length, count)
    y = x.index_select(dim, Tensor(index))
    grad = rng.standard_normal(y.shape)
    expected = np.zeros(shape)
    np.add.at(expected, (slice(None),) * dim + (index,), grad)
    y.backward(Tensor(grad))
    np.testing.assert_array_equal(y.detach().numpy(), x.data.take(index, dim))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=0, atol=1e-12)
