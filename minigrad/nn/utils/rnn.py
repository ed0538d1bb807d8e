"""What `torch.nn.utils.rnn` has for batches of sequences of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.absent import absent
from minigrad.arguments import as_sequence, check_choice, check_switch
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.join import pad, stack
from minigrad.tensor import Tensor

__all__ = ["pad_sequence"]


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
