"""Data parallelism on a GPU's streams, on a stand-in that runs work late and in any order that the edges allow."""

import contextvars
import threading

import numpy as np
import pytest

import minigrad
from minigrad import Device, nn, optim
from minigrad.backend.stream import CommStream, HostStreams, streams_of
from minigrad.backend.timer import CudaTimer, HostTimer, timer_of
from minigrad.distributed import (
    DDP,
    NcclCommunicator,
    ReduceOp,
    SoloCommunicator,
    bf16_compress_hook,
    fp16_compress_hook,
)
from minigrad.distributed.comm.rendezvous import Rendezvous, free_port
from minigrad.distributed.ddp.hooks import CompressionState
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.stamp import mark_changed
from tests.distributed.fake_nccl import FakeNccl
from tests.distributed.models import Mlp, data
from tests.strict_cupy import machine
from tests.strict_cupy.device import current_id

SEEDS = range(24)
OTHERS = 3.0  # ranks of equal samples that the communicator below pretends


class Chain(Module):
    """Three matrices, one after the other, so that their gradients are complete at different times."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(0)
        self.w1, self.w2, self.w3 = (Parameter(0.5 * rng.standard_normal((3, 3))) for _ in range(3))

    def forward(self, x):
        for weight in (self.w1, self.w2, self.w3):
            x = minigrad.ops.linear(x, weight)
            x = x * x
        return x


class OnStream:
    """A collective on a stream."""

    span = None

    def __init__(self, streams):
        self._streams, self._event = streams, streams.Event(disable_timing=True)
        self._event.record()

    def done(self):
        return self._event.done

    def wait(self, host=False):
        self._streams.get_current_stream().wait_event(self._event)
        if host:
            self._event.synchronize()


class Pretending(SoloCommunicator):
    """Rank 0 of 4, where the other ranks have as many samples, and gradients of 1 when weighted."""

    adds_weighted = False

    def __init__(self, device):
        super().__init__(device)
        self.world_size = 4

    def all_reduce(self, array, op=ReduceOp.SUM, layout=""):
        super().all_reduce(array, op)
        if "bucket" in layout:
            array += 1
        else:
            array *= 1 + OTHERS
        return OnStream(streams_of(self.device))

    def all_gather_object(self, value):
        return [value] * self.world_size

    def broadcast(self, array, root=0):
        super().broadcast(array, root)
        return OnStream(streams_of(self.device))


def train(device, comm, steps=2, samples=5, **options):
    """Parameters after some steps, and the gradients of the last."""
    module = Chain().to(device)
    ddp = DDP(module, comm, bucket_cap_bytes=64, **options)
    optimizer = optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        inputs, targets = (minigrad.Tensor(array).to(device) for array in data(samples, step, outputs=3))
        optimizer.zero_grad()
        error = ddp(inputs) - targets
        ((error * error).sum() / samples).backward()
        optimizer.step()
    state = [p.data for p in module.parameters()] + [p.grad_array for p in module.parameters()]
    return [array.get() if hasattr(array, "get") else array for array in state]


def expected(steps=2, samples=5):
    """The same on the CPU, by hand."""
    module = Chain()
    optimizer = optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        inputs, targets = map(minigrad.Tensor, data(samples, step, outputs=3))
        optimizer.zero_grad()
        error = module(inputs) - targets
        ((error * error).sum() / samples).backward()
        for param in module.parameters():
            param.grad_array[...] = param.grad_array / (1 + OTHERS) + 1
        optimizer.step()
    return [p.data for p in module.parameters()] + [p.grad_array for p in module.parameters()]


def is_right(got, tolerance=1e-12):
    return all(np.abs(a - b).max() <= tolerance for a, b in zip(got, expected()))


def late_results(cuda, **options):
    """Whether training gave the right result, for each order."""
    found = []
    for seed in SEEDS:
        with machine(seed):
            found.append(is_right(train(cuda, Pretending(cuda), **options)))
    return found


# ------------------------------------------------------------------------------------------------------ the edges


def test_training_is_right_in_any_order_that_the_edges_allow(cuda):
    assert all(late_results(cuda))


class GivingUp(Pretending):
    """The other ranks fail too."""

    def give_up(self, reason):
        """All have said so."""


@pytest.mark.parametrize("after_a_bucket", [False, True])
def test_after_a_failed_backward_the_next_step_is_right(cuda, after_a_bucket):
    """Nothing of it may still run when the next one writes; with one rank alone even what was sent is over."""
    for seed in SEEDS[:8]:
        with machine(seed):
            comm = SoloCommunicator(cuda) if after_a_bucket else GivingUp(cuda)
            module = Chain().to(cuda)
            ddp = DDP(module, comm, bucket_cap_bytes=64)
            inputs, targets = (minigrad.Tensor(array).to(cuda) for array in data(5, 0, outputs=3))
            with pytest.raises(RuntimeError):
                loss = ddp(inputs).sum()
                if not after_a_bucket:
                    mark_changed(module.w3)
                loss.backward(on_leaf=fail_at(module.w2))
            ddp.zero_grad()
            error = ddp(inputs) - targets
            ((error * error).sum() / 5).backward()
            got = [p.grad_array.get() for p in module.parameters()]
        scale = 1 + OTHERS if after_a_bucket else 1.0
        for gradient, exact in zip(got, expected(steps=1)[3:]):
            np.testing.assert_allclose(gradient, (exact - 1) * scale if after_a_bucket else exact, rtol=0, atol=1e-12)


def fail_at(param):
    def on_leaf(leaf):
        if leaf is param:
            raise RuntimeError("on purpose")

    return on_leaf


def test_a_step_waits_for_nothing(cuda, strict_cupy):
    module = Chain().to(cuda)
    ddp = DDP(module, Pretending(cuda), bucket_cap_bytes=64)
    optimizer = optim.Adam(module.parameters(), lr=0.01)
    x = minigrad.Tensor(data(5, 0)[0]).to(cuda)
    with strict_cupy.no_sync():
        for _ in range(3):
            optimizer.zero_grad()
            ddp(x).sum().backward()
            optimizer.step()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_without_the_edge_before_a_bucket_it_is_wrong(cuda, monkeypatch, missing):
    whole = CommStream.follow
    calls = {}

    def follow(self):
        calls[self] = calls.get(self, -1) + 1
        if calls[self] % 3 != missing:  # a bucket for each matrix
            whole(self)

    monkeypatch.setattr(CommStream, "follow", follow)
    assert not all(late_results(cuda))


def test_without_the_edge_at_the_end_it_is_wrong(cuda, monkeypatch):
    monkeypatch.setattr(CommStream, "join", lambda self: None)
    assert not all(late_results(cuda))


def test_a_hook_that_works_when_it_is_waited_for_stays_on_the_stream(cuda):
    for seed in SEEDS:
        with machine(seed):
            module = Chain().to(cuda)
            ddp = DDP(module, Pretending(cuda), bucket_cap_bytes=64)
            ddp.register_comm_hook(CompressionState(measure_error=False), fp16_compress_hook)
            inputs, targets = (minigrad.Tensor(array).to(cuda) for array in data(5, 0, outputs=3))
            error = ddp(inputs) - targets
            ((error * error).sum() / 5).backward()
            got = [p.grad_array.get() for p in module.parameters()]
            for gradient, exact in zip(got, expected(steps=1)[3:]):
                np.testing.assert_allclose(gradient, exact, rtol=2e-3, atol=2e-3)


# ---------------------------------------------------------------------------------------------------- the weights


class Counted(Pretending):
    """The other three ranks have `others` samples together, and gradients of zero; this is a given rank."""

    def __init__(self, device, rank, others):
        super().__init__(device)
        self.rank, self.others = rank, others

    def all_reduce(self, array, op=ReduceOp.SUM, layout=""):
        if "bucket" not in layout:
            array[0] += self.others
        return OnStream(streams_of(self.device))


@pytest.mark.parametrize("rank", [0, 2])
def test_no_samples_weigh_zero_even_over_nan(cuda, rank):
    ddp = DDP(Mlp(0).to(cuda), Counted(cuda, rank, others=4.0))
    with ddp.samples(0):
        (ddp(minigrad.Tensor(data(2, 0)[0]).to(cuda)) * float("nan")).sum().backward()
    assert all((p.grad_array.get() == 0).all() for p in ddp.module.parameters())


@pytest.mark.parametrize("rank, kept", [(0, True), (2, False)])
def test_where_no_rank_has_samples_rank_0_hands_out_what_was_combined(cuda, rank, kept):
    ddp = DDP(Mlp(0).to(cuda), Counted(cuda, rank, others=0.0))
    x = minigrad.Tensor(data(2, 0)[0]).to(cuda)
    ddp(x).sum().backward()
    before = [p.grad_array.get() for p in ddp.module.parameters()]
    ddp.flush()
    after = [p.grad_array.get() for p in ddp.module.parameters()]
    assert all((b == a if kept else a == 0).all() for a, b in zip(after, before))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_weight_is_read_from_device_memory_in_any_dtype(cuda, dtype):
    kind = minigrad.tensor([1.0], dtype=dtype).data.dtype
    module = Mlp(0, dtype=kind).to(cuda)
    alone = Mlp(0, dtype=kind).to(cuda)
    ddp = DDP(module, Counted(cuda, 1, others=4.0))
    x = minigrad.Tensor(data(4, 0)[0].astype(kind)).to(cuda)
    ddp(x).sum().backward()
    alone(x).sum().backward()
    for param, other in zip(module.parameters(), alone.parameters()):
        np.testing.assert_array_equal(
            param.grad_array.get().astype(float), (other.grad_array.get() * np.float32(0.5)).astype(kind).astype(float)
        )


def test_unused_parameters_are_told_by_one_reading(cuda, strict_cupy):
    class Half(Mlp):
        def forward(self, x):
            return minigrad.ops.linear(x, self.w1, self.b1)

    ddp = DDP(Half(0).to(cuda), SoloCommunicator(cuda), find_unused_parameters=True)
    loss = ddp(minigrad.Tensor(data(3, 0)[0]).to(cuda)).sum()
    before = strict_cupy.syncs.count
    loss.backward()
    assert strict_cupy.syncs.count == before + 1
    assert ddp.module.w2.grad is None and ddp.module.w1.grad is not None


# --------------------------------------------------------------------------------------------------- NCCL's edges


def nccl_world_of_one(cuda, late):
    """A communicator whose collectives lie on the stand-in's streams."""
    streams = {}

    class Streams:
        Event, runtime = streams_of(cuda).Event, streams_of(cuda).runtime

        @staticmethod
        def get_current_stream():
            stream = streams_of(cuda).get_current_stream()
            streams[stream.ptr] = stream
            return stream

    fake = FakeNccl(current_device=current_id, submit=lambda pointer, work: streams[pointer].submit(work))
    return NcclCommunicator(Rendezvous(0, 1, "", 0, b"k", 5.0), cuda, timeout_s=5.0, nccl=fake, streams=Streams)


