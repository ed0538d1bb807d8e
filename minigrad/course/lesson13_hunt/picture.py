"""The picture of lesson 13: how many of the planted bugs each tool finds."""

from __future__ import annotations

from minigrad.course.drawing import columns
from minigrad.testing.mutants import MUTANTS, TOOLS


def picture() -> str:
    """Of each level, how many each tool finds; that they do is tested with each bug planted."""
    groups: dict[str, dict[str, float]] = {}
    for level, words in ((1, "1: seen at once"), (2, "2: wrong numbers"), (3, "3: right numbers")):
        bugs = [mutant for mutant in MUTANTS.values() if mutant.level == level]
        found = {tool: sum(tool in mutant.tools for mutant in bugs) for tool in TOOLS}
        groups[f"level {words}, {len(bugs)} bugs"] = {tool: float(count) for tool, count in found.items()}
    return columns(f"Which tool finds how many of {len(MUTANTS)} planted bugs", groups, y="bugs found")
