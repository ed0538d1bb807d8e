"""The bucket plan: which range of the flat gradients travels in which collective. Pure.

A bucket is a contiguous range of one flat buffer that holds whole, trainable parameters. Entries come buffer by
buffer, and in each in reverse order of registration, in which backward completes gradients: of one buffer the first
bucket is ready first. With several dtypes, so buffers, those of a later one wait until those of the earlier ones are
out. The first is small, so that communication starts early (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from minigrad.arguments import as_integer
from minigrad.errors import ArgumentError, ReplicaMismatchError

MIB = 1024 * 1024
DEFAULT_CAP_BYTES = 25 * MIB
DEFAULT_FIRST_CAP_BYTES = 1 * MIB


@dataclass(frozen=True)
class Entry:
    """Where the gradient of one parameter lies.

    Attributes:
        name: Dotted name in the module.
        buffer: Number of its flat buffer.
        start, stop: Its elements in that buffer; stop includes the padding behind it, to the next multiple of
            64 bytes, where the next one starts.
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
        if plan.id != plan_id_of(plan.names, plan.buckets):
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
        cap_bytes: Largest bucket, with its padding, > 0.
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
    return BucketPlan(names, buckets, plan_id_of(names, buckets))


def _fits(entries: Sequence[Entry], group: list[int], i: int, cap: int) -> bool:
    first, last, new = entries[group[0]], entries[group[-1]], entries[i]
    follows = last.buffer == new.buffer and last.stop == new.start
    return follows and (new.stop - first.start) * new.itemsize <= cap


def _bucket(index: int, entries: Sequence[Entry], group: list[int]) -> Bucket:
    first, last = entries[group[0]], entries[group[-1]]
    nbytes = (last.stop - first.start) * first.itemsize
    return Bucket(index, first.buffer, first.start, last.stop, tuple(group), nbytes)


def plan_id_of(names: tuple[str, ...], buckets: tuple[Bucket, ...]) -> str:
    """The id of a plan."""
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
    for index, bucket in enumerate(plan.buckets):
        if _bucket(index, entries, list(bucket.entries)) != bucket:
            raise ReplicaMismatchError(f"bucket plan: expected bucket {bucket.index} to cover its parameters exactly")
        steps = zip(bucket.entries, bucket.entries[1:])
        if not all(_fits(entries, [a], b, bucket.nbytes) for a, b in steps):
            raise ReplicaMismatchError(f"bucket plan: expected the parameters of bucket {bucket.index} side by side")
