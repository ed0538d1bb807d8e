"""Checking a gradient against central differences along a random direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.arguments import as_amount, as_real, kind_of
from minigrad.backend.device import to_host
from minigrad.backend.dtypes import Array, is_float
from minigrad.errors import ArgumentError, DtypeError
from minigrad.foreign import spoken
from minigrad.recording import no_grad
from minigrad.tensor import Tensor


@spoken
def gradcheck(
    function: Callable[..., Tensor],
    inputs: Any,
    step: float = 1e-6,
    tolerance: float = 1e-6,
    *,
    rng: np.random.Generator | None = None,
) -> bool:
    """Check the gradient of a function of float64 arrays, or of tensors; True, or an error.

    For each float input x, a random direction v of length 1 and a random cotangent u:
    <u, (f(x + h·v) - f(x - h·v)) / 2h> must equal <backward(u), v>, to tolerance · max(1, |either|). The cost does
    not grow with the size of x; the element that differs most is searched only after a failure.

    Args:
        function: Takes tensors, in the order of inputs, and returns one tensor. It must be deterministic.
        inputs: float64 arrays, or tensors that require grad, to differentiate; other tensors, arrays of other dtypes
            and other values are passed on as they are.
        step: h, > 0.
        tolerance: >= 0.
        rng: Source of directions; seeded with 0 by default.

    Raises:
        ArgumentError: a float input that is not float64, a step or a tolerance out of its range.
        AssertionError: a gradient is wrong; the message names the input and the element.

    Returns:
        True.

    Example:
        >>> gradcheck(lambda x: x * x, [np.array([1.0, 2.0])])
        True
    """
    inputs = [_differentiated(x) for x in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
    rng = rng or np.random.default_rng(0)
    _check_inputs(inputs)
    as_real("gradcheck", "step", step, above=0.0, finite=True)
    as_amount("gradcheck", "tolerance", tolerance)
    with no_grad():
        found = function(*_tensors(inputs))
    if not isinstance(found, Tensor):
        raise DtypeError(f"gradcheck: expected a function that returns one tensor, got {kind_of(found)}")
    output = found.data
    cotangent = np.asarray(rng.standard_normal(output.shape))
    gradients = _backward(function, inputs, cotangent)
    for i, gradient in gradients.items():
        direction = np.asarray(rng.standard_normal(inputs[i].shape))
        direction /= max(float(np.linalg.norm(direction)), 1e-300)
        numeric = _slope(function, inputs, i, direction, step, cotangent)
        analytic = float(np.vdot(gradient, direction))
        if not abs(numeric - analytic) <= tolerance * max(1.0, abs(numeric), abs(analytic)):
            where = _worst_element(function, inputs, i, gradient, step, cotangent)
            raise AssertionError(
                f"gradcheck: expected slope {numeric:.9g} of input {i} of shape {inputs[i].shape}, "
                f"got {analytic:.9g}{where}"
            )
    return True


def _differentiated(x: Any) -> Any:
    """The array of a tensor that requires grad, which is to be checked."""
    return to_host(x.data) if isinstance(x, Tensor) and x.requires_grad else x


def _check_inputs(inputs: Sequence[Any]) -> None:
    for i, x in enumerate(inputs):
        if isinstance(x, np.ndarray) and is_float(x.dtype) and x.dtype != np.float64:
            raise ArgumentError(f"gradcheck: expected float64 inputs, got {x.dtype.name} for input {i}: use astype")


def _is_checked(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.float64


def _tensors(inputs: Sequence[Any], requires_grad: bool = False) -> list[Any]:
    """The arrays as tensors on read-only memory: an operation that writes into its input fails at once."""
    made = []
    for x in inputs:
        if isinstance(x, np.ndarray):
            copy = x.copy()
            copy.flags.writeable = False
            made.append(Tensor(copy, requires_grad and _is_checked(x)))
        else:
            made.append(x)
    return made


def _backward(function: Callable[..., Tensor], inputs: Sequence[Any], cotangent: Array) -> dict[int, Array]:
    """The gradient of each checked input; one that backward did not reach is zero."""
    tensors = _tensors(inputs, requires_grad=True)
    output = function(*tensors)
    seed = cotangent.copy()
    seed.flags.writeable = False
    if output.requires_grad:
        output.backward(Tensor(seed))
    return {
        i: np.zeros_like(x) if tensors[i].grad_array is None else tensors[i].grad_array
        for i, x in enumerate(inputs)
        if _is_checked(x)
    }


def _slope(
    function: Callable[..., Tensor], inputs: Sequence[Any], i: int, direction: Array, step: float, cotangent: Array
) -> float:
    values = []
    for sign in (1.0, -1.0):
        moved = list(inputs)
        moved[i] = np.asarray(inputs[i] + sign * step * direction)
        with no_grad():
            values.append(function(*_tensors(moved)).data)
    return float(np.vdot(cotangent, (values[0] - values[1]) / (2 * step)))


def _worst_element(
    function: Callable[..., Tensor], inputs: Sequence[Any], i: int, gradient: Array, step: float, cotangent: Array
) -> str:
    """The element whose gradient differs most from its own central difference."""
    worst, text = -1.0, ""
    for at in np.ndindex(inputs[i].shape):
        direction = np.zeros_like(inputs[i])
        direction[at] = 1.0
        numeric = _slope(function, inputs, i, direction, step, cotangent)
        error = abs(numeric - gradient[at])
        if not error <= worst:
            worst, text = error, f": element {at} expected {numeric:.9g}, got {gradient[at]:.9g}"
    return text
