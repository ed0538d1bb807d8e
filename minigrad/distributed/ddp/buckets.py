"""The bucket plan, which is pure: which range of the flat gradients travels in which collective. And such a range.

A bucket is a contiguous range of one flat buffer that holds whole, trainable parameters. Entries come in the order
of the layout, reverse order of registration, in which backward completes gradients, so the first bucket is ready
first; it is small, so that communication starts early (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from minigrad.arguments import as_integer
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, is_half
from minigrad.backend.fused.grad_scale import WIRES, Placement, Widened, pack, scale_, unpack
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.work import WideWork
from minigrad.errors import ArgumentError, ReplicaMismatchError
from minigrad.nn.parameter import Parameter
from minigrad.tensor import Tensor

MIB = 1024 * 1024
DEFAULT_CAP_BYTES = 25 * MIB
DEFAULT_FIRST_CAP_BYTES = 1 * MIB


@dataclass(frozen=True)
class Entry:
    """Where the gradient of one parameter lies.

    Attributes:
        name: Dotted name in the module.
        buffer: Number of its flat buffer.
        start, stop: Its elements in that buffer; stop includes the padding behind it.
        itemsize: Bytes of an element.
        trainable: Whether it is reduced at all.
    """

    name: str
    buffer: int
    start: int
    stop: int
    itemsize: int
    trainable: bool = True


@dataclass(frozen=True)
class Bucket:
    """The elements [start, stop) of one flat buffer, which hold the entries of these numbers."""

    index: int
    buffer: int
    start: int
    stop: int
    entries: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class BucketPlan:
    """All buckets, in the order in which they are launched.

    Attributes:
        names: Of the entries, trainable or not.
        id: 16 hexadecimal digits; equal exactly where entries and buckets are.
    """

    names: tuple[str, ...]
    buckets: tuple[Bucket, ...]
    id: str

    def __str__(self) -> str:
        rows = [f"bucket plan {self.id}: {len(self.buckets)} buckets"]
        for bucket in self.buckets:
            held = ", ".join(self.names[i] for i in bucket.entries)
            rows.append(f"  {bucket.index}: {bucket.nbytes} bytes, buffer {bucket.buffer}: {held}")
        return "\n".join(rows)

    def to_json(self) -> str:
        """The plan as text, for a file or another process."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> BucketPlan:
        """The plan that `to_json` wrote.

        Raises:
            ArgumentError: it is no plan, or its id does not fit its content.
        """
        try:
            raw = json.loads(text)
            buckets = tuple(Bucket(**{**b, "entries": tuple(b["entries"])}) for b in raw["buckets"])
            plan = BucketPlan(tuple(raw["names"]), buckets, raw["id"])
        except (ValueError, TypeError, KeyError) as error:
            raise ArgumentError(f"BucketPlan: expected the text of a plan, got something else: {error!r}") from error
        if plan.id != _plan_id(plan.names, plan.buckets):
            raise ArgumentError(f"BucketPlan: expected the id of its content, got {plan.id}: it was changed by hand")
        return plan


def plan_buckets(
    entries: Sequence[Entry],
    cap_bytes: int = DEFAULT_CAP_BYTES,
    first_cap_bytes: int = DEFAULT_FIRST_CAP_BYTES,
) -> BucketPlan:
    """Cut the trainable entries into buckets.

    A bucket is closed when the next entry would take it over its cap, lies in another buffer, or does not follow
    directly (a frozen parameter lies between). An entry over the cap gets a bucket of its own.

    Args:
        entries: In the order of the layout, all of one buffer in one run.
        cap_bytes: Largest bucket, > 0.
        first_cap_bytes: Largest first bucket, > 0.

    Raises:
        ArgumentError: a cap that is not positive, or something else than entries.
    """
    for name, cap in (("cap_bytes", cap_bytes), ("first_cap_bytes", first_cap_bytes)):
        as_integer("plan_buckets", name, cap, 1)
    if not isinstance(entries, Sequence) or not all(isinstance(entry, Entry) for entry in entries):
        raise ArgumentError(f"plan_buckets: expected a list of entries, got {entries!r:.100}")
    groups: list[list[int]] = []
    for i, entry in enumerate(entries):
        if not entry.trainable:
            continue
        cap = first_cap_bytes if len(groups) <= 1 else cap_bytes
        if groups and _fits(entries, groups[-1], i, cap):
            groups[-1].append(i)
        else:
            groups.append([i])
    buckets = tuple(_bucket(index, entries, group) for index, group in enumerate(groups))
    names = tuple(entry.name for entry in entries)
    return BucketPlan(names, buckets, _plan_id(names, buckets))


