"""Checks of lesson 4: the public contract of communicators, ends of worlds, and what launchers set."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.backend.thread import new_thread
from minigrad.course.lesson import Student, WrongError, expect
from minigrad.distributed import Communicator, Front, ReduceOp, SoloCommunicator, ThreadCommunicator
from minigrad.errors import CollectiveMismatchError, CollectiveTimeoutError, DistributedError
from minigrad.testing import check_communicator
from minigrad.testing.contract import CASES

Make = Callable[[int, float], Any]
TIMEOUT_S, PATIENCE_S = 1.5, 2.5
BASICS = (
    "all_reduce-float64",
    "sums_are_added_up_in_the_one_order-float32",
    "broadcast_from_each_root",
    "reduce_scatter_then_all_gather_is_all_reduce",
    "all_gather_object",
    "several_calls_may_be_under_way_at_once",
    "arrays_of_any_shape_and_of_any_numbers",
)
MORE = (
    "what_else_is_asked_of_a_communicator",
    "tensors_are_taken_as_arrays_are",
    "gather_and_scatter_undo_each_other-float64",
    "all_to_all_transposes_the_parts_of_ranks",
    "training_equals_one_device_and_has_the_bits_of_threads-float64",
    "closed_twice_and_used_after",
)
ENDS = ("abort_reaches_everybody_and_stays", "rank_that_left_is_named_at_once")


def check_solo(student: Student) -> str:
    """The contract, as far as it is about one rank without groups."""
    make, cases = student.get_solo_communicator, (*BASICS, *MORE)
    _contract("get_solo_communicator", lambda world_size, timeout_s: [make()], (1,), cases, make)
    return f"{len(cases)} cases of the contract hold for 1 rank; no thread is left"


def check_threads(student: Student) -> str:
    """The contract for one to three ranks, then who is missing, and calls that differ."""
    make, who = student.get_thread_communicators, "get_thread_communicators"
    _contract(who, make, (1, 2, 3), BASICS, make)
    _contract(who, make, (2, 3), ENDS, make)
    _check_missing(who, make)
    others: dict[str, tuple[Callable[[Communicator], Any], Callable[[Communicator], Any]]] = {
        "an all_reduce of 3 and one of 4 numbers": (
            lambda comm: comm.all_reduce(np.ones(3)).wait(),
            lambda comm: comm.all_reduce(np.ones(4)).wait(),
        ),
        "an all_reduce and a broadcast of 3 numbers": (
            lambda comm: comm.all_reduce(np.ones(3)).wait(),
            lambda comm: comm.broadcast(np.ones(3)).wait(),
        ),
        "a sum and a maximum of 3 numbers": (
            lambda comm: comm.all_reduce(np.ones(3)).wait(),
            lambda comm: comm.all_reduce(np.ones(3), ReduceOp.MAX).wait(),
        ),
    }
    for words, (one, another) in others.items():
        _check_mismatch(who, make, words, one, another)
    _contract(who, make, (1, 3), MORE, make)
    return (
        f"{len(BASICS + MORE + ENDS)} cases of the contract hold for 1 to 3 ranks; a missing rank and {len(others)} "
        "mismatches are errors on all ranks; no thread is left"
    )


# ---------------------------------------------------------------------------------------------------- the contract


def _contract(
    who: str, make: Make, sizes: Sequence[int], cases: Sequence[str], written: Callable[..., Any]
) -> None:
    """Let cases of the contract run; `written` is the student's function."""
    before = set(threading.enumerate())
    for name in cases:
        try:
            check_communicator(lambda body, size, timeout_s: _on_ranks(who, make, size, body), sizes, [name])
        except AssertionError as error:
            if isinstance(error.__cause__, WrongError):
                raise error.__cause__ from None
            says = (getattr(CASES[name].body, "func", None).__doc__ or "").strip().split("\n")[0]
            place = _place(error.__cause__, written)
            raise WrongError(f"{who}: the contract, {error}{place}. It says: {says}") from error
    deadline = time.monotonic() + 1.0
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0.0, deadline - time.monotonic()))
        expect(not thread.is_alive(), f"{who}: expected no thread to be left after close(), got {thread.name}")


