"""Which rank am I, of how many, and how do I reach the others? Read from the environment; pure up to `init`.

Precedence: an argument, `MINIGRAD_*`, torchrun's names, an MPI launcher's, a Slurm step's, a world of one. A source
that is set by half is an error that names what is missing: guessing would start N worlds of one.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from threadpoolctl import threadpool_limits

from minigrad.arguments import check_choice
from minigrad.backend.device import CPU, Device, available_devices
from minigrad.backend.random import set_noise_key
from minigrad.backend.ranks import set_ranks_here
from minigrad.distributed.comm.checks import check_world, default_timeout_s
from minigrad.distributed.comm.mpi.communicator import MpiCommunicator
from minigrad.distributed.comm.nccl.communicator import NcclCommunicator
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.rendezvous import Rendezvous
from minigrad.distributed.comm.shm.communicator import ShmCommunicator
from minigrad.distributed.comm.solo import SoloCommunicator
from minigrad.distributed.comm.traces import leave_traces
from minigrad.distributed.comm.where import words_of
from minigrad.distributed.run import thread_rank
from minigrad.errors import ArgumentError, RankFailedError

_FOLLOW_S = 0.5
BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Seat:
    """This process among the others.

    Attributes:
        rank, world_size: In the world.
        local_rank, local_world_size: On this host; the device of a GPU rank is its local_rank.
        source: Who said so: "arguments", "minigrad", "torchrun", "mpi", "slurm" or "alone".
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    source: str = "alone"


_NAMES: dict[str, list[tuple[str, str, str, str]]] = {  # rank, world size, local rank, local world size
    "minigrad": [("MINIGRAD_RANK", "MINIGRAD_WORLD_SIZE", "MINIGRAD_LOCAL_RANK", "MINIGRAD_LOCAL_WORLD_SIZE")],
    "torchrun": [("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")],
    "mpi": [
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ],
}


def detect(environ: Mapping[str, str]) -> Seat:
    """This process's seat, from environment variables.

    Raises:
        ArgumentError: a source gives a rank without a world size or the reverse, or values that are no ranks.

    Example:
        >>> detect({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
        Seat(rank=3, world_size=8, local_rank=1, local_world_size=8, source='torchrun')
    """
    for source, groups in _NAMES.items():
        for rank, world, local, local_world in groups:
            if rank in environ or world in environ:
                return _seat(environ, source, rank, world, local, local_world)
    if "SLURM_STEP_ID" in environ and _integer(environ, "SLURM_STEP_NUM_TASKS", 1) > 1:
        seat = _seat(environ, "slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")
        return Seat(seat.rank, seat.world_size, seat.local_rank, _slurm_tasks_here(environ, seat), "slurm")
    return Seat()


def _seat(environ: Mapping[str, str], source: str, rank: str, world: str, local: str, local_world: str) -> Seat:
    for name, partner in ((rank, world), (world, rank)):
        if name not in environ:
            raise ArgumentError(f"init: expected {rank} and {world} both set, got only {partner}: set {name} too")
    mine, size = _integer(environ, rank), _integer(environ, world)
    check_world(f"init ({rank}, {world})", mine, size)
    here = _integer(environ, local_world, size)
    at = _integer(environ, local, mine)
    check_world(f"init ({local or 'local rank'}, {local_world or 'local world size'})", at, max(here, at + 1))
    return Seat(mine, size, at, here, source)


def _integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError as error:
        raise ArgumentError(f"init: expected an integer in {name}, got {text!r}") from error


