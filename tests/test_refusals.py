"""Every row of tests/refusals is refused with its error, in its words; no row stands there twice."""

from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

import minigrad
from minigrad import ops
from minigrad.ops import creation, sampling
from tests.refusals.operands import SAYS

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


def test_every_operation_has_a_row():
    """By who it says that it is from: an operation, or another name of the same one."""
    told = {sayer(call) for room, call, *_ in ROWS if room not in OF_OTHERS}
    names = {name: getattr(minigrad, name) for name in (*ops.__all__, *creation.__all__, *sampling.__all__)}
    known = {function for name, function in names.items() if SAYS.get(name, name) in told}
    assert sorted(name for name, function in names.items() if function not in known) == []


OF_OTHERS = ("average", "balance", "data", "distributed", "exchange", "guards", "optim", "train")  # of no operation


def sayer(call):
    """Who refuses."""
    with pytest.raises(Exception) as caught:
        call()
    return str(caught.value).partition(":")[0]


def test_no_row_twice():
    rows = [(source(call), error, words) for _, call, error, words in ROWS]
    twice = [row for row, found in zip(ROWS, rows) if rows.count(found) > 1]
    assert not twice
