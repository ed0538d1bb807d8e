"""Ranks on GPUs, by NCCL: one process a GPU, on one or many hosts.

NCCL waits for ever where ranks disagree, so what it does not check is checked beside it: devices before it starts;
in debug mode each call, else a running hash of all calls, which ranks tell each other a few times a second and where
all of them come anyway; and a watchdog ends NCCL's own waiting when a collective takes too long, or when another rank
has failed or left.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

from minigrad.backend.device import Device, device_of
from minigrad.backend.dtypes import Array
from minigrad.backend.nccl import load_nccl
from minigrad.distributed.comm.front import Front, What
from minigrad.distributed.comm.headers import GIVE_UP, Header
from minigrad.distributed.comm.nccl.calls import NcclCalls
from minigrad.distributed.comm.nccl.control import Control
from minigrad.distributed.comm.nccl.groups import NcclGroups
from minigrad.distributed.comm.nccl.handle import Handle
from minigrad.distributed.comm.nccl.launches import Launches, Message, NcclWork
from minigrad.distributed.comm.nccl.mail import NcclMail, NcclMessages
from minigrad.distributed.comm.protocol import Clock, Work
from minigrad.distributed.comm.rendezvous import Rendezvous
from minigrad.distributed.comm.work import OVER
from minigrad.errors import CollectiveTimeoutError, DeviceError, DistributedError, RankFailedError

_PARTING_S = 0.5  # how long a rank that leaves waits for others to say that they have called the same


class NcclCommunicator(NcclMessages, NcclCalls, NcclGroups, Front):
    """The collectives of one GPU among those of several processes, or threads; see `Communicator`.

    All ranks construct it together. Collectives run on the caller's current stream; `wait()` orders the stream that
    is current then. NCCL adds up in an order of its own, alike on all ranks; that of `reduce` may be another one.

    Args:
        meeting: How the ranks reach each other; it is taken over and closed.
        device: This rank's GPU.
        timeout_s: How long a collective may take; $MINIGRAD_TIMEOUT_S or 300 s by default.
        debug: Compare each call over the ranks before it is made. That waits for all of them.
        share_devices: Let ranks share a GPU, which NCCL takes only under certain settings.
        nccl, streams: Stand-ins for cupy.cuda.nccl and cupy.cuda.

    Raises:
        DeviceError: two ranks have one GPU; on all ranks.
        MissingPackageError: there is no NCCL.
        CollectiveTimeoutError, RankFailedError: the others did not come.
    """

    def __init__(
        self,
        meeting: Rendezvous,
        device: Device,
        *,
        timeout_s: float | None = None,
        debug: bool = False,
        share_devices: bool = False,
        clock: Clock | None = None,
        nccl: Any = None,
        streams: Any = None,
    ) -> None:
        super().__init__(meeting.rank, meeting.world_size, device=device, timeout_s=timeout_s, clock=clock)
        device.use()
        nccl = nccl if nccl is not None else load_nccl()
        self._debug = debug
        self.options = {"debug": debug, "share_devices": share_devices, "nccl": nccl, "streams": streams}
        self._handle = handle = Handle(nccl, device)
        self._control = control = Control(meeting, self.failure, self.calls, self.timeout_s, self._end_nccl)
        self._world, self._progress, self._trail = control.world, control.progress, control.trail
        self._launches = Launches(control.world, device, nccl, streams, handle)
        self.mail = NcclMail(control.world, device, nccl, streams)
        control.listen(self.mail.takers)
        control.start(self._watch)
        try:
            handle.start(control, share_devices)
        except BaseException as error:
            self._closed = True
            self._world.fail(RankFailedError(f"rank {self.rank} did not start: {error}"))
            self._world.flush()
            control.leave()
            handle.end(abort=True)
            raise
        atexit.register(self._close_at_exit)

    def _watch(self) -> None:
        self._launches.watch()
        self.mail.watch()

    def _end_nccl(self, abort: bool = True) -> None:
        self._launches.drop_graphs()
        self._handle.end(abort)
        self.mail.end(abort)

    # -------------------------------------------------------------------------------------------------- collectives

    def _meet(self, what: What) -> Work:
        """Ranks meet, their GPUs do not."""
        self._launches.refuse_in_capture(what[0])
        self._control.agree(str(self._next(what)))
        return OVER

    def _gather_bytes(self, what: What, data: bytes) -> list[bytes]:
        self._launches.refuse_in_capture(what[0])
        return self._control.agree(str(self._next(what)), data)

    def _launch(
        self, what: What, arrays: tuple[Array, ...], method: str, *arguments: int, group: Sequence[Message] = ()
    ) -> NcclWork:
        header = self._announce(what, arrays[0])
        self._launches.each_replay(lambda: self._announce_again(what, arrays[0]))
        return self._launches.launch(header, arrays, method, arguments, group)

    def _announce(self, what: What, array: Array) -> Header:
        """The header of a collective that comes next."""
        header = self._next(what, array)
        if self._debug:
            self._control.agree(str(header))
        self._launches.last = header
        return header

    def _announce_again(self, what: What, array: Array) -> None:
        """A captured step that has a collective is launched again."""
        self._check(what[0])
        self._announce(what, array)

    def _next(self, what: What, array: Array | None = None) -> Header:
        header = super()._next(what, array)
        self._progress.note(header)
        return header

    def _check(self, who: str, /, *arrays: Array, written: bool = True) -> Array:
        found = super()._check(who, *arrays, written=written)
        if arrays and device_of(found) != self.device:
            raise DeviceError(
                f"rank {self.rank}: {who}: expected an array on {self.device}, got one on {device_of(found)}"
            )
        return found

    # ------------------------------------------------------------------------------------- whether ranks do the same

    def check_headers(self, layout: str = "") -> None:
        """Compare what all ranks have called so far, and a layout; all of them call this, and wait for each other.

        Raises:
            CollectiveMismatchError: they differ; on all ranks.
        """
        self._check("check_headers")
        text = f"layout {layout or 'none'}"
        self._trail.add(text)
        self._control.agree(text)

    def end_pass(self, layout: str, mark: float | None, news: bool) -> list[float]:
        """Note the end of a pass, to compare it later; ranks wait for each other only where they have to meet.

        Args:
            layout: An id that all ranks have to agree on.
            mark: A number that may differ; None where all ranks know those of all.
            news: Whether something has come up on this rank that may not be alike: ranks then meet at once.

        Returns:
            The marks of all ranks where these met, else nothing.
        """
        self._check("end_pass")
        text = f"the end of a pass of {layout}"
        if mark is None or self.world_size == 1:
            self._trail.add(text)
            return []
        meets = self._control.meetings.meets(layout, news) or self._debug
        self._trail.add(text, mark, met=meets)
        return [float(part) for part in self._control.agree(text, repr(mark).encode())] if meets else []

    def check_same(self, who: str) -> None:
        """Return when all other ranks are found to have called what this one has so far; they need not call this.

        A rank that has closed its communicator, or was told of what is wrong, is let go: it can save what it has.

        Raises:
            CollectiveMismatchError, ReplicaMismatchError, CollectiveTimeoutError: see `Control.check_same`. Or what
                made this world fail.
        """
        if not self.failure.inherited and not self._closed and not self.failure.has_raised:
            self._control.check_same(who, self.timeout_s)

    # --------------------------------------------------------------------------------------------------------- ends

    def _give_up(self, reason: str) -> None:
        """Say so beside NCCL, which hears nothing of it."""
        self._world.give_up(self.seq, reason)
        self._next((GIVE_UP, ""))

    def _fail(self, error: DistributedError) -> None:
        self._world.fail(error)

    def abort(self, reason: str) -> None:
        """Fail all ranks, with this reason."""
        super().abort(reason)
        self.failure.has_raised = True  # who aborts knows why
        self._world.flush()

    def _leave(self) -> None:
        """Leave the world and destroy what NCCL holds; other ranks are not waited for."""
        atexit.unregister(self._close_at_exit)
        whole = False
        try:
            if not self.failure.has_raised:
                self._control.check_same("close", min(self.timeout_s / 2, _PARTING_S))
            whole = self._launches.finish() and self.mail.finish()
        except (CollectiveTimeoutError, RankFailedError):
            pass  # others have told, or been told, in their calls
        finally:
            self._control.leave()
            self._end_nccl(abort=not whole)
            self.failure.close()

    def _close_at_exit(self) -> None:
        if not self.failure.inherited:
            self.close()