def _slurm_tasks_here(environ: Mapping[str, str], seat: Seat) -> int:
    """Tasks on this node, from a list such as "2(x3),1": three nodes with two tasks, then one with one."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE")
    if text is None:
        return seat.world_size
    counts: list[int] = []
    try:
        for part in text.split(","):
            count, _, times = part.removesuffix(")").partition("(x")
            counts += [int(count)] * int(times or 1)
        return counts[_integer(environ, "SLURM_NODEID", 0)]
    except (ValueError, IndexError) as error:
        raise ArgumentError(
            f"init: expected SLURM_STEP_TASKS_PER_NODE like '2(x3),1' with an entry for this node, got {text!r}"
        ) from error


def init(
    *,
    backend: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    device: str | Device | None = None,
    timeout_s: float | None = None,
) -> Communicator:
    """The communicator of this rank, as the script was started.

    Inside `distributed.run` it is the thread's; else it follows the environment, see the module's docstring. Alone
    it is a world of one, so that the same script runs in every way. It is this context's from now on: `DDP(model)` and
    the collectives by PyTorch's names use it, and `destroy_process_group` closes it.

    Args:
        backend: "solo", "shm", "mpi" or "nccl"; by default $MINIGRAD_BACKEND, else what fits.
        rank, world_size: Instead of the environment's; both or none.
        device: "cpu" by default, but for "nccl"; "cuda" means the GPU of the local rank, or the only one that
            this process sees. It is then the current device of this thread.
        timeout_s: How long a collective waits; $MINIGRAD_TIMEOUT_S or 300 s by default.

    Raises:
        ArgumentError: see `detect` and `choose_backend`.
        DeviceError: the device is not there.
        CollectiveTimeoutError, RankFailedError: the others did not come, or know another key.
    """
    if (rank is None) != (world_size is None):
        missing = "rank" if rank is None else "world_size"
        raise ArgumentError(f"init: expected rank and world_size both or neither, got no {missing}")
    threaded = thread_rank.get()
    if threaded is not None and rank is None and backend in (None, "threads"):
        set_ranks_here(threaded)
        return threaded
    seat = detect(os.environ)
    if rank is not None and world_size is not None:
        check_world("init", rank, world_size)
        seat = Seat(rank, world_size, seat.local_rank if seat.source != "alone" else rank, world_size, "arguments")
    wanted = backend if backend is not None else os.environ.get("MINIGRAD_BACKEND")
    where = local_device(device, seat, wanted)
    chosen = choose_backend(seat, where, wanted)
    comm = _connect(chosen, seat, where, default_timeout_s(timeout_s))
    set_ranks_here(comm)
    return comm


def local_device(device: str | Device | None, seat: Seat, backend: str | None) -> Device:
    """The device of a rank: the one asked for, of "cuda" its own; by default what the backend is for, or the CPU."""
    if device is None:
        device = "cuda" if backend == "nccl" else CPU
    if device != "cuda":
        return Device(device)
    only_one = len(available_devices()) == 2  # with the CPU: a launcher may show each process a GPU of its own
    return Device(f"cuda:{0 if only_one else seat.local_rank}")


def _solo(seat: Seat, device: Device, timeout_s: float) -> SoloCommunicator:
    device.use()
    return SoloCommunicator(device)


def _shm(seat: Seat, device: Device, timeout_s: float) -> ShmCommunicator:
    meeting = meet(seat, os.environ, timeout_s)
    try:
        return _tell_peers(ShmCommunicator(seat.rank, seat.world_size, meeting.all_gather, timeout_s=timeout_s))
    finally:
        meeting.close()


def _mpi(seat: Seat, device: Device, timeout_s: float) -> MpiCommunicator:
    comm = MpiCommunicator(timeout_s=timeout_s)
    if (comm.rank, comm.world_size) != (seat.rank, seat.world_size):
        comm.close()
        raise ArgumentError(
            f"init: expected MPI to see rank {seat.rank} of {seat.world_size}, got rank {comm.rank} of "
            f"{comm.world_size}: start the script with the mpirun of the MPI that mpi4py uses"
        )
    return _end_with_peers(comm)


def _nccl(seat: Seat, device: Device, timeout_s: float) -> NcclCommunicator:
    debug = os.environ.get("MINIGRAD_DEBUG", "0")
    if debug not in ("0", "1"):
        raise ArgumentError(f"init: expected MINIGRAD_DEBUG to be 0 or 1, got {debug!r}")
    device.xp  # a GPU that is not there is refused before the others are waited for
    meeting = meet(seat, os.environ, timeout_s)
    try:
        comm = NcclCommunicator(meeting, device, timeout_s=timeout_s, debug=debug == "1")
    except BaseException:
        meeting.close()
        raise
    return _tell_peers(comm)


class _Backend(NamedTuple):
    """A kind of communicator.

    Attributes:
        devices: The type of device that it is for; empty for any.
        fits: Whether it is the one for a seat, where nobody asks for another.
        connect: Makes it.
    """

    devices: str
    fits: Callable[[Seat], bool]
    connect: Callable[[Seat, Device, float], Communicator]


BACKENDS = {
    "solo": _Backend("", lambda seat: seat.world_size == 1, _solo),
    "shm": _Backend("cpu", lambda seat: seat.source != "mpi" and seat.local_world_size == seat.world_size, _shm),
    "mpi": _Backend("cpu", lambda seat: seat.source == "mpi", _mpi),
    "nccl": _Backend("cuda", lambda seat: True, _nccl),
}


def choose_backend(seat: Seat, device: Device, backend: str | None) -> str:
    """The kind of communicator: the one asked for, else the first that fits the seat and the device.

    Raises:
        ArgumentError: an unknown name, "solo" for several ranks, or several hosts without MPI or NCCL.
    """
    if backend is not None:
        check_choice("init", tuple(BACKENDS), backend=backend)
        if backend == "solo" and seat.world_size > 1:
            raise ArgumentError(f"init: expected a world of one for backend 'solo', got {seat.world_size}")
        return backend
    for name, kind in BACKENDS.items():
        if kind.devices in ("", device.type) and kind.fits(seat):
            return name
    raise ArgumentError(
        f"init: expected all ranks on one host for shared memory, got {seat.local_world_size} of {seat.world_size} "
        "here: start the script with mpirun"
    )


def _connect(backend: str, seat: Seat, device: Device, timeout_s: float) -> Communicator:
    kind = BACKENDS[backend]
    if kind.devices not in ("", device.type):
        expected, instead = ("a GPU", "shm or mpi") if kind.devices == "cuda" else ("the device cpu", "nccl")
        raise ArgumentError(f"init: expected {expected} for backend {backend!r}, got {device}: use {instead}")
    if backend != "solo":  # which is this process as it is
        set_noise_key(seat.rank)
        _share_cores(seat.local_world_size)
    return kind.connect(seat, device, timeout_s)


def _share_cores(local_world_size: int) -> None:
    """Give this process its part of the host's cores for BLAS, where the environment does not say how many."""
    if not any(name in os.environ for name in BLAS_THREADS):
        threadpool_limits(limits=max(1, (os.cpu_count() or 1) // local_world_size), user_api="blas")


class _Held:
    """A communicator as the end of this process sees it: while it lasts, and not from a fork of this process."""

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._process = weakref.ref(comm), os.getpid()

    def use(self, for_what: Callable[[Any], None]) -> None:
        """Hand it over, where there is a communicator still and this is its process."""
        comm = self._comm()
        if comm is not None and os.getpid() == self._process:
            for_what(comm)


Told = TypeVar("Told", ShmCommunicator, NcclCommunicator)


def _tell_peers(comm: Told) -> Told:
    """Let the other ranks know when this process ends, and of the exception that ends it."""
    report, held, traces = sys.excepthook, _Held(comm), leave_traces(comm)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if traces is not None:
            traces.end(error)
        held.use(lambda comm: comm.abort(f"it raised {words_of(error)}"))
        report(kind, error, trace)
        if isinstance(error, RankFailedError):
            time.sleep(_FOLLOW_S)  # the rank that failed first ends first, so that a launcher can tell

    sys.excepthook = hook
    atexit.register(held.use, lambda comm: comm.close())
    return comm


def _end_with_peers(comm: MpiCommunicator) -> MpiCommunicator:
    """End the whole job on an exception that ends this process, as MPI would wait for this rank for ever."""
    report, held, traces = sys.excepthook, _Held(comm), leave_traces(comm)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if traces is not None:
            traces.end(error)
        report(kind, error, trace)  # first: the others, once told, end this process too
        held.use(lambda comm: comm.abort(f"it raised {words_of(error)}"))
        held.use(lambda comm: comm.end_job())

    sys.excepthook = hook
    return comm


def meet(seat: Seat, environ: Mapping[str, str], timeout_s: float) -> Rendezvous:
    """The rendezvous that the environment describes: MASTER_ADDR, MASTER_PORT and the secret MINIGRAD_AUTHKEY.

    Raises:
        ArgumentError: one of them is missing; all that are get named.
    """
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", "MINIGRAD_AUTHKEY") if not environ.get(name)]
    if missing and seat.world_size > 1:
        raise ArgumentError(
            f"init: expected MASTER_ADDR, MASTER_PORT and MINIGRAD_AUTHKEY for {seat.world_size} ranks, got no "
            f"{', '.join(missing)}: start with python -m minigrad.distributed.launch, or set them alike on all ranks"
        )
    port = _integer(environ, "MASTER_PORT", 0)
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # torchrun's own store listens on MASTER_PORT
    key = environ.get("MINIGRAD_AUTHKEY", "alone").encode()
    address = environ.get("MASTER_ADDR", "127.0.0.1")
    return Rendezvous(seat.rank, seat.world_size, address, port, key, timeout_s)
