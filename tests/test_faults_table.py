"""The tables of faults are right: each fault has its row, what a row names exists, each conformance check is named."""

import ast
import re
from pathlib import Path

import pytest

from minigrad.testing.conformance import CHECKS

HERE = Path(__file__).parent
COLUMNS = {"": 4, "balance": 4, "distributed": 3}
ROWS = {
    table: [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in (HERE / table / "FAULTS.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| id ")
    ]
    for table in COLUMNS
}
TEST = r"[\w./]+\.py(?:::\w+)?"
NAMED = sorted({(table, name) for table in ROWS for row in ROWS[table] for name in re.findall(TEST, row[-1])})


def defined(*path):
    return {node.name for node in ast.parse(HERE.joinpath(*path).read_text()).body if hasattr(node, "name")}


@pytest.mark.parametrize("table, letter, known", [("", "", 20), ("balance", "B", 41)])
def test_each_fault_known_at_the_start_has_a_row(table, letter, known):
    matches = [re.match(rf"{letter}(\d+)", row[0]) for row in ROWS[table]]
    assert {int(match[1]) for match in matches if match} == set(range(1, known + 1))


@pytest.mark.parametrize("table", COLUMNS)
def test_rows(table):
    assert len({row[0] for row in ROWS[table]}) == len(ROWS[table]) > 0
    for row in ROWS[table]:
        assert len(row) == COLUMNS[table] and all(cell.endswith(".") for cell in row[1:-1]), row
        tested = re.search(rf"{TEST}|check_", row[-1])
        assert tested or re.match(r"no: \w+", row[-1]), f"{row[0]}: expected a test, or the reason for none"
        assert "later: " not in row[-1], f"{row[0]}: expected its test now"


@pytest.mark.parametrize("table, name", NAMED)
def test_a_named_test_exists(table, name):
    path, _, function = name.partition("::")
    assert {function} - {""} <= defined(table or "..", path)


def test_what_is_there_for_the_tables_stands_in_them():
    faults = {name for table, name in NAMED if table == "balance" and name.startswith("test_faults.py")}
    assert faults == {f"test_faults.py::{name}" for name in defined("balance", "test_faults.py")}
    checks = {word for row in ROWS["distributed"] for word in re.findall(r"\bcheck_\w+", row[-1])}
    assert checks == {check.__name__ for check in CHECKS}
