"""Activation layers; only PReLU has a parameter."""

from __future__ import annotations

from minigrad.arguments import as_integer, check_choice, check_counts, check_real, check_switch
from minigrad.backend.device import Device
from minigrad.backend.dtypes import DtypeLike
from minigrad.errors import ArgumentError, ShapeError
from minigrad.nn import init as initial
from minigrad.nn.module import Module
from minigrad.nn.parameter import zero_parameter
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid",
    "LogSoftmax", "Mish", "PReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmax2d", "Softmin",
    "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold",
]


class Overwriting(Module):
    """What can write its output into the memory of its input, with `inplace=True`.

    The values and gradients are the same. An input that an operation before has saved, a leaf that requires grad and
    a view can't be changed so: an error says it.

    Args:
        inplace: Whether it does.

    Raises:
        ArgumentError: inplace is no bool.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        check_switch(self._who(), inplace=inplace)
        self.inplace = inplace

    def options(self) -> str:
        """What `repr` shows before inplace; for subclasses to define."""
        return ""

    def extra_repr(self) -> str:
        """The options, and inplace where it is so."""
        return ", ".join(filter(None, [self.options(), "inplace=True" if self.inplace else ""]))


class ReLU(Overwriting):
    """max(x, 0), for each element; see `ops.relu`."""

    def forward(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        return ops.relu(x, self.inplace)


class ReLU6(Overwriting):
    """x cut to [0, 6], for each element; see `ops.relu6`."""

    def forward(self, x: Tensor) -> Tensor:
        """x cut to [0, 6]."""
        return ops.relu6(x, self.inplace)


class Hardtanh(Overwriting):
    """x cut to [min_val, max_val], for each element; see `ops.hardtanh`."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        check_real("Hardtanh", min_val=min_val, max_val=max_val)
        if min_val >= max_val:
            raise ArgumentError(f"Hardtanh: expected min_val below max_val, got {min_val} and {max_val}")
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x: Tensor) -> Tensor:
        """x cut to [min_val, max_val]."""
        return ops.hardtanh(x, self.min_val, self.max_val, self.inplace)

    def options(self) -> str:
        """The bounds."""
        return f"min_val={self.min_val}, max_val={self.max_val}"


class Hardsigmoid(Overwriting):
    """x/6 + 1/2 cut to [0, 1], for each element; see `ops.hardsigmoid`."""

    def forward(self, x: Tensor) -> Tensor:
        """x/6 + 1/2 cut to [0, 1]."""
        return ops.hardsigmoid(x, self.inplace)


class Hardswish(Overwriting):
    """x · hardsigmoid(x), for each element; see `ops.hardswish`."""

    def forward(self, x: Tensor) -> Tensor:
        """x · hardsigmoid(x)."""
        return ops.hardswish(x, self.inplace)


class SiLU(Overwriting):
    """x · sigmoid(x), for each element; see `ops.silu`."""

    def forward(self, x: Tensor) -> Tensor:
        """x · sigmoid(x)."""
        return ops.silu(x, self.inplace)


class Mish(Overwriting):
    """x · tanh(softplus(x)), for each element; see `ops.mish`."""

    def forward(self, x: Tensor) -> Tensor:
        """x · tanh(softplus(x))."""
        return ops.mish(x, self.inplace)


class Sigmoid(Module):
    """1 / (1 + exp(-x)), for each element; see `ops.sigmoid`."""

    def forward(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))."""
        return ops.sigmoid(x)


class LogSigmoid(Module):
    """log sigmoid(x), for each element; see `ops.logsigmoid`."""

    def forward(self, x: Tensor) -> Tensor:
        """log sigmoid(x)."""
        return ops.logsigmoid(x)


class Softsign(Module):
    """x / (1 + |x|), for each element; see `ops.softsign`."""

    def forward(self, x: Tensor) -> Tensor:
        """x / (1 + |x|)."""
        return ops.softsign(x)


class Tanh(Module):
    """tanh(x), for each element; see `ops.tanh`."""

    def forward(self, x: Tensor) -> Tensor:
        """tanh(x)."""
        return ops.tanh(x)


class Tanhshrink(Module):
    """x - tanh(x), for each element; see `ops.tanhshrink`."""

    def forward(self, x: Tensor) -> Tensor:
        """x - tanh(x)."""
        return ops.tanhshrink(x)


class Softshrink(Module):
    """x pulled towards 0 by lambd, for each element; see `ops.softshrink`."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        check_real("Softshrink", 0.0, lambd=lambd)
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        """x pulled towards 0."""
        return ops.softshrink(x, self.lambd)

    def extra_repr(self) -> str:
        """lambd."""
        return f"{self.lambd}"


