"""The tables of the stand-in for CuPy against the CuPy that is installed; they need no GPU."""

import inspect

import cupy
import pytest

from tests.strict_cupy import names

DEFAULT_ONLY = {"subok", "writeable"}  # stand in CuPy's signatures, but raise with any other value than the default


@pytest.mark.parametrize(
    "table, owner",
    [
        (names.PRESENT, cupy),
        (names.LINALG, cupy.linalg),
        (names.GENERATOR, cupy.random.Generator),
        (names.METHODS, cupy.ndarray),
    ],
    ids=["functions", "linalg", "generator", "methods"],
)
def test_cupy_has_every_name_that_the_stand_in_gives(table, owner):
    assert [name for name in table if not hasattr(owner, name)] == []


def test_cupy_takes_no_keyword_that_the_stand_in_refuses():
    taken = {}
    for name, refused in names.REFUSED_KEYWORDS.items():
        function = getattr(cupy, name, None) or getattr(cupy.lib.stride_tricks, name)
        both = (refused - DEFAULT_ONLY) & inspect.signature(function).parameters.keys()
        if both:
            taken[name] = sorted(both)
    assert taken == {}
