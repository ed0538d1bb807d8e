"""Communicators around communicators: what was called, and what goes wrong on purpose."""

import signal
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest

import minigrad
from minigrad.backend.device import CPU
from minigrad.distributed import (
    DDP,
    BalanceConfig,
    Balancer,
    Fault,
    FaultInjecting,
    Recording,
    ReduceOp,
    Rounds,
    SoloCommunicator,
    Wrapper,
    run,
    simulate,
)
from minigrad.distributed.balance.meter import Metered
from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.work import DoneWork
from minigrad.distributed.comm.wrappers import Call
from minigrad.distributed.ddp.hooks import Booked
from minigrad.errors import (
    ArgumentError,
    CollectiveMismatchError,
    DtypeError,
    InjectedFaultError,
    RankFailedError,
    ShapeError,
)
from tests.distributed.models import Mlp, data, gradients, mean_loss
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 5.0


def every_call(comm):
    """What one call of each kind gives."""
    results = []
    for op in ReduceOp:
        array = np.arange(3.0) + comm.rank
        comm.all_reduce(array, op).wait()
        results.append(array.tolist())
    array = np.full(2, float(comm.rank))
    comm.broadcast(array, comm.world_size - 1).wait()
    part, whole = np.empty(2), np.empty(2 * comm.world_size)
    comm.reduce_scatter(part, np.arange(2.0 * comm.world_size)).wait()
    comm.all_gather(whole, part).wait()
    total, turned = np.full(2, comm.rank + 1.0), np.empty_like(whole)
    gathered = whole.copy() if comm.rank == 1 else None
    comm.reduce(total, 1).wait()
    comm.gather(gathered, part, 1).wait()
    comm.scatter(part, gathered, 1).wait()
    comm.all_to_all(turned, whole + comm.rank).wait()
    results += [total.tolist(), None if gathered is None else gathered.tolist(), turned.tolist()]
    comm.barrier()
    kept = comm.empty(3, np.dtype(np.float32))
    return [*results, array.tolist(), part.tolist(), whole.tolist(), comm.all_gather_object(comm.rank), kept.tolist()]


@pytest.mark.parametrize("kind", ["threads", "shm"])
@pytest.mark.parametrize(
    "wrap",
    [Wrapper, Recording, lambda c: FaultInjecting(c, []), lambda c: Recording(FaultInjecting(Recording(c), []))],
    ids=["plain", "recording", "faults", "both"],
)
def test_a_wrapper_changes_nothing(kind, wrap):
    def body(comm):
        wrapped = wrap(comm)
        assert (wrapped.rank, wrapped.world_size, wrapped.device) == (comm.rank, comm.world_size, comm.device)
        assert wrapped.timeout_s == comm.timeout_s and wrapped.clock is comm.clock
        return every_call(wrapped)

    assert run_ranks(kind, body, 3) == run_ranks(kind, every_call, 3)


def test_failures_pass_through_a_wrapper():
    def body(comm):
        wrapped = Recording(comm)
        with pytest.raises(ShapeError):
            wrapped.all_reduce(np.zeros((4, 4))[:, ::2])
        with pytest.raises(DtypeError, match="expected a tensor or an array, got list"):
            wrapped.all_reduce([1.0])
        with pytest.raises(ArgumentError, match="a ReduceOp, got 'sum'"):
            wrapped.all_reduce(np.zeros(2), "sum")
        comm.barrier()
        if comm.rank == 1:
            wrapped.abort("enough")
        with pytest.raises(RankFailedError):
            wrapped.barrier()
        wrapped.close()
        return [call.kind for call in wrapped.calls]

    assert run(body, 2, timeout_s=TIMEOUT_S) == [["all_reduce"] * 3 + ["barrier"]] * 2


def test_a_proxy_that_could_miss_calls_is_refused():
    """One that passes on whatever it is asked, and so never hears of a sum that is made under another name."""

    class Proxy:
        def __init__(self, comm):
            self.inner = comm

        def __getattr__(self, name):
            return getattr(self.inner, name)

    for wrap in (lambda comm: DDP(Mlp(0), comm), Recording):
        with pytest.raises(ArgumentError, match="a communicator, got Proxy: .* derives from distributed.Wrapper"):
            wrap(Proxy(SoloCommunicator()))


