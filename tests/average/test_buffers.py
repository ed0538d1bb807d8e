"""Buffers where parameters are averaged: statistics are those of the mixture, floats a mean, integers as was asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad
from minigrad import nn
from minigrad.distributed import SoloCommunicator, SyncBatchNorm, run
from minigrad.distributed.average.buffers import average_buffers, buffer_kinds
from minigrad.errors import DtypeError, ReplicaMismatchError
from minigrad.nn.parameter import Buffer
from tests.distributed.worlds import run_ranks


class Mixed(nn.Module):
    """One of each kind; the second batch norm is the first once more."""

    def __init__(self, dtype=np.float64, device=None):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, dtype=dtype, device=device)
        self.again = self.norm
        self.instance = nn.InstanceNorm1d(2, track_running_stats=True, dtype=dtype, device=device)
        self.untracked = nn.BatchNorm2d(2, track_running_stats=False, dtype=dtype, device=device)
        self.scale = Buffer(minigrad.ones(2, 2, dtype=dtype, device=device))
        self.mask = Buffer(minigrad.ones(3, dtype=bool, device=device))


def weighted(values, weights):
    return sum(w * v for w, v in zip(weights, values))


@given(
    samples=st.lists(st.integers(0, 9), min_size=1, max_size=3).filter(any),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_any_ranks_and_weights(samples, seed, dtype):
    weights = [n / sum(samples) for n in samples]
    rng = np.random.default_rng(seed)
    drawn = [[rng.standard_normal(shape) for shape in (3, 3, 2, 2, (2, 2))] for _ in samples]

    def body(comm):
        module, mine = Mixed(dtype), drawn[comm.rank]
        values = [mine[0] * 100, mine[1] ** 2, mine[2], mine[3] ** 2, mine[4]]
        places = [module.norm.running_mean, module.norm.running_var]
        places += [module.instance.running_mean, module.instance.running_var, module.scale]
        for place, value in zip(places, values):
            place.data[...] = value if weights[comm.rank] else np.nan
        module.norm.num_batches_tracked.fill_(10 * comm.rank if weights[comm.rank] else 0)
        before = [place.data.astype(np.float64) for place in places]
        average_buffers("test", module, comm, samples[comm.rank], np.full(1, float(sum(samples))))
        return before, [place.data for place in places], int(module.norm.num_batches_tracked)

    results = run(body, len(samples))
    used = [(w, before) for w, (before, _, _) in zip(weights, results) if w]
    mean = weighted([before[0] for _, before in used], [w for w, _ in used])
    spread = weighted([before[1] + (before[0] - mean) ** 2 for _, before in used], [w for w, _ in used])
    right = [mean, spread, *(weighted([before[i] for _, before in used], [w for w, _ in used]) for i in (2, 3, 4))]
    for _, after, counter in results:
        assert counter == max(10 * rank for rank, w in enumerate(weights) if w)
        for mine, first, wanted in zip(after, results[0][1], right):
            assert np.array_equal(mine, first) and mine.dtype == dtype
            eps = 1e-12 if dtype == np.float64 else 1e-6
            np.testing.assert_allclose(mine, wanted, rtol=0, atol=eps * max(1, np.abs(wanted).max()))


def test_a_mixture_has_the_moments_of_all_samples():
    """Against the samples themselves: as many on each rank as its weight says, with the variances of populations."""
    parts = [np.random.default_rng(r).standard_normal((n, 3)) + 4 * r for r, n in enumerate((30, 10))]

    def body(comm):
        norm = nn.BatchNorm1d(3, dtype=np.float64)
        norm.running_mean.data[...] = parts[comm.rank].mean(axis=0)
        norm.running_var.data[...] = parts[comm.rank].var(axis=0)
        average_buffers("test", norm, comm, (30, 10)[comm.rank], np.full(1, 40.0))
        return norm.running_mean.data, norm.running_var.data

    every = np.concatenate(parts)
    for mean, variance in run(body, 2):
        np.testing.assert_allclose(mean, every.mean(axis=0), rtol=0, atol=1e-12)
        np.testing.assert_allclose(variance, every.var(axis=0), rtol=0, atol=1e-12)


def test_synchronised_statistics_stay_as_they_are():
    """Of float32 to the bit: the mean is formed in float64. A merge afterwards breaks nothing."""

    def body(comm):
        norm = SyncBatchNorm(3, comm)
        for i in range(3):
            x = np.random.default_rng(2 * i + comm.rank).standard_normal((4 - comm.rank, 3))
            norm(minigrad.Tensor(x.astype(np.float32)))
        before = [b.tolist() for b in norm.buffers()]
        average_buffers("test", norm, comm, (7, 3)[comm.rank], np.full(1, 10.0))
        assert [b.tolist() for b in norm.buffers()] == before
        norm(minigrad.ones(2, 3))
        return int(norm.num_batches_tracked)

    assert run(body, 2) == [4, 4]


def test_a_cumulative_average_goes_on():
    """momentum=None: with a merge after each batch, the statistics are those of means over both ranks' batches."""

    def body(comm):
        norm = nn.BatchNorm1d(1, momentum=None, dtype=np.float64)
        for i in range(4):
            norm(minigrad.Tensor(np.array([[i + 1.0], [i - 1.0]]) + 10.0 * comm.rank))
            average_buffers("test", norm, comm, 4, np.full(1, 8.0))
        return norm.running_mean.item(), int(norm.num_batches_tracked)

    assert run(body, 2) == [pytest.approx((6.5, 4))] * 2


