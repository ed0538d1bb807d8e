"""What the user's sources say of lines at which calls were made, "file:line in function"."""

from __future__ import annotations

import linecache
import re

LINE = re.compile(r"(\S+):(\d+) in (.*)")


def is_behind(line: str, other: str) -> bool:
    """Whether a line stands behind the loop, or block, of another one of the same function."""
    mine, its = LINE.match(line), LINE.match(other)
    if mine is None or its is None or (mine[1], mine[3]) != (its[1], its[3]) or int(mine[2]) <= int(its[2]):
        return False
    lines = linecache.getlines(mine[1])
    return int(mine[2]) <= len(lines) and _depth(lines[int(mine[2]) - 1]) < _depth(lines[int(its[2]) - 1])


def condition(line: str) -> str:
    """The innermost `if` on a rank under which a line stands, as it is written; empty where it stands under none.

    By indentation: Python 3.11 can't parse in two threads at once.
    """
    place = LINE.match(line)
    lines = linecache.getlines(place[1]) if place is not None else []
    number = int(place[2]) if place is not None else 0
    if not 0 < number <= len(lines):
        return ""
    depth, words = _depth(lines[number - 1]), lines[number - 1].strip()
    if words.startswith(("if ", "elif ")) and "rank" in words.partition(": ")[0]:
        return words.partition(": ")[0].removesuffix(":") + ":"
    for text in reversed(lines[: number - 1]):
        words = text.strip()
        if not words or words.startswith("#") or _depth(text) > depth:
            continue
        if _depth(text) < depth:
            depth = _depth(text)
            if words.startswith(("if ", "elif ")) and "rank" in words:
                return words.split("  #")[0]
            if words.startswith(("def ", "class ", "async def ")):
                return ""
            if words.startswith(("else:", "elif ")):
                depth += 1  # its `if` stands as deep
    return ""


def _depth(text: str) -> int:
    return len(text) - len(text.lstrip())
