"""What a grading comes to: figures beside their optimum and limit, and what failed, in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from minigrad.arguments import as_amount, keep_as
from minigrad.distributed.record.spans import table_of
from minigrad.errors import ArgumentError

_UNITS = {"step_s": 1e3, "exposed_s": 1e3}
_WORDS = {
    "step_s": "ms of a step",
    "exposed_s": "ms exposed of it",
    "exposed_fraction": "part that is exposed",
    "sent_bytes": "bytes that a rank sends in a step",
    "calls": "calls in a step",
    "peak_bytes": "bytes held beside the bare model, of the gradients'",
}


@dataclass(frozen=True)
class Limits:
    """What a wrapper has to keep; None is not asked.

    Each ratio is to the optimum: the best division of the gradients into all_reduces for time and its number of calls;
    2(W - 1)/W of the gradients' bytes for bytes; and one copy of the gradients for memory.

    Attributes:
        step_ratio: Of the time of a step.
        exposed_ratio: Of what of it is not hidden behind the slowest rank's computing.
        exposed_fraction: That as a part of the step, no ratio.
        bytes_ratio: Of what a rank sends in a step.
        calls_ratio: Of collectives and messages of a rank in a step.
        peak_ratio: Of the most memory that the ranks hold beside the bare model, as tracemalloc sees it: of Python and
            NumPy, not of mmap or C. It is measured only where it is asked, in steps of a quarter of a copy, or of
            64 KiB of all ranks, if that is more.
    """

    step_ratio: float | None = None
    exposed_ratio: float | None = None
    exposed_fraction: float | None = None
    bytes_ratio: float | None = None
    calls_ratio: float | None = None
    peak_ratio: float | None = None

    def __post_init__(self) -> None:
        names = ("step_ratio", "exposed_ratio", "exposed_fraction", "bytes_ratio", "calls_ratio", "peak_ratio")
        keep_as(self, as_amount, *names, optional=True)


class Figure(NamedTuple):
    """A measured number beside the best that it could be.

    Attributes:
        value, best: In one unit.
        limit_ratio: Of value / best; None is not asked.
        limit: Of value itself.
    """

    value: float
    best: float
    limit_ratio: float | None = None
    limit: float | None = None

    @property
    def ratio(self) -> float:
        """value / best; 1 where both are 0."""
        if self.best:
            return self.value / self.best
        return 1.0 if not self.value else math.inf

    def over(self, name: str) -> str:
        """What limit it is over, in words; empty where it is none."""
        scale, words = _UNITS.get(name, 1.0), _WORDS.get(name, name)
        if self.limit_ratio is not None and self.ratio > self.limit_ratio:
            best = f"{self.limit_ratio:.4g} times the best, {self.best * scale:.4g}"
            return f"{words}: expected at most {best}, got {self.value * scale:.4g}, {self.ratio:.3f} times"
        if self.limit is not None and self.value > self.limit:
            return f"{words}: expected at most {self.limit:.4g}, got {self.value:.4g}; the best is {self.best:.4g}"
        return ""


@dataclass(frozen=True)
class Grade:
    """What a grading came to; print it.

    Attributes:
        figures: By name: step_s, exposed_s, exposed_fraction, sent_bytes, calls, and peak_bytes where it was asked;
            means over steps, of one rank. None are there where the wrapper is wrong.
        failed: What was wrong, or over a limit, in words.
        passes: The conformance checks that it passes.
        not_offered: Those about what it does not have, and what that is.
    """

    figures: Mapping[str, Figure] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    not_offered: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    def ratio(self, name: str) -> float:
        """A figure, to its optimum.

        Raises:
            ArgumentError: it was not measured.
        """
        if name not in self.figures:
            raise ArgumentError(f"Grade.ratio: expected one of {', '.join(self.figures) or 'no figures'}, got {name!r}")
        return self.figures[name].ratio

    def __str__(self) -> str:
        rows = [["", "is", "best", "ratio", "limit"]]
        for name, figure in self.figures.items():
            scale = _UNITS.get(name, 1.0)
            asked = figure.limit_ratio if figure.limit_ratio is not None else figure.limit
            limit = "" if asked is None else f"{asked:.4g}"
            numbers = [f"{figure.value * scale:.5g}", f"{figure.best * scale:.5g}", f"{figure.ratio:.3f}"]
            rows.append([_WORDS[name], *numbers, limit])
        lines = ["passed" if self.passed else "not passed"]
        lines += [f"  {words}" for words in self.failed]
        lines += [table_of(rows)] if self.figures else []
        lines.append(f"{len(self.passes)} checks passed, {len(self.not_offered)} about what it does not have")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The grade as text, for a file or another process."""
        figures = {name: figure._asdict() for name, figure in self.figures.items()}
        told = {"failed": self.failed, "passes": self.passes, "not_offered": self.not_offered}
        return json.dumps({"figures": figures, **told}, indent=1)

    @staticmethod
    def from_json(text: str) -> Grade:
        """The grade that `to_json` wrote."""
        read = json.loads(text)
        figures = {name: Figure(**figure) for name, figure in read["figures"].items()}
        return Grade(figures, *(tuple(read[name]) for name in ("failed", "passes", "not_offered")))
