"""Which errors the tests expect, of which function: `python -m pytest -p tests.error_pairs --error-pairs=FILE`.

A pair is a function of ours, the first that a test called on the way to what `pytest.raises` or the contract of
communicators caught, and the class of the error. `python -m tests.error_pairs BEFORE AFTER` says which pairs of one
file the other has lost, and won: tests may get fewer, pairs may not.
"""

import contextlib
import os
import sys
from pathlib import Path

import pytest

import minigrad
from minigrad.testing import contract, endings, messages, rooted

OURS, TESTS = (f"{Path(module).parent}{os.sep}" for module in (minigrad.__file__, __file__))
CALLERS = (TESTS, contract.__file__, endings.__file__, messages.__file__, rooted.__file__)
_pairs = set()


def pytest_addoption(parser):
    parser.addoption("--error-pairs", metavar="FILE", help="where to write the pairs that were seen")


def pytest_configure(config):
    if config.getoption("--error-pairs"):
        kind = type(pytest.raises(Exception))
        kind.__exit__ = _watched(kind.__exit__)
        contract.refused = endings.refused = messages.refused = rooted.refused = _watched_within(contract.refused)


def pytest_unconfigure(config):
    path = config.getoption("--error-pairs")
    if path:
        Path(path).write_text("".join(sorted(f"{function} {error}\n" for function, error in _pairs)))


def _watched(leave):
    def __exit__(context, kind, error, traceback):
        if error is not None:
            _pairs.add((_called(traceback), kind.__name__))
        return leave(context, kind, error, traceback)

    return __exit__


def _watched_within(refused):
    @contextlib.contextmanager
    def within(*args):
        with refused(*args) as said:
            try:
                yield said
            except Exception as error:
                _pairs.add((_called(error.__traceback__, CALLERS), type(error).__name__))
                raise

    return within


def _called(traceback, tests=TESTS):
    """The first function of ours after the last one of the tests; "?" where none is in between."""
    found = "?"
    while traceback is not None:
        code = traceback.tb_frame.f_code
        path = os.path.realpath(code.co_filename)
        if path.startswith(tests):
            found = "?"
        elif found == "?" and path.startswith(OURS):
            found = getattr(code, "co_qualname", code.co_name)
        traceback = traceback.tb_next
    return found


def main(before, after):
    old, new = (set(Path(path).read_text().splitlines()) for path in (before, after))
    for pair in sorted(old - new):
        print("lost", pair)
    for pair in sorted(new - old):
        print("won", pair)
    print(f"{len(old)} pairs before, {len(new)} after, {len(old - new)} lost")
    return bool(old - new)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
