"""Texts as integers, one for each character, and sequences cut out of them to learn what comes next."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, check_switch
from minigrad.data.dataset import Dataset, as_indices, check_index, check_index_range
from minigrad.data.order import Indices
from minigrad.errors import ArgumentError
from minigrad.tensor import Tensor

IGNORED = -100  # the target of a place that has none: what losses leave out by default
UNKNOWN = "\ufffd"  # the last of a vocabulary: what stands for a character that is not in it


@dataclass(frozen=True, repr=False)
class Text:
    """A text in two parts, each character as its place in a vocabulary.

    Attributes:
        train: Documents to train on, by name: int64 in [0, len(vocabulary)).
        held_out: Documents to test on, of which no section stands in `train`.
        vocabulary: The characters, sorted, and last `UNKNOWN` where there are others.
        length: Characters of the whole text, before anything was left out.
        sha256: Of the whole text, 64 hexadecimal digits: where it is the same, so are the parts of a seed.
        replaced: How often each character that is not in the vocabulary was replaced by `UNKNOWN`, in both parts.
    """

    train: Mapping[str, Indices]
    held_out: Mapping[str, Indices]
    vocabulary: str
    length: int
    sha256: str
    replaced: Mapping[str, int]

    def encode(self, characters: str) -> Indices:
        """The place of each character in the vocabulary, int64.

        Raises:
            ArgumentError: no str, or a character that is not in it: the error names all of them.
        """
        if not isinstance(characters, str):
            raise ArgumentError(f"Text.encode: expected a text, got {type(characters).__name__}")
        missing = sorted(set(characters) - set(self.vocabulary))
        if missing:
            raise ArgumentError(f"Text.encode: expected characters of the vocabulary, got {''.join(missing)!r}")
        return encoded(characters, self.vocabulary)

    def decode(self, codes: Any) -> str:
        """The characters at these places of the vocabulary: of integers, an array or a tensor of one axis.

        Raises:
            DtypeError: no integers in a row. IndexRangeError: one outside the vocabulary.
        """
        places = as_indices("Text.decode", codes.numpy() if isinstance(codes, Tensor) else codes)
        check_index_range("Text.decode", places, 0, len(self.vocabulary))
        return "".join(self.vocabulary[place] for place in places.tolist())

    def __repr__(self) -> str:
        parts = (f"{name}={sum(map(len, part.values()))}" for name, part in self._parts())
        more = f", replaced={dict(self.replaced)}" if self.replaced else ""
        words = f"length={self.length}, {', '.join(parts)}, vocabulary={len(self.vocabulary)}"
        return f"Text({words}, sha256={self.sha256[:16]}{more})"

    def _parts(self) -> tuple[tuple[str, Mapping[str, Indices]], ...]:
        return ("train", self.train), ("held_out", self.held_out)


def encoded(characters: str, vocabulary: str) -> Indices:
    """The place of each character in a vocabulary, that of `UNKNOWN` where it has none."""
    codes = {character: place for place, character in enumerate(vocabulary)}
    unknown = codes.get(UNKNOWN, -1)
    return np.fromiter((codes.get(character, unknown) for character in characters), np.int64, len(characters))


class Sequences(Dataset):
    """Sequences of equal length out of documents, each with what follows at every place: (tokens, targets).

    Sequences of a document start at 0, stride, 2 · stride, ... and end with the first that reaches its end, so that
    every token but the first is a target. That one may be too short: it is filled up with token 0, whose target is
    -100, which `cross_entropy` leaves out. A loss is then a mean over the targets that are not, which is what ranks
    weigh their gradients by: `with ddp.samples((targets != -100).sum().item())`.

    Args:
        documents: Of each the tokens, integers >= 0; no sequence goes from one to the next. A dict's values count.
        length: Of a sequence, >= 1.
        stride: From one start to the next, in [1, length]; by default the length.
        once: Every token is a target once, in the first sequence where it is one, so that a later one only gives it
            more to look back on: for an evaluation in sequences that overlap.

    Raises:
        ArgumentError: a length or a stride out of range, or no document of at least two tokens.
        DtypeError: a document that is no row of integers.

    Example:
        >>> sequences = Sequences([np.arange(6)], length=3)
        >>> [targets.tolist() for tokens, targets in sequences]
        [[1, 2, 3], [4, 5, -100]]
    """

    def __init__(
        self,
        documents: Iterable[Any] | Mapping[Any, Any],
        length: int,
        stride: int | None = None,
        *,
        once: bool = False,
    ) -> None:
        self.length = as_integer("Sequences", "length", length, 1)
        self.stride = self.length if stride is None else as_integer("Sequences", "stride", stride, 1, self.length + 1)
        check_switch("Sequences", once=once)
        self.once = once
        rows = documents.values() if isinstance(documents, Mapping) else documents
        self._documents = [as_indices("Sequences", row.numpy() if isinstance(row, Tensor) else row) for row in rows]
        self._documents = [row for row in self._documents if len(row) > 1]
        if not self._documents:
            raise ArgumentError("Sequences: expected a document of at least two tokens, got none")
        counts = [1 + -(-max(len(row) - 1 - self.length, 0) // self.stride) for row in self._documents]
        self._ends = np.cumsum(counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> tuple[Indices, Indices]:
        check_index("Sequences", index, len(self))
        tokens, targets = self.read([index])
        return tokens[0], targets[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Indices, Indices]]:
        return list(zip(*self.read(indices)))

    def read(self, indices: Sequence[int] | Indices) -> tuple[Indices, Indices]:
        """Many sequences at once: their tokens and their targets, (N, length) each."""
        places = as_indices("Sequences", indices)
        check_index_range("Sequences", places, -len(self), len(self))
        tokens = np.zeros((len(places), self.length), np.int64)
        targets = np.full((len(places), self.length), IGNORED, np.int64)
        for row, place in enumerate((places % len(self)).tolist()):
            which = bisect_right(self._ends, place)
            first = place - (int(self._ends[which - 1]) if which else 0)
            start = first * self.stride
            part = self._documents[which][start : start + self.length + 1]
            tokens[row, : min(len(part), self.length)] = part[: self.length]
            again = self.length - self.stride if self.once and first else 0
            targets[row, again : len(part) - 1] = part[1 + again :]
        return tokens, targets