def on_threads(body, count):
    """body(i) on a thread for each i; raises what the first of them raised."""
    outcomes = [None] * count

    def run(i):
        try:
            body(i)
        except BaseException as error:
            outcomes[i] = error

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(run, i)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    for error in outcomes:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error


@pytest.mark.parametrize("waits", [True, False])
def test_work_orders_the_stream_that_waits(cuda, strict_cupy, monkeypatch, waits):
    cupy, found = strict_cupy, set()
    for seed in SEEDS:
        with machine(seed) as late:
            comm = nccl_world_of_one(cuda, late)
            side, array, gathered = cupy.cuda.Stream(non_blocking=True), cupy.ones(3), cupy.zeros(3)
            cupy.cuda.get_current_stream().synchronize()
            with side:
                work = comm.all_gather(gathered, array)
            if waits:
                work.wait()
            found.add(float((gathered + 0)[0]))
            work.wait(host=True)
            assert work.done() and gathered.memory.tolist() == [1.0] * 3
            comm.close()
    assert found == ({1.0} if waits else {0.0, 1.0})


def test_a_step_of_two_ranks_waits_for_nothing(strict_cupy):
    """From forward to the end of the optimizer's step, clipping and compression included, over NCCL."""
    fake, port, steps = FakeNccl(current_device=current_id), free_port(), 3
    counts, at_rest, weights = {}, threading.Barrier(2), []

    def body(rank):
        try:
            device = Device(f"cuda:{rank}")
            meeting = Rendezvous(rank, 2, "127.0.0.1", port, b"k", 10.0)
            comm = NcclCommunicator(meeting, device, timeout_s=10.0, nccl=fake)
            layers = [nn.Linear(13, 20), nn.LayerNorm(20), nn.Dropout(0.5), nn.Linear(20, 5)]
            module = nn.Sequential(*layers).to(device)
            ddp = DDP(module, comm, bucket_cap_bytes=512, track_nonfinite=True)
            ddp.register_comm_hook(CompressionState(), bf16_compress_hook)
            optimizer = optim.AdamW(module.parameters(), lr=0.01)
            rng = np.random.default_rng(rank)
            x = minigrad.Tensor(rng.standard_normal((4 + rank, 13)).astype(np.float32)).to(device)
            labels = minigrad.Tensor(rng.integers(0, 5, 4 + rank)).to(device)
            at_rest.wait(10.0)
            before = strict_cupy.syncs.count
            at_rest.wait(10.0)
            for _ in range(steps):
                optimizer.zero_grad()
                minigrad.ops.cross_entropy(ddp(x), labels).backward()
                optim.clip_grad_norm_(module.parameters(), 0.1)
                optimizer.step()
            at_rest.wait(10.0)
            counts[rank] = strict_cupy.syncs.count - before
            at_rest.wait(10.0)
            assert ddp.nonfinite_gradients() == []
            weights.append({name: value.cpu().numpy() for name, value in module.state_dict().items()})
            comm.close()
        except BaseException:
            at_rest.abort()
            raise

    on_threads(body, 2)
    assert counts == {0: 0, 1: 0}
    first, second = weights
    assert all(np.array_equal(first[name], second[name]) for name in first)


