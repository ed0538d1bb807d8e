"""The contract of `contract.py` on every kind of world, and what concerns the start and the end of a world."""

import importlib
import pkgutil
import time
import warnings

import numpy as np
import pytest

from minigrad.distributed import (
    MpiCommunicator,
    NcclCommunicator,
    ShmCommunicator,
    SoloCommunicator,
    ThreadCommunicator,
)
from minigrad.distributed import comm
from minigrad.distributed.comm.front import Front
from minigrad.distributed.comm.shm.region import Region
from minigrad.errors import ArgumentError, RankFailedError
from tests.distributed.contract import CASES
from tests.distributed.worlds import KINDS, MPI_WORLDS, mpi_problem, run_processes, run_ranks

TRANSPORTS = {
    "solo": SoloCommunicator,
    "threads": ThreadCommunicator,
    "shm": ShmCommunicator,
    "nccl": NcclCommunicator,
    "mpi": MpiCommunicator,
}
WORLDS = [("solo", 1)] + [(kind, size) for kind in KINDS for size in (1, 2, 3, 4)]


def test_every_transport_goes_through_the_contract():
    assert {*KINDS, "solo", "mpi"} == set(TRANSPORTS)
    for module in pkgutil.walk_packages(comm.__path__, "minigrad.distributed.comm."):
        importlib.import_module(module.name)
    found = {kind for kind in Front.__subclasses__() if kind.__module__.startswith("minigrad.distributed.comm.")}
    assert found == set(TRANSPORTS.values())


@pytest.mark.parametrize(
    "kind, size, name",
    [(kind, size, name) for name, case in CASES.items() for kind, size in WORLDS if size in case.sizes],
)
def test_contract(kind, size, name):
    run_ranks(kind, CASES[name].body, size, CASES[name].timeout_s)


@pytest.mark.parametrize(
    "processes, size, name",
    [
        (processes, size, name)
        for processes, sizes in MPI_WORLDS.items()
        for name, case in CASES.items()
        for size in sizes
        if size in case.sizes
    ],
)
def test_contract_on_mpi(processes, size, name):
    problem = mpi_problem(processes, f"{name} on {size}")
    assert not problem, problem


@pytest.mark.parametrize("processes", MPI_WORLDS)
def test_fifty_mpi_worlds_one_after_the_other(processes):
    problem = mpi_problem(processes, "fifty worlds")
    assert not problem, problem


@pytest.mark.parametrize("kind", KINDS)
def test_raising_rank_is_what_run_raises_and_what_the_others_hear(kind):
    heard = []

    def body(comm):
        if comm.rank == 1:
            raise ZeroDivisionError("boom")
        try:
            comm.barrier()
        except RankFailedError as error:
            heard.append(str(error))
            raise

    started = time.perf_counter()
    with pytest.raises(ZeroDivisionError, match="boom"):
        run_ranks(kind, body, 3)
    assert time.perf_counter() - started < 10.0  # at once, not after the timeout of 20 s
    if kind == "threads":
        assert len(heard) == 2
        assert all("rank 1 failed first: ZeroDivisionError: boom" in message for message in heard)


@pytest.mark.parametrize("kind", KINDS)
def test_a_world_of_no_ranks_is_refused(kind):
    with pytest.raises(ArgumentError, match="world_size"):
        run_ranks(kind, lambda comm: None, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_fifty_worlds_one_after_the_other(kind):
    for _ in range(50):
        assert run_ranks(kind, lambda comm: comm.all_gather_object(comm.rank), 2) == [[0, 1], [0, 1]]


def test_views_of_shared_memory_are_not_kept_for_ever():
    """Each call may be made on a new view of one array."""

    def body(comm):
        array = comm.empty(5000, np.float32)
        array[...] = comm.rank
        for i in range(5000):
            comm.all_reduce(array[i : i + 1]).wait()
        return array.tolist() == [1.0] * 5000 and len(comm._regions._seen) < 5000

    assert run_processes(body, 2) == [True, True]


def test_an_array_of_shared_memory_may_change_its_dtype_in_place():
    """It is the same object, at the same address."""

    def body(comm):
        array = comm.empty(1, np.float32)
        comm.all_reduce(array).wait()
        array.dtype = np.int32
        array[...] = 1 << 24
        comm.all_reduce(array).wait()
        return array.tolist()

    assert run_processes(body, 2) == [[1 << 25]] * 2


def test_a_sum_that_overflows_warns_and_a_weighted_element_does_not():
    """As where each rank weights its elements first."""

    def body(comm):
        array, said = comm.empty(40, np.float32), []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for weight in (np.array([2.0]), None):
                array[...] = 3e38
                comm.weighted_all_reduce(array, weight).wait()
                said.append([str(warning.message) for warning in caught])
        return said

    assert run_processes(body, 2) == [[[], ["overflow encountered in add"]]] * 2


def test_an_interrupt_in_the_middle_of_a_reduction_ends_the_world(monkeypatch):
    """Half of a rank's share is done: its later calls must not pass for a complete one."""

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    def body(comm):
        if comm.rank == 0:
            with monkeypatch.context() as patched:
                patched.setattr(Region, "reduce", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    comm.all_reduce(np.ones(4)).wait()
        else:
            with pytest.raises(RankFailedError, match="rank 0 aborted: its share of a collective raised Keyboard"):
                comm.all_reduce(np.ones(4)).wait()
        with pytest.raises(RankFailedError):
            comm.all_reduce(np.ones(4)).wait()
        return True

    assert run_processes(body, 2) == [True, True]
