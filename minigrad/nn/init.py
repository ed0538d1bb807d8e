"""Initial weights: each function overwrites a tensor in place and returns it.

Values are drawn on the host in float64 and rounded, so one seed gives the same weights on every device, and in
every dtype up to rounding. `rng` is the source; left out, it is the init stream of `manual_seed`, which is the same
on all ranks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.absent import absent
from minigrad.arguments import as_integer, as_real, check_choice, check_generator, check_real
from minigrad.backend.dtypes import is_float
from minigrad.backend.random import init_generator
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.foreign import spoken
from minigrad.nn.state import overwrite
from minigrad.tensor import Tensor

Generator = np.random.Generator

_GAINS = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}
_NONLINEARITIES = (*_GAINS, "leaky_relu")
_LEAST_MASS = 0.01  # of a normal inside [a, b], below which trunc_normal_ would draw too often


@spoken
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, rng: Generator | None = None) -> Tensor:
    """Values uniform in [a, b).

    Raises:
        ArgumentError: a > b, or one of them is not finite.
    """
    check_real("uniform_", a=a, b=b)
    if a > b:
        raise ArgumentError(f"uniform_: expected finite a <= b, got a={a}, b={b}")
    return _fill(tensor, _source("uniform_", rng).uniform(a, b, _shape("uniform_", tensor)))


@spoken
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, rng: Generator | None = None) -> Tensor:
    """Values normal with this mean and standard deviation.

    Raises:
        ArgumentError: std < 0, or an argument that is not finite.
    """
    _check_normal("normal_", mean, std)
    return _fill(tensor, _source("normal_", rng).normal(mean, std, _shape("normal_", tensor)))


@spoken
def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, rng: Generator | None = None
) -> Tensor:
    """Values normal, drawn again until they lie in [a, b].

    Args:
        a, b: In the units of the values, not of std.

    Raises:
        ArgumentError: std <= 0, a >= b, or less than 1 % of the normal lies in [a, b].
    """
    _check_normal("trunc_normal_", mean, std)
    as_real("trunc_normal_", "a", a), as_real("trunc_normal_", "b", b)
    if not (std > 0 and a < b and _mass(mean, std, a, b) >= _LEAST_MASS):
        raise ArgumentError(
            f"trunc_normal_: expected std > 0 and a < b with at least 1 % of the normal between them, "
            f"got mean={mean}, std={std}, a={a}, b={b}"
        )
    source = _source("trunc_normal_", rng)
    values = source.normal(mean, std, math.prod(_shape("trunc_normal_", tensor)))
    outside = np.flatnonzero((values < a) | (values > b))
    while outside.size:
        values[outside] = source.normal(mean, std, outside.size)
        outside = outside[(values[outside] < a) | (values[outside] > b)]
    return _fill(tensor, values.reshape(tensor.shape))


def _mass(mean: float, std: float, a: float, b: float) -> float:
    """The probability that a normal lies in [a, b]."""
    scale = std * math.sqrt(2.0)
    return (math.erf((b - mean) / scale) - math.erf((a - mean) / scale)) / 2


@spoken
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Every value is val.

    Raises:
        ArgumentError: val is no number.
    """
    shape = _shape("constant_", tensor)
    return _fill(tensor, np.full(shape, as_real("constant_", "val", val)))


@spoken
def zeros_(tensor: Tensor) -> Tensor:
    """Every value is 0."""
    return constant_(tensor, 0.0)


@spoken
def ones_(tensor: Tensor) -> Tensor:
    """Every value is 1."""
    return constant_(tensor, 1.0)


@spoken
def eye_(tensor: Tensor) -> Tensor:
    """1 on the main diagonal of a matrix, 0 elsewhere: a linear layer of it changes nothing.

    Raises:
        ShapeError: not two axes.
    """
    rows, columns = _matrix("eye_", tensor)
    return _fill(tensor, np.eye(rows, columns))


@spoken
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """1 in the middle of the window from each channel to itself, 0 elsewhere: a convolution of it changes nothing.

    Shapes:
        tensor: (out, in, *kernel)

    Args:
        groups: A divisor of out; each group of outputs starts again at the first input.

    Raises:
        ShapeError: not three to five axes.
        ArgumentError: groups does not divide out.
    """
    shape = _shape("dirac_", tensor)
    if not 3 <= len(shape) <= 5:
        raise ShapeError(f"dirac_: expected a tensor with three to five axes, got shape {shape}")
    if shape[0] % as_integer("dirac_", "groups", groups, 1):
        raise ArgumentError(f"dirac_: expected groups to divide the {shape[0]} outputs, got {groups}")
    values, outputs = np.zeros(shape), shape[0] // groups
    middle: Any = (..., *[length // 2 for length in shape[2:]])
    for channel in range(min(outputs, shape[1])):
        values[middle][channel::outputs, channel] = 1.0
    return _fill(tensor, values)


@spoken
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, rng: Generator | None = None) -> Tensor:
    """Normal with this standard deviation, but for a fraction of each column, rounded up, which is 0.

    Martens, "Deep learning via Hessian-free optimization", 2010.

    Args:
        sparsity: The fraction of zeros in each column, in [0, 1].

    Raises:
        ShapeError: not two axes.
        ArgumentError: sparsity or std out of range.
    """
    rows, columns = _matrix("sparse_", tensor)
    check_real("sparse_", 0.0, 1.0, sparsity=sparsity)
    _check_normal("sparse_", 0.0, std)
    source = _source("sparse_", rng)
    values = source.normal(0.0, std, (rows, columns))
    for column in range(columns):
        values[source.permutation(rows)[: math.ceil(sparsity * rows)], column] = 0.0
    return _fill(tensor, values)


@spoken
def xavier_uniform_(tensor: Tensor, gain: float = 1.0, rng: Generator | None = None) -> Tensor:
    """Values uniform in ± gain·sqrt(6 / (fan_in + fan_out)).

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.

    Raises:
        ShapeError: fewer than two axes.
    """
    bound = math.sqrt(3.0) * _xavier_std("xavier_uniform_", tensor, gain)
    return uniform_(tensor, -bound, bound, rng)


@spoken
def xavier_normal_(tensor: Tensor, gain: float = 1.0, rng: Generator | None = None) -> Tensor:
    """Values normal with standard deviation gain·sqrt(2 / (fan_in + fan_out)); see `xavier_uniform_`."""
    return normal_(tensor, 0.0, _xavier_std("xavier_normal_", tensor, gain), rng)


def _xavier_std(who: str, tensor: Tensor, gain: float) -> float:
    fan_in, fan_out = calculate_fan_in_and_fan_out(tensor, who)
    check_real(who, 0.0, gain=gain)
    return gain * math.sqrt(2.0 / max(1, fan_in + fan_out))


@spoken
def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    rng: Generator | None = None,
) -> Tensor:
    """Values uniform in ± gain·sqrt(3 / fan), with the gain of the nonlinearity that follows.

    He et al., "Delving deep into rectifiers", 2015.

    Args:
        a: Negative slope, where the nonlinearity is "leaky_relu".
        mode: "fan_in" keeps the variance in the forward pass, "fan_out" in the backward pass.

    Raises:
        ShapeError: fewer than two axes.
        ArgumentError: an unknown mode or nonlinearity.
    """
    bound = math.sqrt(3.0) * _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, rng)


