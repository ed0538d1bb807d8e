"""The noise meter: its formula is right on average, and on ranks it tells what that formula tells."""

import copy
import itertools
import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad
from minigrad.backend.device import to_host
from minigrad.distributed import DDP, GradientNoise, NoiseMeter, SoloCommunicator, gradient_noise, noise_hook, run
from minigrad.distributed.simulate import Cluster
from minigrad.distributed.simulate import run as simulate
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 10.0


class Rows(Module):
    """A loss whose gradient is the mean of the rows that it is called with, over several parameters."""

    def __init__(self, sizes=(2, 3), dtype=np.float64):
        super().__init__()
        for i, size in enumerate(sizes):
            self.register_parameter(f"w{i}", Parameter(np.zeros(size, dtype)))

    def forward(self, x):
        ends = np.cumsum([param.shape[0] for param in self.parameters()])
        parts = [x[:, end - param.shape[0] : end] * param for end, param in zip(ends, self.parameters())]
        return sum(part.sum() for part in parts) / max(1, x.shape[0])


def measured(comm, batches, sizes=(2, 3), dtype=np.float64, **options):
    """What a meter says after a step for each list of the ranks' rows."""
    ddp, meter = DDP(Rows(sizes, dtype).to(comm.device), comm, bucket_cap_bytes=16, **options), NoiseMeter()
    ddp.register_comm_hook(meter, noise_hook)
    for parts in batches:
        ddp(minigrad.Tensor(parts[comm.rank].astype(dtype)).to(comm.device)).backward()
        ddp.zero_grad()
    return meter.estimate()


def by_formula(batches):
    """The same from the rows, written out."""
    variance, square = [], []
    for parts in batches:
        n = [len(part) for part in parts]
        own = [part.mean(axis=0) for part in parts]
        g = np.concatenate(parts).mean(axis=0)
        variance.append((sum(k * (row**2).sum() for k, row in zip(n, own)) - sum(n) * (g**2).sum()) / (len(n) - 1))
        square.append((g**2).sum() - variance[-1] / sum(n))
    return np.mean(variance), np.mean(square)


def drawn(shards, steps, size=5, seed=0):
    rng = np.random.default_rng(seed)
    return [[1.0 + rng.standard_normal((n, size)) for n in shards] for _ in range(steps)]


# ----------------------------------------------------------------------------------------------------- the formula


@given(
    st.lists(st.tuples(*[st.floats(-10, 10)] * 2), min_size=2, max_size=3),
    st.sampled_from([(1, 1), (2, 1), (1, 1, 1), (3, 1), (1, 2, 1)]),
)
def test_over_all_that_ranks_can_draw_the_formula_is_right_on_average(population, shards):
    """Every way to draw the samples of each rank from a few, with replacement: their mean is the expected value."""
    rows = np.array(population)
    ends = np.cumsum(shards)
    told = []
    for draw in itertools.product(range(len(rows)), repeat=sum(shards)):
        chosen = rows[list(draw)]
        own = [chosen[end - n : end].mean(axis=0) for n, end in zip(shards, ends)]
        told.append(gradient_noise([float(g @ g) for g in own], shards, float((chosen.mean(axis=0) ** 2).sum())))
    expected = float(rows.var(axis=0).sum()), float((rows.mean(axis=0) ** 2).sum())
    size = float((rows**2).sum())
    assert np.mean([one.variance for one in told]) == pytest.approx(expected[0], abs=1e-12 * max(1.0, size))
    assert np.mean([one.square for one in told]) == pytest.approx(expected[1], abs=1e-12 * max(1.0, size))


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 50), min_size=2, max_size=5), st.floats(0.1, 10))
def test_a_factor_the_order_of_ranks_and_ranks_without_samples_change_nothing(seed, shards, factor):
    rng = np.random.default_rng(seed)
    own = rng.standard_normal((len(shards), 4))
    g = np.average(own, axis=0, weights=shards)
    squares, combined = (own**2).sum(axis=1).tolist(), float(g @ g)
    one = gradient_noise(squares, shards, combined)
    more = gradient_noise([math.nan, *squares[::-1]], [0, *shards[::-1]], combined)
    assert (more.variance, more.square) == pytest.approx((one.variance, one.square))
    scaled = gradient_noise([factor**2 * square for square in squares], shards, factor**2 * combined)
    assert (scaled.variance, scaled.square) == pytest.approx((factor**2 * one.variance, factor**2 * one.square))
    assert one.variance >= -1e-12  # Σ n|g_r - g|² / (W - 1)
    spread = sum(n * float((row - g) @ (row - g)) for n, row in zip(shards, own))
    assert one.variance == pytest.approx(spread / (len(shards) - 1))