def _place(error: BaseException | None, written: Callable[..., Any]) -> str:
    """What did not hold, and the line of the student's file at which that was, where it was there."""
    if error is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(written, "__code__", None)
    mine = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    said = f"`{frames[-1].line}`" if frames and not str(error) else ""
    return said + (f" (line {mine[-1].lineno} of your file, in {mine[-1].name})" if mine else "")


def _made(who: str, make: Make, world_size: int, timeout_s: float) -> list[Communicator]:
    """The communicators of a world, which are of the student's own making."""
    comms = make(world_size, timeout_s)
    right = isinstance(comms, (list, tuple)) and len(comms) == world_size
    expect(right, f"{who}: expected a list of {world_size} communicators, got {comms!r:.80}")
    for rank, comm in enumerate(comms):
        own = isinstance(comm, Front) and not isinstance(comm, (SoloCommunicator, ThreadCommunicator))
        expect(own, f"{who}: expected a class of your own, derived from Front, got {type(comm).__name__}")
        place = (comm.rank, comm.world_size)
        expect(place == (rank, world_size), f"{who}: expected rank {rank} of {world_size} in place {rank}, got {place}")
    return list(comms)


def _on_ranks(
    who: str,
    make: Make,
    world_size: int,
    body: Callable[[Communicator], Any],
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Call body in a thread for each rank, and raise what came first; a rank that does not return is an error."""
    comms = _made(who, make, world_size, timeout_s)
    errors: list[BaseException] = []

    def on_rank(comm: Communicator) -> None:
        try:
            body(comm)
        except BaseException as error:
            errors.append(error)
            comm.abort(f"it raised {error!r}")

    threads = [new_thread(on_rank, comm, name=f"rank-{comm.rank}") for comm in comms]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_S
    for thread in threads:
        while thread.is_alive() and not errors and time.monotonic() < deadline:
            thread.join(0.02)
    for thread in threads:
        thread.join(max(0.0, min(0.5, deadline - time.monotonic())))
    if errors:
        raise errors[0]
    late = [thread.name for thread in threads if thread.is_alive()]
    expect(
        not late,
        f"{who}: expected every call to end, or to raise after timeout_s = {timeout_s:g} s, got ranks that hang: "
        f"{', '.join(late)}. A wait without a timeout, or a lock that is held while waiting?",
    )
    for comm in comms:
        comm.close()


# ------------------------------------------------------------------------------------------------ ends of worlds


def _check_missing(who: str, make: Make) -> None:
    """Rank 1 comes when rank 0 has given it up."""
    tired = threading.Event()

    def body(comm: Communicator) -> None:
        what = f"{who}: rank 1 of 2 does not come to an all_reduce: expected rank {comm.rank} to raise"
        if comm.rank == 1 and not tired.wait(PATIENCE_S - 1.0):
            raise WrongError(f"{who}: expected rank 0 to raise after timeout_s = 0.2 s, got none: a wait without end?")
        try:
            comm.all_reduce(np.ones(3)).wait()
        except DistributedError as error:
            if comm.rank == 0:
                right = isinstance(error, CollectiveTimeoutError)
                expect(right, f"{what} CollectiveTimeoutError, got {type(error).__name__}: {error}")
                named = str(error).replace("rank 0: ", "")
                expect("rank 1" in named, f"{what} an error that names rank 1, got {error}: who is missing?")
        else:
            raise WrongError(f"{what}, got none: a world that has failed has failed for all of its ranks")
        finally:
            tired.set()

    _on_ranks(who, make, 2, body, timeout_s=0.2)


def _check_mismatch(
    who: str,
    make: Make,
    words: str,
    one: Callable[[Communicator], Any],
    another: Callable[[Communicator], Any],
) -> None:
    def body(comm: Communicator) -> None:
        what = f"{who}: {words} meet on three ranks: expected CollectiveMismatchError on rank {comm.rank}"
        try:
            (another if comm.rank == 1 else one)(comm)
        except DistributedError as error:
            expect(isinstance(error, CollectiveMismatchError), f"{what}, got {type(error).__name__}: {error}")
        except Exception as error:
            raise WrongError(f"{what}, got {type(error).__name__}: {error}: compare the headers first") from error
        else:
            raise WrongError(f"{what}, got none: ranks that add up what does not belong together never notice")

    _on_ranks(who, make, 3, body)


# ------------------------------------------------------------------------------------------------------ the seat

ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
STEP = {**ALLOCATION, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}
SEATS: dict[str, tuple[Mapping[str, str], tuple[int, int, int]]] = {
    "nobody has set anything": ({"HOME": "/root"}, (0, 1, 0)),
    "torchrun": (TORCHRUN, (3, 16, 1)),
    "torchrun without a local rank": ({"RANK": "0", "WORLD_SIZE": "2"}, (0, 2, 0)),
    "Open MPI": (OPEN_MPI, (2, 4, 0)),
    "MPICH": ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, (1, 2, 1)),
    "MPICH without a local rank": ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, 1)),
    "a step of Slurm": (STEP, (5, 8, 1)),
    "the shell of an sbatch script, which has no peers": (ALLOCATION, (0, 1, 0)),
    "torchrun in a step of Slurm": ({**STEP, **TORCHRUN}, (3, 16, 1)),
    "mpirun in a step of Slurm": ({**STEP, **OPEN_MPI}, (2, 4, 0)),
    "torchrun under mpirun": ({**OPEN_MPI, **TORCHRUN}, (3, 16, 1)),
    "a local rank alone, which says nothing": ({"LOCAL_RANK": "3"}, (0, 1, 0)),
}
HALVES: dict[str, tuple[Mapping[str, str], str]] = {
    "RANK without WORLD_SIZE": ({"RANK": "1"}, "WORLD_SIZE"),
    "WORLD_SIZE without RANK": ({"WORLD_SIZE": "2"}, "RANK"),
    "RANK without WORLD_SIZE, under mpirun": ({**OPEN_MPI, "RANK": "1"}, "WORLD_SIZE"),
    "PMI_RANK without PMI_SIZE": ({"PMI_RANK": "0"}, "PMI_SIZE"),
    "a step of Slurm by half": ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, "SLURM_STEP_NUM_TASKS"),
    "a rank that is no number": ({**TORCHRUN, "RANK": "first"}, "RANK"),
    "an empty world size": ({**TORCHRUN, "WORLD_SIZE": ""}, "WORLD_SIZE"),
    "rank 4 of 4": ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK"),
    "rank -1 of 16": ({**TORCHRUN, "RANK": "-1"}, "RANK"),
}


def check_read_seat(student: Student) -> str:
    """What launchers set, alone and inside each other, whole and by half."""
    for words, (environ, seat) in SEATS.items():
        given = dict(environ)
        said = f"read_seat of {words}, {environ}: expected {seat}"
        try:
            got: Any = student.read_seat(given)
        except ValueError as error:
            raise WrongError(f"{said}, got ValueError: {error}") from error
        expect(isinstance(got, tuple) and got == seat, f"{said}, got {got!r}")
        expect(given == environ, f"{said}, and the variables as they were, got {given}")
    for words, (environ, name) in HALVES.items():
        said = f"read_seat of {words}, {environ}: expected a ValueError that names {name}"
        try:
            got = student.read_seat(dict(environ))
        except ValueError as error:
            expect(name in str(error), f"{said}, got {error}: whoever reads it has to know what to set")
        except Exception as error:
            raise WrongError(f"{said}, got {type(error).__name__}: {error}") from error
        else:
            raise WrongError(f"{said}, got {got!r}: to guess is to start as many worlds of one as there are processes")
    return f"{len(SEATS)} environments are read, {len(HALVES)} that can't be are refused by name"
