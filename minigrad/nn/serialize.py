"""Tensors on disk, in the safetensors format, which PyTorch programs read and write too."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.device import CPU, Device, to_device, to_host
from minigrad.backend.dtypes import as_dtype
from minigrad.backend.memory import address_of
from minigrad.errors import ArgumentError, DtypeError, StateDictError
from minigrad.ops.foreign import array_of
from minigrad.tensor import Tensor

__all__ = ["load_file", "load_metadata", "save_file"]

_Path = str | os.PathLike[str]


def save_file(tensors: Mapping[str, Any], path: _Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a safetensors file; an old file of that name is replaced only once the new one is whole.

    Of a link the file is written to which it points. What a writer of this file that was killed has left beside it is
    removed. A tensor that has several names is stored once, under the first in sorted order; the metadata maps its
    other names to that one, as in files of `safetensors.torch.save_model`.

    Args:
        tensors: Tensors or arrays by name, on any device: for example a state_dict, of PyTorch too.
        metadata: Texts to keep beside them; its names may not be those of tensors.

    Raises:
        ArgumentError: a name or a text that is no str, or one name for a tensor and a text.
        DtypeError: a value that is neither a tensor nor an array.
        OSError: the file can't be written, as on a full disk; an old one is as it was.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from minigrad import nn
        >>> net = nn.Linear(2, 1)
        >>> with TemporaryDirectory() as folder:
        ...     nn.save_file(net.state_dict(), f"{folder}/net.safetensors")
        ...     net.load_state_dict(nn.load_file(f"{folder}/net.safetensors"))
        <All keys matched successfully>
    """
    content_of(tensors, metadata or {}).write(path)


class Content(NamedTuple):
    """What a safetensors file is made of.

    Attributes:
        arrays: On the host, in C order, by name; each memory once.
        texts: The metadata, among it the further names of arrays.
    """

    arrays: dict[str, np.ndarray[Any, Any]]
    texts: dict[str, str]

    def write(self, path: _Path) -> None:
        """Write the file; see `save_file`."""
        from minigrad.nn.whole_file import replace_file

        replace_file(path, self._parts())

    def _parts(self) -> Iterator[Any]:
        """The length of the head, the head, which says where each array is, and the arrays, widest numbers first."""
        names = sorted(self.arrays, key=lambda name: (-_ORDER.index(self.arrays[name].dtype.name), name))
        head: dict[str, Any] = {"__metadata__": self.texts} if self.texts else {}
        end = 0
        for name in names:
            begin, end = end, end + self.arrays[name].nbytes
            dtype, shape = _NAMES[self.arrays[name].dtype.name], list(self.arrays[name].shape)
            head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        yield len(text).to_bytes(8, "little") + text
        for name in names:
            yield _little_endian(self.arrays[name].reshape(-1)).view(np.uint8)


_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "float16": "F16", "bfloat16": "BF16", "int32": "I32",
    "float32": "F32", "float64": "F64", "int64": "I64",
}  # of dtypes in the format
_ORDER = list(_NAMES)  # the last ones first, as the library has it