def test_a_scale_is_a_quotient_that_may_not_be_there():
    assert GradientNoise(6.0, 2.0, 3).scale == 3.0
    assert GradientNoise(6.0, -0.5, 3).scale == GradientNoise(6.0, 0.0, 3).scale == math.inf
    assert math.isnan(NoiseMeter().estimate().scale) and NoiseMeter().estimate().steps == 0
    equal = gradient_noise([4.0, 4.0], [1, 3], 4.0)
    assert (equal.variance, equal.square, equal.scale) == (0.0, 4.0, 0.0)
    assert GradientNoise(**json.loads(json.dumps(asdict(equal)))) == equal


# ------------------------------------------------------------------------------------------------------- on ranks


@pytest.mark.parametrize("shards", [(16, 16), (24, 8), (48, 12, 4)])
def test_within_3_percent_of_the_truth_after_200_steps(shards):
    """1,000 parameters in three buckets, with another variance each: samples are drawn around G."""
    rng = np.random.default_rng(sum(shards) + len(shards))
    mean, spread = 0.25 * rng.standard_normal(1000), rng.uniform(0.5, 1.5, 1000)

    batches = [
        [(mean + spread * rng.standard_normal((n, 1000), np.float32)).astype(np.float32) for n in shards]
        for _ in range(200)
    ]

    def body(comm):
        return measured(comm, batches, (300, 300, 400), np.float32)

    found = run(body, len(shards), timeout_s=TIMEOUT_S)
    assert len(set(found)) == 1 and found[0].steps == 200
    variance, square = by_formula([[part.astype(np.float64) for part in parts] for parts in batches])
    assert found[0].variance == pytest.approx(variance, rel=1e-5)
    assert found[0].square == pytest.approx(square, rel=1e-5)
    truth = (spread**2).sum(), (mean**2).sum()
    assert found[0].variance == pytest.approx(truth[0], rel=0.03)
    assert found[0].square == pytest.approx(truth[1], rel=0.03)
    assert found[0].scale == pytest.approx(truth[0] / truth[1], rel=0.03)


@pytest.mark.parametrize("kind", ["threads", "shm", "nccl"])
def test_every_kind_of_rank_tells_what_the_formula_tells(kind):
    batches = drawn((3, 1), 3)

    def body(comm):
        return [measured(comm, batches, dtype=dtype) for dtype in (np.float64, np.float32, np.float16)]

    for found in run_ranks(kind, body, 2):
        for one, rel in zip(found, (1e-12, 1e-5, 1e-2)):
            assert (one.variance, one.square) == pytest.approx(by_formula(batches), rel=rel) and one.steps == 3


def test_a_rank_of_several_batches_between_two_reductions_counts_all_of_their_samples():
    batches = drawn((6, 3), 2)

    def body(comm):
        ddp, meter = DDP(Rows(), comm, bucket_cap_bytes=16), NoiseMeter()
        ddp.register_comm_hook(meter, noise_hook)
        for parts in batches:
            mine = [parts[comm.rank][i : i + 3] for i in range(0, len(parts[comm.rank]), 3)]
            with ddp.no_sync():
                for rows in mine:
                    (ddp(minigrad.Tensor(rows)) / len(mine)).backward()
            ddp.flush()
            ddp.zero_grad()
        return meter.estimate()

    for one in run(body, 2, timeout_s=TIMEOUT_S):
        assert (one.variance, one.square) == pytest.approx(by_formula(batches), rel=1e-12) and one.steps == 2


def test_a_simulated_cluster_measures_too():
    batches = drawn((3, 2, 2), 2)
    trace = simulate(lambda comm: measured(comm, batches), Cluster.of_speeds([3, 2, 1]))
    for one in trace.results:
        assert (one.variance, one.square) == pytest.approx(by_formula(batches), rel=1e-12)


