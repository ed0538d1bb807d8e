"""Why a run hung, or died, from what its ranks have left in the folder of $MINIGRAD_HANG_DIR."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from minigrad.distributed.comm.dumps import boot_id, lines_of, start_time
from minigrad.distributed.comm.hangs import HangReport
from minigrad.distributed.comm.sightings import DIED, Sighting
from minigrad.distributed.comm.traces import CLOSED, RUNNING
from minigrad.distributed.comm.where import users
from minigrad.errors import ArgumentError


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
        raise ArgumentError(
            f"read_hang: expected files rank-*.json of a run in {path}, got none: start it with "
            f"MINIGRAD_HANG_DIR={path}"
        )
    left = {data["sighting"]["rank"]: data for data in (json.loads(file.read_text()) for file in files)}
    size = max(data["world_size"] for data in left.values())
    seen = [
        _sighting(path, left[rank]) if rank in left else Sighting(rank, unseen=f"has left nothing in {path}")
        for rank in range(size)
    ]
    error = next((data["error"] for data in left.values() if data["error"]), "")
    return HangReport(tuple(seen), error)


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
    dump = folder / f"{process}.stack"
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