# --------------------------------------------------------------------------------------------------------- timers


def test_a_timer_reads_what_the_device_has_passed_and_never_waits(cuda, strict_cupy):
    cupy = strict_cupy
    with machine(0) as late:
        timer = timer_of(cuda)
        assert isinstance(timer, CudaTimer)
        with cupy.no_sync():
            for size in (1, 2):
                timer.start()
                for _ in range(size):
                    cupy.ones(3)
                timer.stop()
        late._kind, seen = "waited for", []
        while len(seen) < 2:
            seen += timer.read_s()
        assert seen == [2e-3, 3e-3] and timer.read_s() == []


def test_communication_on_a_device_is_timed_by_its_events(cuda, strict_cupy):
    with machine(1):
        module = Chain().to(cuda)
        ddp = DDP(module, Pretending(cuda), bucket_cap_bytes=64)
        x = minigrad.Tensor(data(5, 0)[0]).to(cuda)
        for _ in range(2):
            with strict_cupy.no_sync():
                ddp(x).sum().backward()
            streams_of(cuda).get_current_stream().synchronize()
        stats = ddp.stats()
        assert stats.passes == 2 and stats.calls == 6
        assert stats.communication_s > 0.0  # of the first pass; a millisecond is a piece of work on this machine
        assert stats.exposed_s >= 0.0


