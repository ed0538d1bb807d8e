"""Each row of examples/coming_from.md runs as it stands there, and what it calls absent is absent."""

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest

from minigrad.errors import AbsentModuleError, AbsentNameError

PAGE = (Path(__file__).parents[2] / "examples" / "coming_from.md").read_text()
[PRELUDE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = {
    f"{number}: {cells[0]}": cells[1:]
    for number, line in enumerate(PAGE.splitlines(), 1)
    if line.startswith("|") and not re.match(r"\|(-| there )", line)
    for cells in [[cell.strip() for cell in line.strip("|").split(" | ")]]
}


def runs(text, names):
    """Runs statements; a comparison has to be true."""
    [*_, last] = ast.parse(text).body
    if isinstance(getattr(last, "value", None), ast.Compare):
        assert eval(compile(text, "coming_from.md", "eval"), names), text
    else:
        exec(compile(text, "coming_from.md", "exec"), names)


@pytest.mark.parametrize("row", ROWS)
def test_a_row(row):
    here, different = ROWS[row]
    codes, names = re.findall(r"`([^`]+)`", here), {}
    assert codes, "expected code in the second column"
    exec(compile(PRELUDE, "coming_from.md", "exec"), names)
    if here.startswith("absent"):
        with pytest.raises((AbsentNameError, AbsentModuleError), match=": expected .*, got .*: ."):
            runs(codes.pop(0), names)  # and says what to write, or that there is nothing like it
    warns = pytest.warns(DeprecationWarning) if "DeprecationWarning" in different else contextlib.nullcontext()
    with contextlib.redirect_stderr(io.StringIO()), warns:
        for code in codes:
            runs(code, names)


def test_the_page_has_a_table_for_each_framework():
    sections = re.findall(r"^## (\w+)", PAGE, re.MULTILINE)
    assert sections == ["flodl", "ferrotorch", "entrenar", "PyTorch"]
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert {len(line.strip("|").split(" | ")) for line in lines if not line.startswith("|-")} == {3} and len(ROWS) > 100
    assert any(here.startswith("absent") for here, _ in ROWS.values())
