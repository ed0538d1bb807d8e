"""Row files: what safetensors and .npy files hold as rows along the first axis, and some of these rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.dtypes import Array, as_dtype
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.nn.serialize import names_stored

ROW = ""  # the key of what a .npy file holds
_FORMATS = (".safetensors", ".npy")


class RowFile(NamedTuple):
    """A file: how many rows it has, and by key dtype and shape of one row."""

    path: str
    rows: int
    kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]

    @property
    def is_npy(self) -> bool:
        """Whether it is a .npy file, of one array."""
        return self.path.endswith(".npy")

    def read(self, keys: Sequence[str], start: int, stop: int) -> list[Array]:
        """The rows [start, stop) of each key, in memory of their own; nothing else of the file is read.

        Raises:
            ArgumentError: the file is another one than when it was described.
        """
        arrays = [_native(array) for array in _rows(self.path, keys, start, stop)]
        for key, array in zip(keys, arrays):
            expected = self.kinds[key][0], (stop - start, *self.kinds[key][1])
            if (array.dtype, array.shape) != expected:
                raise ArgumentError(
                    f"FileShards: expected {_name(self.path, key)} to stay as it was when this was made, "
                    f"got {array.dtype.name} {array.shape} for rows {start} to {stop}"
                )
        return arrays


def describe(path: str) -> RowFile:
    """What a file holds, by its header.

    Raises:
        ArgumentError: it has no rows, is damaged, or no file of such a kind.
        ShapeError: an array has no axes, or arrays have different numbers of rows.
        DtypeError: a dtype that a tensor can't have.
        FileNotFoundError: there is no file.
    """
    if not path.endswith(_FORMATS):
        hint = {".npz": ": write its arrays to a safetensors file"}.get(os.path.splitext(path)[1], "")
        raise ArgumentError(f"FileShards: expected files that end in {' or '.join(_FORMATS)}, got {path}{hint}")
    if os.path.isdir(path):
        raise ArgumentError(f"FileShards: expected files, got the folder {path}")
    shapes = _shapes(path)
    if not shapes:
        raise ArgumentError(f"FileShards: expected arrays in each file, got none in {path}")
    for key, shape in shapes.items():
        if not shape or shape[0] != next(iter(shapes.values()))[0]:
            listed = ", ".join(f"{shape} of {key!r}" if key else f"{shape}" for key, shape in shapes.items())
            raise ShapeError(f"FileShards: expected arrays with one first axis in common, got {listed} in {path}")
        if not shape[0]:
            raise ArgumentError(f"FileShards: expected at least one row in each file, got none in {path}: leave it out")
    kinds = {}
    for key, array in zip(shapes, _rows(path, list(shapes), 0, 1)):
        try:
            as_dtype(array.dtype)
        except DtypeError as error:
            raise DtypeError(f"FileShards: {_name(path, key)}: {error}") from error
        kinds[key] = _native(array).dtype, tuple(shapes[key][1:])
    return RowFile(path, next(iter(shapes.values()))[0], kinds)


def check_alike(files: Sequence[RowFile]) -> None:
    """Refuse files whose samples differ in keys, dtypes or shapes.

    Raises:
        ArgumentError, DtypeError, ShapeError: it names the first file that differs from the first one, and the key.
    """
    first = files[0]
    for file in files[1:]:
        if file.kinds.keys() != first.kinds.keys():
            ours, other = (" and ".join(map(repr, each.kinds)) for each in (first, file))
            raise ArgumentError(f"FileShards: expected the keys {ours} of {first.path}, got {other} in {file.path}")
        for key, (dtype, shape) in first.kinds.items():
            other_dtype, other_shape = file.kinds[key]
            if other_dtype != dtype:
                raise DtypeError(
                    f"FileShards: expected {dtype.name} as in {first.path}, got {other_dtype.name} "
                    f"in {_name(file.path, key)}"
                )
            if other_shape != shape:
                raise ShapeError(
                    f"FileShards: expected rows of shape {shape} as in {first.path}, got {other_shape} "
                    f"in {_name(file.path, key)}"
                )


def _name(path: str, key: str) -> str:
    return f"{key!r} of {path}" if key else path


def _native(array: Array) -> Array:
    """An array in this machine's order of bytes, in memory of its own."""
    return np.array(array, array.dtype.newbyteorder("="))


def _shapes(path: str) -> dict[str, tuple[int, ...]]:
    if path.endswith(".npy"):
        return {ROW: _open_npy(path).shape}
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            stored = _stored(file)
            return {key: tuple(file.get_slice(stored[key]).get_shape()) for key in sorted(stored)}
    except SafetensorError as error:
        raise ArgumentError(f"FileShards: expected a safetensors file, got {path}: {error}") from error


def _rows(path: str, keys: Sequence[str], start: int, stop: int) -> list[Array]:
    if path.endswith(".npy"):
        return [_open_npy(path)[start:stop]]
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            stored = _stored(file)
            return [file.get_slice(stored[key])[start:stop] for key in keys]
    except SafetensorError as error:
        raise ArgumentError(f"FileShards: expected rows {start} to {stop} of {path}, got none: {error}") from error


def _stored(file: Any) -> dict[str, str]:
    return names_stored(file.keys(), file.metadata() or {})


def _open_npy(path: str) -> Array:
    """The array of a .npy file, of which nothing is read yet; a pickle in it never is."""
    try:
        array: Array = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call, unused-ignore]
    except (ValueError, EOFError) as error:
        raise ArgumentError(f"FileShards: expected a .npy file of numbers, got {path}: {error}") from error
    return array
