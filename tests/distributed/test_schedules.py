"""Overlapped equals serial, bit for bit, whatever the order of leaves and ranks; each element travels exactly once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad
from minigrad.distributed import DDP, Recording, run
from minigrad.distributed.comm.wrappers import Wrapper
from minigrad.testing.conformance import Setup
from minigrad.testing.conformance.expect import random_batch
from minigrad.testing.conformance.own import LinearModel
from tests.distributed.models import gradients
from tests.distributed.turns import Turns, TurnTaking

TIMEOUT_S = 20.0
RUNS = 200


class Draw:
    """A random model, its cut into buckets, and each rank's samples and order of leaves."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.world_size = int(rng.integers(2, 5))
        sizes = rng.integers(1, 60, rng.integers(2, 8))
        self.setup = Setup({f"p{i}": np.zeros(size, [np.float32, np.float64][i % 2]) for i, size in enumerate(sizes)})
        self.cap = int(rng.choice([1, 64, 300, 10**6]))
        self.samples = rng.integers(0, 6, self.world_size)
        self.samples[rng.integers(self.world_size)] += 1
        self.orders = [rng.permutation(list(self.setup.params)) for _ in range(self.world_size)]

    def loss(self, ddp, rank):
        """The mean over this rank's samples, whose terms stand in this rank's order."""
        whole = random_batch(self.setup.params, int(self.samples[rank]), rank)
        outputs = ddp(**{str(name): minigrad.Tensor(whole[name]) for name in self.orders[rank]})
        return outputs.sum() / max(1, len(outputs))


def _serial(comm, draw):
    """One bucket after the other, after backward."""
    ddp = DDP(LinearModel(draw.setup), comm, bucket_cap_bytes=draw.cap, sync="manual")
    draw.loss(ddp, comm.rank).backward()
    ddp.sync_gradients()
    return gradients(ddp.module)


def _overlapped(comm, draw, turns):
    """While backward runs; the ranks take turns at each leaf and collective."""
    recording = Recording(TurnTaking(comm, turns))
    ddp = DDP(LinearModel(draw.setup), recording, bucket_cap_bytes=draw.cap)
    loss, launched = draw.loss(ddp, comm.rank), []
    recording.calls.clear()
    turns.enter(comm.rank)
    try:

        def on_leaf(leaf):
            launched.append(len(recording.calls) - 1)  # less the one that counts the samples
            turns.turn(comm.rank)

        loss.backward(on_leaf=on_leaf)
    finally:
        turns.leave(comm.rank)
    return gradients(ddp.module), launched, ddp.stats().ready_order


def _run(seed, turns_seed):
    draw = Draw(seed)
    turns = Turns(draw.world_size, turns_seed)
    return run(_overlapped, draw.world_size, draw, turns, timeout_s=TIMEOUT_S), turns.order


@pytest.mark.parametrize("seed", range(RUNS))
def test_overlapped_equals_serial_bit_for_bit(seed):
    draw = Draw(seed)
    serial = run(_serial, draw.world_size, draw, timeout_s=TIMEOUT_S)
    for actual, _, _ in _run(seed, seed)[0]:
        assert all(actual[name].tobytes() == serial[0][name].tobytes() for name in serial[0])


def test_a_schedule_can_be_repeated():
    first, order = _run(3, 8)
    again, same = _run(3, 8)
    _, other = _run(3, 9)
    assert order == same != other and len(order) > 10
    assert [launched for _, launched, _ in first] == [launched for _, launched, _ in again]


def test_schedules_differ_in_what_is_launched_when():
    """The runs above are not one run 200 times: buckets go out in backward and after it, and are ready in any order."""
    ranks = [rank for seed in range(20) for rank in _run(seed, seed)[0]]
    early = [launched[-1] for _, launched, _ in ranks]
    assert min(early) == 0 and len(set(early)) >= 4
    assert sum(ready != sorted(ready) for _, _, ready in ranks) >= 5


class Covering(Wrapper):
    """Counts how often each element of some arrays is all-reduced."""

    def __init__(self, comm):
        super().__init__(comm)
        self.arrays, self.counts = [], []

    def watch(self, arrays):
        self.arrays, self.counts = arrays, [np.zeros(array.size, int) for array in arrays]

    def around(self, call, arrays, make):
        for flat, count in zip(self.arrays, self.counts):
            if call.kind == "all_reduce" and np.may_share_memory(flat, arrays[0]):
                start = (arrays[0].ctypes.data - flat.ctypes.data) // flat.itemsize
                assert arrays[0].dtype == flat.dtype and 0 <= start <= flat.size - arrays[0].size
                count[start : start + arrays[0].size] += 1
        return make()


entry = st.tuples(st.integers(0, 40), st.sampled_from([np.float32, np.float64, np.float16]), st.booleans())


@settings(max_examples=100, deadline=None)
@given(
    entries=st.lists(entry, min_size=1, max_size=10).filter(lambda chosen: any(e[2] for e in chosen)),
    cap=st.integers(1, 600),
    first_mb=st.sampled_from([1e-6, 1e-4, 1.0]),
    world_size=st.integers(1, 2),
    how=st.sampled_from(["auto", "sync_gradients", "overlapped_sync_gradients"]),
    seed=st.integers(0, 999),
)
def test_each_element_is_reduced_exactly_once(entries, cap, first_mb, world_size, how, seed):
    params = {f"p{i}": np.zeros(size, dtype) for i, (size, dtype, _) in enumerate(entries)}
    frozen = tuple(f"p{i}" for i, (_, _, trainable) in enumerate(entries) if not trainable)

    def body(comm):
        covering = Covering(comm)
        sync = "auto" if how == "auto" else "manual"
        model = LinearModel(Setup(params, frozen=frozen))
        ddp = DDP(model, covering, bucket_cap_bytes=cap, first_bucket_mb=first_mb, sync=sync)
        covering.watch([buffer.grad for buffer in ddp.reducer.layout.buffers])
        order = np.random.default_rng([seed, comm.rank]).permutation(list(params))
        whole = random_batch(params, 2, comm.rank)
        ddp(**{str(name): minigrad.Tensor(whole[name]) for name in order}).mean().backward()
        if how != "auto":
            getattr(ddp, how)()
        for buffer, count in zip(ddp.reducer.layout.buffers, covering.counts):
            for param in buffer.params:
                start, stop = buffer.span(param)
                assert count[start:stop].tolist() == [int(param.requires_grad)] * (stop - start), param.name
        return True

    assert all(run(body, world_size, timeout_s=TIMEOUT_S))
