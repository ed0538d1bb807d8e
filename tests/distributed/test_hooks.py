"""Comm hooks: they get weighted buckets, leave sums, never divide; the compressing ones send half the bytes."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad
from minigrad import distributed
from minigrad.backend.dtypes import as_dtype
from minigrad.distributed import (
    DDP,
    CompressionState,
    DivergenceMeter,
    GradBucket,
    NoiseMeter,
    Recording,
    SoloCommunicator,
    allreduce_hook,
    bf16_compress_hook,
    divergence_hook,
    fp16_compress_hook,
    fp16_predivide_hook,
    noise_hook,
    run,
)
from minigrad.distributed.comm.work import DoneWork
from minigrad.errors import ArgumentError, CollectiveMismatchError, ReplicaMismatchError
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from tests.distributed.models import Mlp, data, gradients, mean_loss
from tests.distributed.worlds import run_ranks

COMPRESSING = {fp16_compress_hook: 2.0**-11, bf16_compress_hook: 2.0**-8, fp16_predivide_hook: 2.0**-11}
LOOKING = [  # and the state of each
    *((allreduce_hook, lambda: None), (noise_hook, NoiseMeter), (divergence_hook, DivergenceMeter))
]
TIMEOUT_S = 10.0


class Slopes(Module):
    """A loss whose gradients are the numbers that it is called with."""

    def __init__(self, size=4, dtype=np.float32, count=1):
        super().__init__()
        for i in range(count):
            self.register_parameter(f"w{i}", Parameter(np.zeros(size, dtype)))

    def forward(self, x):
        return sum((param * x).sum() for param in self.parameters())


def test_every_hook_is_tested_here():
    hooks = {name for name in distributed.__all__ if name.endswith("_hook")}
    assert hooks == {hook.__name__ for hook in [*(hook for hook, _ in LOOKING), *COMPRESSING]}


def combined(comm, slopes, hook, state, **options):
    """The gradient after one backward with these numbers as the rank's own."""
    ddp = DDP(Slopes(len(slopes[comm.rank]), slopes[comm.rank].dtype), comm, **options)
    ddp.register_comm_hook(state, hook)
    with ddp.samples(1):
        ddp(minigrad.Tensor(slopes[comm.rank])).backward()
    return ddp.module.w0.grad_array.copy()


@pytest.mark.parametrize("kind", ["threads", "shm"])
@pytest.mark.parametrize("cap", [64, 10**6])
@pytest.mark.parametrize("hook, state", LOOKING)
def test_a_hook_that_only_looks_gives_the_bits_of_no_hook(kind, cap, hook, state):
    inputs, targets = data(9, 0)

    def body(comm):
        found = []
        for hooked in (False, True):
            ddp = DDP(Mlp(0), comm, bucket_cap_bytes=cap)
            if hooked:
                ddp.register_comm_hook(state(), hook)
            part = [slice(0, 2), slice(2, 9)][comm.rank]
            mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
            found.append(gradients(ddp.module))
        return found

    for plain, hooked in run_ranks(kind, body, 2):
        assert all(plain[name].tobytes() == hooked[name].tobytes() for name in plain)


def test_a_hook_sees_each_bucket_in_order_with_weighted_gradients():
    """Rank 0 has 1 sample, rank 1 has 3: rank 0's gradients come in scaled by a quarter."""
    inputs, targets = data(4, 0)

    def look(seen, bucket, comm):
        seen.append((bucket.index(), bucket.is_last(), [p.name for p in bucket.parameters()]))
        seen.append({p.name: g.data.copy() for p, g in zip(bucket.parameters(), bucket.gradients())})
        assert all(np.shares_memory(g.data, bucket.buffer()) for g in bucket.gradients())
        return allreduce_hook(seen, bucket, comm)

    def body(comm):
        seen = []
        ddp = DDP(Mlp(0), comm, bucket_cap_bytes=64)
        ddp.register_comm_hook(seen, look)
        part = [slice(0, 1), slice(1, 4)][comm.rank]
        mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        return seen

    alone = Mlp(0)
    mean_loss(alone(minigrad.Tensor(inputs[:1])), targets[:1]).backward()
    seen = run(body, 2, timeout_s=TIMEOUT_S)[0]
    assert seen[::2] == [(0, False, ["w2"]), (1, False, ["b1"]), (2, True, ["w1"])]
    for named in seen[1::2]:
        for name, gradient in named.items():
            np.testing.assert_allclose(gradient, gradients(alone)[name] / 4, rtol=1e-15)


