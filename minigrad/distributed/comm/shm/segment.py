"""Memory that the processes of one host share, in files that nobody can leave behind."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.forks import tell_children
from minigrad.errors import DistributedError

_FOLDER = "/dev/shm"
_MAP_FIXED = 0x10  # of Linux; the module mmap has no name for it


class Segment:
    """World_size equal parts of one mapping, a part for each rank; filled with zeros.

    Rank 0 makes a file, the others map it too, and it is unlinked as soon as all have.

    Args:
        rank, world_size: This process.
        part_bytes: Size of a rank's part; rounded up to pages.
        exchange: All-gathers small bytes over the ranks.

    Raises:
        DistributedError: on all ranks, where one of them could not make or map the file.
    """

    def __init__(self, rank: int, world_size: int, part_bytes: int, exchange: Callable[[bytes], list[bytes]]) -> None:
        self.rank, self.world_size = rank, world_size
        self.part_bytes = max(1, -(-part_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        path, problem = "", ""
        try:
            if rank == 0:
                path, self._map = self._create()
        except OSError as error:
            problem = self._too_small(error)
        try:
            first = exchange(f"{path}\n{problem}".encode())[0].decode()
            path, problem = first.split("\n", 1)
            if not problem and rank != 0:
                try:
                    self._map = self._open(path)
                except OSError as error:
                    problem = f"rank {rank} could not map {path}: {error}"
            problems = [text.decode() for text in exchange(problem.encode())]
        finally:
            if rank == 0 and path:
                os.unlink(path)
        if any(problems):
            raise DistributedError(f"rank {rank}: shared segment: {next(filter(None, problems))}")
        whole: Array = np.frombuffer(self._map, np.uint8)
        self.parts: list[Array] = [whole[r * self.part_bytes : (r + 1) * self.part_bytes] for r in range(world_size)]
        self._start = self.parts[rank].ctypes.data
        tell_children(self)

    def forked(self) -> None:
        """See `Inherited`: a copy of this rank's part, and zeros for the others', take the place of what is shared."""
        own, start = self.parts[self.rank].copy(), self.parts[0].ctypes.data
        _map_private(start, self.world_size * self.part_bytes)
        self.parts[self.rank][...] = own

    def _create(self) -> tuple[str, mmap.mmap]:
        path = f"{_FOLDER}/{_prefix(os.getpid())}{secrets.token_hex(8)}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self.world_size * self.part_bytes)  # so that a full disk fails here
            return path, mmap.mmap(descriptor, self.world_size * self.part_bytes)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def _too_small(self, error: OSError) -> str:
        space = os.statvfs(_FOLDER)
        return (
            f"expected {self.world_size * self.part_bytes:,} bytes for {self.world_size} ranks in {_FOLDER}, got "
            f"{space.f_bavail * space.f_frsize:,} free ({error}): make it larger (docker run --shm-size=1g, or mount "
            f"-o remount,size=1g {_FOLDER}), or use the backend mpi"
        )

    def _open(self, path: str) -> mmap.mmap:
        descriptor = os.open(path, os.O_RDWR)
        try:
            return mmap.mmap(descriptor, self.world_size * self.part_bytes)
        finally:
            os.close(descriptor)

    def offset_of(self, address: int, nbytes: int) -> int | None:
        """Where in this rank's part the memory at an address lies, in bytes; None where it lies elsewhere."""
        offset = address - self._start
        return offset if 0 <= offset and offset + nbytes <= self.part_bytes else None

    def views(self, offset: int, count: int, dtype: np.dtype[Any]) -> list[Array]:
        """Count elements of every rank's part, from an offset in bytes."""
        return [self.view(rank, offset, count, dtype) for rank in range(self.world_size)]

    def view(self, rank: int, offset: int, count: int, dtype: np.dtype[Any]) -> Array:
        """Count elements of a rank's part, from an offset in bytes."""
        return self.parts[rank][offset : offset + count * dtype.itemsize].view(dtype)


def _prefix(process: int) -> str:
    return f"minigrad-{process}-"


def remove_segments_of(process: int) -> None:
    """Remove the files of a process that has ended: one that was killed could not unlink what it had just made."""
    with os.scandir(_FOLDER) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(_prefix(process))]
    for path in left:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _map_private(address: int, nbytes: int) -> None:
    """Put zeros that no other process sees in the place of mapped memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    if libc.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != address:
        raise OSError(ctypes.get_errno(), "a child of a fork could not leave shared memory")
