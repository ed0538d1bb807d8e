"""The hunt: a training script, and one unknown bug in minigrad, or none; look with the tools and say where it is."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import random
import re
import runpy
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from minigrad.arguments import as_integer, check_choice
from minigrad.course.looks import LOOKS, look_at
from minigrad.errors import ArgumentError
from minigrad.testing.mutants import MUTANTS, PROGRAMS, TOOLS, Mutant, Program, in_child

POINTS = 5  # of a hunt; each wrong answer costs one, and so does a hint
LEVELS = (1, 2, 3)
NEAR = 5  # lines from the statement that was changed
NO_BUG = "no bug"
STATE = "hunts.json"
_TIMEOUT_S = 60.0
_SCRIPT_S = 3600.0
_RIGHT_ONES = 8  # one in so many hunts has no bug


class Reply(NamedTuple):
    """What an answer came to.

    Attributes:
        right: Whether it was.
        points: What is left.
        words: In words.
    """

    right: bool
    points: int
    words: str


class Hunt:
    """One unknown bug.

    Which one is drawn by level and seed, and is the same on every machine. Looking costs nothing. In one of eight hunts
    there is no bug, and "no bug" is the answer.

    Args:
        level: 1: what the program prints tells, or its ranks part. 2: the ranks agree on wrong numbers. 3: all numbers
            are right, and it takes longer, or is counted wrong.
        seed: >= 0.
        state: A file for tries and hints, JSON, which has the answer as a salted digest alone; None keeps them here.

    Raises:
        ArgumentError: another level, a seed below 0, or a file that is no state of hunts.

    Example:
        >>> hunt = Hunt(2, seed=3)
        >>> hunt.program.name in PROGRAMS, hunt.points
        (True, 5)
    """

    def __init__(self, level: int, seed: int = 0, *, state: Path | None = None) -> None:
        as_integer("Hunt", "level", level, 1, 1 + len(LEVELS))
        self.level, self.seed, self._path = level, as_integer("Hunt", "seed", seed, 0), state
        rng = random.Random(f"hunt {level} {self.seed}")
        drawn = rng.choice([mutant for mutant in MUTANTS.values() if mutant.level == level])
        self.program: Program = PROGRAMS[drawn.program]
        self._mutant: Mutant | None = None if rng.randrange(_RIGHT_ONES) == 0 else drawn
        self._hunts = _read(state)
        salt = secrets.token_hex(8)
        fresh = {"salt": salt, "answer": self._digest(salt), "tries": 0, "hints": 0, "looks": {}, "found": False}
        self._own = self._hunts.setdefault(f"level {level} seed {self.seed}", fresh)
        if self._own["answer"] != self._digest(self._own["salt"]):
            raise ArgumentError(f"Hunt: expected the bug that {state} was begun with, got another one: delete it")

    @property
    def points(self) -> int:
        """What finding it is worth now."""
        return max(0, POINTS - int(self._own["tries"]) - int(self._own["hints"]))

    @property
    def found(self) -> bool:
        """Whether it was."""
        return bool(self._own["found"])

    @property
    def source(self) -> str:
        """The text of the program."""
        return inspect.getsource(self.program.train)

    def look(self, tool: str, *, right: bool = False) -> str:
        """Run the program, and what a tool tells of it.

        Args:
            tool: "output", "loss", "fingerprint", "twin", "stats", "timeline" or "explain".
            right: Run it without the bug, to compare.

        Raises:
            ArgumentError: no such tool, or a program that a twin can't follow.
        """
        check_choice("Hunt.look", TOOLS, tool=tool)
        self._own["looks"][tool] = self._own["looks"].get(tool, 0) + 1
        self._write()
        edit = None if right or self._mutant is None else self._mutant.edit
        text: str = in_child(edit, lambda: look_at(self.program, tool), _TIMEOUT_S)
        return text

    def run(self, script: Path, arguments: Sequence[str] = ()) -> int:
        """Run a script of one's own with the bug in force, as `python script.py arguments`, and give its exit status.

        The bug is in force in the script's process, and in those that it forks; in others that it starts it is not.

        Raises:
            ArgumentError: there is no such file.
        """
        if not script.is_file():
            raise ArgumentError(f"Hunt.run: expected a script, got {str(script)!r}")
        edit = None if self._mutant is None else self._mutant.edit
        status: int = in_child(edit, lambda: _run(script, arguments), _SCRIPT_S, quiet=False)
        return status

    def hint(self) -> str:
        """What the bug has to do with; costs a point, until it is found."""
        self._own["hints"] += not self.found
        self._write()
        if self._mutant is None:
            return "A tool that finds nothing tells something too."
        return self._mutant.hint

    def answer(self, said: str | int) -> Reply:
        """Say what it is.

        Args:
            said: "FILE:LINE", such as "passes.py:231": within the function that was changed, or 5 lines of the changed
                statement. Or the number of a planted bug. Or "no bug".

        Raises:
            ArgumentError: none of these; that costs nothing.
        """
        right = self._is_right(str(said).strip())
        if not right and not self.found:
            self._own["tries"] += 1
        self._own["found"] = self.found or right
        self._write()
        if not right:
            return Reply(False, self.points, f"That is not it. {self.points} points are left.")
        if self._mutant is None:
            return Reply(True, self.points, f"Right: there is no bug. {self.points} points.")
        what = f"{self._mutant.name} (number {self._mutant.number}, {self._mutant.place})"
        return Reply(True, self.points, f"Right: {what}. {self.points} points.")

    def _is_right(self, said: str) -> bool:
        if said == NO_BUG:
            return self._mutant is None
        if re.fullmatch("[0-9]+", said):
            if len(said) > 9 or int(said) not in MUTANTS:
                raise ArgumentError(f"Hunt.answer: expected the number of a planted bug, got {said}: see `candidates`")
            return self._mutant is not None and self._mutant.number == int(said)
        match = re.fullmatch(r"(.*[^/]\.py):([0-9]{1,9})", said)
        if not match:
            raise ArgumentError(f'Hunt.answer: expected "FILE.py:LINE", a number or "{NO_BUG}", got {said!r}')
        if self._mutant is None:
            return False
        file, place, number = match[1], self._mutant.place, int(match[2])
        near = place.first_line <= number <= place.last_line or abs(number - place.line) <= NEAR
        return near and f"/{place.file.as_posix()}".endswith(f"/{file.lstrip('./')}")

    def _digest(self, salt: str) -> str:
        number = 0 if self._mutant is None else self._mutant.number
        return hashlib.sha256(f"{salt} {number}".encode()).hexdigest()

    def _write(self) -> None:
        if self._path is not None:
            if not self._path.parent.is_dir():
                raise ArgumentError(f"Hunt: expected a folder for {self._path}, got none: make it first")
            beside = self._path.with_name(f"{self._path.name}.new")
            beside.write_text(json.dumps(self._hunts, indent=1) + "\n", encoding="utf-8")
            beside.replace(self._path)


def candidates(level: int) -> str:
    """The planted bugs of a level with their numbers, of which a hunt draws one."""
    rows = [f"{mutant.number:4d}  {mutant.name}" for mutant in MUTANTS.values() if mutant.level == level]
    return "\n".join(rows)


def score(state: Path) -> tuple[int, int]:
    """The points of all hunts of a file that were found, and how many were begun."""
    hunts = _read(state)
    points = sum(max(0, POINTS - own["tries"] - own["hints"]) for own in hunts.values() if own["found"])
    return points, len(hunts)


def _read(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    try:
        hunts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        good = all({"salt", "answer", "tries", "hints", "looks", "found"} <= own.keys() for own in hunts.values())
        good = good and all(type(own[name]) is int for own in hunts.values() for name in ("tries", "hints"))
    except (ValueError, AttributeError, OSError):
        good = False
    if not good:
        raise ArgumentError(f"Hunt: expected {path} to be a file of hunts, got something else: delete it")
    return hunts


def _run(script: Path, arguments: Sequence[str]) -> int:
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except Exception as error:
        error.__traceback__ = _within(script, error.__traceback__)
        traceback.print_exception(error)
        return 1
    finally:
        sys.stdout.flush()
    return 0


def _within(script: Path, frames: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in a script; all of it where none does."""
    part = frames
    while part is not None and part.tb_frame.f_code.co_filename != str(script):
        part = part.tb_next
    return part or frames


