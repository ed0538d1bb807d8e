"""The table of faults is right: every one has its row, and the tests that it names exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "tests" / "FAULTS.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| id ")
]
TEST = r"(?:tests|minigrad/testing)/[\w/]+\.py"
NAMED = sorted({name for row in ROWS for name in re.findall(rf"{TEST}(?:::\w+)?", row[-1])})


def test_each_fault_has_a_row_with_a_test():
    assert {int(number) for row in ROWS for number in re.findall(r"^\d+", row[0])} == set(range(1, 21))
    assert len({row[0] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert len(row) == 4 and row[1].endswith(".") and row[2].endswith("."), row[0]
        assert re.search(TEST, row[3]), f"{row[0]}: expected a test"


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name):
    path, _, function = name.partition("::")
    found = [node.name for node in ast.parse((ROOT / path).read_text()).body if hasattr(node, "name")]
    assert not function or function in found
