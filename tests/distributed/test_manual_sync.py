"""Synchronising by hand, and what the statistics say."""

import pytest

import minigrad
from minigrad.distributed import DDP, run
from minigrad.errors import UnreducedGradientError
from tests.distributed.models import Mlp, assert_gradients_close, data, gradients, mean_loss

TIMEOUT_S = 10.0


def _combined(how, accumulate=1):
    inputs, targets = data(6, 0)

    def body(comm):
        part = [slice(0, 2), slice(2, 6)][comm.rank]
        ddp = DDP(Mlp(0), comm, sync="auto" if how == "auto" else "manual", bucket_cap_bytes=64)
        for _ in range(accumulate):
            (mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]) / accumulate).backward()
        if how != "auto":
            getattr(ddp, how)()
        return gradients(ddp.module)

    return run(body, 2, timeout_s=TIMEOUT_S)


def test_serial_overlapped_and_automatic_give_the_same_bits():
    ranks = [_combined(how) for how in ("auto", "sync_gradients", "overlapped_sync_gradients")]
    for actual in (gradient for pair in ranks for gradient in pair):
        assert all(actual[name].tobytes() == ranks[0][0][name].tobytes() for name in actual)


def test_several_backwards_before_one_synchronisation():
    for actual in _combined("sync_gradients", accumulate=3):
        assert_gradients_close(actual, _combined("auto")[0])


def test_a_parameter_without_gradient_is_named():
    def body(comm):
        ddp = DDP(Mlp(0), comm, sync="manual")
        with pytest.raises(UnreducedGradientError, match=r"got none for w2 \(bucket 0\)"):
            ddp.sync_gradients()
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def test_statistics():
    inputs, targets = data(6, 0)

    def body(comm):
        ddp = DDP(Mlp(0), comm, bucket_cap_bytes=64)
        for _ in range(3):
            mean_loss(ddp(minigrad.Tensor(inputs)), targets).backward()
        return ddp.stats()

    for stats in run(body, 2, timeout_s=TIMEOUT_S):
        assert stats.passes == 3 and stats.calls == 9
        assert stats.bucket_bytes == [128, 64, 128] and stats.bytes_sent == 3 * 320
        assert sorted(stats.ready_order) == [0, 1, 2]
        assert 0.0 <= stats.overlap_fraction <= 1.0
        assert min(stats.forward_s, stats.backward_s, stats.communication_s, stats.exposed_s) >= 0.0
        assert "3 passes" in str(stats)
        stats.reset()
        assert stats.passes == 0 and stats.bucket_bytes == [128, 64, 128]
