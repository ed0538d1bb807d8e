"""A launched process's end: the line to its launcher, and the lifelines that it holds one after the other."""

from __future__ import annotations

import functools
import os
import socket
import stat
import threading
from collections import defaultdict
from collections.abc import Mapping

from minigrad.backend.device import CPU, Device
from minigrad.distributed.bootstrap import detect
from minigrad.distributed.comm.checks import default_timeout_s
from minigrad.distributed.comm.forks import in_a_child
from minigrad.distributed.comm.groups import Group
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.shm.communicator import ShmCommunicator
from minigrad.distributed.living.assembly import Assembly
from minigrad.distributed.living.devices import begin_nccl
from minigrad.distributed.living.lifeline import OUTSIDE, Begin, Lifeline, ParcelKind
from minigrad.distributed.living.pipes import Frame, Pipes
from minigrad.distributed.living.switchboard import EVERY_SESSION
from minigrad.errors import ArgumentError, DistributedError, RankFailedError

DESCRIPTOR, ON_FAILURE = "MINIGRAD_LIFELINE", "MINIGRAD_ON_FAILURE"  # what the launcher sets in the environment
_LAUNCH = "python -m minigrad.distributed.launch --on-failure shrink"
_ENDS = {  # by who started the ranks, what that one does where one dies
    "mpi": "mpirun ends all ranks where one dies",
    "torchrun": "torchrun ends all ranks where one dies",
    "slurm": "srun ends all ranks where one dies",
    "alone": "this process was started alone, and has no others to go on with",
    "arguments": "these ranks were started by hand, and nobody would tell them of a death",
    "minigrad": "these ranks were started without our launcher, and nobody would tell them of a death",
}
_FLUSH_S = 2.0


def why_no_shrink(environ: Mapping[str, str]) -> str:
    """Why ranks that are processes can't go on where one of them dies; empty where they can. Pure.

    Example:
        >>> why_no_shrink({"RANK": "0", "WORLD_SIZE": "2"})[:36]
        'torchrun ends all ranks where one di'
        >>> why_no_shrink({"MINIGRAD_LIFELINE": "5", "MINIGRAD_ON_FAILURE": "shrink"})
        ''
    """
    if environ.get(DESCRIPTOR):
        if environ.get(ON_FAILURE) == "shrink":
            return ""
        return f"the launcher was told to stop all ranks where one dies: start with {_LAUNCH}"
    return f"{_ENDS[detect(environ).source]}: start with {_LAUNCH}"


def lifeline_here(
    who: str = "lifeline_here", *, on_failure: str = "stop", device: Device = CPU, timeout_s: float | None = None
) -> Lifeline:
    """This process's lifeline, where our launcher started it; one at a time, and its n-th meets the others' n-th.

    It needs no communicator and no rendezvous: `regroup` begins the first one too.

    Args:
        who: In whose name it refuses.
        on_failure: "shrink" where the ranks are to go on without one that dies.
        device: Of this rank: on CPUs they talk over shared memory, on GPUs by NCCL.
        timeout_s: How long `regroup` waits, and collectives of what it gives; $MINIGRAD_TIMEOUT_S or 300 s by default.

    Raises:
        ArgumentError: another launcher started it, or ours that was not told to shrink; or the one before is open.
    """
    why = why_no_shrink(os.environ) if on_failure == "shrink" or not os.environ.get(DESCRIPTOR) else ""
    if why:
        raise ArgumentError(f"{who}: expected ranks that hear of deaths, got on_failure={on_failure!r}, but {why}")
    seat, limit_s = detect(os.environ), default_timeout_s(timeout_s)
    line = _line(os.environ[DESCRIPTOR], seat.rank, seat.world_size)
    if device.type == "cpu":
        return line.open(who, functools.partial(begin_shm, timeout_s=limit_s), limit_s)
    return line.open(who, functools.partial(begin_nccl, device=device, timeout_s=limit_s), limit_s)


