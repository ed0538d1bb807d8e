"""One text of minigrad's source replaced by another, in the running program: by the code of the function it is in.

Nothing is loaded anew. The file is compiled with the other text, and the one function that holds it gets the code that
comes out, wherever it is referred to; when that is over it gets its own code back. The file stays as it is.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from minigrad.errors import ArgumentError

_AROUND = ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")  # where what wraps a function keeps it


class SourcePlace(NamedTuple):
    """Where a text stands.

    Attributes:
        file: Its path.
        line: Of its first character, from 1.
        function: That holds it, with the classes around it: `Pass._launch`.
        first_line, last_line: Of that function, its decorators included.
    """

    file: Path
    line: int
    function: str
    first_line: int
    last_line: int

    def __str__(self) -> str:
        return f"{self.file.parent.name}/{self.file.name}:{self.line}, in {self.function}"


@dataclass(frozen=True)
class Edit:
    """A text of a module that is replaced by another one.

    Args:
        module: Its dotted name, below minigrad.
        old: The text, which stands in it once, in a function.
        new: What stands there instead.

    Example:
        >>> print(Edit("distributed.ddp.combine", "samples / total if", "1.0 if").place.function)
        weight_of
    """

    module: str
    old: str
    new: str

    @property
    def place(self) -> SourcePlace:
        """Where the text stands now.

        Raises:
            ArgumentError: it does not stand in the module once, or in no function.
        """
        file, source = _source(self.module)
        if source.count(self.old) != 1:
            raise ArgumentError(
                f"Edit: expected the text {self.old!r} once in {self.module}, got {source.count(self.old)} of it: "
                "the source has changed"
            )
        begin = source.index(self.old)
        line = source.count("\n", 0, begin + len(self.old) - len(self.old.lstrip())) + 1
        for names, first, last in _functions(_tree(self.module)):
            if first <= line <= last:
                return SourcePlace(file, line, ".".join(names), first, last)
        raise ArgumentError(f"Edit: expected the text {self.old!r} in a function of {self.module}, got line {line}")

    def edited(self) -> str:
        """The module's source with the other text."""
        return _source(self.module)[1].replace(self.old, self.new)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Inside, the other text holds: for all threads of this process, and for processes that it forks.

        Raises:
            ArgumentError: see `place`; or the function can't be found in the module, or changes what it closes over.
        """
        place = self.place
        target = _target(importlib.import_module(f"minigrad.{self.module}"), place)
        kept = target.__code__
        try:
            target.__code__ = _code(self, place)
        except ValueError as error:
            raise ArgumentError(f"Edit: expected {place} to close over the same names, got {error}") from None
        try:
            yield
        finally:
            target.__code__ = kept


@functools.cache
def _source(module: str) -> tuple[Path, str]:
    try:
        spec = importlib.util.find_spec(f"minigrad.{module}")
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        raise ArgumentError(f"Edit: expected a module below minigrad, got {module!r}")
    file = Path(spec.origin)
    return file, file.read_text(encoding="utf-8")


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module)[1])


def _functions(node: ast.AST, around: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Names, first and last line of each function that lies in no other one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            yield (*around, child.name), first, child.end_lineno or child.lineno
        else:
            yield from _functions(child, (*around, child.name) if isinstance(child, ast.ClassDef) else around)


@functools.cache
def _code(edit: Edit, place: SourcePlace) -> CodeType:
    """The code of the function at a place, with the other text."""
    found: CodeType | None = compile(edit.edited(), str(place.file), "exec", dont_inherit=True)
    names = place.function.split(".")
    for i, name in enumerate(names):
        lines = {place.first_line} if i == len(names) - 1 else range(place.line + 1)
        inner = [each for each in found.co_consts if isinstance(each, CodeType)] if found is not None else []
        found = next((each for each in inner if each.co_name == name and each.co_firstlineno in lines), None)
    if found is None:
        raise ArgumentError(f"Edit: expected a function {place} to be left, got none with {edit.new!r}")
    return found


def _target(module: Any, place: SourcePlace) -> FunctionType:
    """The function object at a place, under whatever decorators."""
    *classes, name = place.function.split(".")
    holder = module
    for each in classes:
        holder = vars(holder)[each]
    found, seen = [vars(holder).get(name)], set[int]()
    while found:
        each = found.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, FunctionType) and each.__code__.co_firstlineno == place.first_line:
            if each.__code__.co_name == name:
                return each
        found += [inner for inner in (getattr(each, attribute, None) for attribute in _AROUND) if inner is not None]
        if isinstance(each, FunctionType):
            found += [cell.cell_contents for cell in each.__closure__ or () if callable(cell.cell_contents)]
    raise ArgumentError(f"Edit: expected a function {place} in {module.__name__}, got none that is not in force twice")
