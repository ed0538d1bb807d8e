"""Whether processes of a test have ended, and what those that were killed leave behind."""

import time
from collections.abc import Set
from pathlib import Path


def all_gone(pids: list[int]) -> bool:
    """Whether these processes end, within ten seconds."""
    deadline = time.monotonic() + 10.0
    while not all(map(_gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return all(map(_gone, pids))


def _gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def mpich_segments() -> set[Path]:
    """The shared memory of MPICH's jobs on this machine; a job that ends badly leaves its own there."""
    return set(Path("/dev/shm").glob("mpich_shm_*"))


def remove_unused(segments: Set[Path]) -> None:
    """Remove those that no process maps."""
    if segments:
        mapped = "".join(map(_maps, Path("/proc").glob("[0-9]*/maps")))
        for segment in segments:
            if str(segment) not in mapped:
                segment.unlink(missing_ok=True)


def _maps(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # gone, or not ours
        return ""
