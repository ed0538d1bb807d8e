"""Which lessons there are: the folders beside this file. None is loaded before it is asked for."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from minigrad.course.lesson import Exercise, Lesson
from minigrad.errors import ArgumentError

HERE = Path(__file__).parent


@functools.cache
def folders() -> tuple[str, ...]:
    """The names of the folders of all lessons, in their order."""
    return tuple(sorted(path.name for path in HERE.glob("lesson[0-9][0-9]_*") if (path / "__init__.py").is_file()))


def number_of(folder: str) -> int:
    """The number of the lesson of a folder."""
    return int(folder[6:8])


def numbers() -> tuple[int, ...]:
    """The numbers of all lessons."""
    return tuple(number_of(folder) for folder in folders())


def folder_of(number: int) -> str:
    """The folder of a lesson.

    Raises:
        ArgumentError: there is none of that number.
    """
    for folder in folders():
        if number_of(folder) == number:
            return folder
    there = ", ".join(map(str, numbers()))
    raise ArgumentError(f"course: expected the number of a lesson, one of {there}, got {number}")


def lesson(number: int) -> Lesson:
    """A lesson.

    Raises:
        ArgumentError: there is none of that number.
    """
    found: Lesson = importlib.import_module(f"minigrad.course.{folder_of(number)}").LESSON
    return found


def text_of(number: int, name: str) -> str:
    """What a file of a lesson's folder says."""
    return (HERE / folder_of(number) / name).read_text(encoding="utf-8")


def is_stub(function: ast.FunctionDef) -> bool:
    """Whether a function does nothing, but for its docstring, than to say that it is not written."""
    body = [line for line in function.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Raise):
        return False
    raised = body[0].exc.func if isinstance(body[0].exc, ast.Call) else body[0].exc
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def functions_in(text: str | bytes) -> dict[str, ast.FunctionDef]:
    """The functions of a Python text, but for those inside others and those with an underscore in front."""
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {function.name: function for function in found if not function.name.startswith("_")}


@functools.cache
def tasks() -> Mapping[str, tuple[int, int]]:
    """The name of each task -> (lesson, which of its tasks, from 1); no lesson is loaded for it."""
    return {
        name: (number, k)
        for number in numbers()
        for k, name in enumerate(functions_in(text_of(number, "task.py")), start=1)
    }


def task(number: int, k: int) -> Exercise:
    """Task k of a lesson, k from 1.

    Raises:
        ArgumentError: the lesson has no such task, or is none.
    """
    there = lesson(number).tasks
    if not 1 <= k <= len(there):
        many = f"1 to {len(there)}" if there else "none, since the lesson has none"
        raise ArgumentError(f"course: expected a task of lesson {number}, {many}, got {number}.{k}")
    return there[k - 1]


class Solutions(Mapping[str, Callable[..., Any]]):
    """Our functions for all tasks by name; that of a lesson is loaded when it is asked for."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        number, _ = tasks()[name]
        module = importlib.import_module(f"minigrad.course.{folder_of(number)}.solution")
        found: Callable[..., Any] = getattr(module, name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(tasks())

    def __len__(self) -> int:
        return len(tasks())
