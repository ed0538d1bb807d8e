"""What `torch.nn.utils.rnn` has for batches of sequences of different lengths: filled up, or packed.

A packed batch holds the first row of each sequence, then the second of each that has one, and so on, the longest first:
the rows of a step lie next to each other, and no row is padding. `ops.lstm` and its kin take it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minigrad.absent import absent
from minigrad.arguments import as_integer, as_sequence, check_choice, check_switch, is_integer, kind_of
from minigrad.backend.device import CPU
from minigrad.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from minigrad.foreign import spoken
from minigrad.ops.creation import full
from minigrad.ops.index import index_select
from minigrad.ops.join import pad, stack
from minigrad.ops.steps import pick_rows, sizes_of_steps
from minigrad.tensor import Tensor

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence",
    "pad_sequence", "unpack_sequence", "unpad_sequence",
]


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Fields):
    """Sequences of different lengths without padding: `pack_padded_sequence` and `pack_sequence` make it.

    Shapes:
        data: (the sum of all lengths, ...), batch_sizes: (steps,), indices: (sequences,)

    Args:
        data: The rows of each step, one step after the other.
        batch_sizes: Integers in host memory: how many sequences each step has, which never grows.
        sorted_indices: Where each of the packed sequences, the longest first, was; None where they were there already.
        unsorted_indices: The other way round; it is made where sorted_indices alone is given.

    Raises:
        DtypeError: data is no tensor. ArgumentError: batch_sizes that are none, that grow or do not add up to the rows.
        DeviceError: batch_sizes on a GPU.
    """

    __slots__ = ()

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        who = "PackedSequence"
        if not isinstance(data, Tensor):
            raise DtypeError(f"{who}: expected data to be a tensor, got {kind_of(data)}")
        if not isinstance(batch_sizes, Tensor):
            raise ArgumentError(f"{who}: expected batch_sizes to be a tensor, got {kind_of(batch_sizes)}")
        if batch_sizes.device != CPU:
            raise DeviceError(f"{who}: expected batch_sizes on cpu, got {batch_sizes.device}: write batch_sizes.cpu()")
        sizes_of_steps(who, batch_sizes, len(data))
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *target: Any, **options: Any) -> PackedSequence:
        """With data in another dtype, or data and indices on another device; see `Tensor.to`."""
        data = self.data.to(*target, **options)
        moved = [None if one is None else one.to(data.device) for one in (self.sorted_indices, self.unsorted_indices)]
        return type(self)(data, self.batch_sizes, *moved)

    def cpu(self) -> PackedSequence:
        """In host memory."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> PackedSequence:
        """On a GPU; the first one by default."""
        return self.to(self.data.detach().cuda(device).device)

    def float(self) -> PackedSequence:
        """With data in float32."""
        return self.to("float32")

    def double(self) -> PackedSequence:
        """With data in float64."""
        return self.to("float64")

    def half(self) -> PackedSequence:
        """With data in float16."""
        return self.to("float16")

    @property
    def is_cuda(self) -> bool:
        """Whether data is on a GPU."""
        return self.data.device != CPU


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes one; None of None.

    Raises:
        DtypeError: no tensor of integers. ShapeError: not one axis.
    """
    if permutation is None:
        return None
    if not isinstance(permutation, Tensor) or permutation.dtype.kind not in "iu":
        raise DtypeError(f"invert_permutation: expected a tensor of integers, got {kind_of(permutation)}")
    if permutation.ndim != 1:
        raise ShapeError(f"invert_permutation: expected a permutation of one axis, got shape {permutation.shape}")
    return Tensor(permutation.data.argsort().astype(np.int64, copy=False))


@spoken
def pack_padded_sequence(
    x: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """A batch that was filled up, without its padding; gradients flow back, 0 at the padding.

    Shapes:
        x: (L, N, ...), (N, L, ...) with batch_first

    Args:
        lengths: Of each sequence, in [1, L]: N integers in host memory.
        enforce_sorted: Whether the longest sequence has to come first; with False they are sorted here.

    Raises:
        DtypeError: x is no tensor, or lengths are no integers. ShapeError: x has fewer than two axes.
        ArgumentError: not N lengths, one out of its range, or lengths that grow with enforce_sorted.
        DeviceError: lengths on a GPU.
    """
    who = "pack_padded_sequence"
    check_switch(who, batch_first=batch_first, enforce_sorted=enforce_sorted)
    if not isinstance(x, Tensor):
        raise DtypeError(f"{who}: expected a tensor, got {kind_of(x)}")
    if x.ndim < 2:
        raise ShapeError(f"{who}: expected x with axes for steps and sequences, got shape {x.shape}")
    count, steps = x.shape[:2] if batch_first else x.shape[1::-1]
    found = _lengths(who, lengths, count, steps)
    order = np.argsort(-found, kind="stable")
    if enforce_sorted and (np.diff(found) > 0).any():
        raise ArgumentError(
            f"{who}: expected the longest sequence first, got lengths {found.tolist()!r:.100}: "
            "write enforce_sorted=False"
        )
    step, place = np.nonzero(np.arange(found.max())[:, None] < found[order])
    sequence = order[place]
    data = pick_rows(x, (sequence, step) if batch_first else (step, sequence))
    batch_sizes = Tensor(np.bincount(step))
    if enforce_sorted:
        return PackedSequence(data, batch_sizes)
    return PackedSequence(data, batch_sizes, Tensor(order).to(x.device), Tensor(np.argsort(order)).to(x.device))


def _lengths(who: str, lengths: Any, count: int, longest: int) -> np.ndarray[Any, Any]:
    if isinstance(lengths, Tensor):
        if lengths.device != CPU:
            raise DeviceError(f"{who}: expected lengths on cpu, got {lengths.device}: write lengths.cpu()")
        lengths = lengths.data
    listed = lengths.tolist() if isinstance(lengths, np.ndarray) else lengths
    if isinstance(listed, (list, tuple)):
        listed = [one.item() if isinstance(one, Tensor) and one.numel() == 1 else one for one in listed]
    if not isinstance(listed, (list, tuple)) or not all(is_integer(one) for one in listed):
        raise DtypeError(f"{who}: expected lengths as integers, one for each sequence, got {lengths!r:.100}")
    if not count:
        raise ArgumentError(f"{who}: expected at least one sequence, got none")
    if len(listed) != count:
        raise ArgumentError(f"{who}: expected a length for each of {count} sequences, got {len(listed)}")
    if min(listed) < 1 or max(listed) > longest:
        raise ArgumentError(f"{who}: expected lengths in [1, {longest}], got {listed!r:.100}")
    return np.asarray(listed, np.int64)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """A packed batch filled up again, and the length of each sequence (int64); gradients flow back.

    Shapes:
        (L, N, ...), (N, L, ...) with batch_first, and (N,): L is the longest length, or total_length

    Args:
        padding_value: What it is filled up with.
        total_length: As many steps, where a batch in parts has to have the same everywhere.

    Raises:
        DtypeError: no PackedSequence. ArgumentError: total_length below the longest.
    """
    who = "pad_packed_sequence"
    check_switch(who, batch_first=batch_first)
    step, place, lengths = _layout(who, sequence)
    data, order = sequence.data, sequence.sorted_indices
    longest = len(sequence.batch_sizes)
    if total_length is not None:
        longest = as_integer(who, "total_length", total_length, longest)
    with data.device.current() as xp:
        steps, places = xp.asarray(step), xp.asarray(place)
        sequences = places if order is None else order.data[places]
        index = (Tensor(sequences), Tensor(steps)) if batch_first else (Tensor(steps), Tensor(sequences))
    axes = (len(lengths), longest) if batch_first else (longest, len(lengths))
    padded = full((*axes, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
    padded[index] = data
    return padded, Tensor(lengths)


def _layout(who: str, packed: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The step and the packed sequence of each row; the lengths of the sequences as they were before."""
    if not isinstance(packed, PackedSequence):
        raise DtypeError(f"{who}: expected a PackedSequence, got {kind_of(packed)}: pack_padded_sequence makes it")
    sizes = packed.batch_sizes.numpy()
    present = np.arange(sizes[0]) < sizes[:, None]
    step, place = np.nonzero(present)
    lengths = present.sum(0)
    return step, place, lengths if packed.unsorted_indices is None else lengths[packed.unsorted_indices.cpu().numpy()]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Sequences of different lengths as a packed batch; see `pack_padded_sequence`.

    Shapes:
        N tensors of (L_i, ...)

    Raises:
        ArgumentError, DtypeError, ShapeError: as `pad_sequence` and `pack_padded_sequence`.
    """
    padded = pad_sequence(sequences)
    return pack_padded_sequence(padded, [len(x) for x in sequences], enforce_sorted=enforce_sorted)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False
) -> list[Tensor]:
    """The sequences of a batch that was filled up, as views.

    Shapes:
        (L, N, ...), (N, L, ...) with batch_first -> N tensors of (L_i, ...)

    Raises:
        DtypeError, ShapeError, ArgumentError, DeviceError: as `pack_padded_sequence`.
    """
    who = "unpad_sequence"
    check_switch(who, batch_first=batch_first)
    if not isinstance(padded_sequences, Tensor):
        raise DtypeError(f"{who}: expected a tensor, got {kind_of(padded_sequences)}")
    if padded_sequences.ndim < 2:
        raise ShapeError(f"{who}: expected axes for steps and sequences, got shape {padded_sequences.shape}")
    count, steps = padded_sequences.shape[:2] if batch_first else padded_sequences.shape[1::-1]
    ends = _lengths(who, lengths, count, steps).tolist()
    if batch_first:
        return [padded_sequences[n, :end] for n, end in enumerate(ends)]
    return [padded_sequences[:end, n] for n, end in enumerate(ends)]


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed batch, in the order in which they were packed.

    Raises:
        DtypeError: no PackedSequence.
    """
    _layout("unpack_sequence", packed_sequences)
    return unpad_sequence(*pad_packed_sequence(packed_sequences, batch_first=True), batch_first=True)


