"""A captured step of data-parallel training, its collectives in the graph: over the stand-in for NCCL, bit for bit."""

import numpy as np
import pytest

import minigrad
from minigrad import Device, optim
from minigrad.backend.random import set_noise_key
from minigrad.backend.stream import streams_of
from minigrad.data import SampleLedger
from minigrad.distributed import DDP, NcclCommunicator, SoloCommunicator, bf16_compress_hook, keep_ledger
from minigrad.distributed.comm.rendezvous import Rendezvous, free_port
from minigrad.distributed.ddp.hooks import CompressionState
from minigrad.errors import CaptureError, DistributedError, ReplicaMismatchError
from tests.capture.models import OPTIMIZERS, Scaled, batch, started, state, train_step
from tests.distributed.fake_nccl import FakeNccl
from tests.distributed.test_streams import on_threads
from tests.strict_cupy import counted, machine
from tests.strict_cupy.device import current_id

LIMIT_S = 20.0


class Streams:
    """What communicators ask of cupy.cuda, remembering streams by their addresses, by which NCCL is given them."""

    def __init__(self, cuda):
        self._cuda, self._known = cuda, {}
        self.Event, self.runtime = cuda.Event, cuda.runtime

    def get_current_stream(self):
        stream = self._cuda.get_current_stream()
        self._known[current_id(), stream.ptr] = stream
        return stream

    def submit(self, pointer, work):
        self._known[current_id(), pointer].submit(work)


def on_ranks(cuda, body, world_size=2):
    """body(comm) on a thread for each rank, each with a device; results in order."""
    streams, port, results = Streams(streams_of(cuda)), free_port(), [None] * world_size
    fake = FakeNccl(current_id, streams.submit, LIMIT_S)

    def run(rank):
        minigrad.manual_seed(3)
        set_noise_key(rank)
        meeting = Rendezvous(rank, world_size, "127.0.0.1", port, b"k", LIMIT_S)
        comm = NcclCommunicator(meeting, Device(f"cuda:{rank}"), timeout_s=LIMIT_S, nccl=fake, streams=streams)
        try:
            results[rank] = body(comm)
        finally:
            comm.close()

    on_threads(run, world_size)
    fake.check_all_given_back()
    return results


def wrapped(comm, norm=True, **options):
    model = Scaled(norm).to(comm.device)
    return model, DDP(model, comm, bucket_cap_bytes=32, **options)


def inputs(comm, number):
    """Those of a step: the ranks have 4 and 5 samples."""
    return batch(comm.device, 10 * number + comm.rank, (4 + comm.rank, 6))


def train(cuda, captured, hook=False, scaled=False, steps=5):
    """Losses, state, statistics, and how far the ranks' calls are; those ranks capture whose numbers are given."""

    def body(comm):
        model, ddp = wrapped(comm)
        if hook:
            ddp.register_comm_hook(CompressionState(measure_error=False), bf16_compress_hook)
        optimizer = OPTIMIZERS["adam"](list(model.parameters()))
        scaler = optim.GradScaler(init_scale=2.0**10, growth_interval=3) if scaled else None
        schedule = optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        step = train_step(model, optimizer, scaler, 0.5, ddp)
        step = started(step, inputs(comm, 0), comm.rank in captured)
        losses = []
        for number in range(steps):
            losses.append(repr(step(inputs(comm, number)).item()))
            schedule.step()
        stats = ddp.stats()
        told = stats.passes, stats.bytes_sent, stats.calls, comm.seq, comm._trail.end(), ddp._passes
        return losses, state(model, optimizer), told, None if scaler is None else scaler.state_dict()

    return on_ranks(cuda, body)


@pytest.mark.parametrize("options", [{}, {"hook": True}, {"scaled": True}], ids=str)
def test_captured_passes_have_the_bits_of_others(cuda, options):
    """And are counted, numbered and hashed as others: one rank may capture, and the other not."""
    expected = train(cuda, (), **options)
    assert train(cuda, (0, 1), **options) == expected
    if not options:
        assert train(cuda, (1,)) == expected


def test_without_the_edge_to_the_counts_they_are_not_captured(cuda, monkeypatch):
    """What is given to a stream that is not captured would be done once, now."""
    from minigrad.distributed.ddp import lanes

    monkeypatch.setattr(lanes, "current_capture", lambda: None)
    with pytest.raises((CaptureError, DistributedError), match="work for another stream|closed its communicator"):
        train(cuda, (0, 1), steps=1)


