"""All GPUs of one process as ranks that one thread drives: the list collectives of `Replicas.wrap` over NCCL."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from minigrad.backend.capturing import refuse_in_capture
from minigrad.backend.device import Device, device_of
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import address_of
from minigrad.backend.nccl import BYTE, dtype_code, load_nccl, problem_of
from minigrad.backend.stream import streams_of
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.checks import check_array, check_reduction, check_root
from minigrad.distributed.comm.forks import in_a_child, never_end, tell_children
from minigrad.distributed.comm.nccl.launches import OPERATIONS
from minigrad.errors import ArgumentError, DeviceError, DistributedError, ShapeError


class NcclDevices:
    """Collectives over a list of arrays, one on each GPU; give it to `Replicas.wrap` as `collectives`.

    Each runs on the stream that is current on its device, so it comes after what that was given before, and before
    what it is given next; the host does not wait. 16-bit floats are added up in NCCL's own precision.

    Args:
        devices: The GPUs, each once; rank r is the r-th.
        nccl: A stand-in for cupy.cuda.nccl.
        streams: A stand-in for cupy.cuda.

    Raises:
        ArgumentError: no device, one that is no GPU, or one twice.
        MissingPackageError: there is no NCCL.

    Example: `Replicas.wrap(models, devices, collectives=NcclDevices(devices))`
    """

    def __init__(self, devices: Sequence[Device | str], *, nccl: Any = None, streams: Any = None) -> None:
        self.devices = [Device(device) for device in devices]
        listed = ", ".join(map(str, self.devices)) or "none"
        if not self.devices or any(device.type == "cpu" for device in self.devices):
            raise ArgumentError(f"NcclDevices: expected GPUs, got {listed}")
        if len(set(self.devices)) != len(self.devices):
            raise ArgumentError(f"NcclDevices: expected each GPU once, got {listed}: replicas on one GPU need no NCCL")
        self._nccl = nccl if nccl is not None else load_nccl()
        self._streams = [streams if streams is not None else streams_of(device) for device in self.devices]
        self._over = ""
        self._comms: list[Any] = []
        self._call("initAll", self._init_all)
        # with the last reference to this, at the latest with the process
        self._finish = weakref.finalize(self, _give_back, self._comms, self.devices)
        tell_children(self)

    def _init_all(self) -> None:
        self._comms = self._nccl.NcclCommunicator.initAll([device.index for device in self.devices])

    def all_reduce(self, arrays: Sequence[Array], op: ReduceOp = ReduceOp.SUM) -> None:
        """Overwrite every array by the reduction of all of them.

        Raises:
            ShapeError, DtypeError, DeviceError: not one contiguous array a device, alike in size and dtype.
        """
        self._check("all_reduce", arrays)
        check_reduction("all_reduce", 0, arrays[0], op)
        code, count = dtype_code("all_reduce", arrays[0].dtype), int(arrays[0].size)
        self._grouped(
            "all_reduce",
            arrays,
            lambda comm, here, stream: comm.allReduce(here, here, count, code, OPERATIONS[op], stream),
        )

    def broadcast(self, arrays: Sequence[Array], root: int) -> None:
        """Overwrite every array by the root's.

        Raises:
            ArgumentError: root is no rank. ShapeError, DtypeError, DeviceError: see `all_reduce`.
        """
        self._check("broadcast", arrays)
        check_root("broadcast", 0, root, len(self.devices))
        nbytes = int(arrays[0].nbytes)
        self._grouped(
            "broadcast", arrays, lambda comm, here, stream: comm.broadcast(here, here, nbytes, BYTE, int(root), stream)
        )

    def forked(self) -> None:
        """See `Inherited`: CUDA does not work here, so what NCCL holds is left as it is, for ever."""
        self._over = str(in_a_child())
        self._finish.detach()
        never_end(self._comms)

    def close(self) -> None:
        """Destroy what NCCL holds; idempotent. It also happens when the last reference to this is gone."""
        self._end("it was closed", abort=False)

    def _check(self, who: str, arrays: Sequence[Array]) -> None:
        if len(arrays) != len(self.devices):
            raise ShapeError(f"{who}: expected {len(self.devices)} arrays, one a device, got {len(arrays)}")
        for rank, (array, device) in enumerate(zip(arrays, self.devices)):
            check_array(who, rank, array)
            if device_of(array) != device:
                raise DeviceError(f"rank {rank}: {who}: expected an array on {device}, got one on {device_of(array)}")
            if array.size != arrays[0].size or array.dtype != arrays[0].dtype:
                raise ShapeError(
                    f"rank {rank}: {who}: expected {arrays[0].dtype.name} of {arrays[0].size} elements as on rank 0, "
                    f"got {array.dtype.name} of {array.size}"
                )

    def _grouped(self, who: str, arrays: Sequence[Array], launch: Callable[[Any, int, int], None]) -> None:
        """One call for each device; outside of a group the first would wait for the others for ever."""

        def group() -> None:
            self._nccl.groupStart()
            try:
                for comm, device, streams, array in zip(self._comms, self.devices, self._streams, arrays):
                    with device.current():
                        launch(comm, address_of(array), streams.get_current_stream().ptr)
            finally:
                self._nccl.groupEnd()

        if arrays[0].size:
            self._call(who, group)

    def _call(self, who: str, call: Callable[[], None]) -> None:
        refuse_in_capture(who, "a collective of several GPUs of one process", "take a process for each GPU, and DDP")
        if self._over:
            raise DistributedError(f"{who}: expected NCCL devices in use, got some after their end: {self._over}")
        problem = problem_of(self._nccl, call)
        if problem:
            self._end(f"{who} failed", abort=True)
            raise DistributedError(f"{who}: expected NCCL to take it, got {problem}")

    def _end(self, why: str, abort: bool) -> None:
        self._over = self._over or why
        if abort:
            for comm, device in zip(self._comms, self.devices):
                with device.current():
                    comm.abort()
            self._comms.clear()
        self._finish()


def _give_back(comms: list[Any], devices: Sequence[Device]) -> None:
    for comm, device in zip(comms, devices):
        with device.current():
            comm.destroy()
    comms.clear()
