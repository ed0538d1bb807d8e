"""Whether minigrad, in this process, is what stands in its files: who changes it can have any mark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

RELIED_ON = (
    "minigrad.autograd.",
    "minigrad.distributed.collectives",
    "minigrad.distributed.comm.",
    "minigrad.distributed.run",
    "minigrad.distributed.simulate.",
    "minigrad.nn.module",
    "minigrad.nn.watch",
    "minigrad.tensor",
    "minigrad.testing.conformance.",
    "minigrad.testing.grading.",
)  # what a mark is made with
_compiled: dict[str, dict[str, CodeType]] = {}


def changed_functions() -> list[str]:
    """The functions that a mark relies on and that are others than those in minigrad's files, by name.

    Functions and methods that were replaced are found, not other values, and not what was written into the files.
    """
    found = []
    for name, module in sorted(sys.modules.items()):
        if f"{name}.".startswith(RELIED_ON) and getattr(module, "__file__", None):
            found += [f"{name}.{what}" for what in _changed_in(module)]
    return found


def _changed_in(module: ModuleType) -> Iterator[str]:
    written = _written(str(module.__file__))
    for name, code in written.items():
        live = _live(module, name)
        if live is not None and live != code:
            yield name


def _written(path: str) -> dict[str, CodeType]:
    """The code of each function and method of a file, by name; those of one name that is defined twice are left out."""
    if path not in _compiled:
        _compiled[path] = codes = dict[str, CodeType]()
        twice = set[str]()
        for name, code in _codes(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), ""):
            twice |= {name} & codes.keys()
            codes[name] = code
        for name in twice:
            del codes[name]
    return _compiled[path]


def _codes(code: CodeType, prefix: str) -> Iterator[tuple[str, CodeType]]:
    for const in code.co_consts:
        if isinstance(const, CodeType) and not const.co_name.startswith("<"):
            name = f"{prefix}{const.co_name}"
            if "__qualname__" in const.co_names:  # the body of a class
                yield from _codes(const, f"{name}.")
            else:
                yield name, const


def _live(module: ModuleType, name: str) -> CodeType | None:
    """The code behind a name now; None where no function is: a decorator made something of it."""
    here: Any = module
    for part in name.split("."):
        here = vars(here).get(part) if hasattr(here, "__dict__") else None
    here = getattr(here, "fget", here)
    here = getattr(here, "func", here)
    here = getattr(here, "__func__", here)
    seen = 0
    while hasattr(here, "__wrapped__") and seen < 10:
        here, seen = here.__wrapped__, seen + 1
    return here.__code__ if isinstance(here, FunctionType) else None