def _fits(entries: Sequence[Entry], group: list[int], i: int, cap: int) -> bool:
    first, last, new = entries[group[0]], entries[group[-1]], entries[i]
    follows = last.buffer == new.buffer and last.stop == new.start
    return follows and (new.stop - first.start) * new.itemsize <= cap


def _bucket(index: int, entries: Sequence[Entry], group: list[int]) -> Bucket:
    first, last = entries[group[0]], entries[group[-1]]
    nbytes = (last.stop - first.start) * first.itemsize
    return Bucket(index, first.buffer, first.start, last.stop, tuple(group), nbytes)


def _plan_id(names: tuple[str, ...], buckets: tuple[Bucket, ...]) -> str:
    text = json.dumps([names, [asdict(bucket) for bucket in buckets]])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def check_plan(plan: BucketPlan, entries: Sequence[Entry]) -> None:
    """Refuse a plan that was made for other parameters.

    Raises:
        ArgumentError: it is no plan.
        ReplicaMismatchError: names differ, or a bucket does not cover its entries, or a trainable one is in no bucket.
    """
    if not isinstance(plan, BucketPlan):
        raise ArgumentError(f"bucket plan: expected a BucketPlan, got {type(plan).__name__}")
    if plan.names != tuple(entry.name for entry in entries):
        raise ReplicaMismatchError("bucket plan: expected the parameters of this module in its order, got others")
    placed = [i for bucket in plan.buckets for i in bucket.entries]
    trainable = [i for i, entry in enumerate(entries) if entry.trainable]
    if sorted(placed) != trainable:
        raise ReplicaMismatchError("bucket plan: expected every trainable parameter in exactly one bucket")
    for bucket in plan.buckets:
        if _bucket(bucket.index, entries, list(bucket.entries)) != bucket:
            raise ReplicaMismatchError(f"bucket plan: expected bucket {bucket.index} to cover its parameters exactly")
        steps = zip(bucket.entries, bucket.entries[1:])
        if not all(_fits(entries, [a], b, bucket.nbytes) for a, b in steps):
            raise ReplicaMismatchError(f"bucket plan: expected the parameters of bucket {bucket.index} side by side")


class Waitable(Protocol):
    """What a hook returns; `Work` is one."""

    def wait(self) -> None:
        """Return once the bucket holds the sum, or is ordered before what the caller's stream does next."""


