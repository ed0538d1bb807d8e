"""What a lesson is: a page, a picture, and tasks, each a function that the student writes and a check of it.

A lesson is a folder `lessonNN_name` beside this file, with

    page.md       why, what to look at, what to write; its examples are run
    task.py       the functions to write, as stubs whose docstrings are their specification
    solution.py   our own, under the same names
    checks.py     a check for each
    __init__.py   LESSON, which names them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


class WrongError(AssertionError):
    """What a student wrote does not do what its specification says; the message is for the student."""


class Student:
    """The functions of all tasks: the student's own where they are written, else ours.

    Attributes:
        own: The student's, by name.

    Example:
        >>> Student({"double": lambda x: 2 * x}, {"double": None, "half": lambda x: x / 2}).half(5.0)
        2.5
    """

    def __init__(self, own: Mapping[str, Callable[..., Any]], ours: Mapping[str, Callable[..., Any]]) -> None:
        self.own, self._ours = MappingProxyType(dict(own)), ours

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return self.own[name] if name in self.own else self._ours[name]
        except KeyError:
            raise AttributeError(f"Student: expected the function of a task, got {name!r}") from None


@dataclass(frozen=True)
class Exercise:
    """One function that the student writes.

    Attributes:
        name: Of the function, in the student's file, in task.py and in solution.py; no other exercise has it.
        check: Gets a Student, tries that function, and returns what it found, in words, with the figures that it
            measured; raises WrongError where the function is wrong. It takes at most 6 s, and is the same every time:
            its times are virtual, its random numbers have seeds.
        hints: From the vaguest to one that says nearly all.
        points: That it is worth.
    """

    name: str
    check: Callable[[Student], str]
    hints: tuple[str, ...]
    points: int = 1


@dataclass(frozen=True)
class Lesson:
    """One lesson.

    Attributes:
        number: Of the lesson.
        title: In the student's words.
        minutes: That a student needs, about.
        needs: The lessons that should come before.
        proves: What one has seen to be true at its end, in a sentence.
        tasks: Task k of lesson n is "n.k", k from 1.
        picture: Makes the picture of its page, as the text of an SVG.
    """

    number: int
    title: str
    minutes: int
    needs: tuple[int, ...]
    proves: str
    tasks: tuple[Exercise, ...]
    picture: Callable[[], str]


def expect(holds: object, message: str) -> None:
    """Raise WrongError unless something holds.

    Raises:
        WrongError: it does not.
    """
    if not holds:
        raise WrongError(message)