# --------------------------------------------------------------------------------------------- the command line


def arguments(parser: argparse.ArgumentParser) -> None:
    """See `course.commands`."""
    parser.add_argument("--level", type=int, default=1, choices=LEVELS)
    parser.add_argument("--seed", type=int, default=0, help="which hunt of the level, from 0")
    parser.add_argument("--dir", type=Path, default=Path(), help=f"your folder, by default this one; {STATE} is in it")
    parser.add_argument("--right", action="store_true", help="look at the program without the bug")
    parser.add_argument("do", nargs="?", default="begin", choices=_DO, help="what to do, see above")
    parser.add_argument("what", nargs=argparse.REMAINDER, help="a tool, an answer, or a script with its arguments")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _USAGE


def carry_out(options: argparse.Namespace) -> int:
    """See `course.commands`."""
    hunt = Hunt(options.level, options.seed, state=options.dir / STATE)
    for line in _DO[options.do](hunt, options):
        print(line)
    return int(getattr(options, "status", 0))


def _begin(hunt: Hunt, options: argparse.Namespace) -> Iterator[str]:
    yield f"Level {hunt.level}, seed {hunt.seed}. The program {hunt.program.name!r}: {hunt.program.says}"
    yield f"\n{hunt.source}"
    if hunt.program.refuses:
        yield "It makes a mistake on purpose, which minigrad has to refuse, in words that help."
    yield f"The text is in {inspect.getsourcefile(hunt.program.train)}."
    yield f"It runs on {len(hunt.program.speeds)} ranks of a virtual cluster. minigrad has one bug, or none."
    tools = [tool for tool in TOOLS if tool != "twin" or hunt.program.twins]
    yield f"look TOOL shows it, one of {', '.join(tools)}; with --right as it is without the bug."


