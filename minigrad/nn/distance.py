"""Angles and distances of vectors, and losses on them: modules that turn pairs or triplets into numbers."""

from __future__ import annotations

from minigrad.arguments import as_integer, as_real, check_switch
from minigrad.nn.loss import Loss
from minigrad.nn.module import Module
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = [
    "CosineEmbeddingLoss", "CosineSimilarity", "HingeEmbeddingLoss", "MarginRankingLoss", "PairwiseDistance",
    "TripletMarginLoss",
]


class CosineSimilarity(Module):
    """The cosine of the angle between vectors; see `ops.cosine_similarity`.

    Args:
        dim: The axis of the vectors.
        eps: Their norms are at least that; > 0.
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim = as_integer("CosineSimilarity", "dim", dim)
        self.eps = as_real("CosineSimilarity", "eps", eps, above=0.0, finite=True)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The cosine for each pair."""
        return ops.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The norm of the difference of vectors, along the last axis; see `ops.pairwise_distance`.

    Args:
        p: Which norm.
        eps: Added to each difference.
        keepdim: Keep the last axis, with length 1.
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        check_switch("PairwiseDistance", keepdim=keepdim)
        self.norm, self.keepdim = as_real("PairwiseDistance", "p", p), keepdim
        self.eps = as_real("PairwiseDistance", "eps", eps, finite=True)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The distance for each pair."""
        return ops.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


class _MarginLoss(Loss):
    """A loss that is 0 from a margin on."""

    def __init__(self, margin: float, reduction: str) -> None:
        super().__init__(reduction)
        self.margin = as_real(self._who(), "margin", margin, finite=True)


class CosineEmbeddingLoss(_MarginLoss):
    """1 - cos of pairs that belong together, max(0, cos - margin) of others; see `ops.cosine_embedding_loss`.

    Args:
        margin: The cosine up to which the others cost nothing.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """The loss of pairs; the target is 1 or -1."""
        return ops.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class HingeEmbeddingLoss(_MarginLoss):
    """Distances of pairs that belong together, max(0, margin - x) of others; see `ops.hinge_embedding_loss`.

    Args:
        margin: The distance from which on the others cost nothing.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, margin: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of distances; the target is 1 or -1."""
        return ops.hinge_embedding_loss(input, target, self.margin, self.reduction)


class MarginRankingLoss(_MarginLoss):
    """max(0, -target · (input1 - input2) + margin), averaged; see `ops.margin_ranking_loss`.

    Args:
        margin: By how much the one is to be larger.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """The loss of pairs; the target is 1 where the first is to be larger, else -1."""
        return ops.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class TripletMarginLoss(Loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), averaged; see `ops.triplet_margin_loss`.

    Args:
        margin: > 0.
        p, eps: As in `PairwiseDistance`.
        swap: Take the distance of positive and negative where it is the smaller one.
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, *, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        check_switch("TripletMarginLoss", swap=swap)
        self.margin = as_real("TripletMarginLoss", "margin", margin, above=0.0, finite=True)
        self.p, self.swap = as_real("TripletMarginLoss", "p", p), swap
        self.eps = as_real("TripletMarginLoss", "eps", eps, finite=True)

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """The loss of triplets."""
        return ops.triplet_margin_loss(
            anchor, positive, negative, self.margin, self.p, self.eps, self.swap, self.reduction
        )