class GradBucket:
    """What a hook sees of a bucket; the same object in every pass.

    Gradients are weighted when they are first asked for: in their place by `buffer`, on their way to a wire by `pack`,
    each of which takes one read and one write of an element, or while they are summed by `all_reduce`.

    Attributes:
        layout: An id of this bucket in the plan, for `comm.all_reduce(..., layout=)`: ranks that send different
            buckets then get an error.
        sent_bytes: What `all_reduce` last handed to the communicator.
    """

    __slots__ = (
        *("layout", "sent_bytes", "_index", "_buffer", "_parameters", "_last", "_weight", "_nonfinite"),
        *("_placement", "_wide", "_is_half"),
    )

    def __init__(self, index: int, buffer: Array, parameters: Sequence[Parameter], last: bool, layout: str) -> None:
        self._index, self._buffer, self._parameters, self._last = index, buffer, list(parameters), last
        self.layout = layout
        self._weight: Array | None = None  # that the gradients in the buffer still lack
        self._nonfinite: Array | None = None
        self._placement: Placement | None = None
        self._wide: Widened | None = None
        self._is_half = is_half(buffer.dtype)
        self.sent_bytes = 0

    def begin(self, weight: Array | None, nonfinite: Array | None) -> None:
        """A pass begins.

        Args:
            weight: n_r / Σn, float64 (1,) where the gradients live; None for 1.
            nonfinite: uint32 (1,) there; becomes 1 where a weighted gradient is infinite or NaN. None looks for none.
        """
        if weight is None and nonfinite is not None:
            weight = array_module(nonfinite).ones(1, np.float64)
        self._weight, self._nonfinite = weight, nonfinite

    @property
    def count(self) -> int:
        """Elements of `buffer()`."""
        return int(self._buffer.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the gradients."""
        return self._buffer.dtype  # type: ignore[no-any-return]

    def index(self) -> int:
        """Its number in the plan, from 0."""
        return self._index

    def buffer(self) -> Array:
        """Its weighted gradients as one 1-D array, to be overwritten by their sum; padding is zero."""
        if self._weight is not None:
            scale_(self._buffer, self._weight, self._nonfinite)
            self._weight = None
        return self._buffer

    def all_reduce(self, comm: Communicator) -> Work:
        """Overwrite its weighted gradients by their sum over the ranks; before its wait they may hold anything.

        Raises:
            CollectiveMismatchError, CollectiveTimeoutError, RankFailedError: here or in its wait, as `Work.wait`.
        """
        self.sent_bytes = int(self._buffer.nbytes)
        if self._is_half and (self._nonfinite is not None or not comm.adds_weighted):
            return self._all_reduce_wide(comm)
        if self._nonfinite is not None:  # only here is each rank's own weighted gradient seen
            return comm.all_reduce(self.buffer(), layout=self.layout)
        weight, self._weight = self._weight, None
        return comm.weighted_all_reduce(self._buffer, weight, self.layout)

    def _all_reduce_wide(self, comm: Communicator) -> Work:
        if self._wide is None:
            self._wide = Widened(self._buffer, comm.empty(self.count, np.float32))
        self.sent_bytes = int(self._wide.wide.nbytes)
        weight, self._weight = self._weight, None
        return WideWork(comm, self._wide, weight, self.layout, self._nonfinite)

    def pack(self, wire: Array, factor: float = 1.0) -> None:
        """Write the weighted gradients · factor to an array of another dtype; the gradients stay as they are."""
        if wire.dtype.name in WIRES[self._buffer.dtype.name]:
            pack(self._place(), wire, self._scaled_weight(factor), self._nonfinite)
        elif self._is_half:
            wide = array_module(wire).empty(self.count, np.float32)
            pack(self._place(), wide, self._scaled_weight(factor), self._nonfinite)
            wire[...] = wide
        else:
            wire[...] = self.buffer() * factor if factor != 1.0 else self.buffer()

    def unpack(self, wire: Array, factor: float = 1.0) -> None:
        """Overwrite the gradients by what an array as `pack` fills it holds, times factor: the sum over the ranks."""
        self._weight = None
        if wire.dtype.name in WIRES[self._buffer.dtype.name]:
            unpack(wire, self._scaled_weight(factor), self._place())
        elif self._is_half:
            self._buffer[...] = wire if factor == 1.0 else wire.astype(np.float32) * np.float32(factor)
        else:
            self._buffer[...] = wire
            if factor != 1.0:
                self._buffer *= factor

    def _place(self) -> Placement:
        if self._placement is None:
            self._placement = Placement([self._buffer], [0])
        return self._placement

    def _scaled_weight(self, factor: float) -> Array:
        if self._weight is None:
            return array_module(self._buffer).full(1, factor, np.float64)
        return self._weight if factor == 1.0 else self._weight * factor

    def parameters(self) -> list[Parameter]:
        """Whose gradients it holds, in the order of the layout."""
        return list(self._parameters)

    def gradients(self) -> list[Tensor]:
        """The gradient of each parameter, in its shape; they share the memory of `buffer()`."""
        self.buffer()
        return [Tensor(param.grad_view) for param in self._parameters]

    def is_last(self) -> bool:
        """Whether no other bucket of this backward follows."""
        return self._last
