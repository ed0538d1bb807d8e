"""Embedding: a table of learned vectors."""

from __future__ import annotations

import numpy as np

from minigrad.arguments import as_integer, check_counts
from minigrad.backend.device import Device
from minigrad.backend.dtypes import DtypeLike
from minigrad.nn import init
from minigrad.nn.module import Module
from minigrad.nn.parameter import zero_parameter
from minigrad.ops import families as ops
from minigrad.recording import no_grad
from minigrad.tensor import Tensor

__all__ = ["Embedding"]


class Embedding(Module):
    """The rows of a learned table that integers name; see `ops.embedding`.

    The table starts normal with standard deviation 1.

    Shapes:
        x: integers (...) -> (..., embedding_dim)
        weight: (num_embeddings, embedding_dim)

    Args:
        padding_idx: A row that starts at zero and gets no gradient, in [-num_embeddings, num_embeddings).
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size below 1, or padding_idx out of range.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        check_counts("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        if padding_idx is not None:
            padding_idx = as_integer("Embedding", "padding_idx", padding_idx, -num_embeddings, num_embeddings)
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.weight = zero_parameter((num_embeddings, embedding_dim), device, dtype)
        self.reset_parameters(rng)

    def reset_parameters(self, rng: np.random.Generator | None = None) -> None:
        """Draw initial values again."""
        init.normal_(self.weight, rng=rng)
        if self.padding_idx is not None:
            with no_grad(), self.weight.device.current():
                self.weight[self.padding_idx] = 0

    def forward(self, x: Tensor) -> Tensor:
        """The rows."""
        return ops.embedding(self.weight, x, self.padding_idx)

    def extra_repr(self) -> str:
        """The sizes."""
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"
