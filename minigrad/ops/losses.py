"""Losses of single elements: squared, absolute, Huber's, and the binary cross-entropy."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.arguments import as_real, check_choice, kind_of
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, widened
from minigrad.backend.special import sign
from minigrad.errors import ArgumentError, AutogradError, DtypeError, ShapeError
from minigrad.ops.operands import check_float, same_device
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = ["binary_cross_entropy_with_logits", "huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss"]

REDUCTIONS = ("mean", "sum", "none")


def check_pair(
    who: str, x: Any, target: Any, reduction: str, reductions: tuple[str, ...] = REDUCTIONS
) -> None:
    """Refuse a prediction and a target that can't be compared element by element, or an unknown reduction.

    Raises:
        ShapeError, DtypeError, DeviceError, ArgumentError: they differ in shape, dtype or device, are no float tensors,
            or the reduction is unknown.
    """
    for tensor in (x, target):
        if not isinstance(tensor, Tensor):
            raise DtypeError(f"{who}: expected tensors, got {kind_of(tensor)}")
    check_choice(who, reductions, reduction=reduction)
    check_float(who, x)
    if x.data.shape != target.data.shape:
        raise ShapeError(f"{who}: expected input and target of one shape, got {x.shape} and {target.shape}")
    if x.dtype != target.dtype:
        raise DtypeError(f"{who}: expected input and target of one dtype, got {x.dtype.name} and {target.dtype.name}")
    if x.data.__class__ is not np.ndarray or target.data.__class__ is not np.ndarray:
        same_device(who, x, target)


def reduce_losses(losses: Array, reduction: str, dtype: Any) -> Array:
    """Losses of elements to one number, or as they are; the mean of none is NaN."""
    if reduction == "none":
        return losses.astype(dtype, copy=False)
    total = losses.sum()
    if reduction == "mean":
        total = total * (1.0 / losses.size if losses.size else float("nan"))
    return total.astype(dtype)


def element_gradient(grad: Array, reduction: str, size: int) -> Array:
    """The gradient of each element's loss; of no axes where it is the same for all."""
    wide = widened(grad)
    return wide * (1.0 / max(size, 1)) if reduction == "mean" else wide


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """Losses of elements, made of other operations, to one number, or as they are."""
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


def check_constant(who: str, name: str, value: Any, x: Tensor) -> None:
    """Refuse a weight that is no tensor of x's dtype and device, or that wants a gradient, which it can't get.

    Raises:
        DtypeError, DeviceError, AutogradError: as above.
    """
    if not isinstance(value, Tensor) or value.dtype != x.dtype:
        got = value.dtype.name if isinstance(value, Tensor) else type(value).__name__
        raise DtypeError(f"{who}: expected {name} to be a tensor of {x.dtype.name}, got {got}")
    if value.requires_grad:
        raise AutogradError(f"{who}: expected {name} without gradient, got requires_grad=True: use .detach()")
    if value.data.__class__ is not np.ndarray or x.data.__class__ is not np.ndarray:
        same_device(who, x, value)


def check_broadcast(who: str, name: str, value: Tensor, x: Tensor) -> None:
    """Refuse a tensor that can't be spread to the shape of x; ShapeError."""
    padded = (1,) * (x.ndim - value.ndim) + value.shape
    if len(padded) != x.ndim or any(n not in (1, length) for n, length in zip(padded, x.shape)):
        raise ShapeError(f"{who}: expected {name} to broadcast to {x.shape}, got {value.shape}")


# ----------------------------------------------------------------------------------------- losses of a difference


@autocasts("high")
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)², reduced. dinput = 2·(input - target)·g, dtarget = -dinput.

    Shapes:
        input, target: (...) of one shape -> (), or as they are with reduction="none"

    Args:
        reduction: "mean", "sum" or "none".

    Raises:
        ShapeError, DtypeError, DeviceError: input and target are no float tensors of one shape, dtype and device.
        ArgumentError: an unknown reduction.
    """
    difference = _difference("mse_loss", input, target, reduction)
    losses = difference * difference
    return _record_difference(input, target, losses, difference, 2.0, reduction)


@autocasts("high")
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|input - target|, reduced. dinput = sign(input - target)·g, dtarget = -dinput.

    Shapes, Args, Raises: as `mse_loss`.
    """
    difference = _difference("l1_loss", input, target, reduction)
    size = array_module(difference).abs(difference)
    return _record_difference(input, target, size, sign(difference), 1.0, reduction)


@autocasts("high")
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """d²/2 where |d| = |input - target| < delta, else delta·(|d| - delta/2), reduced. dinput = clip(d, ±delta)·g.

    Shapes, Args, Raises: as `mse_loss`; delta > 0.
    """
    delta = as_real("huber_loss", "delta", delta, 0.0)
    if delta == 0.0:
        raise ArgumentError("huber_loss: expected delta > 0, got 0")
    difference = _difference("huber_loss", input, target, reduction)
    slope = array_module(difference).clip(difference, -delta, delta)
    losses = slope * (difference - slope * 0.5)
    return _record_difference(input, target, losses, slope, 1.0, reduction)


