"""`save` and `load`: nested dicts and lists of tensors and plain values in one file, as a checkpoint holds them.

The file is a safetensors file: the tensors by number, and how they are nested as JSON in its metadata. Nothing in it
is ever run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from minigrad.arguments import check_switch
from minigrad.backend.device import CPU, Device
from minigrad.errors import ArgumentError, DtypeError
from minigrad.foreign import spoken
from minigrad.nn.module import Module
from minigrad.nn.serialize import load_file, load_metadata, save_file
from minigrad.ops.foreign import array_of

_KEY = "minigrad.nested"  # of the metadata
_PLAIN = (str, bool, int, float, type(None))


@spoken
def save(obj: Any, f: str | os.PathLike[str]) -> None:
    """Write tensors, numbers, texts, None, and dicts, lists and tuples of them to a file; `load` reads it.

    An old file of that name is replaced only once the new one is whole. A dict of tensors alone, such as the
    state_dict of a module, becomes a safetensors file that any program can read.

    Args:
        obj: For example `{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}`.
        f: The path of the file.

    Raises:
        DtypeError: something else in obj, such as a module: save its state_dict().
        ArgumentError: a path that is none.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import minigrad
        >>> with TemporaryDirectory() as folder:
        ...     minigrad.save({"epoch": 3, "means": [minigrad.ones(2)]}, f"{folder}/a.pt")
        ...     minigrad.load(f"{folder}/a.pt")
        {'epoch': 3, 'means': [tensor([1., 1.], dtype=float32, device='cpu')]}
    """
    import json

    _check_path("save", f)
    if isinstance(obj, Mapping) and obj and all(isinstance(key, str) for key in obj):
        if all(array_of("save", value) is not None for value in obj.values()):
            save_file(obj, f)
            return
    tensors: dict[str, Any] = {}
    save_file(tensors, f, {_KEY: json.dumps(_described(obj, tensors, "obj"))})


def _described(value: Any, tensors: dict[str, Any], where: str) -> Any:
    """A value in JSON: a dict as its kind and pairs, a tensor as its number among the tensors."""
    if isinstance(value, _PLAIN):
        return {"value": value}
    if isinstance(value, Mapping):
        pairs = [[_described(k, tensors, where), _described(v, tensors, f"{where}[{k!r}]")] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        parts = [_described(part, tensors, f"{where}[{i}]") for i, part in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": parts}
    if not isinstance(value, Module) and array_of("save", value) is not None:
        tensors[str(len(tensors))] = value
        return {"tensor": str(len(tensors) - 1)}
    hint = ": save its state_dict()" if hasattr(value, "state_dict") else ""
    raise DtypeError(f"save: expected tensors and plain values, got {type(value).__name__} in {where}{hint}")


@spoken
def load(
    f: str | os.PathLike[str], map_location: Device | str | None = None, *, weights_only: bool = True
) -> Any:
    """Read what `save` wrote, or the tensors of any safetensors file.

    Args:
        f: The path of the file.
        map_location: Where the tensors go; the CPU by default.
        weights_only: Either: a file holds no code.

    Raises:
        StateDictError: another kind of file; of one of torch.save the message says how to convert it.
        ArgumentError: weights_only is no bool, map_location names no device, or a path that is none.
        FileNotFoundError: there is no file.
    """
    import json

    _check_path("load", f)
    check_switch("load", weights_only=weights_only)
    if not isinstance(map_location, (Device, str, type(None))):
        raise ArgumentError(f"load: expected map_location to name a device, got {type(map_location).__name__}")
    tensors = load_file(f, CPU if map_location is None else map_location)
    nested = load_metadata(f).get(_KEY)
    return tensors if nested is None else _built(json.loads(nested), tensors)


def _check_path(who: str, path: Any) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"{who}: expected a path, got {type(path).__name__}: a file on disk is read and written")


def _built(described: dict[str, Any], tensors: dict[str, Any]) -> Any:
    [(kind, content)] = described.items()
    if kind == "dict":
        return {_built(key, tensors): _built(value, tensors) for key, value in content}
    if kind in ("list", "tuple"):
        parts = [_built(part, tensors) for part in content]
        return parts if kind == "list" else tuple(parts)
    return tensors[content] if kind == "tensor" else content
