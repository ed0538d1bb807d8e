"""A wrapper's verdicts as a table: name, verdict, the cause that the check's docstring tells, and what came."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tqdm import tqdm

from minigrad.errors import ArgumentError
from minigrad.testing.conformance.adapter import Adapter, Check
from minigrad.testing.conformance.checks import CHECKS
from minigrad.testing.conformance.outcome import VerdictError

VERDICTS = ("passes", "fails", "out of time", "died", "not judged", "does not have it")
WIDTH = 120


@dataclass(frozen=True)
class Row:
    """What came of a check.

    Attributes:
        name: Of the check, without `check_`.
        verdict: "passes"; "fails": a wrong value, or an error where a value was right; "out of time", "died": a rank
            did that; "not judged": the steps without the fault went wrong already, so that nothing follows from those
            with it; "does not have it".
        cause: The fault that the check is about.
        message: What was expected and what came; empty for one that passes.
    """

    name: str
    verdict: str
    cause: str
    message: str


@dataclass(frozen=True)
class Report:
    """The rows of a table; as text, its str."""

    rows: tuple[Row, ...]

    def names(self, verdict: str) -> list[str]:
        """The checks with this verdict.

        Raises:
            ArgumentError: there is no such verdict.
        """
        if verdict not in VERDICTS:
            raise ArgumentError(f"names: expected one of {', '.join(VERDICTS)}, got {verdict!r:.100}")
        return [row.name for row in self.rows if row.verdict == verdict]

    def __str__(self) -> str:
        counts = [f"{len(self.names(verdict))} {verdict}" for verdict in VERDICTS if self.names(verdict)]
        lines = [f"{len(self.rows)} checks: {', '.join(counts)}"]
        width = max((len(row.name) for row in self.rows), default=0)
        indent = " " * 4
        for row in self.rows:
            lines += ["", f"{row.name:{width}}  {row.verdict}"]
            lines += textwrap.wrap(row.cause, WIDTH, initial_indent=indent, subsequent_indent=indent)
            told = " ".join(row.message.split())
            lines += textwrap.wrap(told, WIDTH, initial_indent=indent + "> ", subsequent_indent=indent + "  ")
        return "\n".join(lines)

    def to_json(self) -> str:
        """A list of the rows, each an object."""
        return json.dumps([asdict(row) for row in self.rows], indent=1)

    @staticmethod
    def from_json(text: str) -> Report:
        """The report that `to_json` wrote."""
        return Report(tuple(Row(**row) for row in json.loads(text)))


def report(adapter: Adapter, checks: Sequence[Check] = CHECKS) -> Report:
    """Put a wrapper to the checks, one after the other, and tell what came of each.

    Example:
        >>> from minigrad.testing import conformance
        >>> report(conformance.MinigradAdapter(), [conformance.means.check_training]).names("passes")
        ['training']
    """
    rows = []
    for check in tqdm(checks, desc="checks", disable=None):
        verdict, message = _verdict(adapter, check)
        cause = " ".join((inspect.getdoc(check) or "").split("\n\n")[0].split())
        rows.append(Row(check.__name__.removeprefix("check_"), verdict, cause, message))
    return Report(tuple(rows))


def _verdict(adapter: Adapter, check: Check) -> tuple[str, str]:
    try:
        check(adapter)
    except VerdictError as error:
        return error.verdict, str(error)
    except NotImplementedError as error:
        return "does not have it", str(error)
    except Exception as error:  # also of what an adapter returned and a check could not read
        told = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return "fails", told
    return "passes", ""
