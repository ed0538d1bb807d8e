"""The table of faults is right: what it names exists."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (HERE / "FAULTS.md").read_text().splitlines()
    if re.match(r"\| [A-Z]\d", line)
]
NAMED = sorted(set(re.findall(r"[\w./]+\.py::\w+", " ".join(row[-1] for row in ROWS))))


def test_each_fault_known_at_the_start_has_a_row():
    numbers = {int(match[1]) for row in ROWS if (match := re.fullmatch(r"B(\d+)[a-z]?", row[0]))}
    assert numbers == set(range(1, 42))


def test_rows():
    assert len(ROWS) >= 30 and len({row[0] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert len(row) == 4 and row[1].endswith(".") and row[2].endswith("."), row
        assert "::test_" in row[3] or re.match(r"(later|no): \w+", row[3]), row[0]


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name):
    path, function = name.split("::")
    assert function in [node.name for node in ast.parse((HERE / path).read_text()).body if hasattr(node, "name")]


def test_each_test_of_a_fault_stands_in_the_table():
    tests = [node.name for node in ast.parse((HERE / "test_faults.py").read_text()).body if hasattr(node, "name")]
    assert {f"test_faults.py::{name}" for name in tests} == {name for name in NAMED if name.startswith("test_faults")}
