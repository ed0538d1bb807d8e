"""The committed table: a line for each type of node, and the reason of what can't be expressed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.onnx.run import Outcome

TABLE = Path(__file__).with_name("table.md")
_HEAD = """# ONNX's node tests

Written by `python -m tests.onnx` with onnx {version}. Of {all} tests of single nodes (those with a function's body in
the place of the node are left out) {agrees} agree, {fails} fail, {not expressed} are not expressed by a few public
calls; why is said beside each.

| node | agree | fail | not expressed |
| --- | ---: | ---: | --- |
"""


def written(outcomes: Iterable[Outcome]) -> str:
    """The table of these outcomes."""
    import onnx

    found = list(outcomes)
    totals = {"agrees": 0, "fails": 0, "not expressed": 0} | Counter(outcome.verdict for outcome in found)
    kinds = sorted({outcome.kind for outcome in found}, key=str.lower)
    rows = [_row(kind, [outcome for outcome in found if outcome.kind == kind]) for kind in kinds]
    return _HEAD.format(version=onnx.__version__, all=len(found), **totals) + "\n".join(rows) + "\n"


def _row(kind: str, found: list[Outcome]) -> str:
    verdicts = Counter(outcome.verdict for outcome in found)
    reasons = Counter(outcome.why for outcome in found if outcome.verdict == "not expressed")
    listed = "; ".join(f"{count}: {why}" for why, count in sorted(reasons.items()))
    return f"| {kind} | {verdicts['agrees']} | {verdicts['fails']} | {listed} |"
