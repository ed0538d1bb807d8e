"""NCCL's own communicator of a rank. NCCL waits for ever: a thread starts it, and another ends it where need be."""

from __future__ import annotations

import threading
import time
from typing import Any

from minigrad.backend.device import Device, device_identity
from minigrad.backend.nccl import problem_of
from minigrad.backend.thread import new_thread
from minigrad.distributed.comm.forks import never_end, tell_children
from minigrad.distributed.comm.nccl.control import Control
from minigrad.errors import CollectiveTimeoutError, DeviceError, DistributedError

_NAP_S = 1e-3


class Handle:
    """One rank's hold of NCCL, from its start to its end.

    Args:
        nccl: The module cupy.cuda.nccl, or a stand-in.
        device: This rank's GPU.

    Attributes:
        comm: NCCL's object; None before it has started, and after its end.
    """

    def __init__(self, nccl: Any, device: Device) -> None:
        self._nccl, self._device = nccl, device
        self.comm: Any = None
        self._ending = threading.Lock()
        self._is_ended = False
        tell_children(self)

    def forked(self) -> None:
        """See `Inherited`: CUDA does not work here, so NCCL's object is left as it is, for ever."""
        never_end(self.comm)
        self.comm = None

    def start(self, control: Control, share_devices: bool) -> None:
        """Start NCCL with all ranks; blocks.

        Args:
            control: What the ranks tell each other by.
            share_devices: Whether some may have one GPU.

        Raises:
            DeviceError: two ranks have one GPU.
            DistributedError: NCCL refused. CollectiveTimeoutError: it took too long.
        """
        world = control.world
        self._check_devices(control, share_devices)
        unique = bytes(self._nccl.get_unique_id()) if world.rank == 0 else b""
        [(_, unique), *_] = control.gather("nccl: its unique id", unique)
        problems: list[BaseException] = []
        thread = new_thread(self.make, (world.world_size, unique, world.rank), problems, name="nccl-init")
        thread.start()
        deadline = time.monotonic() + world.timeout_s
        while thread.is_alive() and time.monotonic() < deadline and world.failure.error is None:
            thread.join(_NAP_S)
        world.failure.raise_on(world.rank)
        if problems:
            raise DistributedError(f"rank {world.rank}: nccl: expected NCCL to start, got {problems[0]}")
        if self.comm is None:
            raise CollectiveTimeoutError(
                f"rank {world.rank}: nccl: expected {world.world_size} ranks to start within {world.timeout_s:g} s, "
                "got none: see what NCCL says with NCCL_DEBUG=INFO"
            )
        control.gather("nccl: its start")  # nobody goes on before all have started

    def _check_devices(self, control: Control, share_devices: bool) -> None:
        """Each rank has a GPU of its own; NCCL's own check says less, and later."""
        identities = [data for _, data in control.gather("nccl: its device", device_identity(self._device).encode())]
        for rank, identity in enumerate(identities):
            first = identities.index(identity)
            if identity and first != rank and not share_devices:
                raise DeviceError(
                    f"rank {control.world.rank}: nccl: expected a GPU of its own for each rank, got "
                    f"{identity.decode()} on ranks {first} and {rank}: start one rank for each GPU, or use thread ranks"
                )

    def make(self, arguments: tuple[int, bytes, int], problems: list[BaseException]) -> None:
        """In a thread of its own, since NCCL waits for the other ranks for ever.

        Args:
            arguments: How many ranks there are, their unique id, and this rank.
            problems: Gets what goes wrong.
        """
        try:
            comm = self._nccl.NcclCommunicator(*arguments)
            with self._ending:
                if self._is_ended:
                    comm.abort()
                else:
                    self.comm = comm
        except BaseException as error:
            problems.append(error)

    def problem(self) -> str:
        """What NCCL says went wrong meanwhile; empty for nothing."""
        with self._ending:  # the control thread may be about to abort it, and what it is then is freed
            return problem_of(self._nccl, self.comm.check_async_error) if self.comm is not None else ""

    def end(self, abort: bool) -> None:
        """End NCCL's object, once; it is dead then, and the garbage collector finds nothing to end.

        Args:
            abort: Whether to end NCCL's own waiting too, which another thread may be in.
        """
        with self._ending:
            comm, self.comm, self._is_ended = self.comm, None, True
            if comm is not None:
                with self._device.current():
                    comm.abort() if abort else comm.destroy()
