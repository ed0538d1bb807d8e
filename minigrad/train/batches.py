"""A batch in parts: cut for the replicas, put together again, or in shards from the start. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.data.collate import map_tensors
from minigrad.data.order import largest_remainder
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


def on(device: Device, x: Tensor) -> Tensor:
    """A tensor on a device; itself where it is there."""
    return x if x.device is device else x.to(device)


def scatter(inputs: Sequence[Any], sizes: Sequence[int], devices: Sequence[Device]) -> list[list[Any]]:
    """The inputs of each replica: consecutive rows, on its device; what is no tensor goes to all as it is.

    Args:
        inputs: Whose tensors have sum(sizes) rows.
        sizes: Rows of each replica; 0 leaves it out, but the first where all are 0.
    """
    total, parts = sum(sizes), []
    for rank, device in enumerate(devices):
        take = partial(_rows, sizes=tuple(sizes), rank=rank, device=device)
        parts.append([map_tensors(take, x) for x in inputs] if sizes[rank] else [])
    if not total:
        parts[0] = [map_tensors(partial(on, devices[0]), x) for x in inputs]
    return parts


def _rows(x: Tensor, sizes: tuple[int, ...], rank: int, device: Device) -> Tensor:
    if isinstance(x, ShardedTensor) and x.is_apart and x.sizes == sizes:
        return on(device, x.shards[rank])
    size = sizes[rank]
    return on(device, x if size == sum(sizes) else narrow(x, 0, sum(sizes[:rank]), size))


Join = Callable[[Sequence[Tensor], Device], Tensor]


def _join(parts: Sequence[Tensor], device: Device) -> Tensor:
    there = [on(device, part) for part in parts]
    with device.current():
        return there[0] if len(there) == 1 else cat(there, 0)


def gather(who: str, parts: Sequence[Any], sizes: Sequence[int], device: Device, join: Join = _join) -> Any:
    """What replicas returned as one value on one device, row after row: tensors, or tuples, lists and mappings of them.

    Args:
        parts: Of the replicas that had samples.
        sizes: The rows of each of them.
        join: Makes one tensor of one a replica.

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
        return join(parts, device)
    if isinstance(first, Mapping):
        return {key: gather(who, [part[key] for part in parts], sizes, device, join) for key in first}
    if isinstance(first, (tuple, list)):
        if not any(True for _ in tensors_in(first)) and isinstance(first, list):
            return [item for part in parts for item in part]
        fields = [gather(who, field, sizes, device, join) for field in zip(*parts)]
        return type(first)(*fields) if hasattr(first, "_fields") else type(first)(fields)
    if any(part != first for part in parts):
        raise ArgumentError(f"{who}: expected tensors, or a value that all replicas share, got {list(parts)!r}")
    return first


def _check_form(who: str, parts: Sequence[Any]) -> None:
    """Refuse parts that can't be put together field by field."""
    first, *others = dict.fromkeys(map(_form, parts))
    if others:
        raise ArgumentError(f"{who}: expected the same form on all devices, got {first} and {others[0]}")


def _form(value: Any) -> str:
    """The type of a value and the fields that it has, in words; texts and the like have as many as samples."""
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return f"{kind} of {', '.join(sorted(map(str, value)))}"
    if isinstance(value, tuple) or (isinstance(value, list) and any(True for _ in tensors_in(value))):
        return f"{kind} of {len(value)}"
    return kind


def micro_batches(who: str, batch: Any, number: int, device: Device) -> list[Any]:
    """A batch in so many parts of consecutive rows, as equal as can be; without those that have no row.

    Raises:
        ShapeError, ArgumentError: see `count_samples`.
    """
    sizes = largest_remainder(count_samples(who, {"batch": batch}), [1.0 / number] * number)
    return [part[0] for part in scatter([batch], sizes, [device] * number) if part]


def check_one_batch(who: str, batch: Any) -> None:
    """Refuse the batches of a whole round where a batch is asked for; ArgumentError."""
    if isinstance(batch, Round):
        raise ArgumentError(
            f"{who}: expected a batch, got several whole ones a device, after each of which El Che runs backward: "
            "call backward_batch(batch), or set el_che=False"
        )


def check_loss(who: str, loss: Any) -> Tensor:
    """What a loss_fn returned; ShapeError where that is not one number."""
    if not isinstance(loss, Tensor) or loss.data.size != 1:
        got = f"shape {loss.shape}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ShapeError(f"{who}: expected loss_fn to return one mean loss, got {got}")
    return loss


