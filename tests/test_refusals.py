"""Every row of tests/refusals is refused with its error, in its words; no row stands there twice."""

from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

ROOMS = sorted(path.stem for path in (Path(__file__).parent / "refusals").glob("[a-z]*.py"))
ROWS = [(room, *row) for room in ROOMS for row in import_module(f"tests.refusals.{room}").ROWS]


def source(call):
    """What tells one call from another: a function's code, and the arguments that are already there."""
    if isinstance(call, partial):
        return source(call.func), tuple(map(source, call.args))
    code = getattr(call, "__code__", None)
    return (code.co_code, code.co_names, repr(code.co_consts), call.__closure__) if code else repr(call)


@pytest.mark.parametrize(
    "call, error, words", [row[1:] for row in ROWS], ids=[f"{row[0]}-{row[3]:.40}" for row in ROWS]
)
def test_is_refused(call, error, words):
    with pytest.raises(error, match=words or None):
        call()


def test_no_row_twice():
    rows = [(source(call), error, words) for _, call, error, words in ROWS]
    twice = [row for row, found in zip(ROWS, rows) if rows.count(found) > 1]
    assert not twice
