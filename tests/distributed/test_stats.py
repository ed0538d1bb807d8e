"""What `stats()` says of a pass, against the trace of a simulation, sums done by hand, and what was called."""

import multiprocessing

import numpy as np
import pytest

import minigrad
from minigrad import nn
from minigrad.distributed import DDP, CompressionState, Recording, SoloCommunicator, fp16_compress_hook, simulate
from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.comm.work import DoneWork
from minigrad.distributed.ddp.logbook import Logbook
from minigrad.distributed.simulate import Cluster, Link, RankCost
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 10.0
LAYERS, BYTES = 8, 16 * 16 * 4
WIRE_S, COUNT_S = 3.75e-3, 3.75e-3 * 24 / BYTES  # of a bucket, and of the samples: three float64
LINK = Link(0.0, BYTES / WIRE_S)  # two ranks pass on half an array, twice


def layers(comm, cap=BYTES, **options):
    model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(LAYERS)])
    return DDP(model, comm, bucket_cap_bytes=cap, **options)


def one_step(comm, how):
    """The statistics of one step of 60 samples, combined in one of several ways."""
    ddp = layers(comm, sync="manual" if how.endswith("sync_gradients") else "auto")
    loss = ddp(minigrad.randn(60, 16)).sum()
    if how == "auto":
        loss.backward()
    else:
        with ddp.no_sync():
            loss.backward()
        getattr(ddp, how)()
    return ddp.stats()


def simulated(body, *args, slower=1.0):
    """The statistics of each rank, and its only step; 20 ms of forward and 40 ms of backward on rank 0."""
    cluster = Cluster((RankCost(per_sample_s=1e-3), RankCost(per_sample_s=1e-3 * slower)), LINK)
    trace = simulate.run(body, cluster, *args)
    return [(stats, *rank.steps) for stats, rank in zip(trace.results, trace.ranks)]


def assert_equals_trace(stats, step):
    """To the last digit."""
    assert (stats.idle_s, stats.exposed_s, stats.hidden_s) == (step.idle_s, step.exposed_s, step.hidden_s)
    assert stats.communication_s == step.communication_s == stats.exposed_s + stats.hidden_s


def test_all_but_the_last_of_eight_equal_layers_is_hidden():
    for stats, step in simulated(one_step, "auto"):
        assert_equals_trace(stats, step)
        assert stats.exposed_s == pytest.approx(WIRE_S)
        assert stats.communication_s == pytest.approx(8 * WIRE_S + COUNT_S)
        assert stats.overlap_fraction == pytest.approx(0.875, abs=0.001)
        assert stats.idle_s == 0.0
        assert (stats.forward_s, stats.backward_s) == pytest.approx((0.02, 0.04))
        assert stats.bytes_sent == LAYERS * BYTES and stats.calls == LAYERS
        assert "ranks 0.000 s, communication 0.030 s of which 0.004 s exposed (88% overlapped)" in str(stats)


@pytest.mark.parametrize("how", ["sync_gradients", "overlapped_sync_gradients", "flush"])
def test_nothing_overlaps_with_a_backward_that_is_over(how):
    for stats, step in simulated(one_step, how):
        assert_equals_trace(stats, step)
        assert stats.exposed_s == stats.communication_s == pytest.approx(8 * WIRE_S + COUNT_S)
        assert (stats.forward_s, stats.backward_s) == pytest.approx((0.02, 0.04))
        assert stats.overlap_fraction == pytest.approx(0.0, abs=1e-9)


def test_waiting_for_a_slow_rank_is_no_communication():
    """Rank 1 needs 10 ms a layer: rank 0 is through when the second bucket comes, and waits 6.25 ms for each other."""
    (fast, fast_step), (slow, slow_step) = simulated(one_step, "auto", slower=2.0)
    assert_equals_trace(fast, fast_step)
    assert_equals_trace(slow, slow_step)
    assert fast.idle_s == pytest.approx(6 * (0.01 - WIRE_S)) and slow.idle_s == 0.0
    assert fast.exposed_s == pytest.approx(7 * WIRE_S) and slow.exposed_s == pytest.approx(WIRE_S)
    assert fast.communication_s == pytest.approx(8 * WIRE_S + COUNT_S) == slow.communication_s