@autocasts("high")
def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """d²/(2·beta) where |d| = |input - target| < beta, else |d| - beta/2, reduced; `l1_loss` where beta is 0.

    Shapes, Args, Raises: as `mse_loss`; beta >= 0.
    """
    beta = as_real("smooth_l1_loss", "beta", beta, 0.0)
    if beta == 0.0:
        return l1_loss(input, target, reduction)
    difference = _difference("smooth_l1_loss", input, target, reduction)
    slope = array_module(difference).clip(difference, -beta, beta)
    losses = slope * (difference - slope * 0.5) * (1.0 / beta)
    return _record_difference(input, target, losses, slope, 1.0 / beta, reduction)


def _difference(who: str, input: Tensor, target: Tensor, reduction: str) -> Array:
    check_pair(who, input, target, reduction)
    return widened(input.data) - widened(target.data)


def _record_difference(
    input: Tensor, target: Tensor, losses: Array, slope: Array, factor: float, reduction: str
) -> Tensor:
    """A reduced loss whose derivative by the difference is factor · slope."""
    data = reduce_losses(losses, reduction, input.dtype)
    return record(data, _difference_backward, (input, target), (slope, factor, reduction))


def _difference_backward(node: Node, grad: Array) -> None:
    slope, factor, reduction = node.saved
    dinput, dtarget = node.inputs
    scaled = (slope * (element_gradient(grad, reduction, slope.size) * factor)).astype(grad.dtype, copy=False)
    if dtarget is not None:
        accumulate(dtarget, -scaled)
    if dinput is not None:
        accumulate(dinput, scaled)


# -------------------------------------------------------------------------------------------- binary cross-entropy


@autocasts("high")
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """-weight · (pos_weight · t · ln σ(x) + (1 - t) · ln(1 - σ(x))), reduced; σ is the logistic function.

    Computed as (1 - t)·x + l·ln(1 + exp(-x)), with l = 1 + (pos_weight - 1)·t, which can't overflow.
    dinput = weight·((1 - t)·σ(x) - pos_weight·t·σ(-x))·g, dtarget = weight·((pos_weight - 1)·ln(1 + exp(-x)) - x)·g.

    Shapes:
        input, target: (...) of one shape -> (), or as they are with reduction="none"; weight and pos_weight broadcast

    Args:
        target: Probabilities, in [0, 1].
        reduction: "mean" (over the number of elements, whatever the weights), "sum" or "none".

    Raises:
        ShapeError, DtypeError, DeviceError: input and target are no float tensors of one shape, dtype and device, or
            the weights do not fit.
        AutogradError: a weight requires grad.
        ArgumentError: an unknown reduction.
    """
    who = "binary_cross_entropy_with_logits"
    check_pair(who, input, target, reduction)
    for name, value in (("weight", weight), ("pos_weight", pos_weight)):
        if value is not None:
            check_constant(who, name, value, input)
            check_broadcast(who, name, value, input)
    x, t = widened(input.data), widened(target.data)
    losses = (1.0 - t) * x + _positive_factor(t, pos_weight) * _softplus(-x)
    if weight is not None:
        losses *= weight.data
    data = reduce_losses(losses, reduction, input.dtype)
    saved = (input, target, weight, pos_weight, reduction)
    inputs = (input, target, *(factor for factor in (weight, pos_weight) if factor is not None))
    return record(data, _binary_cross_entropy_with_logits_backward, inputs, saved)


def _binary_cross_entropy_with_logits_backward(node: Node, grad: Array) -> None:
    input, target, weight, pos_weight, reduction = node.saved
    dinput, dtarget = node.inputs[:2]
    x, t = widened(input.data), widened(target.data)
    scale = element_gradient(grad, reduction, x.size)
    if weight is not None:
        scale = scale * weight.data
    if dinput is not None:
        dx = (1.0 - t) * _logistic(x)
        dx -= (t if pos_weight is None else pos_weight.data * t) * _logistic(-x)
        accumulate(dinput, (dx * scale).astype(grad.dtype, copy=False))
    if dtarget is not None:
        slope = -x if pos_weight is None else (pos_weight.data - 1.0) * _softplus(-x) - x
        accumulate(dtarget, (slope * scale).astype(grad.dtype, copy=False))


def _positive_factor(target: Array, pos_weight: Tensor | None) -> Array | float:
    return 1.0 if pos_weight is None else 1.0 + (pos_weight.data - 1.0) * target


def _softplus(x: Array) -> Array:
    """ln(1 + exp(x))."""
    xp = array_module(x)
    return xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(x, 0.0)


def _logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), to full relative precision on both sides."""
    xp = array_module(x)
    return xp.exp(xp.minimum(x, 0.0)) / (1.0 + xp.exp(-xp.abs(x)))
