"""The table of faults is right: what it names exists, and every conformance check stands in it."""

import ast
import re
from pathlib import Path

import pytest

from minigrad.testing.conformance import CHECKS

HERE = Path(__file__).parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (HERE / "FAULTS.md").read_text().splitlines()
    if re.match(r"\| [A-Z]\d", line)
]
NAMED = sorted(set(re.findall(r"[\w./]+\.py::\w+", " ".join(row[-1] for row in ROWS))))


def test_rows():
    assert len(ROWS) >= 75 and len({row[0] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert len(row) == 3 and row[1].endswith("."), row
        tested = re.search(r"check_|::test_", row[2])
        assert tested or re.match(r"(later|no): \w+", row[2]), f"{row[0]}: expected a test, or the reason for none"


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name):
    path, function = name.split("::")
    assert function in [node.name for node in ast.parse((HERE / path).read_text()).body if hasattr(node, "name")]


def test_every_check_is_named_and_no_other():
    named = {word for row in ROWS for word in re.findall(r"\bcheck_\w+", row[2])}
    assert named == {check.__name__ for check in CHECKS}
