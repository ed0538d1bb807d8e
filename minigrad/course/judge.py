"""One check of one task in a process of its own: `python -m minigrad.course.judge FOLDER LESSON TASK DESCRIPTOR`.

The student's file may raise, print, exit or hang. Whoever started the process reads two lines of JSON from the
descriptor: that the student's code begins now, and what became of it; and kills the process where the second does not
come in time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from minigrad.course import catalogue
from minigrad.course.lesson import Exercise, Student, WrongError

FILE = "adapters.py"
NOT_WRITTEN = "not written yet"
LONGEST = 3000  # characters of a message


def written_in(text: str) -> set[str]:
    """The names of the tasks that a student's file may have: all but those that are stubs.

    Raises:
        SyntaxError: it is no Python.
    """
    stubs = {name for name, function in catalogue.functions_in(text).items() if catalogue.is_stub(function)}
    return set(catalogue.tasks()) - stubs


def judge(folder: Path, exercise: Exercise) -> tuple[str, str]:
    """Check a task of a student's folder.

    Returns:
        "passed", "wrong" or "not written", and in words what was found.
    """
    path = folder / FILE
    try:
        names = written_in(path.read_text(encoding="utf-8"))
        module = _load(path)
    except BaseException as error:
        return "wrong", f"{FILE} can't be imported: {_described(error, path)}"
    own = {name: getattr(module, name) for name in names if callable(getattr(module, name, None))}
    if exercise.name not in own:
        return "not written", NOT_WRITTEN
    try:
        return "passed", exercise.check(Student(own, catalogue.Solutions()))
    except WrongError as error:
        return "wrong", str(error)
    except BaseException as error:
        return "wrong", _described(error, path)


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
        return f"line {error.lineno} of {FILE}: {type(error).__name__}: {error.msg}"
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
    because = f"; because of {type(cause).__name__}: {cause}" if cause is not None else ""
    return f"{where}{type(error).__name__}: {error}{because}".rstrip()


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
        say(verdict=verdict, words=words if len(words) <= LONGEST else words[:LONGEST] + " ...")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the student may have closed it
            stream.flush()
    os._exit(0)  # a thread of the student's may still run


if __name__ == "__main__":
    _main(*sys.argv[1:])