def test_what_comes_out_of_a_bucket_is_weighted_once():
    gradients, wire = np.arange(4.0), np.empty(4, np.float32)
    bucket = GradBucket(0, gradients, [], True, "")
    bucket.begin(np.array([0.5]), None)
    bucket.pack(wire, 0.25)
    assert wire.tolist() == [0, 0.125, 0.25, 0.375] and gradients.tolist() == [0, 1, 2, 3]
    bucket.unpack(wire, 4.0)
    assert bucket.buffer().tolist() == [0, 0.5, 1, 1.5]
    bucket.begin(np.array([0.5]), None)
    assert bucket.buffer() is bucket.buffer() is gradients and gradients.tolist() == [0, 0.25, 0.5, 0.75]
    bucket.pack(wire, 2.0)
    assert wire.tolist() == [0, 0.5, 1, 1.5]


@pytest.mark.parametrize("dtype, wire", [("float64", "float16"), ("float16", "bfloat16")])
def test_a_wire_that_no_kernel_packs(dtype, wire):
    gradients, sent = np.arange(4).astype(dtype), np.empty(4, as_dtype(wire))
    bucket = GradBucket(0, gradients, [], True, "")
    bucket.begin(np.array([0.5]), None)
    bucket.pack(sent, 0.25)
    assert sent.astype(float).tolist() == [0, 0.125, 0.25, 0.375]
    bucket.unpack(sent, 4.0)
    assert gradients.dtype == dtype and bucket.buffer().tolist() == [0, 0.5, 1, 1.5]


def test_work_of_a_hook_needs_no_more_than_wait():
    class Negated:
        def __init__(self, work, array):
            self.work, self.array = work, array

        def wait(self):
            self.work.wait()
            self.array *= -1

    def hook(state, bucket, comm):
        return Negated(allreduce_hook(state, bucket, comm), bucket.buffer())

    slopes = [np.ones(3, np.float32), np.full(3, 3, np.float32)]
    for found in run(combined, 2, slopes, hook, None, timeout_s=TIMEOUT_S):
        assert found.tolist() == [-2.0] * 3


# ---------------------------------------------------------------------------------------------------- compression


@settings(max_examples=30, deadline=None)
@given(
    world_size=st.integers(1, 4),
    size=st.integers(1, 200),
    dtype=st.sampled_from([np.float32, np.float64]),
    hook=st.sampled_from(list(COMPRESSING)),
    seed=st.integers(0, 999),
)
def test_compressed_sums_are_near_the_exact_ones(world_size, size, dtype, hook, seed):
    rng = np.random.default_rng(seed)
    slopes = [rng.standard_normal(size).astype(dtype) for _ in range(world_size)]

    def body(comm):
        state = CompressionState()
        return combined(comm, slopes, hook, state), state.relative_error

    ranks = run(body, world_size, timeout_s=TIMEOUT_S)
    exact = np.mean(np.array(slopes, np.float64), axis=0)
    bound = 2.0 * COMPRESSING[hook] * np.abs(slopes).sum(axis=0).max() + 1e-6
    for found, error in ranks:
        assert found.dtype == dtype and found.tobytes() == ranks[0][0].tobytes()
        assert np.abs(found - exact).max() <= bound
        assert 0.0 <= error <= COMPRESSING[hook]


@pytest.mark.parametrize("dtype, factor", [(np.float32, 2), (np.float64, 4)])
@pytest.mark.parametrize("hook", COMPRESSING)
def test_the_bytes_that_are_sent_are_really_fewer(hook, dtype, factor):
    """Counted at the communicator, not by the hook: a cast back before sending would show."""

    def body(comm):
        sent = []
        for compressed in (False, True):
            recording, state = Recording(comm), CompressionState()
            ddp = DDP(Slopes(1000, dtype, count=3), recording, bucket_cap_bytes=8000)
            if compressed:
                ddp.register_comm_hook(state, hook)
            recording.calls.clear()
            for _ in range(2):
                ddp(minigrad.Tensor(np.ones(1000, dtype))).backward()
            buckets = [call for call in recording.calls if "bucket" in call.detail]
            assert len(buckets) == 2 * len(ddp.plan.buckets)
            sent.append(sum(call.nbytes for call in buckets))
        assert sent[1] * factor == sent[0]
        assert (state.bytes_sent, state.bytes_before, state.calls) == (sent[1], sent[0], len(buckets))
        return {call.dtype for call in buckets}

    wire = "bfloat16" if hook is bf16_compress_hook else "float16"
    assert run(body, 2, timeout_s=TIMEOUT_S) == [{wire}] * 2


def test_predividing_leaves_room_for_the_sum():
    """Four ranks of 20000: their sum of 80000 is no float16."""
    slopes = [np.full(4, 20000, np.float32)] * 4

    def body(comm, hook):
        return combined(comm, slopes, hook, CompressionState(), reduce="sum")

    for found in run(body, 4, fp16_predivide_hook, timeout_s=TIMEOUT_S):
        assert found.tolist() == [80000.0] * 4
    with np.errstate(over="ignore"):
        for found in run(body, 4, fp16_compress_hook, timeout_s=TIMEOUT_S):
            assert np.isinf(found).all()


