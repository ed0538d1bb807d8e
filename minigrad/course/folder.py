"""A student's folder: pages to read, and one file to write into, of which nothing is ever overwritten."""

from __future__ import annotations

import ast
from pathlib import Path

from minigrad.course import catalogue
from minigrad.course.judge import FILE
from minigrad.errors import ArgumentError
from minigrad.nn.whole_file import replace_file

_HEADER = '''"""What I wrote in the course on data-parallel training."""

from __future__ import annotations

import numpy as np

import minigrad
'''
_CONFTEST = '''"""Markers of the course: python -m pytest -m lesson1_2. Written by `python -m minigrad.course start`."""


def pytest_configure(config):
    from minigrad.course import catalogue

    for name, (number, k) in catalogue.tasks().items():
        config.addinivalue_line("markers", f"lesson{number}_{k}: {name}")
        config.addinivalue_line("markers", f"lesson{number}: all tasks of lesson {number}")
'''
_TESTS = '''"""The checks of the lessons that were started. Written by `python -m minigrad.course start`."""

from pathlib import Path

import pytest

from minigrad.course import catalogue, grading

HERE = Path(__file__).parent
TASKS = [
    pytest.param(number, k, id=f"{number}.{k}",
                 marks=[getattr(pytest.mark, f"lesson{number}"), getattr(pytest.mark, f"lesson{number}_{k}")])
    for number, k in catalogue.tasks().values()
    if (HERE / f"lesson{number:02d}").is_dir()
]


@pytest.mark.parametrize(("number", "k"), TASKS)
def test_task(number, k):
    mark, printed = grading.check(HERE, number, k)
    print(printed)
    assert mark.passed, mark.words
'''


def start(number: int, folder: Path) -> list[str]:
    """Write what a lesson needs into a student's folder; the functions that adapters.py has already stay as they are.

    Returns:
        What was written, in words.

    Raises:
        ArgumentError: no such lesson; or an adapters.py that is no Python, to which nothing can be added.
    """
    lesson = catalogue.lesson(number)
    path = folder / FILE
    there = path.read_bytes() if path.is_file() else b""
    stubs, names = stubs_for(number, there)
    page = folder / f"lesson{number:02d}"
    page.mkdir(parents=True, exist_ok=True)
    _write(page / "page.md", catalogue.text_of(number, "page.md"))
    _write(page / "picture.svg", lesson.picture())
    for name, text in (("conftest.py", _CONFTEST), ("test_course.py", _TESTS)):
        if not (folder / name).exists():
            _write(folder / name, text)
    if stubs or not there:
        added = (("" if there else _HEADER) + stubs).encode()
        replace_file(path, [there + (added.replace(b"\n", b"\r\n") if b"\r\n" in there else added)])
    said = [f"{page / 'page.md'}: read this first"]
    if names:
        said.append(f"{path}: write {', '.join(names)} there")
    elif lesson.tasks:
        said.append(f"{path}: has all functions of the lesson already, and was left as it is")
    return [*said, f"python -m minigrad.course check {number} --dir {folder}"] if lesson.tasks else said


def stubs_for(number: int, there: str | bytes) -> tuple[str, list[str]]:
    """What to add to a student's file for a lesson, and the functions in it that are not there yet.

    Raises:
        ArgumentError: what is there is no Python.
    """
    try:
        tree = ast.parse(there)
    except SyntaxError as error:
        raise ArgumentError(
            f"course: expected {FILE} to be Python, got a {type(error).__name__} in line {error.lineno or 1}, "
            f"{error.msg}: mend it first"
        ) from error
    has = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    has |= {alias.asname or alias.name for node in imports for alias in node.names}
    text = catalogue.text_of(number, "task.py")
    names = [name for name in catalogue.functions_in(text) if name not in has]
    if not names:
        return "", []
    parts = [f"\n# Lesson {number}: {catalogue.lesson(number).title}\n"]
    for node in ast.parse(text).body:
        is_docstring = isinstance(node, ast.Expr)
        is_of_the_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        is_there = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in has
        if not (is_docstring or is_of_the_future or is_there):
            blank = "\n\n" if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ""
            parts.append(f"{blank}{_with_decorators(text, node)}\n")
    return "".join(parts), names


def solution(number: int, k: int | None = None) -> str:
    """Our solution of a lesson; with k, without the functions of its other tasks."""
    text = catalogue.text_of(number, "solution.py")
    if k is None:
        return text
    wanted = catalogue.task(number, k).name
    hidden = {task.name for task in catalogue.lesson(number).tasks} - {wanted}
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name in hidden:
            del lines[node.lineno - 1 : node.end_lineno]
    return "".join(lines).rstrip() + "\n"


def _with_decorators(text: str, node: ast.stmt) -> str:
    """The source of a statement."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def _write(path: Path, text: str) -> None:
    replace_file(path, [text.encode()])