def test_integers_are_compared_kept_or_refused():
    def body(comm):
        module = Mixed()
        module.mask.data[comm.rank] = False
        with pytest.raises(ReplicaMismatchError, match=f"rank {comm.rank}: test: .* another mask on rank 1 than on"):
            average_buffers("test", module, comm, 4, np.full(1, 8.0))
        with pytest.raises(DtypeError, match='test: .* with integer_buffers="refuse", got mask of bool'):
            average_buffers("test", module, comm, 4, np.full(1, 8.0), "refuse")
        average_buffers("test", module, comm, 4, np.full(1, 8.0), "keep")
        return module.mask.tolist()

    assert run(body, 2) == [[False, True, True], [True, False, True]]


def test_no_samples_anywhere_changes_nothing():
    def body(comm):
        module = Mixed()
        for buffer in module.buffers():
            buffer.data[...] = comm.rank
        average_buffers("test", module, comm, 0, np.zeros(1), "keep")
        return {float(buffer.data.max()) for buffer in module.buffers()}

    assert run(body, 2) == [{0.0}, {1.0}]


def test_each_buffer_is_of_one_kind():
    module = Mixed()
    kinds = buffer_kinds(module)
    assert len(kinds.means) == len(kinds.variances) == 1 and len(kinds.counters) == 2 and len(kinds.floats) == 3
    assert [name for name, _ in kinds.integers] == ["mask"]
    assert sum(map(len, kinds)) == len(list(module.buffers()))


def test_a_graph_that_saved_a_buffer_notices():
    module = Mixed()
    y = (module.scale * nn.Parameter(minigrad.ones(2, 2, dtype=np.float64))).sum()
    average_buffers("test", module, SoloCommunicator(), 1, np.ones(1))
    with pytest.raises(minigrad.errors.AutogradError, match="changed"):
        y.backward()


@pytest.mark.parametrize("kind", ["threads", "shm", "nccl"])
def test_two_ranks_merge_their_statistics(kind):
    (first, other) = run_ranks(kind, _two_ranks, 2)
    assert first == other == [[5.0, 26.0], 7, [[2.0]]]


def _two_ranks(comm):
    norm = nn.BatchNorm1d(1)
    norm.register_buffer("extra", minigrad.full((1, 1), 4.0 * comm.rank))
    norm.running_mean.fill_(10.0 * comm.rank)
    norm.num_batches_tracked.fill_(7 * comm.rank)
    average_buffers("test", norm, comm, 4, np.full(1, 8.0))
    return [[norm.running_mean.item(), norm.running_var.item()], int(norm.num_batches_tracked), norm.extra.tolist()]


def test_on_a_device(cuda, strict_cupy):
    module, twin = Mixed(np.float32, cuda), Mixed(np.float32)
    module.norm(minigrad.ones(4, 3, device=cuda))
    twin.norm(minigrad.ones(4, 3))
    total = minigrad.full((1,), 4.0, dtype="float64", device=cuda).data
    average_buffers("test", module, SoloCommunicator(cuda), 4.0, total, "keep")
    average_buffers("test", module, SoloCommunicator(cuda), 0.0, total * 0.0, "keep")
    for mine, other in zip(module.buffers(), twin.buffers()):
        assert mine.device == cuda and mine.to("cpu").tolist() == other.tolist()