@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_a_wrapper_of_ones_own_sees_every_sum(kind):
    class Seeing(Wrapper):
        sums = ()

        def around(self, call, arrays, make):
            self.sums = [*self.sums, *(array.copy() for array in arrays)]
            return make()

    def body(comm):
        wrapper = Seeing(comm)
        ddp = DDP(Mlp(0), wrapper)
        inputs, targets = data(2, comm.rank)
        mean_loss(ddp(minigrad.Tensor(inputs)), targets).backward()
        return wrapper.sums[-1], ddp.reducer.layout.buffers[0].grad.copy()

    (first, total), (second, same) = run_ranks(kind, body, 2)
    assert (first + second).tobytes() == total.tobytes() == same.tobytes()


def test_a_clock_reaches_the_inner_communicator():
    inner = SoloCommunicator()
    clock = HostClock()
    Recording(inner).clock = clock
    assert inner.clock is clock


def test_recorded_calls():
    recording = Recording(SoloCommunicator())
    recording.all_reduce(np.zeros(3, np.float32), layout="plan").wait()
    recording.broadcast(np.zeros((2, 2))).wait()
    recording.all_gather(np.zeros(2, np.int8), np.zeros(2, np.int8)).wait()
    recording.all_gather_object([1])
    recording.barrier()
    assert recording.calls == [
        Call("all_reduce", "SUM plan", "float32", 3, 12),
        Call("broadcast", "root 0", "float64", 4, 32),
        Call("all_gather", "", "int8", 2, 2),
        Call("all_gather_object", nbytes=3),
        Call("barrier"),
    ]
    assert recording.bytes_of("broadcast") == 32


# ----------------------------------------------------------------------------------------------------------- faults


def train(comm, faults, steps=2, **options):
    """The gradients of each step, with faults, and which of them struck; construction is step 0."""
    faulty = FaultInjecting(comm, faults, **options)
    ddp = DDP(Mlp(0), faulty, bucket_cap_bytes=64)
    faulty.next_step()
    found = []
    for seed in range(steps):
        inputs, targets = data(4, seed)
        ddp.module.zero_grad()
        mean_loss(ddp(minigrad.Tensor(inputs)), targets).backward()
        found.append(gradients(ddp.module))
        faulty.next_step()
    return found, faulty.struck


def test_no_fault_no_difference():
    for found, struck in run(train, 2, [], timeout_s=TIMEOUT_S):
        assert struck == [] and len(found) == 2


def test_a_delay_is_survived():
    waited = []
    fault = Fault("delay", rank=1, step=2, bucket=1, delay_s=30.0)

    def body(comm):
        return train(comm, [fault], sleep=waited.append)

    clean = run(train, 2, [], timeout_s=TIMEOUT_S)
    for (found, struck), (expected, _), rank in zip(run(body, 2, timeout_s=TIMEOUT_S), clean, range(2)):
        assert struck == ([fault] if rank == 1 else [])
        for one, other in zip(found, expected):
            assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert waited == [30.0]


@pytest.mark.parametrize("after", [False, True])
def test_nan_on_the_way_reaches_all_and_nan_on_arrival_one(after):
    """Step 1 is the first after construction; bucket 2 holds w1."""
    fault = Fault("nan", rank=1, step=1, bucket=2, element=4, after=after)
    ranks = run(train, 2, [fault], timeout_s=TIMEOUT_S)
    for rank, (found, _) in enumerate(ranks):
        hit = np.isnan(found[0]["w1"].reshape(-1))
        assert hit.tolist() == [(not after or rank == 1) and i == 4 for i in range(15)]
        assert not any(np.isnan(g).any() for g in found[1].values())


def test_one_bit_on_arrival_makes_replicas_differ():
    fault = Fault("corrupt", rank=0, step=1, bucket=0, element=1, bit=62, after=True)
    (first, _), (second, _) = run(train, 2, [fault], timeout_s=TIMEOUT_S)
    differing = [name for name in first[0] if first[0][name].tobytes() != second[0][name].tobytes()]
    assert differing == ["w2"]
    bits = first[0]["w2"].view(np.uint64) ^ second[0]["w2"].view(np.uint64)
    assert [int(b) for b in bits.reshape(-1)] == [0, 1 << 62] + [0] * 8


