"""The collectives after which ranks hold different things, as functions of a list of arrays, like `collectives`.

Element r is rank r's. In `reduce`, `gather` and `scatter` one rank, the root, has what the others bring or get.
"""

from __future__ import annotations

from collections.abc import Sequence

from minigrad.arguments import as_integer
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import duplicate
from minigrad.distributed.collectives import ReduceOp, check_combinable, reduced
from minigrad.errors import ArgumentError, ShapeError


def reduce(arrays: Sequence[Array], root: int, op: ReduceOp = ReduceOp.SUM) -> None:
    """Overwrite the root's array by the reduction of all, with the bits of `all_reduce`; the others stay.

    Args:
        arrays: One a rank, of equal shape and dtype; none overlaps the root's.
        op: AVG needs a float dtype.

    Raises:
        ArgumentError: no array at all, or root is none of them.
        ShapeError, DtypeError: arrays of different shapes or dtypes, or AVG of integers.
    """
    check_combinable("reduce", arrays)
    as_integer("reduce", "root", root, 0, len(arrays))
    arrays[root][...] = reduced(list(map(duplicate, arrays)), op)


def gather(output: Array, sources: Sequence[Array]) -> None:
    """Overwrite the root's output by the sources of all ranks, in order of rank.

    Shapes:
        output: (world_size * n,), sources: (n,) each

    Raises:
        ArgumentError, ShapeError, DtypeError: no arrays, or some that do not fit as above.
    """
    _check_whole("gather", output, sources)
    for row, source in zip(output.reshape(len(sources), -1), sources):
        row[...] = source.reshape(-1)


def scatter(outputs: Sequence[Array], source: Array) -> None:
    """Overwrite the output of rank r by part r of the root's source.

    Shapes:
        outputs: (n,) each, source: (world_size * n,)

    Raises:
        ArgumentError, ShapeError, DtypeError: no arrays, or some that do not fit as above.
    """
    _check_whole("scatter", source, outputs)
    for output, row in zip(outputs, source.reshape(len(outputs), -1)):
        output[...] = row.reshape(output.shape)


def all_to_all(outputs: Sequence[Array], sources: Sequence[Array]) -> None:
    """Overwrite part s of the output of rank r by part r of the source of rank s.

    Shapes:
        outputs, sources: (world_size * n,) each; none overlaps another

    Raises:
        ArgumentError, ShapeError, DtypeError: no arrays, or some that do not fit as above.
    """
    check_combinable("all_to_all", [array.reshape(-1) for array in [*outputs, *sources]])
    size = len(outputs)
    if len(sources) != size or outputs[0].size % size:
        raise ShapeError(
            f"all_to_all: expected {size} sources of {size} equal parts each, got {len(sources)} of {sources[0].shape}"
        )
    for r, output in enumerate(outputs):
        for row, source in zip(output.reshape(size, -1), sources):
            row[...] = source.reshape(size, -1)[r]


def _check_whole(who: str, whole: Array, parts: Sequence[Array]) -> None:
    """Refuse a whole that is not as long as all parts together, or of another dtype."""
    if not parts:
        raise ArgumentError(f"{who}: expected at least one array, got none")
    check_combinable(who, [part.reshape(-1) for part in parts])
    if whole.size != len(parts) * parts[0].size:
        raise ShapeError(f"{who}: expected {len(parts)} x {parts[0].size} elements in all, got {whole.size}")
    check_combinable(who, [whole.reshape(-1)[:0], parts[0].reshape(-1)[:0]])
