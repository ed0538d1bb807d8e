"""Losses: modules that turn predictions and targets into one number."""

from __future__ import annotations

from minigrad.arguments import as_real, check_choice, check_real, check_switch
from minigrad.errors import DtypeError
from minigrad.nn.module import Module
from minigrad.nn.parameter import Buffer
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "GaussianNLLLoss", "HuberLoss", "KLDivLoss", "L1Loss",
    "MSELoss", "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss",
]


class Loss(Module):
    """What all losses share: how the losses of single elements become one number."""

    def __init__(self, reduction: str, *others: str) -> None:
        super().__init__()
        check_choice(self._who(), ("mean", "sum", "none", *others), reduction=reduction)
        self.reduction = reduction

    def _weight(self, name: str, weight: Tensor | None) -> Buffer | None:
        if weight is not None and not isinstance(weight, Tensor):
            raise DtypeError(f"{self._who()}: expected {name} to be a Tensor, got {type(weight).__name__}")
        return None if weight is None else Buffer(weight)


class MSELoss(Loss):
    """(input - target)², averaged; see `ops.mse_loss`.

    Args:
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of a prediction."""
        return ops.mse_loss(input, target, reduction=self.reduction)


class L1Loss(Loss):
    """|input - target|, averaged; see `ops.l1_loss`.

    Args:
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of a prediction."""
        return ops.l1_loss(input, target, reduction=self.reduction)


class HuberLoss(Loss):
    """Squares of differences below delta, beyond it straight lines, averaged; see `ops.huber_loss`.

    Args:
        reduction: "mean", "sum" or "none".
        delta: > 0.
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = as_real("HuberLoss", "delta", delta, above=0.0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of a prediction."""
        return ops.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class SmoothL1Loss(Loss):
    """`HuberLoss` over beta, which is its delta; `L1Loss` where beta is 0. See `ops.smooth_l1_loss`.

    Args:
        reduction: "mean", "sum" or "none".
        beta: >= 0.
    """

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = as_real("SmoothL1Loss", "beta", beta, 0.0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of a prediction."""
        return ops.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class CrossEntropyLoss(Loss):
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


class NLLLoss(Loss):
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


class BCEWithLogitsLoss(Loss):
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


class BCELoss(Loss):
    """-target · ln input - (1 - target) · ln(1 - input), averaged, of probabilities; see `ops.binary_cross_entropy`.

    `BCEWithLogitsLoss` takes logits, and is more accurate.

    Args:
        weight: A factor for each element, broadcast.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = self._weight("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of probabilities."""
        return ops.binary_cross_entropy(input, target, weight=self.weight, reduction=self.reduction)


class KLDivLoss(Loss):
    """target · (ln target - input), averaged: by how much two distributions differ; see `ops.kl_div`.

    Args:
        reduction: "batchmean", which is the divergence, "mean" (over all elements), "sum" or "none".
        log_target: Targets are logarithms of probabilities, as inputs are.
    """

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction, "batchmean")
        check_switch("KLDivLoss", log_target=log_target)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logarithms of probabilities."""
        return ops.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class PoissonNLLLoss(Loss):
    """exp(input) - target · input, averaged, of counts; see `ops.poisson_nll_loss`.

    Args:
        log_input: The input is the logarithm of the mean, rather than the mean.
        full: Add the approximation of ln target!.
        eps: Added to an input of which the logarithm is taken; > 0.
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self, log_input: bool = True, full: bool = False, *, eps: float = 1e-8, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        check_switch("PoissonNLLLoss", log_input=log_input, full=full)
        self.log_input, self.full = log_input, full
        self.eps = as_real("PoissonNLLLoss", "eps", eps, above=0.0, finite=True)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of a predicted mean."""
        return ops.poisson_nll_loss(input, target, self.log_input, self.full, self.eps, self.reduction)


class GaussianNLLLoss(Loss):
    """(ln var + (input - target)² / var) / 2, averaged, of predictions with a variance; see `ops.gaussian_nll_loss`.

    Args:
        full: Add the constant.
        eps: Variances are at least that; > 0.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        check_switch("GaussianNLLLoss", full=full)
        self.full, self.eps = full, as_real("GaussianNLLLoss", "eps", eps, above=0.0, finite=True)

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        """The loss of a prediction and its variance."""
        return ops.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)
