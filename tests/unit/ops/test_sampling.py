"""bernoulli and multinomial: how often what is drawn, and that a seed draws the same on every device."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor
from minigrad.errors import IndexRangeError

WEIGHTS = np.array([[0.0, 1.0, 0.0, 2.0, 5.0, 0.0], [3.0, 0.0, 0.0, 0.0, 0.0, 0.0]])


def rng():
    return np.random.Generator(np.random.Philox(5))


def shares(drawn, categories):
    return np.bincount(drawn.data.reshape(-1), minlength=categories) / drawn.data.size


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_multinomial_draws_in_proportion(dtype):
    weights = Tensor(WEIGHTS.astype(dtype))
    n = 40_000
    drawn = weights.multinomial(n, replacement=True, rng=rng())
    assert drawn.shape == (2, n) and drawn.dtype == np.int64
    for row, line in zip(WEIGHTS, drawn):
        p = row / row.sum()
        assert (abs(shares(line, 6) - p) <= 5 * np.sqrt(p * (1 - p) / n)).all()


def test_multinomial_without_replacement_draws_each_once_and_the_likely_ones_first():
    weights = Tensor(np.tile(WEIGHTS[0], (30_000, 1)))
    drawn = minigrad.multinomial(weights, 3, rng=rng())
    assert (np.sort(drawn.data, axis=1) == [1, 3, 4]).all()
    p, second = WEIGHTS[0] / 8, 2 / 8 * 5 / 6 + 1 / 8 * 5 / 7
    assert (abs(shares(drawn[:, 0], 6) - p) <= 5 * np.sqrt(p * (1 - p) / 30_000)).all()
    assert abs(shares(drawn[:, 1], 6)[4] - second) < 0.015


def test_a_vector_of_weights_gives_a_vector():
    assert minigrad.multinomial(Tensor(WEIGHTS[1]), 4, True).tolist() == [0] * 4
    assert Tensor(WEIGHTS[1]).multinomial(1).shape == (1,)


def test_bernoulli():
    p = Tensor(np.tile([0.0, 0.25, 1.0], (20_000, 1)).astype(np.float32), requires_grad=True)
    drawn = p.bernoulli(rng=rng())
    assert drawn.dtype == np.float32 and set(np.unique(drawn.data)) == {0.0, 1.0}
    assert (abs(drawn.data.mean(axis=0) - [0, 0.25, 1]) <= [0, 0.016, 0]).all()
    drawn.sum().backward()
    assert not p.grad.data.any()
    assert minigrad.zeros(1000, dtype=bool).bernoulli_(0.5, rng=rng()).data.mean() == pytest.approx(0.5, abs=0.08)
    assert Tensor(np.zeros((2, 3), np.int64)).bernoulli_(Tensor(np.array([1.0, 0.0, 1.0]))).tolist() == [[1, 0, 1]] * 2


def test_the_seed_decides():
    minigrad.manual_seed(3)
    first = [minigrad.bernoulli(minigrad.full((50,), 0.5)), minigrad.multinomial(minigrad.ones(50), 9)]
    minigrad.manual_seed(3)
    again = [minigrad.bernoulli(minigrad.full((50,), 0.5)), minigrad.multinomial(minigrad.ones(50), 9)]
    assert all(map(minigrad.equal, first, again))


def test_a_gpu_draws_the_same_without_a_wait_and_tells_later_what_is_wrong(strict_cupy, cuda):
    weights = strict_cupy.asarray(WEIGHTS)
    chances = strict_cupy.asarray(WEIGHTS / 5)
    with strict_cupy.no_sync():
        found = [
            Tensor(weights).multinomial(7, True, rng=rng()),
            Tensor(weights[0]).multinomial(2, rng=rng()),
            Tensor(chances).bernoulli(rng=rng()),
        ]
    wanted = [
        Tensor(WEIGHTS).multinomial(7, True, rng=rng()),
        Tensor(WEIGHTS[0]).multinomial(2, rng=rng()),
        Tensor(WEIGHTS / 5).bernoulli(rng=rng()),
    ]
    for ours, theirs in zip(found, wanted):
        assert isinstance(ours.data, strict_cupy.ndarray) and ours.cpu().equal(theirs)
    with strict_cupy.no_sync():
        bad = [Tensor(-weights).multinomial(1, True), Tensor(weights).bernoulli()]
    with pytest.raises(IndexRangeError, match="multinomial: expected numbers of weights above 0 .* got 0 on cuda:1"):
        bad[0].cpu()
    with pytest.raises(IndexRangeError, match="bernoulli: .* got 1 on cuda:1"):
        minigrad.bernoulli(Tensor(weights)).cpu()