def permuted(x: Tensor, indices: Tensor | None) -> Tensor:
    """The states (layers, sequences, units) of sequences in another order."""
    return x if indices is None else index_select(x, 1, indices)


def pad_sequence(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences of different lengths as one tensor, filled up to the longest; gradients flow back.

    Shapes:
        N tensors of (L_i, ...) -> (max L_i, N, ...), (N, max L_i, ...) with batch_first

    Args:
        sequences: At least one, alike but for their lengths.
        padding_value: What they are filled up with.
        padding_side: "right" fills up at the end, "left" at the beginning.

    Raises:
        ArgumentError: no list, no sequence, or an unknown side. DtypeError: something that is no tensor, or dtypes
            that differ. ShapeError: a sequence of no axes, or shapes that differ beyond the first axis.
    """
    who = "pad_sequence"
    check_switch(who, batch_first=batch_first)
    check_choice(who, ("right", "left"), padding_side=padding_side)
    found = as_sequence(who, "sequences", sequences)
    if not found:
        raise ArgumentError(f"{who}: expected at least one sequence, got none")
    for x in found:
        if not isinstance(x, Tensor):
            raise DtypeError(f"{who}: expected tensors, got {type(x).__name__}")
        if not x.ndim or x.shape[1:] != found[0].shape[1:]:
            raise ShapeError(
                f"{who}: expected sequences that differ in their first axis alone, got {found[0].shape} and {x.shape}"
            )
    longest, right = max(len(x) for x in found), padding_side == "right"
    filled = []
    for x in found:
        ends = (0, longest - len(x)) if right else (longest - len(x), 0)
        filled.append(pad(x, [0, 0] * (x.ndim - 1) + [*ends], value=padding_value))
    return stack(filled, 0 if batch_first else 1)


def __getattr__(name: str) -> Any:
    raise absent(__name__, name)