@spoken
def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    rng: Generator | None = None,
) -> Tensor:
    """Values normal with standard deviation gain / sqrt(fan); see `kaiming_uniform_`."""
    return normal_(tensor, 0.0, _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity), rng)


def _kaiming_std(who: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    fan_in, fan_out = calculate_fan_in_and_fan_out(tensor, who)
    check_choice(who, ("fan_in", "fan_out"), mode=mode)
    check_choice(who, _NONLINEARITIES, nonlinearity=nonlinearity)
    gain = calculate_gain(nonlinearity, a if nonlinearity == "leaky_relu" else None)
    return gain / math.sqrt(max(1, fan_in if mode == "fan_in" else fan_out))


@spoken
def orthogonal_(tensor: Tensor, gain: float = 1.0, rng: Generator | None = None) -> Tensor:
    """Rows, or columns where they are fewer, orthogonal and of length gain; all axes but the first count as one.

    Saxe et al., "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks", 2014.

    Raises:
        ShapeError: fewer than two axes.
    """
    calculate_fan_in_and_fan_out(tensor, "orthogonal_")
    check_real("orthogonal_", gain=gain)
    rows = tensor.shape[0]
    drawn = _source("orthogonal_", rng).standard_normal((rows, math.prod(tensor.shape[1:])))
    tall = drawn if drawn.shape[0] >= drawn.shape[1] else drawn.T
    q, r = np.linalg.qr(tall)
    q = q * np.sign(np.diagonal(r))  # makes the distribution uniform
    return _fill(tensor, gain * (q if tall is drawn else q.T).reshape(tensor.shape))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much weights have to be larger for a nonlinearity to keep the variance.

    Args:
        nonlinearity: "linear", "conv1d" to "conv3d", "sigmoid", "tanh", "relu", "leaky_relu" or "selu".
        param: Negative slope of "leaky_relu", 0.01 by default.

    Raises:
        ArgumentError: an unknown nonlinearity, or param is no number.
    """
    check_choice("calculate_gain", _NONLINEARITIES, nonlinearity=nonlinearity)
    if nonlinearity != "leaky_relu":
        return _GAINS[nonlinearity]
    slope = 0.01 if param is None else as_real("calculate_gain", "param", param)
    return math.sqrt(2.0 / (1.0 + slope**2))


def calculate_fan_in_and_fan_out(tensor: Tensor, who: str = "calculate_fan_in_and_fan_out") -> tuple[int, int]:
    """How many inputs an output of a weight depends on, and how many outputs an input reaches.

    Shapes:
        tensor: (out, in, *kernel) -> (in·kernel, out·kernel)

    Raises:
        ShapeError: fewer than two axes.
    """
    shape = _shape(who, tensor)
    if len(shape) < 2:
        raise ShapeError(f"{who}: expected a tensor with at least two axes, got shape {shape}")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


_calculate_fan_in_and_fan_out = calculate_fan_in_and_fan_out  # what layers for PyTorch call it


def _check_normal(who: str, mean: float, std: float) -> None:
    check_real(who, mean=mean)
    check_real(who, 0.0, std=std)


def _source(who: str, rng: Any) -> Generator:
    check_generator(who, rng)
    return init_generator() if rng is None else rng


def _shape(who: str, tensor: Any) -> tuple[int, ...]:
    if not isinstance(tensor, Tensor) or not is_float(tensor.dtype):
        got = tensor.dtype.name if isinstance(tensor, Tensor) else type(tensor).__name__
        instead = ": give the tensor itself, not its .data" if got == "ndarray" else ""
        raise DtypeError(f"{who}: expected a float tensor, got {got}{instead}")
    return tensor.shape


def _matrix(who: str, tensor: Any) -> tuple[int, ...]:
    shape = _shape(who, tensor)
    if len(shape) != 2:
        raise ShapeError(f"{who}: expected a tensor with two axes, got shape {shape}")
    return shape


def _fill(tensor: Tensor, values: np.ndarray[Any, Any]) -> Tensor:
    overwrite(tensor, values.astype(tensor.dtype))
    return tensor


def __getattr__(name: str) -> Any:
    raise absent(__name__, name)
