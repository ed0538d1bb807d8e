"""Whether the student's code left minigrad, and what checks compare with, as they were."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

_CODE = (FunctionType, property, classmethod, staticmethod)
_VARIABLE = (dict, list, set, type(None))  # what code of ours may fill later
Values = Mapping[tuple[str, str], Any]


def values_now() -> Values:
    """The functions, methods and classes of all modules of ours, the constants of the course, and NumPy's functions."""
    modules = [(name, module) for name, module in list(sys.modules.items()) if f"{name}.".startswith("minigrad.")]
    return {
        (name, what): value
        for name, module in [*modules, ("numpy", sys.modules["numpy"])]
        for what, value in _values_of(name, module)
    }


def _values_of(name: str, module: ModuleType) -> Iterator[tuple[str, Any]]:
    of_the_course = name.startswith("minigrad.course.")
    for what, value in list(vars(module).items()):
        if what.startswith("__"):
            continue
        is_constant = of_the_course and not isinstance(value, _VARIABLE)
        if is_constant or isinstance(value, (*_CODE, type)) or (name == "numpy" and callable(value)):
            yield what, value
        if isinstance(value, type) and value.__module__ == name != "numpy":
            yield from ((f"{what}.{key}", one) for key, one in list(vars(value).items()) if isinstance(one, _CODE))


def changed_since(before: Values) -> list[str]:
    """What is something else now than it was, or is gone, by name; what is set to an equal constant is not."""
    now = values_now()
    return [".".join(key) for key, value in before.items() if now.get(key) is not value]
