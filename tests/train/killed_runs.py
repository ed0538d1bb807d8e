"""As a script: runs whose process is ended by SIGKILL while it writes a checkpoint, and how each ends that goes on.

It prints a line of JSON: the bits of a run that nobody stopped; by moment from which step it went on, and its bits.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

from minigrad.train import Checkpoint
from tests.disk import Disk
from tests.train.killed_writers import MOMENTS, kill_at
from tests.train.resumable import left, start


def bits_of(run, checkpoint):
    return hashlib.sha256(repr(left(run, checkpoint)).encode()).hexdigest()


def checkpoint_in(folder):
    return Checkpoint(folder, every=2, keep=2, on="step")


def killed(folder, name, which):
    """A run that is killed in its third checkpoint, and what becomes of it."""
    pid = os.fork()
    if not pid:
        disk = Disk()
        disk.kill = lambda: os.kill(os.getpid(), signal.SIGKILL)

        def third(kind, **fields):
            if kind == "checkpoint" and fields["number"] == 4:
                disk.calls = []
                kill_at(disk, name, which)

        class Timeline:
            event = staticmethod(third)

        with disk.watching():
            start(checkpoint_in(folder), timeline=Timeline()).join()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    checkpoint = checkpoint_in(folder)
    first = int(checkpoint.latest().stem.partition("-")[2])
    return first, bits_of(start(checkpoint, resume=True), checkpoint)


def main(folder):
    """See above."""
    whole = checkpoint_in(Path(folder) / "whole")
    found = {moment: killed(Path(folder) / moment, *where) for moment, where in MOMENTS.items()}
    print(json.dumps([bits_of(start(whole), whole), found]))


if __name__ == "__main__":
    main(*sys.argv[1:])
