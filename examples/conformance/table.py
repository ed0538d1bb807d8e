"""The tables of README.md: what the conformance checks find in minigrad's wrapper, in PyTorch's, and in the peers.

    python examples/conformance/table.py                          # minutes; PyTorch where it is installed
    python examples/conformance/table.py --write                  # puts what was found into README.md
    python examples/conformance/table.py --hold --systems "CS336 naive" --checks training clipping
    python examples/conformance/table.py --report --systems "CS336 naive"

Ranks are threads of this process on minigrad's communicator, for PyTorch processes on gloo. It exits with 1 where
`--hold` finds something else than README.md says.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from peers import cs336, mytorch, picotron
from peers.replicas import PeerAdapter

import minigrad
from minigrad.testing.conformance import CHECKS, MinigradAdapter, Report, report

README = Path(__file__).with_name("README.md")
NAMES = tuple(check.__name__.removeprefix("check_") for check in CHECKS)
WORDS = {
    "passes": "passed",
    "fails": "failed",
    "out of time": "hangs",
    "died": "dies",
    "not judged": "not judged",
    "does not have it": "not offered",
}
HEAD = ("System", "Version", "Put to the checks", *WORDS.values())
Rows = list[list[str]]


class System(NamedTuple):
    """What is put to the checks.

    Attributes:
        name: Of its column.
        version: Of it, or of what it was written from, with the day.
        adapter: Makes the adapter.
    """

    name: str
    version: str
    adapter: Callable[[], Any]


def systems() -> list[System]:
    """All that can run here."""
    found = [System("minigrad", minigrad.__version__, MinigradAdapter)]
    if importlib.util.find_spec("torch") is not None:
        import torch
        from torch_ddp import TorchAdapter

        found.append(System("PyTorch", f"{torch.__version__.partition('+')[0]}, gloo", TorchAdapter))
    handout = "handout 26.1.1, 2026-04-20"
    accelerator = mytorch.AcceleratorReplica
    return [
        *found,
        System("CS336 naive", handout, lambda: PeerAdapter(cs336.Naive)),
        System("CS336 overlapped", handout, lambda: PeerAdapter(cs336.Overlapped)),
        System("MyTorch before", "8d0c400, 2025-11-08", lambda: PeerAdapter(mytorch.AcceleratorBefore, accelerator)),
        System("MyTorch", "228c061, 2025-11-22", lambda: PeerAdapter(mytorch.Accelerator, accelerator)),
        System("picotron naive", "59714b1, 2025-08-26", lambda: PeerAdapter(picotron.DataParallelNaive)),
        System(
            "picotron bucketed",
            "59714b1, 2025-08-26",
            lambda: PeerAdapter(picotron.DataParallelBucket, picotron.BucketReplica),
        ),
    ]


def put_to_the_checks(system: System, names: list[str]) -> Report:
    """The verdicts of these checks."""
    checks = [check for check, name in zip(CHECKS, NAMES) if name in names]
    with np.errstate(all="ignore"):  # the mean of no samples, and what is too large for float16
        return report(system.adapter(), checks)


# ------------------------------------------------------------------------------------------------- tables in Markdown


def read_rows(text: str, first: str) -> Rows:
    """The rows of the table whose head begins with a word, the head first."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip(" `") for cell in line.strip("|").split("|")])
    return [row for row in rows if set(row[0]) != {"-"}]


def write_rows(text: str, rows: Rows) -> str:
    """The text with these rows in place of the table whose head begins like theirs."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| {rows[0][0]} |"))
    end = next((index for index in range(start, len(lines)) if not lines[index].startswith("|")), len(lines))
    return "\n".join([*lines[:start], *table(rows), *lines[end:]]) + "\n"


def table(rows: Rows) -> list[str]:
    """Its lines."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def columns_of(text: str) -> dict[str, dict[str, str]]:
    """What a README says of each system: {check: word}."""
    head, *rows = read_rows(text, "Check")
    return {name: {row[0]: row[index] for row in rows} for index, name in enumerate(head) if index}


def columns_found(reports: dict[str, Report]) -> dict[str, dict[str, str]]:
    """The same of reports."""
    return {name: {row.name: WORDS[row.verdict] for row in found.rows} for name, found in reports.items()}


def rows_of(columns: dict[str, dict[str, str]]) -> Rows:
    """The rows of the table of checks."""
    names = [name for name in NAMES if any(name in column for column in columns.values())]
    rows = [[f"`{name}`", *(column.get(name, "") for column in columns.values())] for name in names]
    return [["Check", *columns], *rows]


def renewed(text: str, ran: list[System], found: dict[str, dict[str, str]]) -> str:
    """A README with what was found of these systems; what it says of others stays."""
    old = {row[0]: row for row in read_rows(text, HEAD[0])[1:]}
    counted = {name: [str(list(found[name].values()).count(word)) for word in WORDS.values()] for name in found}
    today = date.today().isoformat()
    new = {system.name: [system.name, system.version, today, *counted[system.name]] for system in ran}
    kept = columns_of(text)
    order = [*dict.fromkeys([*kept, *found])]
    text = write_rows(text, [list(HEAD), *({**old, **new}[name] for name in order)])
    return write_rows(text, rows_of({name: {**kept, **found}[name] for name in order}))


def differences(said: dict[str, dict[str, str]], found: dict[str, dict[str, str]]) -> list[str]:
    """Where a README says something else than was found."""
    return [
        f"{name}, {system}: {said.get(system, {}).get(name, 'nothing')} in README.md, now {word}"
        for system, column in found.items()
        for name, word in column.items()
        if said.get(system, {}).get(name) != word
    ]


def main() -> int:
    """Run the checks, and print, write or compare the tables."""
    known = systems()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=[one.name for one in known], help="all by default")
    parser.add_argument("--checks", nargs="+", choices=NAMES, default=NAMES, help="all by default")
    parser.add_argument("--report", action="store_true", help="print of each check what was expected and what came")
    parser.add_argument("--readme", type=Path, default=README, help="that of this folder by default")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="put the columns of these systems into the README")
    action.add_argument("--hold", action="store_true", help="compare with the README")
    options = parser.parse_args()
    if options.write and len(options.checks) < len(NAMES):
        parser.error("expected all checks with --write, got some of them")
    ran = [one for one in known if options.systems is None or one.name in options.systems]
    reports = {one.name: put_to_the_checks(one, options.checks) for one in ran}
    found = columns_found(reports)
    for name, told in reports.items() if options.report else ():
        print(f"{name}: {told}\n")
    print("\n".join(table(rows_of(found))))
    if options.write:
        options.readme.write_text(renewed(options.readme.read_text(), ran, found))
    missed = differences(columns_of(options.readme.read_text()), found) if options.hold else []
    print("\n".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
