"""Infinite and NaN gradients are found while they are weighted, and named by rank and bucket when somebody asks."""

import numpy as np
import pytest

import minigrad
from minigrad.distributed import (
    DDP,
    CompressionState,
    NonFinite,
    SoloCommunicator,
    bf16_compress_hook,
    fp16_compress_hook,
    run,
)
from tests.distributed.models import Mlp, data
from tests.distributed.test_hooks import Slopes

HOOKS = [None, bf16_compress_hook, fp16_compress_hook]


def backward(ddp, slopes):
    with ddp.samples(1):
        ddp(minigrad.Tensor(np.array(slopes, np.float32))).backward()


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_rank_and_the_bucket_are_named(hook, bad):
    def body(comm):
        ddp = DDP(Mlp(0, dtype=np.float32), comm, bucket_cap_bytes=64, track_nonfinite=True)
        if hook is not None:
            ddp.register_comm_hook(CompressionState(measure_error=False), hook)
        x = minigrad.Tensor(data(2, 0, dtype=np.float32)[0])
        ddp(x).sum().backward()
        assert ddp.nonfinite_gradients() == []
        ddp.zero_grad()
        hidden = minigrad.ops.linear(x, ddp.module.w1, ddp.module.b1)  # w1 and b1 as ever, w2 with one that is bad
        factor = np.ones(2, np.float32)
        factor[0] = bad if comm.rank == 1 else 1.0
        with ddp.samples(2):
            loss = (ddp.module.w2.sum(dim=1) * minigrad.Tensor(factor)).sum() + hidden.sum()
            loss.backward()
        return ddp.nonfinite_gradients(), ddp.nonfinite_gradients()

    for found, later in run(body, 2, timeout_s=10.0):
        assert found == [NonFinite(1, 0, ("w2",))] and later == []
        assert str(found[0]) == "rank 1, bucket 0: w2"


def test_what_does_not_fit_the_wire_is_not_finite():
    def body(comm):
        ddp = DDP(Slopes(2), comm, track_nonfinite=True, reduce="sum")
        ddp.register_comm_hook(CompressionState(measure_error=False), fp16_compress_hook)
        backward(ddp, [1.0, 7e4 if comm.rank == 0 else 6e4])
        return ddp.nonfinite_gradients()

    assert run(body, 2, timeout_s=10.0) == [[NonFinite(0, 0, ("w0",))]] * 2


def test_one_rank_and_a_new_plan():
    ddp = DDP(Slopes(2, count=2), SoloCommunicator(), bucket_cap_bytes=8, track_nonfinite=True)
    backward(ddp, [1.0, float("nan")])
    assert [one.bucket for one in ddp.nonfinite_gradients()] == [0, 1]
    ddp.module.w1.requires_grad = False
    ddp.zero_grad()
    backward(ddp, [1.0, float("nan")])
    assert ddp.nonfinite_gradients() == [NonFinite(0, 0, ("w0",))]


def test_on_a_device_only_the_question_waits(cuda, strict_cupy):
    ddp = DDP(Slopes(2).to(cuda), SoloCommunicator(cuda), track_nonfinite=True)
    x = minigrad.Tensor(np.array([1.0, np.nan], np.float32)).to(cuda)
    with strict_cupy.no_sync():
        ddp(x).backward()
    before = strict_cupy.syncs.count
    assert ddp.nonfinite_gradients() == [NonFinite(0, 0, ("w0",))]
    assert strict_cupy.syncs.count == before + 1