def test_corruption_of_each_dtype():
    for dtype in ("float16", "float32", "int8", "int64", "bfloat16"):
        array = minigrad.Tensor(np.ones(3)).to(dtype).data if dtype != "int8" else np.ones(3, np.int8)
        before = array.copy().view(np.uint8).copy()
        bit = 8 * array.dtype.itemsize - 1
        comm = FaultInjecting(SoloCommunicator(), [Fault("corrupt", rank=0, element=-1, bit=bit)])
        comm.all_reduce(array).wait()
        flipped = np.flatnonzero(array.view(np.uint8) != before)
        assert flipped.tolist() == [before.size - 1]


def test_a_dropped_call_is_noticed():
    """A rank that skips a collective is out of step with the others, which a mismatch says."""
    with pytest.raises(CollectiveMismatchError, match="bucket 0.*bucket 1|bucket 1.*bucket 0"):
        run(train, 2, [Fault("drop", rank=1, step=1, bucket=0)], timeout_s=TIMEOUT_S)


def test_a_dropped_last_call_is_noticed_when_the_rank_is_gone():
    def body(comm):
        faulty = FaultInjecting(comm, [Fault("drop", rank=1)])
        faulty.all_reduce(np.zeros(2)).wait()

    with pytest.raises(RankFailedError, match="rank 1 has returned"):
        run(body, 2, timeout_s=TIMEOUT_S)


def test_reordered_buckets_are_noticed():
    """Swapped on one rank; with equal sizes only the layout tells them apart."""
    with pytest.raises(CollectiveMismatchError, match="bucket"):
        run(train, 2, [Fault("reorder", rank=1, step=1, bucket=0)], timeout_s=TIMEOUT_S)


def test_a_held_call_is_made_when_somebody_waits_for_it():
    def body(comm):
        faulty = FaultInjecting(comm, [Fault("reorder", rank=1)])
        array = np.ones(2)
        work = faulty.all_reduce(array)
        assert comm.rank == 0 or not work.done()
        work.wait()
        assert work.done()
        return array.tolist()

    assert run(body, 2, timeout_s=TIMEOUT_S) == [[2.0, 2.0]] * 2


@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_an_error_on_one_rank_stops_the_others(kind):
    fault = Fault("raise", rank=1, step=2, kind="all_reduce", call=0)
    with pytest.raises(InjectedFaultError, match="rank 1: all_reduce: injected: raise on rank 1 at step 2, call 0"):
        run_ranks(kind, lambda comm: train(comm, [fault]), 2, TIMEOUT_S)


def test_killing_calls_what_it_was_given():
    killed = []

    def body(comm):
        return train(comm, [Fault("kill", rank=1, step=1, call=0)], kill=lambda: killed.append(comm.rank))

    run(body, 2, timeout_s=TIMEOUT_S)
    assert killed == [1]


def test_killing_ends_the_process_at_once():
    code = (
        "import numpy as np\n"
        "from minigrad.distributed import Fault, FaultInjecting, SoloCommunicator\n"
        "FaultInjecting(SoloCommunicator(), [Fault('kill', rank=0)]).all_reduce(np.zeros(1))\n"
        "print('still here')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "")


def test_each_fault_strikes_once_where_it_fits_first():
    faults = [Fault("nan", rank=0, call=1), Fault("nan", rank=0, kind="broadcast"), Fault("nan", rank=7)]
    comm = FaultInjecting(SoloCommunicator(), faults)
    seen = []
    for step in range(2):
        for call in (comm.all_reduce, comm.all_reduce, comm.broadcast):
            array = np.zeros(1)
            call(array).wait()
            seen.append(bool(np.isnan(array).any()))
        comm.next_step()
    assert seen == [False, True, True, False, False, False]
    assert comm.struck == faults[:2] and comm.step == 2


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match="action to be one of 'delay', 'drop', .* got 'explode'"):
        Fault("explode", rank=0)
    for name in ("rank", "delay_s", "bit", "step", "call", "bucket"):
        for value in (-1, "1", float("nan")):
            with pytest.raises(ArgumentError, match=f"Fault: expected {name} to be .*, got {value!r}"):
                Fault("delay", **{"rank": 0, name: value})
    for name, value in {"kind": "all_reduc", "element": 0.5, "after": 1}.items():
        with pytest.raises(ArgumentError, match=f"Fault: expected {name} to be .*, got {value!r}"):
            Fault("delay", **{"rank": 0, name: value})
    for faults in (3, [3], Fault("nan", rank=0)):
        with pytest.raises(ArgumentError, match="FaultInjecting: expected a list of Faults, got"):
            FaultInjecting(SoloCommunicator(), faults)
    for action in ("drop", "reorder", "nan"):
        with pytest.raises(ArgumentError, match="FaultInjecting: expected a call"):
            FaultInjecting(SoloCommunicator(), [Fault(action, rank=0)]).barrier()