def _little_endian(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    order = array.dtype.byteorder
    return array.byteswap() if order == ">" or (order == "=" and sys.byteorder == "big") else array


def content_of(tensors: Mapping[str, Any], metadata: Mapping[str, str], copy: bool = False) -> Content:
    """What `save_file` writes.

    Args:
        copy: Whether the arrays are to have memory of their own, so that the tensors may change before it is written.
    """
    texts = dict(metadata)
    _check_names(tensors, texts)
    arrays = {name: _as_array(name, value) for name, value in tensors.items()}
    stored, aliases = _stored_once(arrays, copy)
    return Content(stored, texts | aliases)


def _check_names(tensors: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    if not isinstance(tensors, Mapping):
        raise DtypeError(f"save_file: expected a mapping of names to tensors, got {type(tensors).__name__}")
    for name, text in texts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ArgumentError(f"save_file: expected metadata of names and texts, got {name!r}: {text!r}")
    for name in tensors:
        if not isinstance(name, str) or name in texts or name == "__metadata__":
            raise ArgumentError(f"save_file: expected names (str) that the metadata does not have, got {name!r}")


def _as_array(name: str, value: Any) -> Any:
    array = array_of(f"save_file: {name!r}", value)
    if array is None:
        raise DtypeError(f"save_file: expected a tensor for {name!r}, got {type(value).__name__}")
    try:
        as_dtype(array.dtype)
    except DtypeError as error:
        raise DtypeError(f"save_file: {name!r}: {error}") from error
    return array


def _stored_once(arrays: Mapping[str, Any], copy: bool) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """The arrays on the host, contiguous, each memory once; and the further names of those left out."""
    first: dict[tuple[Any, ...], str] = {}
    stored, aliases = {}, {}
    for name in sorted(arrays):
        array = arrays[name]
        kept = first.setdefault(_memory(array), name) if array.size else name
        if kept == name:
            host = np.asarray(to_host(array), order="C")
            shares = isinstance(array, np.ndarray) and np.may_share_memory(host, array)
            stored[name] = host.copy() if copy and shares else host
        else:
            aliases[name] = kept
    return stored, aliases


def _memory(array: Any) -> tuple[Any, ...]:
    """What two arrays share exactly when they are the same elements in the same memory."""
    return address_of(array), array.shape, array.strides, array.dtype


def load_file(path: _Path, device: Device | str = CPU) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, by name, into memory of their own.

    Args:
        path: A file written by `save_file`, by `safetensors.torch`, or by any other program.

    Raises:
        StateDictError: the file is no safetensors file, or holds a dtype that a tensor can't have. Of a file of
            torch.save the message says how to convert it: reading a pickle would run what is in it.
        FileNotFoundError: there is no file.
    """
    return read_file(path, device)[0]


def read_file(path: _Path, device: Device | str = CPU) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and the texts beside them, of one and the same file; see `load_file`."""
    from safetensors import SafetensorError, safe_open

    _check_no_folder("load_file", path)
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}
            texts = dict(file.metadata() or {})
        tensors = {name: Tensor(to_device(np.array(array), Device(device))) for name, array in arrays.items()}
    except (SafetensorError, DtypeError) as error:
        found = _what_it_is(path, error)
        raise StateDictError(f"load_file: expected a safetensors file of known dtypes, got {found}") from error
    return {name: tensors[stored] for name, stored in names_stored(tensors, texts).items()}, texts


def names_stored(names: Iterable[str], texts: Mapping[str, str]) -> dict[str, str]:
    """All names of the tensors in a file, with the one under which each is stored; see `save_file`."""
    stored = {name: name for name in names}
    return stored | {name: kept for name, kept in texts.items() if kept in stored and name not in stored}


def load_metadata(path: _Path) -> dict[str, str]:
    """Read the texts that `save_file` kept beside the tensors of a safetensors file, without reading these.

    Raises:
        StateDictError: the file is no safetensors file.
        FileNotFoundError: there is no file.
    """
    from safetensors import SafetensorError, safe_open

    _check_no_folder("load_metadata", path)
    try:
        with safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise StateDictError(f"load_metadata: expected a safetensors file, got {_what_it_is(path, error)}") from error


def _check_no_folder(who: str, path: _Path) -> None:
    if os.path.isdir(path):
        raise StateDictError(f"{who}: expected a safetensors file, got the folder {os.fspath(path)}")


def _what_it_is(path: _Path, error: Exception) -> str:
    """A file that could not be read as safetensors, in words; of one that torch.save wrote, how to convert it."""
    import zipfile

    with open(path, "rb") as file:
        pickled = "a pickle" if file.read(1) == b"\x80" else ""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            pickled = "a zip file around a pickle" if any(n.endswith("/data.pkl") for n in archive.namelist()) else ""
    if not pickled:
        return f"{path}: {error}"
    name, converted = os.fspath(path), os.fspath(Path(path).with_suffix(".safetensors"))
    return (
        f"{path}, {pickled}, as torch.save writes: convert it where PyTorch is, by "
        f"safetensors.torch.save_file(torch.load({name!r}, weights_only=True), {converted!r}); "
        "nn.save_file takes tensors that share memory too; of a whole checkpoint give either the state_dict in it"
    )