class ShardedTensor(Tensor):
    """A field of a `ShardedBatch`, put together when somebody looks at it; a graph takes its shards as they are.

    Args:
        shards: By device, on the device of its loader; of those without rows any.
        sizes: The rows of each.
        device: Where it is put together.
    """

    __slots__ = ("shards", "sizes", "_device", "_whole")

    def __init__(self, shards: Sequence[Tensor], sizes: tuple[int, ...], device: Device) -> None:
        self.shards, self.sizes, self._device = tuple(shards), sizes, device
        super().__init__(shards[0].data)
        self._whole: Array | None = None

    @property
    def is_apart(self) -> bool:
        """Whether nobody has looked at it as a whole, who might have changed it, nor asked for its gradient."""
        return self._whole is None and not self.requires_grad

    @property
    def data(self) -> Array:
        """All rows in one array."""
        if self._whole is None:
            self._whole = _join([x for x, size in zip(self.shards, self.sizes) if size], self._device).data
        return self._whole

    @data.setter
    def data(self, value: Array) -> None:
        self._whole = value

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return (sum(self.sizes), *self.shards[0].shape[1:])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.shards[0].ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.shards[0].dtype

    @property
    def device(self) -> Device:
        """Where it is put together."""
        return self._device

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return deepcopy(Tensor(self.data, self.requires_grad), memo)


class ShardedBatch:
    """A batch whose shards came from one loader a device; it is read like a batch, and scattered as it is.

    `batch[1]`, `batch["label"]` and `image, label = batch` give fields with the rows of all shards, the first device's
    first: in the order of the outputs of `forward_batch`. They are put together when somebody looks at them: a graph
    that is called with such fields gives each device its own shard, whose rows do not travel. A field is one object,
    so what is changed in it in place stays changed.

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
        self._fields: dict[Any, Any] = {}  # that somebody has asked for
        _check_form("ShardedBatch", [shard for shard, _ in self._present])

    def shard(self, rank: int, device: Device) -> Any:
        """The batch of one device; the fields that somebody has asked for, as they are now, are there already."""
        shard = self.shards[rank]
        if not self._fields or not self.sizes[rank]:
            return shard
        take = partial(_rows, sizes=self.sizes, rank=rank, device=device)
        mine = {name: map_tensors(take, x) for name, x in self._fields.items() if any(True for _ in tensors_in(x))}
        if isinstance(shard, Mapping):
            return {**shard, **mine}
        fields = [mine.get(i, x) for i, x in enumerate(shard)]
        return type(shard)(*fields) if hasattr(shard, "_fields") else type(shard)(fields)

    def whole(self) -> Any:
        """The batch, put together."""
        return self._gather([shard for shard, _ in self._present])

    def keys(self) -> list[Any]:
        """The names of the fields, where they have names."""
        return list(self._present[0][0])

    def __getitem__(self, field: Any) -> Any:
        parts = [shard[field] for shard, _ in self._present]
        if isinstance(field, slice):
            return self._gather(parts)
        if isinstance(field, int) and field < 0 and not isinstance(self._present[0][0], Mapping):
            field += len(self)
        if field not in self._fields:
            self._fields[field] = self._gather(parts)
        return self._fields[field]

    def __iter__(self) -> Iterator[Any]:
        first = self._present[0][0]
        return iter(first) if isinstance(first, Mapping) else (self[i] for i in range(len(first)))

    def __len__(self) -> int:
        return len(self._present[0][0])

    def _gather(self, parts: Sequence[Any]) -> Any:
        sizes = [size for _, size in self._present]
        return gather("ShardedBatch", parts, sizes, self._device, self._join)

    def _join(self, parts: Sequence[Tensor], device: Device) -> Tensor:
        if any(part.requires_grad for part in parts):
            return _join(parts, device)
        present = iter(parts)
        return ShardedTensor([next(present) if size else parts[0] for size in self.sizes], self.sizes, device)


def sizes_of(inputs: Sequence[Any]) -> tuple[int, ...]:
    """The rows of each shard, where inputs came in shards; else none."""
    return next((x.sizes for x in tensors_in(list(inputs)) if isinstance(x, ShardedTensor)), ())


@dataclass(frozen=True)
class Round:
    """What El Che runs between two reductions.

    Attributes:
        batches: The whole batches of each device.
    """

    batches: tuple[tuple[Any, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Batches of each device."""
        return tuple(map(len, self.batches))

    def turns(self) -> Iterator[tuple[int, int]]:
        """The rank and the number there of each batch, in turns so that devices work side by side."""
        for number in range(max(self.counts)):
            yield from ((rank, number) for rank, count in enumerate(self.counts) if number < count)