ARGUMENTS = {  # of each method of the protocol
    "empty": (3, np.float32),
    "all_reduce": (np.ones(2), ReduceOp.MAX, "plan"),
    "weighted_all_reduce": (np.ones(2, np.float16), np.ones(1), "plan"),
    "broadcast": (np.ones(2), 0),
    "reduce_scatter": (np.ones(2), np.ones(2), ReduceOp.MAX),
    "all_gather": (np.ones(2), np.ones(2)),
    "reduce": (np.ones(2), 0, ReduceOp.MAX),
    "gather": (np.ones(2), np.ones(2), 0),
    "scatter": (np.ones(2), np.ones(2), 0),
    "all_to_all": (np.ones(2), np.ones(2)),
    "all_gather_object": ([1],),
    "barrier": (),
    "split": (1, 2),
    "send": (np.ones(2), 1, 3),
    "recv": (np.ones(2), 1, 3),
    "check_headers": ("plan",),
    "end_pass": ("plan", 2.0, True),
    "check_same": ("me",),
    "last_calls": (),
    "waiting": (),
    "event": ("mine",),
    "give_up": ("enough",),
    "abort": ("enough",),
    "close": (),
}
ATTRIBUTES = ("rank", "world_size", "device", "clock", "timeout_s", "global_ranks", "adds_weighted")
WRAPPERS = {
    "Wrapper": Wrapper,
    "Recording": Recording,
    "FaultInjecting": lambda comm: FaultInjecting(comm, []),
    "Booked": Booked,
    "Metered": Metered,
    "two": lambda comm: Recording(Booked(comm)),
}


class Spy(Communicator):
    """Has every method of the protocol, and notes what it is asked."""

    rank, world_size, device, clock, timeout_s, adds_weighted = 0, 1, CPU, HostClock(), 7.5, True
    global_ranks = (0,)

    def __init__(self):
        self.asked = []

    def answer(self, name, *args):
        self.asked.append((name, *args))
        answers = {"waiting": nullcontext(), "empty": np.zeros(3), "end_pass": [2.0], "split": None}
        return answers.get(name, DoneWork())


for name in ARGUMENTS:
    setattr(Spy, name, lambda self, *args, _name=name, **fields: self.answer(_name, *args, *fields.values()))


def test_the_protocol_is_known_here():
    methods = [name for name in vars(Communicator) if not name.startswith("_")]
    assert {*methods, *Communicator.__annotations__} == {*ARGUMENTS, *ATTRIBUTES}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_forwards_every_method_of_the_protocol(wrapper, name):
    if (wrapper, name) == ("Metered", "waiting"):
        return  # which times the wait itself
    spy = Spy()
    getattr(WRAPPERS[wrapper](spy), name)(*ARGUMENTS[name])
    [(asked, *args)] = spy.asked
    assert asked == name and all(one is other for one, other in zip(args, ARGUMENTS[name], strict=True))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_has_what_the_inner_one_has(wrapper):
    spy = Spy()
    wrapped = WRAPPERS[wrapper](spy)
    assert [getattr(wrapped, name) for name in ATTRIBUTES] == [getattr(spy, name) for name in ATTRIBUTES]


@pytest.mark.parametrize("wrap", [Recording, lambda comm: FaultInjecting(Recording(comm), [])])
def test_decisions_reach_the_trace_through_wrappers(wrap):
    def body(comm):
        balancer = Balancer(wrap(comm), BalanceConfig(calibration_steps=1, interval_steps=1))
        rounds = Rounds(wrap(comm))
        with balancer.step(8) as rows:
            comm.clock.compute(rows.stop - rows.start)
            balancer.comm.barrier()
        with rounds.round() as mine:
            comm.clock.compute(mine.stop - mine.start)
            rounds.comm.barrier()

    trace = simulate.run(body, simulate.Cluster.of_speeds([3, 1]))
    assert [[told["kind"] for told in rank.decisions] for rank in trace.ranks] == [["balance", "cadence"]] * 2
