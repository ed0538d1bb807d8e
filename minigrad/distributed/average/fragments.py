"""Fragments: the parts of the flat layout that an outer optimizer combines at different steps. Pure.

Streaming them spreads the traffic over a period: with F fragments each step that combines sends one F-th. Source:
Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from minigrad.arguments import as_integer, is_integer
from minigrad.errors import ArgumentError

Fragments = int | tuple[tuple[str, ...], ...]  # how many equal ones; or the parameters or modules of each, by name


class Span(NamedTuple):
    """A range of the flat layout: the number of a flat buffer, and which elements of it."""

    buffer: int
    start: int
    stop: int


class Placed(NamedTuple):
    """A parameter by its name, where it lies, and how many elements it has: the rest of its span is padding."""

    name: str
    span: Span
    numel: int


def as_fragments(who: str, name: str, value: Any) -> Fragments:
    """A number of fragments, or the names of each.

    Raises:
        ArgumentError: it is neither.
    """
    if is_integer(value):
        return as_integer(who, name, value, 1)
    if not isinstance(value, (list, tuple)) or not value:
        raise ArgumentError(
            f"{who}: expected {name} to be an integer >= 1, or names for each fragment, got {value!r:.100}"
        )
    return tuple(_as_names(who, name, each) for each in value)


def _as_names(who: str, name: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(each, str) for each in names):
        raise ArgumentError(
            f"{who}: expected each of {name} to be the names of parameters or modules, got {value!r:.100}"
        )
    return tuple(names)


def count_of(fragments: Fragments) -> int:
    """How many there are."""
    return fragments if isinstance(fragments, int) else len(fragments)


def due_at(step: int, every: int, fragments: int) -> int | None:
    """The fragment that is combined after a step: number i at steps every·(i+1)/fragments of each period.

    Args:
        step: Steps made since the beginning, >= 0.
        every: Steps of a period, a multiple of fragments.

    Returns:
        Its number, or None where none is due.

    Raises:
        ArgumentError: a period that can't be divided.

    Example:
        >>> [due_at(step, every=6, fragments=2) for step in range(10)]
        [None, None, None, 0, None, None, 1, None, None, 0]
    """
    if every % fragments:
        raise ArgumentError(
            f"fragments: expected a period that {fragments} fragments divide, got {every} steps: write "
            f"{-(-every // fragments) * fragments}"
        )
    turn, left = divmod(step, every // fragments)
    return (turn - 1) % fragments if turn and not left else None


def cut(fragments: Fragments, params: Sequence[Placed]) -> list[list[Span]]:
    """The elements of each fragment, in the order of the layout; the padding behind a parameter belongs to it.

    Args:
        fragments: Their number: cuts at equal distances, also within a parameter. Or names: each parameter belongs to
            the fragment that names it, or a module that holds it.
        params: In the order of the layout.

    Raises:
        ArgumentError: more fragments than elements; or a parameter that none or several of them name, or a name that
            no parameter has.

    Example:
        >>> params = [Placed("b.weight", Span(0, 0, 8), 4), Placed("a.weight", Span(0, 8, 16), 6)]
        >>> cut(2, params)
        [[Span(buffer=0, start=0, stop=9)], [Span(buffer=0, start=9, stop=16)]]
        >>> cut((("a",), ("b",)), params)
        [[Span(buffer=0, start=8, stop=16)], [Span(buffer=0, start=0, stop=8)]]
    """
    return _cut_evenly(fragments, params) if isinstance(fragments, int) else _cut_by_name(fragments, params)


def _cut_evenly(count: int, params: Sequence[Placed]) -> list[list[Span]]:
    total = sum(param.numel for param in params)
    if total < count:
        raise ArgumentError(f"fragments: expected at most one for each of {total} elements, got {count}")
    found = []
    for i in range(count):
        first, last = i * total // count, (i + 1) * total // count
        parts, seen = [], 0
        for _, span, elements in params:
            start, stop = max(first - seen, 0), min(last - seen, elements)
            if start < stop:
                end = span.stop if stop == elements else span.start + stop
                parts.append(Span(span.buffer, span.start + start, end))
            seen += elements
        found.append(_joined(parts))
    return found


def _cut_by_name(fragments: tuple[tuple[str, ...], ...], params: Sequence[Placed]) -> list[list[Span]]:
    for name in [name for names in fragments for name in names]:
        if not any(_holds(name, param.name) for param in params):
            raise ArgumentError(f"fragments: expected names of parameters or modules, got {name!r}, which holds none")
    found: list[list[Span]] = [[] for _ in fragments]
    for param, span, _ in params:
        mine = [i for i, names in enumerate(fragments) if any(_holds(name, param) for name in names)]
        if len(mine) != 1:
            got = f"fragments {', '.join(map(str, mine))}" if mine else "none"
            raise ArgumentError(f"fragments: expected one that has parameter {param}, got {got}")
        found[mine[0]].append(span)
    return [_joined(spans) for spans in found]


def _holds(name: str, param: str) -> bool:
    return param == name or param.startswith(f"{name}.") or not name


def _joined(spans: Iterable[Span]) -> list[Span]:
    """The same elements in as few spans as there can be."""
    found: list[Span] = []
    for span in spans:
        if found and (found[-1].buffer, found[-1].stop) == (span.buffer, span.start):
            found[-1] = found[-1]._replace(stop=span.stop)
        else:
            found.append(span)
    return found
