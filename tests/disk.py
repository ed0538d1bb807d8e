"""A disk on which a process is killed, or an error comes, at any of its operations."""

import contextlib
import errno
import fcntl
import os

OPERATIONS = [(os, name) for name in ("open", "write", "fsync", "replace", "unlink", "mkdir", "listdir")]
OPERATIONS.append((fcntl, "flock"))
AUDITED = {"open": "open", "os.rename": "replace", "os.remove": "unlink", "os.mkdir": "mkdir",
           "os.listdir": "listdir", "fcntl.flock": "flock"}  # what the interpreter tells of, as we call it
CHANGING = {"os.chmod", "os.chown", "os.link", "os.putenv", "os.rmdir", "os.scandir", "os.symlink", "os.truncate",
            "os.utime", "shutil.move", "shutil.copyfile", "shutil.rmtree", "tempfile.mkstemp", "os.mkfifo"}


class Killed(BaseException):
    """The end of a process; what it does from then on has no effect."""


class Disk:
    """Counts the operations on files, and lets one of them be the last, or fail.

    Attributes:
        calls: The operations so far, by name.
    """

    def __init__(self, kill_at=None, fail_at=None, kill=None):
        self.calls, self.kill_at, self.fail_at, self.kill = [], kill_at, fail_at, kill or self.die

    def die(self):
        raise Killed

    @contextlib.contextmanager
    def watching(self):
        """While it lasts the operations of this process are of this disk."""
        true = [getattr(module, name) for module, name in OPERATIONS]
        for (module, name), operation in zip(OPERATIONS, true):
            setattr(module, name, self.wrapped(name, operation))
        try:
            yield self
        finally:
            for (module, name), operation in zip(OPERATIONS, true):
                setattr(module, name, operation)

    def wrapped(self, name, operation):
        def call(*args, **options):
            place = len(self.calls)
            self.calls.append(name)
            if self.kill_at is not None and place >= self.kill_at:
                if place == self.kill_at and name == "write":
                    operation(args[0], args[1][: len(args[1]) // 2])
                self.kill()
            if place == self.fail_at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return operation(*args, **options)

        return call
