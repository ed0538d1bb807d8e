"""Checkpoints of a graph: its tensors in a safetensors file, with the structure that they belong to as JSON in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigrad.errors import StateDictError
from minigrad.graph import render
from minigrad.graph.wired import Wired
from minigrad.nn.module import Module
from minigrad.nn.serialize import load_file, load_metadata, save_file
from minigrad.tensor import Tensor

_KEY = "minigrad.graph"
_FORMAT = 1


@dataclass(frozen=True)
class CheckpointReport:
    """What came of loading a checkpoint.

    Attributes:
        loaded: Names of the tensors that were taken.
        skipped: Names of those in the file that were not, and why.
        missing: Names of those of the graph that the file does not have; they are as before.
    """

    loaded: tuple[str, ...]
    skipped: Mapping[str, str]
    missing: tuple[str, ...]


def save(graph: Wired, file: str | os.PathLike[str]) -> None:
    """See `GraphModule.save_checkpoint`."""
    structure = {"format": _FORMAT, "structure_hash": graph.structure_hash(), "nodes": render.node_texts(graph)}
    save_file(graph.state_dict(), file, {_KEY: json.dumps(structure)})


def load(graphs: Sequence[Wired], file: str | os.PathLike[str], strict: bool) -> CheckpointReport:
    """Load a file into a graph and its replicas; see `GraphModule.load_checkpoint`."""
    tensors = load_file(file)
    if strict:
        _check_structure(graphs[0], file)
    own = graphs[0].state_dict()
    skipped = {name: why for name, x in tensors.items() if (why := _misfit(own.get(name), x)) is not None}
    fitting = {name: x for name, x in tensors.items() if name not in skipped}
    for graph in graphs:
        Module.load_state_dict(graph, tensors if strict else fitting, strict)  # of this replica alone
    missing = tuple(name for name in own if name not in tensors)
    return CheckpointReport(tuple(name for name in own if name in fitting), skipped, missing)


def _misfit(own: Tensor | None, found: Tensor) -> str | None:
    """Why a tensor of the file can't be taken; None where it can."""
    if own is None:
        return "the graph has no tensor of this name"
    if (own.dtype, own.shape) == (found.dtype, found.shape):
        return None
    return f"expected {own.dtype.name} {own.shape}, got {found.dtype.name} {found.shape}"


def _check_structure(graph: Wired, file: str | os.PathLike[str]) -> None:
    written = _structure_of(file)
    if written["structure_hash"] != graph.structure_hash():
        raise StateDictError(
            f"load_checkpoint: expected structure {graph.structure_hash()[:8]}, got {written['structure_hash'][:8]} in "
            f"{os.fspath(file)}{_differences(render.node_texts(graph), written['nodes'])}\n"
            "strict=False takes every tensor that fits by name, shape and dtype"
        )


def _structure_of(file: str | os.PathLike[str]) -> dict[str, Any]:
    text = load_metadata(file).get(_KEY)
    try:
        found = json.loads(text or "null")
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise StateDictError(
            f"load_checkpoint: expected a file with the structure of a Graph, format {_FORMAT}, got {os.fspath(file)} "
            "without it: pass strict=False to take every tensor that fits"
        )
    return found


def _differences(own: Mapping[str, str], written: Mapping[str, str]) -> str:
    """A line for each node that is in one of the structures only, or differs."""
    lines = [
        f"{name}: expected {own.get(name, 'no such node')}, got {written.get(name, 'no such node')}"
        for name in dict.fromkeys((*own, *written))
        if own.get(name) != written.get(name)
    ]
    return "".join(f"\n  {line}" for line in lines)
