"""Mixed precision on several ranks: what one rank finds, all ranks decide alike, and replicas keep the same bits."""

import math

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn, ops, optim
from minigrad.distributed import DDP
from tests.distributed.models import values
from tests.distributed.worlds import run_ranks

STEPS = 6
BAD_STEP, BAD_RANK = 3, 1


def train(comm, dtype, bad):
    """Scales, and copies of the parameters, after each step; in one step one rank's input is infinite."""
    minigrad.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
    ddp = DDP(model, comm, bucket_cap_bytes=256)
    optimizer = optim.Adam(ddp.parameters(), lr=0.01)
    scaler = optim.GradScaler(256.0, growth_interval=2)
    rng = np.random.default_rng(10 + comm.rank)
    scales, found, norms = [], [], []
    for step in range(STEPS):
        x = rng.standard_normal((3 + comm.rank, 6)).astype(np.float32)
        if step == BAD_STEP and comm.rank == BAD_RANK:
            x[0, 0] = bad
        labels = Tensor(rng.integers(0, 4, len(x)))
        optimizer.zero_grad()
        with minigrad.autocast(dtype):
            loss = ops.cross_entropy(ddp(Tensor(x)), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(optim.clip_grad_norm_(ddp.parameters(), 1.0).item())
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        found.append(values(ddp))
    return scales, found, norms


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("kind", ["threads", "shm"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_an_overflow_on_one_rank_skips_the_step_on_all(kind, dtype, bad):
    (scales, first, norms), (other_scales, second, other_norms) = run_ranks(
        kind, lambda comm: train(comm, dtype, bad), 2
    )
    assert scales == other_scales == [256.0, 512.0, 512.0, 256.0, 256.0, 512.0]
    assert [math.isfinite(norm) for norm in norms] == [step != BAD_STEP for step in range(STEPS)]
    for step in range(STEPS):
        changed = False
        for name, value in first[step].items():
            assert np.array_equal(value, second[step][name]), (step, name)
            changed |= step > 0 and not np.array_equal(value, first[step - 1][name])
        assert changed == (step not in (0, BAD_STEP))


def test_ranks_under_autocast_train_like_one_device():
    """The gradient is that of the mean over all samples, up to the rounding of products."""

    def gradient(comm):
        minigrad.manual_seed(0)
        model = nn.Linear(6, 4)
        ddp = DDP(model, comm)
        rng = np.random.default_rng(0)
        x, labels = rng.standard_normal((8, 6)).astype(np.float32), rng.integers(0, 4, 8)
        own = slice(comm.rank, None, comm.world_size)
        with minigrad.autocast():
            loss = ops.cross_entropy(ddp(Tensor(x[own])), Tensor(labels[own]))
        loss.backward()
        assert model.weight.grad.dtype == np.float32
        return model.weight.grad.numpy().copy()

    [alone] = run_ranks("solo", gradient, 1)
    first, second = run_ranks("threads", gradient, 2)
    assert np.array_equal(first, second)
    np.testing.assert_allclose(first, alone, atol=5e-3)