def test_any_order_that_the_edges_allow(cuda):
    """With ranks that are pretended, on a machine that runs work late."""
    from tests.distributed.test_streams import Pretending

    def run(captured):
        minigrad.manual_seed(3)
        comm = Pretending(cuda)
        model, ddp = wrapped(comm, norm=False)
        step = train_step(model, optim.SGD(model.parameters(), lr=0.01, momentum=0.9), net=ddp)
        step = started(step, batch(cuda, 0), captured)
        return [step(batch(cuda, number)).item() for number in range(3)], [p.tolist() for p in model.parameters()]

    expected = run(False)
    for seed in range(6):
        with machine(seed):
            assert run(True) == expected


def test_a_replay_is_one_launch_and_waits_for_nothing(cuda, strict_cupy):
    model, ddp = wrapped(SoloCommunicator(cuda))
    step = minigrad.capture(train_step(model, optim.Adam(model.parameters(), lr=0.1), net=ddp), batch(cuda, 0))
    with counted() as work, strict_cupy.no_sync():
        step(step.inputs[0])
    assert dict(work.pieces) == {"graph": 1}


def test_ranks_that_part_are_told(cuda):
    """A rate that one rank alone has changed is an error on all, a few replays later at most."""

    def body(comm):
        model, ddp = wrapped(comm)
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        step = minigrad.capture(train_step(model, optimizer, net=ddp), inputs(comm, 0), warmup=1)
        if comm.rank == 1:
            optimizer.param_groups[0]["lr"] = 0.2
        with pytest.raises(ReplicaMismatchError, match="lr"):
            for number in range(400):
                step(inputs(comm, number))
        return True

    assert on_ranks(cuda, body) == [True, True]


def test_its_communicator_ends_after_the_graph(cuda):
    """NCCL waits at its end for the graphs that have its collectives."""

    def body(comm):
        model, ddp = wrapped(comm)
        step = minigrad.capture(train_step(model, optim.SGD(model.parameters(), lr=0.1), net=ddp), inputs(comm, 0))
        assert step._graph._graph is not None
        comm.close()
        assert step._graph._graph is None
        with pytest.raises(DistributedError, match="closed"):
            step(inputs(comm, 1))
        return True

    assert on_ranks(cuda, body) == [True, True]


def test_the_ledger_is_told(cuda):
    model, ddp = wrapped(SoloCommunicator(cuda))
    ledger = SampleLedger(100)
    keep_ledger(ddp, ledger)
    step = minigrad.capture(train_step(model, optim.SGD(model.parameters(), lr=0.1), net=ddp), batch(cuda, 0), warmup=2)
    assert ledger.step == 3
    step(batch(cuda, 1))
    assert ledger.step == 4


@pytest.mark.parametrize(
    "options, words",
    [
        ({"find_unused_parameters": True}, "DistributedDataParallel: .* got find_unused_parameters=True"),
        ({"buffer_cadence": 2}, "DistributedDataParallel: .* got buffer_cadence=2"),
        ({"check_replicas_every": 1}, "DistributedDataParallel: .* got check_replicas_every=1"),
    ],
    ids=str,
)
def test_options_that_need_the_host(cuda, options, words):
    model, ddp = wrapped(SoloCommunicator(cuda), **options)
    step = train_step(model, optim.SGD(model.parameters(), lr=0.1), net=ddp)
    with pytest.raises((CaptureError, DistributedError), match=words):
        minigrad.capture(step, batch(cuda, 0))


def test_what_is_around_a_replay_is_what_was_around_the_step(cuda):
    model, ddp = wrapped(SoloCommunicator(cuda))
    step = minigrad.capture(train_step(model, optim.SGD(model.parameters(), lr=0.1), net=ddp), batch(cuda, 0))
    for block, words in [(ddp.no_sync(), "no_sync"), (ddp.samples(3), r"samples\(3\)"), (ddp.join(), "join")]:
        with pytest.raises(CaptureError, match=f"as it was captured, got it inside of {words}"), block:
            step(batch(cuda, 1))
    step(batch(cuda, 1))


def test_messages_and_meetings_are_refused(cuda):
    def body(comm):
        for call in (
            lambda x: comm.barrier(),
            lambda x: comm.all_gather_object(1),
            lambda x: comm.send(x, 1 - comm.rank) if comm.rank == 0 else comm.recv(x, 0),
        ):
            calls = []

            def step(x):
                calls.append(1)
                return call(x.data) if len(calls) > 1 else None

            with pytest.raises(CaptureError, match="barrier: |all_gather_object: |send or recv: "):
                minigrad.capture(step, inputs(comm, 0), warmup=1)
        return True

    assert on_ranks(cuda, body) == [True, True]


def test_a_collective_that_is_waited_for_by_the_host_is_refused(cuda):
    def body(comm):
        def step(x):
            comm.all_reduce(x.data).wait(host=True)

        with pytest.raises(CaptureError, match="a look whether the GPU has passed an event"):
            minigrad.capture(step, minigrad.ones(3, device=comm.device), warmup=1)
        return np.array(comm.seq).item()

    assert on_ranks(cuda, body) == [2, 2]
