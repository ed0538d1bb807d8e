"""Whether processes of a test have ended."""

import time


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
