"""Ranks that fall out of step: the error says which call, which bucket and parameters, who came and who did not."""

import copy
import functools
import multiprocessing
import os

import pytest

import minigrad
from minigrad import nn
from minigrad.distributed import DDP, Fault, FaultInjecting, allreduce_hook, plan_buckets
from minigrad.distributed.ddp.buckets import Entry
from minigrad.distributed.ddp.refusals import named
from minigrad.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    InjectedFaultError,
    RankFailedError,
    ReplicaMismatchError,
)
from tests.distributed.worlds import run_ranks

kinds = pytest.mark.parametrize("kind", ["threads", "shm"])
CAP = 48  # bytes: every parameter of the model has a bucket of its own


class Gate:
    """Keeps a rank back until another has its error; works between threads and between processes."""

    def __init__(self):
        self._opened = multiprocessing.get_context("fork").Event()
        self.open = self._opened.set

    def wait(self):
        assert self._opened.wait(20.0)


def model():
    return nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1))


def wrap(comm, **options):
    return DDP(model(), comm, bucket_cap_bytes=CAP, **options)


def backward(ddp):
    ddp(minigrad.ones(2, 3)).sum().backward()


def outcome(function, *errors):
    """The error of a call that raises one of these, as `type: message`."""
    with pytest.raises(errors) as caught:
        function()
    return f"{caught.type.__name__}: {caught.value}"


def test_every_parameter_has_a_bucket_of_its_own():
    """The tests below stand on it."""
    [plan] = run_ranks("threads", lambda comm: wrap(comm).plan, 1)
    assert [[plan.names[i] for i in b.entries] for b in plan.buckets] == [["1.bias"], ["1.weight"], ["0.weight"]]


# ------------------------------------------------------------------------------------------------------ a late rank


@kinds
def test_a_late_rank_is_named_with_its_last_three_calls(kind):
    gate = Gate()

    def body(comm):
        ddp = wrap(comm)
        backward(ddp)
        ddp.zero_grad()
        if comm.rank == 1:
            gate.wait()
        result = outcome(lambda: backward(ddp), CollectiveTimeoutError)
        gate.open()
        return result

    first, second, third = run_ranks(kind, body, 3, timeout_s=0.5)
    plan_id = first.split("SUM ")[1].split(")")[0]
    for rank, message in ((0, first), (2, third)):
        assert message.startswith(f"CollectiveTimeoutError: rank {rank}: call ")
        assert f"all_reduce(SUM {plan_id}) of 4 float64: expected all 3 ranks within 0.5 s, got ranks [0, 2]" in message
        last_three = [f"all_reduce(SUM {plan_id} bucket {i}) of " for i in (2, 1, 0)]
        places = [message.index(call) for call in last_three]
        assert message.index("rank 1 last called call") < places[0] < places[1] < places[2]
        assert message.count(": all_reduce(") == 1 + 3
        assert message.endswith(" (bucket 0: 1.bias; bucket 1: 1.weight; bucket 2: 0.weight)")
    assert second.startswith("CollectiveTimeoutError: rank 1: call ")  # it hears why when it comes


@kinds
def test_a_rank_that_skips_a_backward_and_waits_elsewhere(kind):
    """The others count samples, it waits in a barrier: both sides are named, on all ranks."""

    def body(comm):
        ddp = wrap(comm)
        return outcome(comm.barrier if comm.rank == 1 else lambda: backward(ddp), CollectiveMismatchError)

    messages = run_ranks(kind, body, 3)
    for rank, message in enumerate(messages):
        assert message.startswith(f"CollectiveMismatchError: rank {rank}: expected all ranks to make one call, got ")
        assert "all_reduce(SUM " in message and ": barrier on rank 1" in message
        if rank != 1:
            assert message.endswith(" (counting samples before bucket 0: 1.bias)")


