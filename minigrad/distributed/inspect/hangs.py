"""Why a run hung, or died, from what its ranks have left in the folder of $MINIGRAD_HANG_DIR."""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from minigrad.distributed.comm.dumps import boot_id, lines_of, stack_path, start_time
from minigrad.distributed.comm.hangs import HangReport
from minigrad.distributed.comm.sightings import DIED, Sighting
from minigrad.distributed.comm.traces import CLOSED, RUNNING
from minigrad.distributed.comm.where import users
from minigrad.errors import ArgumentError


_TICK_S = 0.05  # that of the clock by which processes start, and some


def read_hang(folder: str | Path) -> HangReport:
    """The report of a run from what its ranks have left: their last calls side by side, and which has to do what.

    Args:
        folder: That of $MINIGRAD_HANG_DIR.

    Raises:
        ArgumentError: no rank has left anything there.

    Example:
        >>> import tempfile
        >>> read_hang(tempfile.gettempdir() + "/nothing")
        Traceback (most recent call last):
        minigrad.errors.ArgumentError: read_hang: expected files rank-*.json of a run in ..., got none: ...
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise ArgumentError(f"read_hang: expected the path of a folder, got {folder!r:.100}")
    path = Path(folder)
    files = sorted(path.glob("rank-*.json")) if path.is_dir() else []
    if not files:
        began = path.is_dir() and any(path.glob("*.stack"))
        advice = "its ranks had ended before they noted a call: look into what they wrote last, and their exit statuses"
        advice = advice if began else f"start it with MINIGRAD_HANG_DIR={path}"
        raise ArgumentError(f"read_hang: expected files rank-*.json of a run in {path}, got none: {advice}")
    left = {int(file.stem.partition("-")[2]): _read(path, file) for file in files if _RANK.fullmatch(file.name)}
    found = [one for one in left.values() if one is not None]
    if not found:
        raise ArgumentError(f"read_hang: expected a file rank-*.json in {path} that can be read, got only broken ones")
    # all ranks of a run write after the last of them was started, those of one before that wrote earlier
    newest = max(found, key=lambda one: one.born)
    left = {rank: one for rank, one in left.items() if one is None or one.written >= newest.born - _TICK_S}
    seen = [
        one.seen
        if (one := left.get(rank)) is not None
        else Sighting(rank, unseen=f"has left {'what can not be read' if rank in left else 'nothing'} in {path}")
        for rank in range(newest.world_size)
    ]
    return HangReport(tuple(seen), next((one.error for one in left.values() if one is not None and one.error), ""))


_RANK = re.compile(r"rank-\d+\.json")


class _Left(NamedTuple):
    """What a rank has left: when its process started, when it wrote last, and what."""

    born: float
    written: float
    world_size: int
    error: str
    seen: Sighting


def _read(folder: Path, file: Path) -> _Left | None:
    """None where a file is cut, or not one of ours."""
    try:
        data = json.loads(file.read_text())
        seen = _sighting(folder, data)
        return _Left(data["born"], file.stat().st_mtime, data["world_size"], data["error"], seen)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _sighting(folder: Path, data: dict[str, Any]) -> Sighting:
    """What a rank has left, and what became of its process since, as far as it was on this host."""
    seen, (process, started) = Sighting.of_plain(data["sighting"]), data["process"]
    gone = unseen = ""
    if data["state"] == CLOSED:
        gone = "closed its communicator"
    elif data["state"] == RUNNING and data["boot"] != boot_id():
        unseen = "was on another host, and may run there"
    elif data["state"] == RUNNING and start_time(process) != started:
        gone = f"{DIED} (process {process} died)"
    dump = stack_path(folder, process, data["boot"])
    stack = lines_of(dump.read_text(errors="replace"), data["thread"]) if dump.exists() else ()
    stack = stack or seen.stack
    return Sighting(**{**vars(seen), "gone": gone, "unseen": unseen, "stack": stack, "at": users(stack)})


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("folder", help="what MINIGRAD_HANG_DIR was in the run")


def carry_out(options: argparse.Namespace) -> int:
    """Print the report."""
    print(read_hang(options.folder))
    return 0
