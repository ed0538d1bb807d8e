"""Activation layers; none has parameters."""

from __future__ import annotations

from minigrad.arguments import as_integer, check_choice, check_real
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["ELU", "GELU", "LeakyReLU", "LogSoftmax", "ReLU", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh"]


class ReLU(Module):
    """max(x, 0), for each element; see `ops.relu`."""

    def forward(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        return ops.relu(x)


class SiLU(Module):
    """x · sigmoid(x), for each element; see `ops.silu`."""

    def forward(self, x: Tensor) -> Tensor:
        """x · sigmoid(x)."""
        return ops.silu(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x)), for each element; see `ops.sigmoid`."""

    def forward(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))."""
        return ops.sigmoid(x)


class Tanh(Module):
    """tanh(x), for each element; see `ops.tanh`."""

    def forward(self, x: Tensor) -> Tensor:
        """tanh(x)."""
        return ops.tanh(x)


class GELU(Module):
    """x · Φ(x), with the distribution function Φ of the standard normal; see `ops.gelu`.

    Args:
        approximate: "none", or "tanh" for the approximation by tanh.

    Raises:
        ArgumentError: another word.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        check_choice("GELU", ("none", "tanh"), approximate=approximate)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """x · Φ(x)."""
        return ops.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """The approximation."""
        return f"approximate={self.approximate!r}"


class LeakyReLU(Module):
    """x where it is positive, negative_slope · x elsewhere; see `ops.leaky_relu`."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        check_real("LeakyReLU", negative_slope=negative_slope)
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        """x or negative_slope · x."""
        return ops.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        """The slope."""
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """x where it is positive, alpha · (exp(x) - 1) elsewhere; see `ops.elu`."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        check_real("ELU", alpha=alpha)
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """x or alpha · (exp(x) - 1)."""
        return ops.elu(x, self.alpha)

    def extra_repr(self) -> str:
        """alpha."""
        return f"alpha={self.alpha}"


class Softplus(Module):
    """log(1 + exp(beta · x)) / beta; x itself where beta · x is above the threshold; see `ops.softplus`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        check_real("Softplus", beta=beta, threshold=threshold)
        if beta == 0:
            raise ArgumentError("Softplus: expected beta other than 0, got 0")
        self.beta, self.threshold = beta, threshold

    def forward(self, x: Tensor) -> Tensor:
        """log(1 + exp(beta · x)) / beta."""
        return ops.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """beta and the threshold."""
        return f"beta={self.beta}, threshold={self.threshold}"


class _AlongAxis(Module):
    """What normalises along one axis."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = as_integer(self._who(), "dim", dim)

    def extra_repr(self) -> str:
        """The axis."""
        return f"dim={self.dim}"


class Softmax(_AlongAxis):
    """exp(x) / Σ exp(x) along an axis, which has to be named; see `ops.softmax`."""

    def forward(self, x: Tensor) -> Tensor:
        """Numbers in [0, 1] that add up to 1 along the axis."""
        return ops.softmax(x, self.dim)


class LogSoftmax(_AlongAxis):
    """x - log Σ exp(x) along an axis, which has to be named; see `ops.log_softmax`."""

    def forward(self, x: Tensor) -> Tensor:
        """The logarithm of the softmax."""
        return ops.log_softmax(x, self.dim)
