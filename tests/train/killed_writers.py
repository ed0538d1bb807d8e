"""As a script: writers of checkpoints that are ended by SIGKILL, and what is loaded after each.

It prints a line of JSON: the operations on files of one checkpoint and what the interpreter told of them, then for each
moment which number was loaded and what was in the folder.
"""

import json
import os
import signal
import sys
from pathlib import Path

from minigrad import nn
from minigrad.train import Checkpoint
from tests.disk import AUDITED, CHANGING, Disk

MOMENTS = {  # in the third checkpoint, of which two are kept: the operation, and the how manieth of its name
    "half written": ("write", 1),
    "not on the disk": ("fsync", 0),
    "under its other name": ("replace", 0),
    "the name not on the disk": ("fsync", 1),
    "one too many": ("unlink", 0),
}


def saved(net, checkpoint, numbers):
    for number in numbers:
        net.weight.data[...] = number
        checkpoint.save({"net": net}, number)


def audited(folder):
    """What one checkpoint does to files: counted, and told."""
    told, disk, net = [], Disk(), nn.Linear(1, 1)

    def hook(event, args):
        if disk.calls is not None and (event in AUDITED or event in CHANGING):
            told.append(AUDITED.get(event, event))

    with Checkpoint(folder) as checkpoint:
        saved(net, checkpoint, [1, 2])
        sys.addaudithook(hook)
        with disk.watching():
            saved(net, checkpoint, [3])
        calls, disk.calls = disk.calls, None
    return calls, told


def killed(folder, name, which):
    """A writer that is killed; the number that is loaded afterwards, its weight, and what lies about."""
    pid = os.fork()
    if not pid:
        disk, net = Disk(), nn.Linear(1, 1)
        checkpoint = Checkpoint(folder)
        saved(net, checkpoint, [1, 2])
        with disk.watching():
            disk.kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
            kill_at(disk, name, which)
            saved(net, checkpoint, [3])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    before, net = sorted(os.listdir(folder)), nn.Linear(1, 1)
    with Checkpoint(folder) as checkpoint:
        checkpoint.load_latest({"net": net})
        number, weight = checkpoint.number, net.weight.item()
        saved(net, checkpoint, [number + 1])
    return number, weight, len(before), sorted(os.listdir(folder))


def kill_at(disk, name, which):
    """Let the operation be the last of which so many of this name were before."""
    calls = disk.calls

    class Calls(list):
        def append(self, call):
            super().append(call)
            if call == name and self.count(name) == which + 1:
                disk.kill_at = len(self) - 1

    disk.calls = Calls(calls)


def main(folder):
    """See above."""
    found = {moment: killed(Path(folder) / moment, *where) for moment, where in MOMENTS.items()}
    print(json.dumps([*audited(Path(folder) / "audited"), found]))


if __name__ == "__main__":
    main(*sys.argv[1:])