def _look(hunt: Hunt, options: argparse.Namespace) -> Iterator[str]:
    yield hunt.look(_one(options, "a tool"), right=options.right)


def _answer(hunt: Hunt, options: argparse.Namespace) -> Iterator[str]:
    told = hunt.answer(" ".join(options.what))
    options.status = int(not told.right)
    yield told.words


def _hint(hunt: Hunt, options: argparse.Namespace) -> Iterator[str]:
    yield hunt.hint()
    yield f"{hunt.points} points are left."


def _candidates(hunt: Hunt, options: argparse.Namespace) -> Iterator[str]:
    yield candidates(hunt.level)


def _script(hunt: Hunt, options: argparse.Namespace) -> Iterator[str]:
    if not options.what:
        raise ArgumentError("hunt run: expected a script, got none")
    options.status = hunt.run(Path(options.what[0]), options.what[1:])
    yield from ()


def _one(options: argparse.Namespace, what: str) -> str:
    if len(options.what) != 1:
        raise ArgumentError(f"hunt {options.do}: expected {what}, got {' '.join(options.what) or 'none'}")
    return str(options.what[0])


_DO: dict[str, Callable[[Hunt, argparse.Namespace], Iterator[str]]] = {
    "begin": _begin,
    "look": _look,
    "hint": _hint,
    "answer": _answer,
    "candidates": _candidates,
    "run": _script,
}
_USAGE = f"""\
A training script, and one unknown bug in minigrad, or none: look with the tools, and say where it is.

  hunt --level 2 --seed 3               the program
  hunt --level 2 --seed 3 look TOOL     what a tool tells of it: {", ".join(LOOKS)}
  hunt --level 2 --seed 3 --right look TOOL     the same of the program without the bug
  hunt --level 2 --seed 3 run script.py ...     a script of your own with the bug in force
  hunt --level 2 --seed 3 hint          costs a point
  hunt --level 2 candidates             all planted bugs of the level, with their numbers
  hunt --level 2 --seed 3 answer passes.py:231  or a number, or "no bug"; a wrong one costs a point, of {POINTS}
"""
