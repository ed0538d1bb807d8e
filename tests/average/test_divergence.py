"""The report of divergence, beside NumPy's own norms and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.backend.dtypes import as_dtype
from minigrad.distributed import Recording, SoloCommunicator, run, simulate
from minigrad.distributed.average import (
    Divergence,
    DivergenceExchange,
    add_sums_and_adopt,
    divergence_of,
    sums_of,
)
from minigrad.distributed.balance import divergence
from minigrad.distributed.simulate import Cluster
from tests.distributed.worlds import run_ranks


def by_numpy(own, common):
    """Relative difference, cosine, change of length of one rank."""
    p, a = own.astype(np.float64), common.astype(np.float64)
    norm = np.linalg.norm
    return norm(p - a) / norm(a), p @ a / (norm(p) * norm(a)), norm(p) / norm(a) - 1.0


def told(own, common):
    apart = divergence_of([sums_of([(own, common)])])
    return apart.relative[0], apart.cosine[0], apart.magnitude[0]


@given(
    count=st.integers(1, 40),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    seed=st.integers(0, 99),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_it_is_what_numpy_says(count, dtype, seed, scale):
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(count).astype(as_dtype(dtype))
    own = (common + scale * rng.standard_normal(count)).astype(as_dtype(dtype))
    if own.astype(np.float64).any() and common.astype(np.float64).any():
        np.testing.assert_allclose(told(own, common), by_numpy(own, common), rtol=1e-12, atol=1e-12)


def test_by_hand():
    apart = divergence_of([(25.0, 9.0, 16.0), (4.0, 36.0, 16.0)], steps=7)
    assert apart == Divergence((1.25, 0.5), (0.0, 1.0), (-0.25, 0.5), 7)
    assert apart.farthest == (1.25, 0)
    assert divergence_of([(0.0, 0.2, 0.2)]).cosine == (1.0,)  # where 0.2 / (√0.2·√0.2) is a rounding more


def test_the_sum_is_in_float64_and_over_blocks_and_parts(monkeypatch):
    """In float32, 0.001² beside 1000² would be lost; ranks near each other would be at 0, or at a rounding."""
    own = np.full(20_001, 0.1, np.float32)
    own[:100] = 1000.0
    common = own.copy()
    common[20_000] += np.float32(0.001)
    for size in (8192, 7):
        monkeypatch.setattr(divergence, "_HOST_BLOCK", size)
        np.testing.assert_allclose(told(own, common)[0], by_numpy(own, common)[0], rtol=1e-12)
    parts = [(own[:5], common[:5]), (own[5:5], common[5:5]), (own[5:], common[5:])]
    np.testing.assert_allclose(sums_of(parts), sums_of([(own, common)]), rtol=1e-12)


def test_zero_norms_give_no_nan():
    zero, one = np.zeros(3), np.ones(3)
    assert told(zero, zero) == (0.0, 1.0, 0.0)
    assert told(one, zero) == (math.inf, 0.0, math.inf)
    assert told(zero, one) == (1.0, 0.0, -1.0)
    assert told(np.zeros(0), np.zeros(0)) == (0.0, 1.0, 0.0)


def test_a_value_that_is_no_number_shows():
    assert all(map(math.isnan, told(np.array([math.nan, 1.0]), np.ones(2))))
    apart = Divergence((math.nan, 0.3), (1.0, 1.0), (0.0, 0.0))
    assert math.isnan(apart.farthest[0]) and apart.farthest[1] == 0


def test_the_values_are_adopted_in_the_same_pass(monkeypatch):
    monkeypatch.setattr(divergence, "_HOST_BLOCK", 4)
    rng = np.random.default_rng(0)
    own, common = rng.standard_normal((2, 11))
    expected, sums = sums_of([(own, common)]), np.zeros(3)
    add_sums_and_adopt(sums, own, common)
    assert (sums == expected).all() and (own == common).all()


def test_a_sum_becomes_a_mean_in_the_same_pass(monkeypatch):
    monkeypatch.setattr(divergence, "_HOST_BLOCK", 4)
    rng = np.random.default_rng(0)
    own, total = rng.standard_normal((2, 11))
    for measures in (True, False):
        mean, sums = total.copy(), np.zeros(3)
        divergence.divide_and_add_sums(sums if measures else None, own, mean, np.array([7.0]))
        assert (mean == total / 7.0).all()
        assert (sums == (sums_of([(own, mean)]) if measures else 0.0)).all()


def exchanged(comm):
    """Two reports: rank r is r·[3, 4] from [6, 8], and rank 1 had no samples."""
    exchange, reports = DivergenceExchange(comm), []
    common = np.array([6.0, 8.0])
    for steps in (0, 5):
        own = common + comm.rank * np.array([3.0, 4.0])
        exchange.start(None if comm.rank == 1 else sums_of([(own, common)]), steps + comm.rank)
        reports.append(exchange.read())
    return reports


REPORT = [Divergence((0.0, 0.0, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0, 1.0), steps) for steps in (2, 7)]


@pytest.mark.parametrize("kind", ["threads", "shm", "nccl"])
def test_ranks_get_one_report(kind):
    assert run_ranks(kind, exchanged, 3) == [REPORT] * 3


def test_in_a_simulation():
    assert simulate.run(exchanged, Cluster.of_speeds([3, 2, 1])).results == [REPORT] * 3


def test_one_all_gather_of_four_numbers_is_all_that_travels():
    def body(comm):
        recording = Recording(comm)
        exchanged(recording)
        return [call.kind for call in recording.calls]

    assert run(body, 3)[0] == ["all_gather"] * 2


def test_on_a_device(cuda):
    """Block after block as on the host, and nothing waits for the device before somebody reads."""
    assert exchanged_alone(SoloCommunicator(device=cuda)) == exchanged_alone(SoloCommunicator())


def exchanged_alone(comm):
    rng = np.random.default_rng(0)
    own, common = (comm.device.xp.asarray(rng.standard_normal(50).astype(np.float16)) for _ in range(2))
    exchange = DivergenceExchange(comm)
    exchange.start(sums_of([(own, common)]))
    return exchange.read()
