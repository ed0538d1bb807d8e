"""The cases of the contract in which ranks make other calls, come late or not at all, fail, give up or leave."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.distributed import Communicator, ReduceOp
from minigrad.errors import CollectiveMismatchError, CollectiveTimeoutError, RankFailedError
from minigrad.testing.contract import contract, refused

# ---------------------------------------------------------------------------------------------------- mismatches

MISMATCHES: dict[str, tuple[Callable[[Communicator], Any], Callable[[Communicator], Any], list[str]]] = {
    "count": (lambda c: c.all_reduce(np.ones(3)), lambda c: c.all_reduce(np.ones(4)), ["of 3 float64", "of 4 float64"]),
    "dtype": (
        lambda c: c.all_reduce(np.ones(3)),
        lambda c: c.all_reduce(np.ones(3, np.float32)),
        ["float64", "float32"],
    ),
    "op": (
        lambda c: c.all_reduce(np.ones(3), ReduceOp.MIN),
        lambda c: c.all_reduce(np.ones(3), ReduceOp.MAX),
        ["MIN", "MAX"],
    ),
    "kind": (lambda c: c.all_reduce(np.ones(3)), lambda c: c.broadcast(np.ones(3)), ["all_reduce", "broadcast"]),
    "root": (lambda c: c.broadcast(np.ones(3), 0), lambda c: c.broadcast(np.ones(3), 1), ["root 0", "root 1"]),
    "layout": (
        lambda c: c.all_reduce(np.ones(3), layout="aaaa"),
        lambda c: c.all_reduce(np.ones(3), layout="bbbb"),
        ["aaaa", "bbbb"],
    ),
}


@contract(sizes=(2, 3), case=list(MISMATCHES))
def mismatch_raises_on_all_ranks_and_names_both_sides(comm: Communicator, case: str) -> None:
    """In one wording; and the world stays failed."""
    first, second, words = MISMATCHES[case]
    with refused(CollectiveMismatchError, "expected all ranks to make one call, got call 0.*: .* call 0.*: ") as said:
        (second if comm.rank == 1 else first)(comm).wait()
    with refused(CollectiveMismatchError):
        comm.barrier()
    assert said[0].startswith(f"rank {comm.rank}: ")
    assert all(word in said[0] for word in [*words, "on rank 1"])
    assert "on rank 0" in said[0] or "on rank 2" in said[0]


@contract(sizes=(2,))
def other_order_of_calls_is_a_mismatch(comm: Communicator) -> None:
    """Named by the first that differs."""
    small, large = np.ones(2), np.ones(9)
    with refused(CollectiveMismatchError, "call 0.*: .*of 2 float64.*of 9 float64|of 9.*of 2"):
        for array in (small, large) if comm.rank == 0 else (large, small):
            comm.all_reduce(array).wait()


# --------------------------------------------------------------------------------------------- absent and failed ranks


@contract(sizes=(2,), timeout_s=0.4)
def missing_rank_is_named_with_what_it_did_last(comm: Communicator) -> None:
    """By the ranks that came."""
    comm.barrier()
    if comm.rank == 1:
        time.sleep(1.2)
        return
    with refused(CollectiveTimeoutError, r"rank 0: call 1: all_reduce\(SUM\) of 3 float64: ") as said:
        comm.all_reduce(np.ones(3)).wait()
    assert "rank 1 last called call 0: barrier" in said[0]


@contract(sizes=(2,), timeout_s=0.2)
def late_rank_gets_the_error_too(comm: Communicator) -> None:
    """Those that gave it up do not go on with it."""
    if comm.rank == 1:
        time.sleep(0.8)
    with refused(CollectiveTimeoutError):
        comm.barrier()


@contract(sizes=(2,))
def slow_rank_within_the_timeout_is_waited_for(comm: Communicator) -> None:
    """Without an error."""
    if comm.rank == 1:
        time.sleep(0.3)
    comm.barrier()


@contract(sizes=(2, 3))
def rank_that_left_is_named_at_once(comm: Communicator) -> None:
    """Nobody waits for the timeout; and to abort says no more."""
    if comm.rank == 1:
        comm.close()
        comm.abort("it has left already")
        return
    with refused(RankFailedError, "rank 1 (closed its communicator|has returned)"):
        comm.barrier()


@contract(sizes=(2, 3))
def abort_reaches_everybody_and_stays(comm: Communicator) -> None:
    """With its first reason; to close then is no error."""
    if comm.rank == 1:
        comm.abort("no more")
        comm.abort("and again")
    for _ in range(2):
        with refused(RankFailedError, "rank 1 aborted: no more"):
            comm.barrier()
    comm.close()


@contract()
def what_all_give_up_is_as_if_nothing_had_been(comm: Communicator) -> None:
    """What was under way goes on, and so does what follows, where one of them is late too."""
    before = comm.all_reduce(np.ones(2), layout="under way")
    for _ in range(2):
        if comm.rank == 1:
            time.sleep(0.1)
        comm.give_up(f"rank {comm.rank} had enough")
    array = np.full(3, comm.rank + 1.0)
    comm.all_reduce(array).wait()
    before.wait()
    assert array.tolist() == [sum(range(1, comm.world_size + 1))] * 3
    comm.barrier()


@contract(sizes=(2, 3))
def what_one_rank_gives_up_fails_all(comm: Communicator) -> None:
    """With its reason; to give up again says nothing."""
    comm.barrier()
    if comm.rank == 1:
        comm.give_up("enough (of it)")
    for _ in range(2):
        with refused(RankFailedError, r"rank 1 aborted: enough \(of it\)$"):
            comm.all_reduce(np.ones(2)).wait(host=True)
            comm.barrier()
    comm.give_up("this says nothing any more")


@contract()
def closed_twice_and_used_after(comm: Communicator) -> None:
    """The second time does nothing, nor does what ends it; and later calls say why they can't be made."""
    comm.barrier()
    comm.close()
    comm.close()
    comm.give_up("too late")
    with refused(RankFailedError, "closed"):
        comm.barrier()
    with refused(RankFailedError, "closed"):
        comm.all_reduce(np.ones(2)).wait()
