"""Groups of ranks, beside what `minigrad.testing.groups` asks of every communicator: they keep the whole contract."""

import multiprocessing
import os
import re
import signal
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.distributed import Fault, FaultInjecting, Recording, SoloCommunicator, Wrapper, run
from minigrad.distributed.comm.groups import Turns, group_of
from minigrad.errors import ArgumentError, DistributedError, InjectedFaultError, RankFailedError
from minigrad.testing import groups
from tests.distributed.contract import CASES
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 10.0
OWN = [name for name, case in CASES.items() if getattr(case.body, "func", case.body).__module__ == groups.__name__]
PATIENT = [name for name, case in CASES.items() if 2 in case.sizes and case.timeout_s >= 10.0 and name not in OWN]
SLOW = ("all_reduce_of_many_elements", "contrastive", "slow_", "a_work_is_done", "rank_that_left")


@given(st.lists(st.tuples(st.none() | st.integers(0, 3), st.integers(-2, 2)), min_size=1, max_size=8))
def test_groups_are_the_colors_in_order_of_key(asked):
    groups = [group_of(rank, asked, range(10, 10 + len(asked))) for rank in range(len(asked))]
    for rank, ((color, _), group) in enumerate(zip(asked, groups)):
        if color is None:
            assert group is None
            continue
        assert group.ranks[group.rank] == rank and group.global_ranks == tuple(r + 10 for r in group.ranks)
        assert set(group.ranks) == {r for r, (other, _) in enumerate(asked) if other == color}
        keys = [(asked[r][1], r) for r in group.ranks]
        assert keys == sorted(keys)


def test_a_name_lists_the_first_ranks():
    group = group_of(0, [(0, 0)] * 20, range(20))
    assert group.name == "group [0, 1, 2, 3, 4, 5, 6, 7, and 12 more]"


@pytest.mark.parametrize("kind", ["threads", "shm", "nccl"])
def test_a_group_keeps_the_contract(kind):
    """Each case on a group of its own: two of three ranks, the last of them first. Whatever fails, the ranks go on."""

    def body(comm):
        failed = {}
        for name in PATIENT:
            if name.startswith(SLOW) and kind != "threads":
                continue  # the same code above all transports
            group = comm.split(0 if comm.rank != 1 else None, -comm.rank)
            if group is not None:
                try:
                    CASES[name].body(group)
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {error}"
                    group.abort("it failed")
        comm.barrier()
        return failed

    assert run_ranks(kind, body, 3, TIMEOUT_S) == [{}] * 3


def test_a_process_that_dies_fails_its_group_and_all_ranks_at_once():
    """Those that wait in the group need nobody who tells them; those in another group go on until all meet."""

    def body(comm):
        group, began_s, said = comm.split(comm.rank % 2), time.monotonic(), []
        if comm.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        for each in (group, comm):
            try:
                each.barrier()
                said.append("")
            except RankFailedError as error:
                said.append(str(error))
        assert time.monotonic() - began_s < TIMEOUT_S / 2
        heard.put((comm.rank, said))

    heard = multiprocessing.get_context("fork").SimpleQueue()
    with pytest.raises(RankFailedError, match="a rank of the test died"):
        run_ranks("shm", body, 4, TIMEOUT_S)
    said = dict(heard.get() for _ in range(3))
    assert [said[0][0], said[2][0]] == ["", ""]
    found = r"^rank 0: call 0 of group \[1, 3\]: barrier.*: rank 1 is gone \(process \d+ died\)"
    told = r"^rank 0 of group \[1, 3\]: the ranks that it was split off have failed: .*rank 3 is gone"
    assert re.search(f"{found}|{told}", said[1][0])
    assert all(re.search(r"^rank .: call \d+: barrier.*rank 3 is gone", parent) for _, parent in said.values())


@pytest.mark.parametrize("kind", ["threads", "shm", "nccl"])
def test_who_waits_in_a_group_hears_of_a_failure_beside_it(kind):
    """Of a rank that is not in the group, while the other rank of it does nothing at all."""
    heard = multiprocessing.get_context("fork").Event()

    def body(comm):
        group = comm.split(0 if comm.rank != 1 else None)
        if comm.rank == 1:
            comm.abort("no more")
        if comm.rank != 0:
            return heard.wait(TIMEOUT_S)
        with pytest.raises(RankFailedError, match="that it was split off have failed: .*rank 1 aborted: no more"):
            group.barrier()
        heard.set()
        return True

    assert run_ranks(kind, body, 3, TIMEOUT_S) == [True] * 3