def begin_shm(group: Group, assembly: Assembly, *, timeout_s: float) -> Communicator:
    """A communicator of processes over shared memory."""
    return ShmCommunicator(group.rank, len(group.ranks), assembly.exchange, timeout_s=timeout_s)


@functools.cache
def _line(descriptor: str, rank: int, world_size: int) -> LauncherLine:
    """The one of this process."""
    return LauncherLine(descriptor, rank, world_size)


class LauncherLine:
    """The way to the launcher; what comes for a lifeline that is not open yet waits for it.

    Args:
        descriptor: Of the socket that this process has inherited.
        rank, world_size: This process.
    """

    def __init__(self, descriptor: str, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self._lock = threading.RLock()
        self._present: Lifeline | None = None
        self._number = -1
        self._deaths: dict[int, str] = {}
        self._early: dict[int, list[Frame]] = defaultdict(list)
        self._is_cut, self._process = False, os.getpid()
        self._pipes = Pipes({OUTSIDE: _inherited(descriptor)}, self._hear, self._lose)
        self._pipes.start()

    def open(self, who: str, begin: Begin, timeout_s: float) -> Lifeline:
        """The next lifeline.

        Raises:
            ArgumentError: the one before is open. RankFailedError: the launcher is gone.
            DistributedError: this process is a fork of the rank's.
        """
        if os.getpid() != self._process:
            raise DistributedError(f"rank {self.rank}: {who}: {in_a_child()}")
        with self._lock:
            if self._present is not None and not self._present.is_over:
                raise ArgumentError(f"{who}: expected one lifeline at a time, got another that is open: close it first")
            if self._is_cut:
                raise RankFailedError(f"rank {self.rank}: {who}: expected the launcher, but it is gone")
            self._number += 1
            send = functools.partial(self._send, self._number)
            self._present = lifeline = Lifeline(self.rank, self.world_size, send, begin, timeout_s=timeout_s)
            send(OUTSIDE, ParcelKind.OPENED, b"")
            for frame in self._early.pop(self._number, []):
                lifeline.hear(frame.address, frame.kind, frame.data)
            for rank, how in self._deaths.items():
                lifeline.hear_death(rank, how)
        return lifeline

    def _send(self, session: int, to: int, kind: ParcelKind, data: bytes) -> None:
        if kind is ParcelKind.LETTER and to == OUTSIDE:
            raise ArgumentError(f"rank {self.rank}: post: expected one of {self.world_size} ranks, got {to}")
        self._pipes.send(OUTSIDE, Frame(session, to, kind, data))
        if kind is ParcelKind.LEFT and to == OUTSIDE:
            self._pipes.flush(_FLUSH_S)  # the process may end now

    # -------------------------------------------------------------------------------------------------- in its thread

    def _hear(self, source: int, frame: Frame) -> None:
        with self._lock:
            if frame.session == EVERY_SESSION:
                self._deaths[frame.address] = frame.data.decode()
                if self._present is not None:
                    self._present.hear_death(frame.address, self._deaths[frame.address])
            elif frame.session > self._number:
                self._early[frame.session].append(frame)
            elif frame.session == self._number and self._present is not None:
                self._present.hear(frame.address, frame.kind, frame.data)

    def _lose(self, source: int) -> None:
        with self._lock:
            self._is_cut = True
            if self._present is not None:
                self._present.end("its launcher is gone")


def _inherited(descriptor: str) -> socket.socket:
    """The socket that the launcher gave; what this process starts does not get it.

    Raises:
        ArgumentError: there is none: the process is no rank, but one that a rank has started, say.
    """
    try:
        number = int(descriptor)
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            raise OSError(f"{number} is no socket")
        os.set_inheritable(number, False)
        return socket.socket(fileno=number)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"lifeline_here: expected ${DESCRIPTOR} to name the launcher's socket, got {descriptor!r} ({error}): only "
            "the processes that the launcher started are ranks"
        ) from error
