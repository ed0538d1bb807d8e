"""One check of one task in a process of its own: `python -m minigrad.course.judge FOLDER LESSON TASK DESCRIPTOR`.

The student's file may raise, print, exit or hang. Whoever started the process reads two lines of JSON from the
descriptor: that the student's code begins now, and what became of it; and kills the process where the second does not
come in time.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from minigrad.course import catalogue
from minigrad.course.kept import changed_since, values_now
from minigrad.course.lesson import Exercise, Student, WrongError

FILE = "adapters.py"
NOT_WRITTEN = "not written yet"
LONGEST = 3000  # characters of a message


def written_in(text: str | bytes, module: ModuleType | None = None) -> set[str]:
    """The names of the tasks that a student's file may have: all but those that are stubs.

    Args:
        module: What the file has come to: a name of it that is another thing than the stub is written.

    Raises:
        SyntaxError: it is no Python.
    """
    functions = catalogue.functions_in(text).items()
    stubs = {name for name, stub in functions if catalogue.is_stub(stub) and _is_that(stub, module)}
    return set(catalogue.tasks()) - stubs


def _is_that(stub: ast.FunctionDef, module: ModuleType | None) -> bool:
    """Whether a name of a module is still the function of these lines."""
    code = getattr(getattr(module, stub.name, None), "__code__", None)
    return module is None or (code is not None and code.co_firstlineno == stub.lineno)


def judge(folder: Path, exercise: Exercise) -> tuple[str, str]:
    """Check a task of a student's folder.

    Returns:
        "passed", "wrong" or "not written", and in words what was found.
    """
    path, before = folder / FILE, values_now()
    with _without_exit():
        try:
            text = path.read_bytes()
            written_in(text)
            module = _load(path)
            names = written_in(text, module)
        except BaseException as error:
            return "wrong", f"{FILE} can't be imported: {_described(error, path)}"
        own = {name: getattr(module, name) for name in names if callable(getattr(module, name, None))}
        if exercise.name not in own:
            return "not written", NOT_WRITTEN
        try:
            words = exercise.check(Student(own, catalogue.Solutions()))
        except WrongError as error:
            return "wrong", str(error) + _never_run(own[exercise.name])
        except BaseException as error:
            return "wrong", _described(error, path) + _never_run(own[exercise.name])
    if changed := changed_since(before):
        return "wrong", f"{FILE} put something else in the place of {', '.join(changed[:3])}: leave it as it is"
    return "passed", words


def _never_run(function: Any) -> str:
    """Says so where a function does nothing when it is called."""
    if inspect.iscoroutinefunction(function):
        return "; it is an async function, of which a call runs nothing: write def"
    return "; it has a yield, and a call of it runs nothing" if inspect.isgeneratorfunction(function) else ""


class _ExitError(Exception):
    """The student's code calls sys.exit: a rank that ends in silence leaves nothing to be looked at."""


@contextlib.contextmanager
def _without_exit() -> Iterator[None]:
    """sys.exit raises what is not taken for an end."""

    def refuse(code: object = None) -> None:
        raise _ExitError(f"expected the function to return or to raise, got sys.exit({code!r})")

    kept, sys.exit = sys.exit, refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.exit = kept


def _load(path: Path) -> ModuleType:
    """Import the student's file, as `adapters`; what lies beside it can be imported too."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("adapters", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["adapters"] = module
    spec.loader.exec_module(module)
    return module


def _described(error: BaseException, path: Path) -> str:
    """What was raised, and by which line of the student's file."""
    if isinstance(error, SyntaxError):
        line = f"line {error.lineno} of {FILE}: " if error.lineno else ""
        return f"{line}{type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    where = f"line {lines[-1]} of {FILE}: " if lines else f"what {FILE} gave can't be used: "
    if isinstance(error, SystemExit):
        return f"{where}it exits, by SystemExit({error.code!r})"
    if isinstance(error, NotImplementedError) and frames[-1].name in catalogue.tasks():
        name = frames[-1].name
        folder = catalogue.folder_of(catalogue.tasks()[name][0])
        return f"{where}{name} is {NOT_WRITTEN}: to call ours, from minigrad.course.{folder}.solution import {name}"
    cause = error.__cause__
    because = f"; because of {type(cause).__name__}: {_words(cause)}" if cause is not None else ""
    return f"{where}{type(error).__name__}: {_words(error)}{because}".rstrip()


def _words(error: BaseException) -> str:
    """What an error says, which may be an error itself, or nothing that a file can hold."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except BaseException:
        return "it can't be shown"


def _main(folder: str, number: str, k: str, descriptor: str) -> None:
    # no descriptor of ours is left to what the student's code starts
    os.set_inheritable(int(descriptor), False)
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as answers:

        def say(**what: Any) -> None:
            answers.write(json.dumps(what) + "\n")
            answers.flush()

        exercise = catalogue.task(int(number), int(k))
        say(began=True)
        verdict, words = judge(Path(folder).resolve(), exercise)
        words = words.encode("utf-8", "backslashreplace").decode()
        say(verdict=verdict, words=words if len(words) <= LONGEST else words[:LONGEST] + " ...")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the student may have closed it
            stream.flush()
    os._exit(0)  # a thread of the student's may still run


if __name__ == "__main__":
    _main(*sys.argv[1:])