@kinds
def test_a_rank_that_skips_the_last_backward_and_leaves(kind):
    def body(comm):
        ddp = wrap(comm)
        if comm.rank == 1:
            comm.close()
            return None
        return outcome(lambda: backward(ddp), RankFailedError)

    first, _, third = run_ranks(kind, body, 3)
    for message in (first, third):
        assert ", got ranks [" in message
        assert "rank 1 closed its communicator and last called call " in message
        assert message.endswith("bucket 0: 1.bias)")


# ------------------------------------------------------------------------------------------- other order, other plan


@kinds
def test_two_wrappers_in_another_order(kind):
    def body(comm):
        pair = [wrap(comm), DDP(nn.Linear(4, 1, bias=False), comm)]
        inputs = [minigrad.ones(2, 3), minigrad.ones(2, 4)]
        order = (0, 1) if comm.rank == 0 else (1, 0)

        def step():
            for i in order:
                pair[i](inputs[i]).sum().backward()

        return pair[0].plan.id, pair[1].plan.id, outcome(step, CollectiveMismatchError)

    for rank, (large, small, message) in enumerate(run_ranks(kind, body, 2)):
        assert f" {large}) of 3 float64" in message and f" {small}) of 3 float64" in message
        assert message.endswith("(counting samples before bucket 0: " + ("1.bias)" if rank == 0 else "weight)"))


@kinds
def test_another_order_of_buckets(kind):
    """One rank's communicator swaps the first two buckets."""

    def body(comm):
        ddp = wrap(FaultInjecting(comm, [Fault("reorder", rank=1, kind="all_reduce", bucket=0)]))
        return outcome(lambda: backward(ddp), CollectiveMismatchError)

    for message in run_ranks(kind, body, 2):
        assert " bucket 0) of " in message and " bucket 1) of " in message
        assert message.endswith(" (bucket 0: 1.bias; bucket 1: 1.weight)")


OPTIONS = [
    ({"bucket_cap_bytes": CAP}, r"bucket_cap_bytes, in bytes, is 26214400 on rank 0 and 48 on rank 1"),
    ({"bucket_cap_mb": 1}, r"bucket_cap_mb or .* is 26214400 on rank 0 and 1048576 on rank 1"),
    ({"first_bucket_mb": 2}, "first_bucket_mb, in bytes, is 1048576 on rank 0 and 2097152 on rank 1"),
    ({"batch_dim": 1}, "batch_dim is 0 on rank 0 and 1 on rank 1"),
    ({"track_nonfinite": True}, "track_nonfinite is False on rank 0 and True on rank 1"),
    ({"broadcast_buffers": "mean"}, "broadcast_buffers is 'broadcast' on rank 0 and 'mean' on rank 1"),
]


@pytest.mark.parametrize("option, message", OPTIONS)
def test_an_option_that_differs_is_named_when_the_module_is_wrapped(option, message):
    def body(comm):
        with pytest.raises(ReplicaMismatchError, match=message):
            DDP(model(), comm, **(option if comm.rank == 1 else {}))
        DDP(model(), comm, broadcast_buffers=True if comm.rank == 0 else "broadcast")  # the same, in two words
        return True

    assert run_ranks("threads", body, 2) == [True, True]


@kinds
@pytest.mark.parametrize("frozen", [True, False])
def test_a_parameter_frozen_or_trained_on_one_rank_is_named(kind, frozen):
    def body(comm):
        ddp = wrap(comm)
        ddp.module[1].weight.requires_grad = frozen
        backward(ddp)
        if comm.rank == 1:
            ddp.module[0].weight.requires_grad, ddp.module[1].weight.requires_grad = False, not frozen
        return outcome(lambda: backward(ddp), CollectiveMismatchError)

    change = "(frozen since: 0.weight .. 1.weight)" if frozen else "(frozen since: 0.weight) (trained again: 1.weight)"
    for message in run_ranks(kind, body, 2):
        assert f"DDP 1 of Sequential {change}, plan" in message