def test_steps_that_tell_nothing_do_not_count():
    good, alone, infinite = drawn((3, 2, 1), 1)[0], drawn((4, 0, 0), 1)[0], drawn((1, 1, 1), 1)[0]
    infinite[2][0, 0] = np.inf
    with_two = drawn((4, 2), 1)[0]
    batches = [alone, good, infinite, [with_two[0], np.zeros((0, 5)), with_two[1]]]
    with np.errstate(invalid="ignore"):
        found = run(lambda comm: measured(comm, batches), 3, timeout_s=TIMEOUT_S)
    assert [one.steps for one in found] == [2] * 3
    variances, squares = zip(by_formula([good]), by_formula([with_two]))
    for one in found:
        assert (one.variance, one.square) == pytest.approx((np.mean(variances), np.mean(squares)), rel=1e-12)


def test_what_a_step_that_failed_left_is_gone():
    batches = drawn((2, 1), 2)

    def body(comm):
        ddp, meter = DDP(Rows(), comm, bucket_cap_bytes=16), NoiseMeter()
        ddp.register_comm_hook(meter, noise_hook)
        for parts in batches:
            meter._own, meter._combined = [np.float64(9.0)], [np.float64(9.0)]
            ddp(minigrad.Tensor(parts[comm.rank])).backward()
            ddp.zero_grad()
        before = meter.estimate()
        assert copy.deepcopy(meter).estimate().steps == 0
        meter.reset()
        assert meter.estimate().steps == 0
        ddp(minigrad.Tensor(batches[0][comm.rank])).backward()
        return before, meter.estimate()

    for before, after in run(body, 2, timeout_s=TIMEOUT_S):
        assert (before.variance, before.square) == pytest.approx(by_formula(batches))
        assert (after.variance, after.square) == pytest.approx(by_formula(batches[:1])) and after.steps == 1


def test_a_copy_of_a_wrapper_measures_by_itself():
    batches = drawn((2, 1), 2)

    def body(comm):
        ddp = DDP(Rows(), comm)
        ddp.register_comm_hook(NoiseMeter(), noise_hook)
        ddp(minigrad.Tensor(batches[0][comm.rank])).backward()
        twin = copy.deepcopy(ddp)
        twin(minigrad.Tensor(batches[1][comm.rank])).backward()
        return [one.reducer.hook.state.estimate() for one in (ddp, twin)]

    for found in run(body, 2, timeout_s=TIMEOUT_S):
        assert [one.square for one in found] == pytest.approx([by_formula([each])[1] for each in batches])


@pytest.mark.parametrize("divides", [True, False])
def test_ranks_that_have_left_change_no_estimate(divides):
    batches = drawn((2, 1, 1), 3)

    def body(comm):
        ddp, meter = DDP(Rows(), comm, bucket_cap_bytes=16), NoiseMeter()
        ddp.register_comm_hook(meter, noise_hook)
        with ddp.join(divide_by_initial_world_size=divides):
            for parts in batches[: 1 if comm.rank == 2 else None]:
                ddp(minigrad.Tensor(parts[comm.rank])).backward()
                ddp.zero_grad()
        return meter.estimate()

    expected = by_formula(batches[:1]), *(by_formula([parts[:2]]) for parts in batches[1:])
    for one in run(body, 3, timeout_s=TIMEOUT_S):
        assert one.steps == 3
        assert (one.variance, one.square) == pytest.approx(tuple(np.mean(expected, axis=0)), rel=1e-12)


def test_gradients_that_are_sums_are_refused_when_asked():
    def body(comm):
        with pytest.raises(ArgumentError, match="NoiseMeter: .* means over samples, got reduce='sum'"):
            measured(comm, drawn((2, 1), 1), reduce="sum")

    run(body, 2, timeout_s=TIMEOUT_S)


def test_on_a_device_a_step_waits_for_nothing(cuda, strict_cupy):
    ddp, meter = DDP(Rows(dtype=np.float32).to(cuda), SoloCommunicator(cuda)), NoiseMeter()
    ddp.register_comm_hook(meter, noise_hook)
    x = minigrad.ones(3, 5, device=cuda)
    with strict_cupy.no_sync():
        ddp(x).backward()
    assert meter.estimate().steps == 0  # one rank tells nothing
    assert to_host(ddp.module.w0.grad_array).tolist() == [1.0, 1.0]
