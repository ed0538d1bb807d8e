"""A batch in parts: cut for the replicas, put together again, or in shards from the start. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigrad.backend.device import Device
from minigrad.data.collate import map_tensors
from minigrad.errors import ArgumentError, ShapeError
from minigrad.ops.join import cat, narrow
from minigrad.tensor import Tensor, tensors_in


def count_samples(who: str, inputs: Mapping[str, Any]) -> int:
    """The length of the first axis, which all tensors among the inputs have to share.

    Raises:
        ShapeError: lengths that differ, or a tensor of no axes; they are named.
        ArgumentError: no tensor.
    """
    shapes = [(name, tensor.shape) for name, value in inputs.items() for tensor in tensors_in(value)]
    if not shapes:
        raise ArgumentError(f"{who}: expected a tensor among the inputs {', '.join(inputs)}, got none")
    if len({shape[:1] for _, shape in shapes}) > 1 or not shapes[0][1]:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes)
        raise ShapeError(f"{who}: expected inputs with one sample a row, as many in each, got {listed}")
    return shapes[0][1][0]


def scatter(inputs: Sequence[Any], sizes: Sequence[int], devices: Sequence[Device]) -> list[list[Any]]:
    """The inputs of each replica: consecutive rows, on its device; what is no tensor goes to all as it is.

    Args:
        inputs: Whose tensors have sum(sizes) rows.
        sizes: Rows of each replica; 0 leaves it out, but the first where all are 0.
    """
    total, start, parts = sum(sizes), 0, []
    for rank, (size, device) in enumerate(zip(sizes, devices)):
        here = slice(start, start + size)
        parts.append([map_tensors(lambda x: _rows(x, here, total, device), x) for x in inputs] if size else [])
        start += size
    if not total:
        parts[0] = [map_tensors(lambda x: x.to(devices[0]), x) for x in inputs]
    return parts


def _rows(x: Tensor, rows: slice, total: int, device: Device) -> Tensor:
    size = rows.stop - rows.start
    return (x if size == total else narrow(x, 0, rows.start, size)).to(device)


def gather(who: str, parts: Sequence[Any], sizes: Sequence[int], device: Device) -> Any:
    """What replicas returned as one value on one device, row after row: tensors, or tuples, lists and mappings of them.

    Args:
        parts: Of the replicas that had samples.
        sizes: The rows of each of them.

    Raises:
        ShapeError: a tensor that does not have a row for each sample, so nobody can say what all of them make.
        ArgumentError: parts of different forms, or something else than tensors that is not the same in all of them.
    """
    first = parts[0]
    _check_form(who, parts)
    if isinstance(first, Tensor):
        for part, size in zip(parts, sizes):
            if part.shape[:1] != (size,):
                raise ShapeError(
                    f"{who}: expected a row for each of {size} samples, got shape {part.shape}: "
                    "take means and sums over samples outside of the graph"
                )
        there = [part.to(device) for part in parts]
        return there[0] if len(there) == 1 else cat(there, 0)
    if isinstance(first, Mapping):
        return {key: gather(who, [part[key] for part in parts], sizes, device) for key in first}
    if isinstance(first, (tuple, list)):
        if not any(True for _ in tensors_in(first)) and isinstance(first, list):
            return [item for part in parts for item in part]
        fields = [gather(who, field, sizes, device) for field in zip(*parts)]
        return type(first)(*fields) if hasattr(first, "_fields") else type(first)(fields)
    if any(part != first for part in parts):
        raise ArgumentError(f"{who}: expected tensors, or a value that all replicas share, got {list(parts)!r}")
    return first


def _check_form(who: str, parts: Sequence[Any]) -> None:
    """Refuse parts that can't be put together field by field."""
    forms = [_form(part) for part in parts]
    for form in forms:
        if form != forms[0]:
            raise ArgumentError(f"{who}: expected the same form on all devices, got {forms[0]} and {form}")


def _form(value: Any) -> str:
    """The type of a value and the fields that it has, in words; texts and the like have as many as samples."""
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return f"{kind} of {', '.join(sorted(map(str, value)))}"
    if isinstance(value, tuple) or (isinstance(value, list) and any(True for _ in tensors_in(value))):
        return f"{kind} of {len(value)}"
    return kind


class ShardedBatch:
    """A batch whose shards came from one loader a device; it is read like a batch, and scattered as it is.

    `batch[1]`, `batch["label"]` and `image, label = batch` give fields with the rows of all shards, the first device's
    first: in the order of the outputs of `forward_batch`. They are put together when they are asked for.

    Args:
        shards: A batch for each device, None where its loader has ended.
        sizes: The samples of each.
        device: Where fields are put together.

    Raises:
        ArgumentError: shards of different forms.
    """

    def __init__(self, shards: Sequence[Any], sizes: Sequence[int], device: Device) -> None:
        self.shards, self.sizes, self._device = tuple(shards), tuple(sizes), device
        self._present = [(shard, size) for shard, size in zip(self.shards, self.sizes) if size]
        _check_form("ShardedBatch", [shard for shard, _ in self._present])

    def whole(self) -> Any:
        """The batch, put together."""
        return self._gather([shard for shard, _ in self._present])

    def keys(self) -> list[Any]:
        """The names of the fields, where they have names."""
        return list(self._present[0][0])

    def __getitem__(self, field: Any) -> Any:
        return self._gather([shard[field] for shard, _ in self._present])

    def __iter__(self) -> Iterator[Any]:
        first = self._present[0][0]
        return iter(first) if isinstance(first, Mapping) else (self[i] for i in range(len(first)))

    def __len__(self) -> int:
        return len(self._present[0][0])

    def _gather(self, parts: Sequence[Any]) -> Any:
        return gather("ShardedBatch", parts, [size for _, size in self._present], self._device)


@dataclass(frozen=True)
class Window:
    """What El Che runs between two reductions.

    Attributes:
        batches: The whole batches of each device.
    """

    batches: tuple[tuple[Any, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Batches of each device."""
        return tuple(map(len, self.batches))


def deal(batches: Sequence[Any], counts: Sequence[int]) -> Window:
    """Batches in order, the first device's first."""
    taken = iter(batches)
    return Window(tuple(tuple(next(taken) for _ in range(count)) for count in counts))
