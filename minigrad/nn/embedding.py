"""Embedding: a table of learned vectors."""

from __future__ import annotations

import numpy as np

from minigrad.arguments import as_integer, check_counts, check_switch
from minigrad.backend.device import Device
from minigrad.backend.dtypes import DtypeLike, is_float
from minigrad.errors import DtypeError, ShapeError
from minigrad.nn import init
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter, zero_parameter
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
        self._note_sizes(num_embeddings, embedding_dim, padding_idx)
        self.weight = zero_parameter((num_embeddings, embedding_dim), device, dtype)
        self.reset_parameters(rng)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None) -> Embedding:
        """A layer on given rows, whose memory it takes; they are not trained unless freeze is False.

        Shapes:
            embeddings: (num_embeddings, embedding_dim)

        Raises:
            ShapeError: not two axes. DtypeError: no float tensor. ArgumentError: padding_idx out of range.
        """
        who = "Embedding.from_pretrained"
        if not isinstance(embeddings, Tensor) or not is_float(embeddings.dtype):
            got = embeddings.dtype.name if isinstance(embeddings, Tensor) else type(embeddings).__name__
            raise DtypeError(f"{who}: expected a float tensor, got {got}")
        if embeddings.ndim != 2:
            raise ShapeError(f"{who}: expected embeddings of shape (rows, columns), got {embeddings.shape}")
        check_switch(who, freeze=freeze)
        layer = cls.__new__(cls)
        Module.__init__(layer)
        layer._note_sizes(embeddings.shape[0], embeddings.shape[1], padding_idx)
        layer.weight = Parameter(embeddings, requires_grad=not freeze)
        return layer

    def _note_sizes(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None) -> None:
        check_counts("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        if padding_idx is not None:
            padding_idx = as_integer("Embedding", "padding_idx", padding_idx, -num_embeddings, num_embeddings)
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx

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
