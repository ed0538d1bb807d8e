"""Whether minigrad, in this process, is what stands in its files: who changes it can have any grade."""

from __future__ import annotations

import ast
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
)  # what a grade is made with
ELSEWHERE = ("minigrad.distributed.comm.mpi.", "minigrad.distributed.comm.nccl.")  # of no matter here
Written = tuple[dict[str, CodeType], list[tuple[str, str, str]]]  # functions; names, from which module, and which there
_read: dict[str, Written] = {}


def changed_functions() -> list[str]:
    """The functions that a grade relies on and that are others than those in minigrad's files, by name.

    What was put in the place of functions, methods, and imported functions and classes is found; other values are not,
    nor what was written into the files before they were read.
    """
    found = []
    for name, module in sorted(sys.modules.items()):
        relied_on = f"{name}.".startswith(RELIED_ON) and not f"{name}.".startswith(ELSEWHERE)
        if relied_on and getattr(module, "__file__", None):
            found += [f"{name}.{what}" for what in _changed_in(module)]
    return found


def _changed_in(module: ModuleType) -> Iterator[str]:
    functions, imported = _written(str(module.__file__))
    for name, code in functions.items():
        if _live(module, name) != code:
            yield name
    for name, source, there in imported:
        home = sys.modules.get(source)
        if home is not None and hasattr(home, there) and getattr(module, name, None) is not getattr(home, there):
            yield name


def _written(path: str) -> Written:
    """What a file defines, but for what it defines twice, and what it imports from minigrad."""
    if path not in _read:
        tree = ast.parse(Path(path).read_bytes(), path)
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        from_us = [node for node in imports if node.module and node.module.startswith("minigrad.")]
        imported = [(one.asname or one.name, str(node.module), one.name) for node in from_us for one in node.names]
        codes, twice = dict[str, CodeType](), set[str]()
        for name, code in _codes(compile(tree, path, "exec", dont_inherit=True), ""):
            twice |= {name} & codes.keys()
            codes[name] = code
        for name in twice:
            del codes[name]
        _read[path] = codes, imported
    return _read[path]


def _codes(code: CodeType, prefix: str) -> Iterator[tuple[str, CodeType]]:
    for const in code.co_consts:
        if isinstance(const, CodeType) and not const.co_name.startswith("<"):
            name = f"{prefix}{const.co_name}"
            if "__qualname__" in const.co_names:  # the body of a class
                yield from _codes(const, f"{name}.")
            else:
                yield name, const


def _live(module: ModuleType, name: str) -> CodeType | None:
    """The code behind a name now, and behind what a decorator made of it; None where no function is."""
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