@kinds
def test_wrappers_in_another_order_are_named(kind):
    """By their number on this communicator, in the order in which they were made, and the class of their module."""

    def body(comm):
        one, two = wrap(comm), DDP(nn.Linear(3, 1), FaultInjecting(comm, []))
        backward(one)
        two(minigrad.ones(2, 3)).sum().backward()
        first, second = (lambda: backward(one)), (lambda: two(minigrad.ones(2, 3)).sum().backward())
        return outcome(first if comm.rank == 0 else second, CollectiveMismatchError)

    for message in run_ranks(kind, body, 2):
        assert "(SUM DDP 1 of Sequential, plan" in message and "(SUM DDP 2 of Linear, plan" in message


@kinds
def test_what_only_one_rank_makes_is_named(kind):
    def body(comm, make):
        ddp = wrap(comm)
        return outcome((lambda: make(ddp)) if comm.rank == 1 else lambda: backward(ddp), CollectiveMismatchError)

    for make, said in [
        (copy.deepcopy, "a copy of DDP 1 of Sequential is made"),
        (lambda ddp: wrap(ddp.comm), "DistributedDataParallel wraps a module"),
        (lambda ddp: ddp.register_comm_hook(None, allreduce_hook), "register_comm_hook"),
    ]:
        for message in run_ranks(kind, functools.partial(body, make=make), 2):
            assert f"all_reduce(SUM {said})" in message


@kinds
def test_a_dropped_bucket(kind):
    """The call that follows meets the dropped one."""

    def body(comm):
        ddp = wrap(FaultInjecting(comm, [Fault("drop", rank=1, bucket=1)]))
        return outcome(lambda: backward(ddp), CollectiveMismatchError)

    for message in run_ranks(kind, body, 2):
        assert message.endswith(" (bucket 1: 1.weight; bucket 2: 0.weight)")


# ------------------------------------------------------------------------------------------------------ dead ranks


@kinds
def test_an_injected_error_keeps_its_type_and_names_its_bucket(kind):
    def body(comm):
        ddp = wrap(FaultInjecting(comm, [Fault("raise", rank=1, bucket=1)]))
        return outcome(lambda: backward(ddp), InjectedFaultError, RankFailedError)

    first, second = run_ranks(kind, body, 2)
    assert second.startswith("InjectedFaultError: rank 1: all_reduce: injected: raise on rank 1 at bucket 1")
    assert second.endswith(" (bucket 1: 1.weight)")
    assert first.startswith("RankFailedError: rank 0: rank 1 aborted: its backward raised InjectedFaultError")


@kinds
def test_a_rank_that_raises_in_forward(kind):
    def body(comm):
        ddp = wrap(comm)
        if comm.rank == 1:
            raise ZeroDivisionError("boom")
        backward(ddp)

    with pytest.raises(ZeroDivisionError, match="boom"):
        run_ranks(kind, body, 2)


def test_a_process_that_dies_is_named_with_its_last_calls():
    """In a thread that cannot happen; tests of kill -9 at other moments are in test_kill.py."""
    queue = multiprocessing.get_context("fork").SimpleQueue()

    def body(comm):
        ddp = wrap(comm)
        if comm.rank == 1:
            os._exit(3)
        queue.put(outcome(lambda: backward(ddp), RankFailedError))

    with pytest.raises(RankFailedError, match="a rank of the test died"):
        run_ranks("shm", body, 2)
    message = queue.get()
    assert "got ranks [0]: rank 1 is gone (process " in message and " died) and last called call " in message
    assert message.endswith(" (counting samples before bucket 0: 1.bias)")


# ----------------------------------------------------------------------------------------------------- the names


def test_long_lists_of_parameters_are_cut():
    entries = [Entry(f"p{i}", 0, i, i + 1, 4) for i in range(11)]
    plan = plan_buckets(entries)
    error = named(CollectiveTimeoutError("late"), plan, 0)
    assert type(error) is CollectiveTimeoutError
    assert str(error) == "late (bucket 0: p0, p1, p2, p3, p4, p5, p6, p7 and 3 more)"
    assert error.buckets == ((0, plan.names),)


def test_other_plans_buckets_are_not_named():
    plan = plan_buckets([Entry("p", 0, 0, 1, 4)])
    assert str(named(RankFailedError("abcd bucket 3"), plan, 0)) == "abcd bucket 3 (bucket 0: p)"