def test_a_thread_rank_that_returns_has_left_its_groups():
    def body(comm):
        group = comm.split(0).split(comm.rank // 2)
        if comm.rank == 0:
            with pytest.raises(RankFailedError, match=r"of group \[0, 1\]: barrier.*rank 1 has returned"):
                group.barrier()

    began_s = time.monotonic()
    run(body, 3, timeout_s=TIMEOUT_S)
    assert time.monotonic() - began_s < TIMEOUT_S / 2


@pytest.mark.parametrize("kind", ["threads", "shm", "nccl"])
def test_where_one_group_can_not_begin_none_does(kind):
    """All ranks hear why, whichever group they were to be in; and can try again."""

    def body(comm):
        make = type(comm)._split

        def broken(self, group, exchange):
            if comm.rank == 2 and kind != "threads":  # a thread rank has made the worlds of all by then
                raise OSError("no room")
            made = make(self, group, exchange)
            if comm.rank == 2:
                raise OSError("no room")
            return made

        comm._split = broken.__get__(comm)
        with pytest.raises(DistributedError, match=r"rank .: split: .* all groups to begin, got on rank [02]: no room"):
            comm.split(comm.rank % 2)
        del comm._split
        group = comm.split(comm.rank % 2)
        return group.all_gather_object(comm.rank)

    assert run_ranks(kind, body, 3, TIMEOUT_S) == [[0, 2], [1], [0, 2]]


def test_a_rank_that_exchanges_less_than_the_others_is_told_to_them():
    turns = Turns(lambda data: [data, b"r"], group_of(0, [(0, 0), (0, 0)], [0, 1]))
    with pytest.raises(DistributedError, match="rank 1 has not exchanged what the others have"):
        turns.exchange(b"")


# ---------------------------------------------------------------------------------------------------------- wrappers


def test_the_group_of_a_recording_records_for_itself():
    def body(comm):
        comm = Recording(comm)
        group = comm.split(comm.rank // 2)
        group.all_reduce(np.ones(3)).wait()
        assert isinstance(group, Recording) and group.global_ranks == (comm.rank // 2 * 2, comm.rank // 2 * 2 + 1)
        assert comm.split(None) is None
        return [[(call.kind, call.detail, call.nbytes) for call in each.calls] for each in (comm, group)]

    for rank, (calls, of_group) in enumerate(run(body, 4, timeout_s=TIMEOUT_S)):
        assert calls == [("split", f"color {rank // 2}, key 0", 0), ("split", "color None, key 0", 0)]
        assert of_group == [("all_reduce", "SUM", 24)]


def test_a_fault_strikes_once_in_the_ranks_or_in_a_group():
    """By the rank that it was given for."""

    def body(comm):
        comm = FaultInjecting(comm, [Fault("nan", rank=3, kind="all_reduce")])
        group = comm.split(comm.rank % 2)
        arrays = [np.ones(2), np.ones(2)]
        group.all_reduce(arrays[0]).wait()
        comm.all_reduce(arrays[1]).wait()
        if comm.rank == 0:
            with pytest.raises(InjectedFaultError):
                FaultInjecting(comm, [Fault("raise", rank=0, kind="split")]).split(0)
        return [bool(np.isnan(array).any()) for array in arrays], [fault.action for fault in comm.struck]

    of_even, of_odd = ([False, False], []), ([True, False], [])
    assert run(body, 4, timeout_s=TIMEOUT_S) == [of_even, of_odd, of_even, ([True, False], ["nan"])]


def test_a_wrapper_that_takes_more_says_how_a_group_gets_one():
    class Named(Wrapper):
        def __init__(self, comm, name):
            super().__init__(comm)
            self.name = name

    class Sharing(Named):
        def for_group(self, comm):
            return Sharing(comm, f"{self.name} of {comm.global_ranks}")

    with pytest.raises(ArgumentError, match="Named: expected a class made of a communicator alone, .* for_group"):
        Named(SoloCommunicator(), "mine").split(0)
    assert Sharing(SoloCommunicator(), "mine").split(0).name == "mine of (0,)"


def test_a_world_forgets_the_groups_that_are_closed():
    def body(comm):
        for _ in range(20):
            comm.split(0).close()
        return len(comm.groups), len(comm.world.groups)

    assert all(mine == 0 and kept <= 2 for mine, kept in run(body, 2, timeout_s=TIMEOUT_S))