class Hardshrink(Module):
    """x where |x| is above lambd, else 0, for each element; see `ops.hardshrink`."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        check_real("Hardshrink", lambd=lambd)
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        """x, or 0 where it is near that."""
        return ops.hardshrink(x, self.lambd)

    def extra_repr(self) -> str:
        """lambd."""
        return f"{self.lambd}"


class Threshold(Overwriting):
    """x where it is above a threshold, else a value, for each element; see `ops.threshold`."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        check_real("Threshold", threshold=threshold, value=value)
        self.threshold, self.value = threshold, value

    def forward(self, x: Tensor) -> Tensor:
        """x, or the value."""
        return ops.threshold(x, self.threshold, self.value, self.inplace)

    def options(self) -> str:
        """Both numbers."""
        return f"threshold={self.threshold}, value={self.value}"


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


class LeakyReLU(Overwriting):
    """x where it is positive, negative_slope · x elsewhere; see `ops.leaky_relu`."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        check_real("LeakyReLU", negative_slope=negative_slope)
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        """x or negative_slope · x."""
        return ops.leaky_relu(x, self.negative_slope, self.inplace)

    def options(self) -> str:
        """The slope."""
        return f"negative_slope={self.negative_slope}"


class PReLU(Module):
    """x where it is positive, weight · x elsewhere, with a learned weight; see `ops.prelu`.

    Shapes:
        x: (N, num_parameters, ...) -> the same; any with num_parameters=1
        weight: (num_parameters,)

    Args:
        num_parameters: 1, or the number of channels for a weight of each.
        init: The first value of the weights.

    Raises:
        ArgumentError: num_parameters below 1, or init is no number.
    """

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
    ) -> None:
        super().__init__()
        check_counts("PReLU", num_parameters=num_parameters)
        check_real("PReLU", init=init)
        self.count, self.start = num_parameters, init
        self.weight = zero_parameter((num_parameters,), device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The first value everywhere."""
        initial.constant_(self.weight, self.start)

    def forward(self, x: Tensor) -> Tensor:
        """x or weight · x."""
        return ops.prelu(x, self.weight)

    def extra_repr(self) -> str:
        """How many weights."""
        return f"num_parameters={self.count}"


class ELU(Overwriting):
    """x where it is positive, alpha · (exp(x) - 1) elsewhere; see `ops.elu`."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        check_real("ELU", alpha=alpha)
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """x or alpha · (exp(x) - 1)."""
        return ops.elu(x, self.alpha, self.inplace)

    def options(self) -> str:
        """alpha."""
        return f"alpha={self.alpha}"


class CELU(Overwriting):
    """x where it is positive, alpha · (exp(x / alpha) - 1) elsewhere; see `ops.celu`."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        check_real("CELU", alpha=alpha)
        if alpha == 0:
            raise ArgumentError("CELU: expected alpha other than 0, got 0")
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """x or alpha · (exp(x / alpha) - 1)."""
        return ops.celu(x, self.alpha, self.inplace)

    def options(self) -> str:
        """alpha."""
        return f"alpha={self.alpha}"


class SELU(Overwriting):
    """`ELU` with a scale and an alpha that keep mean and variance; see `ops.selu`."""

    def forward(self, x: Tensor) -> Tensor:
        """1.05 · x or 1.76 · (exp(x) - 1)."""
        return ops.selu(x, self.inplace)


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
    """What works along one axis."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = as_integer(self._who(), "dim", dim)

    def extra_repr(self) -> str:
        """The axis."""
        return f"dim={self.dim}"


class GLU(_AlongAxis):
    """a · sigmoid(b), a and b the halves of x along an axis; see `ops.glu`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)

    def forward(self, x: Tensor) -> Tensor:
        """One half of x, gated by the other."""
        return ops.glu(x, self.dim)


class Softmax(_AlongAxis):
    """exp(x) / Σ exp(x) along an axis, which has to be named; see `ops.softmax`."""

    def forward(self, x: Tensor) -> Tensor:
        """Numbers in [0, 1] that add up to 1 along the axis."""
        return ops.softmax(x, self.dim)


class Softmin(_AlongAxis):
    """exp(-x) / Σ exp(-x) along an axis, which has to be named; see `ops.softmin`."""

    def forward(self, x: Tensor) -> Tensor:
        """Numbers in [0, 1] that add up to 1 along the axis."""
        return ops.softmin(x, self.dim)


class Softmax2d(Module):
    """`Softmax` over the channels of each pixel.

    Shapes:
        x: (N, C, H, W) or (C, H, W) -> the same

    Raises:
        ShapeError: x is no image.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Numbers in [0, 1] that add up to 1 over the channels."""
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: expected x of shape (N, C, H, W) or (C, H, W), got {x.shape}")
        return ops.softmax(x, -3)


class LogSoftmax(_AlongAxis):
    """x - log Σ exp(x) along an axis, which has to be named; see `ops.log_softmax`."""

    def forward(self, x: Tensor) -> Tensor:
        """The logarithm of the softmax."""
        return ops.log_softmax(x, self.dim)