@pytest.mark.parametrize("how", ["sync_gradients", "overlapped_sync_gradients"])
def test_nothing_is_hidden_on_a_device_that_has_nothing_else_to_do(how, cuda):
    for seed in range(5):
        with machine(seed):
            ddp = DDP(Chain().to(cuda), Pretending(cuda), bucket_cap_bytes=64, sync="manual")
            x = minigrad.Tensor(data(5, 0)[0]).to(cuda)
            for _ in range(3):
                ddp(x).sum().backward()
                getattr(ddp, how)()
                streams_of(cuda).get_current_stream().synchronize()
            stats = ddp.stats()
            assert stats.hidden_s == stats.overlap_fraction == 0.0
            assert stats.exposed_s == stats.communication_s > 0.0


def test_a_full_ring_loses_the_oldest(cuda):
    with machine(0):
        timer = CudaTimer(cuda, slots=2)
        for _ in range(5):
            timer.start()
            timer.stop()
        assert timer.lost == 3
        streams_of(cuda).get_current_stream().synchronize()
        assert len(timer.read_s()) == 2


@pytest.mark.parametrize("make", [lambda: HostTimer(), lambda: CudaTimer(Device("cpu"), streams=HostStreams)])
def test_timers_refuse_the_wrong_order(make):
    timer = make()
    with pytest.raises(ArgumentError, match=r"timer.stop: expected a stretch under way, got none: call start\(\)"):
        timer.stop()
    timer.start()
    with pytest.raises(ArgumentError, match=r"timer.start: expected a stretch that is over, got one that runs"):
        timer.start()


def test_the_twin_for_the_cpu_has_done_everything_at_once():
    assert isinstance(timer_of(Device("cpu")), HostTimer)
    side = CommStream(Device("cpu"))
    side.follow()
    with side.current():
        side.join()
    stream = HostStreams.get_current_stream()
    assert stream.record().done
    stream.wait_event(stream.record())
    stream.synchronize()
    stream.record().synchronize()
