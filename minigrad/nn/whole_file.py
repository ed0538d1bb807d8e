"""Files that are there whole or not at all: each is written beside the old one, and takes its place in one step.

A writer that is killed leaves its temporary file. It held a lock on it, which the system lets go of when a process
ends, whatever the end: a later writer removes what nobody has locked, and leaves alone what another is writing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}", re.DOTALL)
_CAN_NOT = (errno.EINVAL, errno.ENOTSUP)  # of file systems that do not sync folders


def replace_file(path: str | os.PathLike[str], parts: Iterable[Any]) -> None:
    """Write a file; an old one of that name is replaced only once the new one is whole, and on the disk.

    Of a link the file is written to which it points. What killed writers of this file have left is removed.

    Args:
        parts: Contiguous bytes, one after the other; made as they are written.

    Raises:
        OSError: it can't be written, as on a full disk; an old one is as it was.
    """
    path = os.path.realpath(path)  # through a link, which stays one
    folder, name = os.path.split(path)
    remove_leftovers(folder, name.__eq__)
    descriptor, temporary = _begin(folder, name)
    try:
        for part in parts:
            _write(descriptor, path, part)
        os.fsync(descriptor)  # before it takes the old one's name: a machine that fails keeps one of them whole
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    sync_folder(folder)


def _begin(folder: str, name: str) -> tuple[int, str]:
    """A new file, locked, and its path; its permissions are those that this process gives to new files."""
    while True:
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks, where nothing is taken for left
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)  # before it was locked, another writer took it for left


def _write(descriptor: int, path: str, part: Any) -> None:
    rest = memoryview(part).cast("B")
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]  # a system writes 2 GiB at once, at most
    except OSError as error:
        raise OSError(error.errno, f"save_file: expected to write {path}, got {error.strerror}") from error


def sync_folder(folder: str) -> None:
    """Let the names in a folder be on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CAN_NOT:
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(folder: str, is_ours: Callable[[str], object]) -> None:
    """Remove temporary files of `replace_file` whose writers have been killed.

    Args:
        is_ours: is_ours(name), whether the file of this name is one whose temporary files are to go.
    """
    for name in os.listdir(folder):
        match = _TEMPORARY.fullmatch(name)
        if match and is_ours(match[1]):
            with contextlib.suppress(OSError):  # gone by now, of somebody else, or no file
                _remove_unlocked(os.path.join(folder, name))


def _remove_unlocked(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(descriptor)