def test_bfloat16_is_added_up_in_float32():
    """256 + 1 + 1 + 1: a running sum in bfloat16 would stay at 256."""
    slopes = [np.full(2, value, np.float32) for value in (256, 1, 1, 1)]

    def body(comm):
        return combined(comm, slopes, bf16_compress_hook, CompressionState(), reduce="sum")

    for found in run(body, 4, timeout_s=TIMEOUT_S):
        assert found.tolist() == [260.0] * 2  # 259 rounded once


class CountingEmpty(Recording):
    """Counts the arrays that it was asked for: over shared memory each is a segment that stays."""

    made = 0

    def empty(self, count, dtype):
        self.made += 1
        return super().empty(count, dtype)


def test_the_wire_is_made_once_for_each_bucket():
    def body(comm):
        counting, state = CountingEmpty(comm), CompressionState(measure_error=False)
        ddp = DDP(Mlp(0, dtype=np.float32), counting, bucket_cap_bytes=64)
        ddp.register_comm_hook(state, fp16_compress_hook)
        before = counting.made
        inputs, targets = data(3, 0, dtype=np.float32)
        for _ in range(3):
            mean_loss(ddp(minigrad.Tensor(inputs)), targets).backward()
        assert math.isnan(state.relative_error)
        return counting.made - before == len(ddp.plan.buckets)

    assert run_ranks("shm", body, 2) == [True, True]


def test_what_is_reported_can_be_reset():
    state = CompressionState()
    slopes = [np.full(4, 1.0 + 2.0**-11, np.float32)]
    combined(SoloCommunicator(), slopes, fp16_compress_hook, state)
    np.testing.assert_allclose(state.relative_error, 2.0**-11, rtol=1e-3)
    state.reset()
    assert (state.bytes_sent, state.bytes_before, state.calls) == (0, 0, 0) and math.isnan(state.relative_error)
    zeros = [np.zeros(4, np.float32)]
    combined(SoloCommunicator(), zeros, fp16_compress_hook, state)
    assert state.relative_error == 0.0


# ------------------------------------------------------------------------------------------------------- wrong use


def test_ranks_with_different_hooks_are_told():
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        hook = [fp16_compress_hook, bf16_compress_hook][comm.rank]
        with pytest.raises(ReplicaMismatchError, match="fp16_compress_hook on rank 0 and bf16_compress_hook on rank 1"):
            ddp.register_comm_hook(CompressionState(), hook)
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def test_a_hook_that_sends_other_buckets_is_noticed():
    """Two buckets of one size, in another order on rank 1: without their names it would pass."""

    def body(comm):
        ddp = DDP(Slopes(16, np.float32, count=2), comm, bucket_cap_bytes=64)
        kept = []

        def swapped(state, bucket, comm):
            kept.append(bucket)
            if not bucket.is_last():
                return DoneWork()
            works = [allreduce_hook(None, b, comm) for b in reversed(kept)]
            works[0].wait()
            return works[1]

        swapped.__qualname__ = "allreduce_hook"
        ddp.register_comm_hook(None, swapped if comm.rank else allreduce_hook)
        with pytest.raises(CollectiveMismatchError, match=r"bucket 0\).* and .*bucket 1\)|bucket 1\).*bucket 0\)"):
            ddp(minigrad.Tensor(np.ones(16, np.float32))).backward()
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def test_wrong_arguments():
    ddp = DDP(Slopes(), SoloCommunicator())
    with pytest.raises(ArgumentError, match="a function, got int"):
        ddp.register_comm_hook(None, 3)
    ddp.register_comm_hook(None, fp16_compress_hook)
    with pytest.raises(ArgumentError, match="one registered before"):
        ddp.register_comm_hook(None, fp16_compress_hook)
    with pytest.raises(ArgumentError, match="fp16_compress_hook: expected a CompressionState as state, got NoneType"):
        ddp(minigrad.Tensor(np.ones(4, np.float32))).backward()
    ddp = DDP(Slopes(), SoloCommunicator())
    ddp.register_comm_hook(None, lambda state, bucket, comm: bucket)
    with pytest.raises(ArgumentError, match=r"<lambda>: expected to get back an object with wait\(\), got GradBucket"):
        ddp(minigrad.Tensor(np.ones(4, np.float32))).backward()


def test_a_copy_of_the_wrapper_has_the_hook_and_a_state_of_its_own():
    state = CompressionState()
    ddp = DDP(Slopes(), SoloCommunicator())
    ddp.register_comm_hook(state, fp16_compress_hook)
    twin = copy.deepcopy(ddp)
    twin(minigrad.Tensor(np.ones(4, np.float32))).backward()
    assert state.calls == 0 and twin.reducer.hook.state.calls == 1