def in_one_backward(comm, shards):
    """Two wrappers whose gradients come from one backward, or one whose backward comes in shards."""
    first, second = (layers(comm, first_bucket_mb=1) for _ in range(2))
    if shards:
        first.backward_shards(lambda x: first(x).sum(), [minigrad.randn(20, 16), minigrad.randn(40, 16)])
        return [first.stats()]
    second(first(minigrad.randn(30, 16))).sum().backward()
    return [first.stats(), second.stats()]


@pytest.mark.parametrize("slower", [1.0, 1.3])
def test_two_wrappers_in_one_backward_share_what_it_takes(slower):
    """30 samples through each of them; the counts of the second queue behind those of the first."""
    for rank, (both, step) in enumerate(simulated(in_one_backward, False, slower=slower)):
        total = [sum(getattr(stats, name) for stats in both) for name in ("idle_s", "exposed_s", "hidden_s")]
        assert total == pytest.approx([step.idle_s, step.exposed_s, step.hidden_s], abs=1e-12)
        pace = slower if rank else 1.0
        assert [stats.backward_s for stats in both] == pytest.approx([0.04 * pace] * 2)
        assert sum(stats.forward_s for stats in both) == pytest.approx(0.02 * pace)


def test_shards_have_a_forward():
    for (stats,), step in simulated(in_one_backward, True):
        assert stats.forward_s + stats.backward_s == pytest.approx(step.compute_s)
        assert stats.forward_s == pytest.approx(0.02)


def test_a_call_over_shared_memory_that_a_rank_has_not_begun_waits_for_that_rank():
    called = multiprocessing.get_context("fork").Event()

    def body(comm):
        if comm.rank == 1:
            called.wait(TIMEOUT_S)
        work = comm.all_reduce(np.zeros(3))
        called.set()
        while not comm.board.all_posted(work.seq):
            pass
        posted_s = comm.clock.now_s()  # rank 0, which called first, does its share in its wait
        work.wait()
        return posted_s, work.span

    (posted_s, span), (_, same) = run_ranks("shm", body, 2)
    assert span == same
    assert span[0] >= posted_s


class TopK:
    """A hook that sends the largest elements of a bucket, and where they are."""

    def __init__(self, count):
        self.count = count

    def __call__(self, state, bucket, comm):
        flat = bucket.buffer()
        places = np.argsort(-np.abs(flat))[: self.count].astype(np.int64)
        rows = [np.empty(comm.world_size * self.count, kind) for kind in (np.int64, flat.dtype)]
        works = [comm.all_gather(row, mine) for row, mine in zip(rows, (places, flat[places]))]

        class Sparse:
            def wait(self):
                for work in works:
                    work.wait()
                flat[...] = 0
                np.add.at(flat, *rows)

        return Sparse()


