"""What a student has reached: marks.json in the student's folder, replaced as a whole, with which minigrad made it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import minigrad
from minigrad.course import catalogue
from minigrad.errors import ArgumentError
from minigrad.nn.whole_file import replace_file


@dataclass(frozen=True)
class Mark:
    """Of a task.

    Attributes:
        task: "1.2" is the second task of lesson 1.
        passed: Whether the last check passed.
        points: What it is worth, where it passed.
        words: What the last check found.
        tries: How often it was checked, once something was written.
        hints: How many were read.
        solution_seen: Whether ours was looked at.
        minigrad: Version and digest of the one that made the last check; empty before.
    """

    task: str
    passed: bool = False
    points: int = 0
    words: str = ""
    tries: int = 0
    hints: int = 0
    solution_seen: bool = False
    minigrad: str = ""

    def made_elsewhere(self) -> str:
        """Says so where another minigrad made it than this one; it may have been changed."""
        if self.minigrad in ("", this_minigrad()):
            return ""
        return f"made with another minigrad, {self.minigrad}: this one is {this_minigrad()}"


@functools.cache
def this_minigrad() -> str:
    """Its version, and a digest of its sources: a changed one has another."""
    root = Path(minigrad.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{minigrad.__version__} {digest.hexdigest()[:12]}"


def task_id(number: int, k: int) -> str:
    """How a task is called on the command line."""
    return f"{number}.{k}"


def read(folder: Path) -> dict[str, Mark]:
    """The marks of a student's folder by task; none before the first.

    Raises:
        ArgumentError: marks.json holds something else.
    """
    path = folder / "marks.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["marks"]
        marks = {task: Mark(**mark) for task, mark in found.items()}
        for task, mark in marks.items():
            if not re.fullmatch(r"\d+\.\d+", task) or not isinstance(mark.points + mark.tries + mark.hints, int):
                raise ValueError(f"something else for {task!r}")
        return marks
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArgumentError(f"course: expected marks in {path}, got {error}: to begin anew move it away") from error


def change(folder: Path, task: str, how: Callable[[Mark], Mark]) -> Mark:
    """Change the mark of a task, how(old) is the new one, and write all of them."""
    with _locked(folder):
        marks = read(folder)
        marks[task] = mark = how(marks.get(task, Mark(task)))
        in_order = dict(sorted(marks.items(), key=lambda item: tuple(map(int, item[0].split(".")))))
        found = {"marks": {name: asdict(each) for name, each in in_order.items()}}
        replace_file(folder / "marks.json", [json.dumps(found, indent=1, ensure_ascii=False).encode() + b"\n"])
    return mark


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time: tests of a folder may run in several processes."""
    with (folder / ".marks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def summary(folder: Path) -> str:
    """All marks of a folder, a line each, and what they add up to."""
    marks, lines, reached, possible = read(folder), [], 0, 0
    for number in catalogue.numbers():
        lesson = catalogue.lesson(number)
        lines.append(f"{number:2d} {lesson.title}")
        for k, exercise in enumerate(lesson.tasks, start=1):
            mark = marks.get(task_id(number, k), Mark(""))
            reached, possible = reached + mark.points, possible + exercise.points
            lines.append(f"     {number}.{k} {exercise.name}: {_in_words(mark, exercise.points)}")
    lines.append(f"{reached} of {possible} points; this minigrad: {this_minigrad()}")
    return "\n".join(lines)


def _in_words(mark: Mark, points: int) -> str:
    state = "passed" if mark.passed else f"{mark.tries} tries, the last not passed" if mark.tries else "-"
    said = [f"{state}, {mark.points} of {points}"]
    if mark.passed:
        said.append(f"tries: {mark.tries}")
    said += [f"hints: {mark.hints}"] * (mark.hints > 0) + ["our solution was seen"] * mark.solution_seen
    return "; ".join([*said, *filter(None, [mark.made_elsewhere()])])
