"""The command line of the course: `python -m minigrad.course COMMAND`, COMMANDS says which there are.

The exit status is 0 where all is well, 1 where a check did not pass, 2 where the command line is none.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from minigrad.course import catalogue, folder, grading, marks, syllabus
from minigrad.errors import ArgumentError


class Verb(NamedTuple):
    """One of them.

    Attributes:
        about: What it does, in a line.
        arguments: Declares its arguments.
        carry_out: Does it, and returns the exit status.
    """

    about: str
    arguments: Callable[[argparse.ArgumentParser], None]
    carry_out: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str]) -> int:
    """Carry out a command line, and return the exit status."""
    parser = argparse.ArgumentParser("python -m minigrad.course", description="A course on data-parallel training.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    named = next((word for word in arguments if not word.startswith("-")), None)
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.about, description=command.about)
        if name == named:
            command.arguments(own)
    options = parser.parse_args(arguments)
    try:
        return COMMANDS[options.command].carry_out(options)
    except BrokenPipeError:  # of who reads, whom no error reaches
        raise
    except (ArgumentError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def task_of(text: str) -> tuple[int, int | None]:
    """The lesson and the task that "8" or "8.2" names; None is all tasks of the lesson.

    Raises:
        ArgumentError: there is none.
    """
    match = re.fullmatch(r"(\d{1,3})(?:\.(\d{1,3}))?", text)
    if not match:
        raise ArgumentError(f"course: expected a lesson or a task, such as 1 or 1.2, got {text!r}")
    number = int(match[1])
    catalogue.folder_of(number)
    if match[2] is None:
        return number, None
    catalogue.task(number, int(match[2]))
    return number, int(match[2])


def _tasks_of(options: argparse.Namespace) -> list[tuple[int, int]]:
    """(lesson, task) of each that a command line names."""
    number, k = task_of(options.task)
    if k is not None:
        return [(number, k)]
    return [(number, k) for k in range(1, len(catalogue.lesson(number).tasks) + 1)]


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    """Of a command that has none."""


def _folder_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, default=Path(), help="your folder, by default this one")


def _task_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", help="a lesson, 1, or a task of it, 1.2")
    _folder_argument(parser)


def _list(options: argparse.Namespace) -> int:
    for number in catalogue.numbers():
        lesson = catalogue.lesson(number)
        tasks = ", ".join(task.name for task in lesson.tasks) or "nothing to write"
        print(f"{number:2d}  {lesson.title} ({lesson.minutes} min): {tasks}")
    return 0


def _start_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", help="its number")
    about = "your folder; it is made where it is not there; by default this one, once a lesson was started in it"
    parser.add_argument("dir", type=Path, nargs="?", help=about)


def _start(options: argparse.Namespace) -> int:
    number, k = task_of(options.lesson)
    if k is not None:
        raise ArgumentError(f"course start: expected the number of a lesson, got {options.lesson}: start {number}")
    if options.dir is None:
        grading.check_folder(Path())
    print(*folder.start(number, options.dir or Path()), sep="\n")
    return 0


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    _task_arguments(parser)
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for a task, by default 60")


def _check(options: argparse.Namespace) -> int:
    tasks, all_passed = _tasks_of(options), True
    grading.check_folder(options.dir)
    if not tasks:
        print(f"lesson {options.task} has nothing to write: read its page")
    for number, k in tasks:
        mark, printed = grading.check(options.dir, number, k, options.timeout)
        exercise = catalogue.task(number, k)
        reached = f"passed, {mark.points} of {exercise.points} points: " if mark.passed else ""
        print(f"{number}.{k} {exercise.name}: {reached}{mark.words}")
        for line in printed.splitlines():
            print(f"    printed: {line}")
        all_passed = all_passed and mark.passed
    return 0 if all_passed else 1


def _hint(options: argparse.Namespace) -> int:
    tasks = _tasks_of(options)
    if len(tasks) != 1:
        raise ArgumentError(f"course hint: expected a task, got lesson {options.task}: hint {options.task}.1")
    grading.check_folder(options.dir)
    [(number, k)] = tasks
    hints, seen = catalogue.task(number, k).hints, marks.read(options.dir).get(marks.task_id(number, k))
    before = seen.hints if seen else 0
    if before < len(hints):
        marks.change(options.dir, marks.task_id(number, k), lambda old: replace(old, hints=old.hints + 1))
    now = min(before + 1, len(hints))
    print(f"hint {now} of {len(hints)}: {hints[now - 1]}")
    return 0


def _solution(options: argparse.Namespace) -> int:
    tasks = _tasks_of(options)
    grading.check_folder(options.dir)
    there = marks.read(options.dir)
    for task in (marks.task_id(number, k) for number, k in tasks):
        if task not in there or not there[task].tries:
            raise ArgumentError(f"course solution: expected a try of {task} first, got none: check {task}")
    for number, k in tasks:
        marks.change(options.dir, marks.task_id(number, k), lambda old: replace(old, solution_seen=True))
    number, k_or_none = task_of(options.task)
    print(folder.solution(number, k_or_none), end="")
    return 0


# The hunt loads what no other command needs.
def _hunt_arguments(parser: argparse.ArgumentParser) -> None:
    from minigrad.course import hunt

    hunt.arguments(parser)


def _hunt(options: argparse.Namespace) -> int:
    from minigrad.course import hunt

    return hunt.carry_out(options)


def _score(options: argparse.Namespace) -> int:
    if not options.dir.is_dir():
        raise ArgumentError(f"course score: expected a folder, got {options.dir}")
    print(marks.summary(options.dir))
    from minigrad.course import hunt

    points, begun = hunt.score(options.dir / hunt.STATE)
    if begun:
        print(f"hunts begun: {begun}, {points} points")
    return 0


def _syllabus(options: argparse.Namespace) -> int:
    print(syllabus.text(), end="")
    return 0


COMMANDS: dict[str, Verb] = {
    "list": Verb("list the lessons", _no_arguments, _list),
    "start": Verb("write a lesson's page, and stubs of its tasks, into a folder of yours", _start_arguments, _start),
    "check": Verb("check what you wrote for a lesson or a task", _check_arguments, _check),
    "hint": Verb("show the next hint for a task", _task_arguments, _hint),
    "solution": Verb("show our solution, once you tried", _task_arguments, _solution),
    "hunt": Verb("find a bug that was planted in minigrad", _hunt_arguments, _hunt),
    "score": Verb("show all marks of a folder", _folder_argument, _score),
    "syllabus": Verb("show what a teacher needs: order, minutes, what each lesson proves", _no_arguments, _syllabus),
}