HOOKS = {"fp16": (fp16_compress_hook, LAYERS * BYTES // 2, LAYERS), "top-k": (TopK(5), LAYERS * 5 * 12, 2 * LAYERS)}


def with_hook(comm, name):
    """The statistics of a step with a hook, and what a `Recording` around the communicator saw of it."""
    recording = Recording(comm)
    ddp = layers(recording)
    ddp.register_comm_hook(CompressionState(measure_error=False), HOOKS[name][0])
    recording.calls.clear()
    ddp(minigrad.randn(60, 16)).sum().backward()
    return ddp.stats(), sum(call.nbytes for call in recording.calls[1:]), len(recording.calls) - 1


@pytest.mark.parametrize("kind", ["threads", "shm"])
@pytest.mark.parametrize("name", list(HOOKS))
def test_bytes_are_those_that_a_hook_sends(name, kind):
    for stats, nbytes, calls in run_ranks(kind, lambda comm: with_hook(comm, name), 2):
        assert (stats.bytes_sent, stats.calls) == (nbytes, calls) == HOOKS[name][1:]
        assert 0.0 <= stats.overlap_fraction <= 1.0


@pytest.mark.parametrize("name", list(HOOKS))
def test_what_a_hook_waits_for_is_in_the_trace(name):
    for stats, step in simulated(lambda comm: with_hook(comm, name)[0], slower=1.5):
        assert_equals_trace(stats, step)


@pytest.mark.parametrize("kind, itemsize", [("threads", 2), ("shm", 2), ("nccl", 4)])
def test_halves_travel_as_float32_where_no_memory_is_shared(kind, itemsize):
    def body(comm):
        ddp = DDP(nn.Linear(32, 4, bias=False).half(), comm)
        ddp(minigrad.randn(3, 32).half()).sum().backward()
        return ddp.stats().bytes_sent

    assert run_ranks(kind, body, 2) == [32 * 4 * itemsize] * 2


def test_what_follows_the_gradients_is_in_the_trace():
    """Buffers and fingerprints take time, and are none of the gradients' bytes."""

    def body(comm):
        model = nn.Sequential(nn.Linear(16, 8, bias=False), nn.BatchNorm1d(8, affine=False))
        ddp = DDP(model, comm, check_replicas_every=1)
        ddp(minigrad.randn(60, 16)).sum().backward()
        return ddp.stats()

    for stats, step in simulated(body, slower=1.2):
        assert_equals_trace(stats, step)
        assert stats.bytes_sent == 16 * 8 * 4 and stats.calls == 1


def test_a_local_backward_takes_time_and_sends_nothing():
    ticks = iter(range(100))

    class Ticking(HostClock):
        def now_s(self):
            return float(next(ticks))

    ddp = layers(SoloCommunicator(clock=Ticking()))
    with ddp.no_sync():
        ddp(minigrad.randn(2, 16)).sum().backward()
    stats = ddp.stats()
    assert (stats.forward_s, stats.backward_s, stats.passes, stats.bytes_sent) == (1.0, 1.0, 0, 0)


class Told:
    """The work of a communicator that tells when it began, and when it was over; None does not tell."""

    def __init__(self, *span):
        self.span = span or None

    def wait(self, host=False):
        """Over."""


def booked(*notes):
    """The account of calls (work, began, returned) and waits (work, began, ended, "wait")."""
    moments = []
    clock = HostClock()
    clock.now_s = lambda: moments.pop(0)
    logbook = Logbook(clock)
    for work, began_s, ended_s, *wait in notes:
        moments.append(ended_s)
        (logbook.waited if wait else logbook.called)(work, began_s)
    account = logbook.account()
    return [round(seconds, 9) for seconds in account[:3]]


def test_what_the_calls_of_a_rank_come_to():
    """Idle, exposed and hidden seconds, by hand."""
    last, first = Told(2.0, 5.0), Told(2.0, 5.0)
    assert booked((last, 1.9, 5.0), (last, 9.0, 9.1, "wait")) == [0.0, 3.1, 0.0]  # held while it weights and adds up
    assert booked((first, 0.0, 0.5), (first, 4.0, 5.0, "wait")) == [0.0, 1.5, 2.0]  # did its share before the others
    assert booked((first, 0.0, 0.1), (first, 1.0, 5.5, "wait")) == [1.0, 3.6, 0.0]  # half a second to wake up
    assert booked((first, 0.0, 0.1), (first, 4.0, 5.0, "wait")) == [0.0, 1.1, 2.0]
    assert booked((first, 0.0, 0.1), (first, 8.0, 8.0, "wait")) == [0.0, 0.1, 3.0]
    second = Told(3.0, 9.0)  # on the wire from 5 on
    assert booked((first, 0, 0), (second, 1, 1), (first, 4, 5, "wait"), (second, 6, 9, "wait")) == [0.0, 4.0, 3.0]
    assert booked((DoneWork((2.0, 5.0)), 1.0, 5.0)) == [1.0, 3.0, 0.0]  # a call that blocks
    assert booked((DoneWork(), 1.0, 5.0)) == [0.0, 4.0, 0.0]  # one that does not tell
    unknown = Told()
    assert booked((unknown, 1.0, 2.0), (unknown, 4.0, 5.0, "wait")) == [0.0, 2.0, 2.0]
