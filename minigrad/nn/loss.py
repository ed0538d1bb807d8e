"""Losses: modules that turn predictions and targets into one number."""

from __future__ import annotations

from minigrad.arguments import check_choice, check_real
from minigrad.errors import DtypeError
from minigrad.nn.module import Module
from minigrad.nn.parameter import Buffer
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss", "NLLLoss"]


class _Loss(Module):
    """What all losses share: how the losses of single elements become one number."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        check_choice(self._who(), ("mean", "sum", "none"), reduction=reduction)
        self.reduction = reduction

    def _weight(self, name: str, weight: Tensor | None) -> Buffer | None:
        if weight is not None and not isinstance(weight, Tensor):
            raise DtypeError(f"{self._who()}: expected {name} to be a Tensor, got {type(weight).__name__}")
        return None if weight is None else Buffer(weight)


class MSELoss(_Loss):
    """(input - target)², averaged; see `ops.mse_loss`.

    Args:
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of a prediction."""
        return ops.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """|input - target|, averaged; see `ops.l1_loss`.

    Args:
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of a prediction."""
        return ops.l1_loss(input, target, reduction=self.reduction)


class CrossEntropyLoss(_Loss):
    """-log softmax(input) at the target class, averaged; see `ops.cross_entropy`.

    Shapes:
        input: (N, C, ...), target: integers (N, ...), or probabilities of input's shape

    Args:
        weight: (C,), a factor for each class; part of the state_dict.
        ignore_index: Targets of this number do not count.
        reduction: "mean" (over the weights of the targets), "sum" or "none".
        label_smoothing: How much of the target is spread over all classes, in [0, 1].
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        check_real("CrossEntropyLoss", 0.0, 1.0, label_smoothing=label_smoothing)
        self.weight = self._weight("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits."""
        return ops.cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class NLLLoss(_Loss):
    """-input at the target class, averaged, where input holds log-probabilities; see `ops.nll_loss`.

    Args:
        weight, ignore_index, reduction: As in `CrossEntropyLoss`.
    """

    def __init__(self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = self._weight("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of log-probabilities."""
        return ops.nll_loss(
            input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction
        )


class BCEWithLogitsLoss(_Loss):
    """-target · log sigmoid(input) - (1 - target) · log sigmoid(-input), averaged.

    See `ops.binary_cross_entropy_with_logits`.

    Args:
        weight: A factor for each element, broadcast.
        pos_weight: A factor for the first term, broadcast: above 1 it makes missed positives dearer.
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self, weight: Tensor | None = None, *, reduction: str = "mean", pos_weight: Tensor | None = None
    ) -> None:
        super().__init__(reduction)
        self.weight, self.pos_weight = self._weight("weight", weight), self._weight("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits."""
        return ops.binary_cross_entropy_with_logits(
            input, target, weight=self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )
