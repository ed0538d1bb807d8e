"""Losses that are the logarithm of a probability: of distributions, of two classes, of counts, of normal errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.arguments import as_amount, as_real, check_switch, is_real, kind_of
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, widened
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.arithmetic import broadcast_error
from minigrad.ops.elementwise import clamp, exp, log, sigmoid, square
from minigrad.ops.losses import (
    REDUCTIONS,
    binary_cross_entropy_with_logits,
    check_broadcast,
    check_constant,
    check_pair,
    element_gradient,
    reduce_losses,
    reduced,
)
from minigrad.ops.mask import where
from minigrad.ops.operands import check_float, same_device
from minigrad.ops.precision import autocasts
from minigrad.ops.shape import unsqueeze
from minigrad.tensor import Tensor, record

__all__ = ["binary_cross_entropy", "gaussian_nll_loss", "kl_div", "poisson_nll_loss", "sigmoid_focal_loss"]

_LEAST_LOG = -100.0  # as PyTorch has it: a certainty that was wrong costs 100, not infinity
_LEAST_VARIANCE = 1e-12  # of a probability x: x·(1 - x), by which the gradient is divided


# -------------------------------------------------------------------------------------------- of distributions


@autocasts("high")
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """t·(ln t - x), reduced: by how much probabilities t differ from those of which x is the logarithm.

    Kullback and Leibler, "On information and sufficiency", 1951. 0 where t is 0. dx = -t·g, dt = (ln t + 1 - x)·g;
    with log_target, where the target is s = ln t: ds = t·(s + 1 - x)·g.

    Shapes:
        input, target: (...) of one shape -> (), or as they are with reduction="none"

    Args:
        reduction: "batchmean" (Σ / N, which is the divergence), "mean" (over all elements), "sum" or "none".
        log_target: The target is the logarithm of the probabilities.

    Raises:
        ShapeError, DtypeError, DeviceError: input and target are no float tensors of one shape, dtype and device.
        ArgumentError: an unknown reduction, or log_target is no bool.
    """
    check_pair("kl_div", input, target, reduction, ("batchmean", *REDUCTIONS))
    check_switch("kl_div", log_target=log_target)
    share = 1.0
    if reduction == "batchmean":
        count = input.shape[0] if input.ndim else 1
        reduction, share = ("sum", 1.0 / count) if count else ("mean", 1.0)  # of nothing: NaN
    x, t = widened(input.data), widened(target.data)
    if log_target:
        losses = array_module(t).exp(t) * (t - x)
    else:
        losses = t * _log_of_positive(t) - t * x
    data = reduce_losses(losses * share, reduction, input.dtype)
    return record(data, _kl_div_backward, (input, target), (input, target, reduction, share, log_target))


def _kl_div_backward(node: Node, grad: Array) -> None:
    input, target, reduction, share, log_target = node.saved
    dinput, dtarget = node.inputs
    x, t = widened(input.data), widened(target.data)
    xp, scale = array_module(t), element_gradient(grad, reduction, x.size) * share
    probability = xp.exp(t) if log_target else t
    if dinput is not None:
        accumulate(dinput, (-probability * scale).astype(grad.dtype, copy=False))
    if dtarget is not None:
        if log_target:
            dt = probability * (t + 1.0 - x)
        else:
            dt = xp.where(t == 0, -math.inf, _log_of_positive(t) + 1.0 - x)
        accumulate(dtarget, (dt * scale).astype(grad.dtype, copy=False))


def _log_of_positive(t: Array) -> Array:
    """ln t, 0 where t is 0, and NaN where it is less."""
    xp = array_module(t)
    return xp.where(t == 0, 0.0, xp.log(xp.where(t > 0, t, math.nan))).astype(t.dtype, copy=False)


# ------------------------------------------------------------------------------------------------ of two classes


@autocasts("high")
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-weight · (t · ln x + (1 - t) · ln(1 - x)), reduced, with each logarithm at least -100.

    dx = weight·(x - t)/max(x·(1 - x), 1e-12)·g, dt = weight·(ln(1 - x) - ln x)·g. For logits
    `binary_cross_entropy_with_logits` is more accurate.

    Shapes:
        input, target: (...) of one shape -> (), or as they are with reduction="none"; weight broadcasts

    Args:
        input: Probabilities, in [0, 1].
        target: Probabilities, in [0, 1].
        reduction: "mean" (over the number of elements, whatever the weights), "sum" or "none".

    Raises:
        ShapeError, DtypeError, DeviceError: input and target are no float tensors of one shape, dtype and device, or
            weight does not fit.
        ArgumentError: an unknown reduction; an input or a target outside [0, 1]; on a GPU, which nothing waits for,
            the loss becomes NaN instead where it is the input.
        AutogradError: weight requires grad.
    """
    who = "binary_cross_entropy"
    check_pair(who, input, target, reduction)
    if weight is not None:
        check_constant(who, "weight", weight, input)
        check_broadcast(who, "weight", weight, input)
    x, t = widened(input.data), widened(target.data)
    _check_probabilities(who, "input", x)
    _check_probabilities(who, "target", t)
    log_x, log_rest = _logs(x)
    losses = (t - 1.0) * log_rest - t * log_x
    if weight is not None:
        losses *= weight.data
    inputs = (input, target) if weight is None else (input, target, weight)
    data = reduce_losses(losses, reduction, input.dtype)
    return record(data, _binary_cross_entropy_backward, inputs, (input, target, weight, reduction))


def _binary_cross_entropy_backward(node: Node, grad: Array) -> None:
    input, target, weight, reduction = node.saved
    dinput, dtarget = node.inputs[:2]
    x, t = widened(input.data), widened(target.data)
    scale = element_gradient(grad, reduction, x.size)
    if weight is not None:
        scale = scale * weight.data
    if dinput is not None:
        dx = (x - t) / array_module(x).maximum(x * (1.0 - x), _LEAST_VARIANCE) * scale
        accumulate(dinput, dx.astype(grad.dtype, copy=False))
    if dtarget is not None:
        log_x, log_rest = _logs(x)
        accumulate(dtarget, ((log_rest - log_x) * scale).astype(grad.dtype, copy=False))


def _check_probabilities(who: str, name: str, x: Array) -> None:
    if x.__class__ is np.ndarray and x.size and not (x.min() >= 0 and x.max() <= 1):
        advice = ": of logits take binary_cross_entropy_with_logits" if name == "input" else ""
        raise ArgumentError(f"{who}: expected {name} in [0, 1], got values from {x.min()} to {x.max()}{advice}")


def _logs(x: Array) -> tuple[Array, Array]:
    """ln x and ln(1 - x), each at least -100; NaN outside [0, 1]."""
    xp, none, all_ = array_module(x), x == 0, x == 1
    log_x, log_rest = xp.log(x + none), xp.log1p(all_ - x)  # 0 where the argument would be
    return xp.maximum(log_x, _LEAST_LOG) + none * _LEAST_LOG, xp.maximum(log_rest, _LEAST_LOG) + all_ * _LEAST_LOG


@autocasts("high")
def sigmoid_focal_loss(
    inputs: Tensor, targets: Tensor, alpha: float = 0.25, gamma: float = 2.0, reduction: str = "none"
) -> Tensor:
    """The binary cross-entropy of logits times (1 - p)^gamma, reduced; p is the probability given to the target.

    What is classified well counts less. Lin et al., "Focal loss for dense object detection", 2017; names and defaults
    are torchvision's.

    Shapes:
        inputs, targets: (...) of one shape -> as they are, or () with another reduction

    Args:
        targets: 0 or 1, or between.
        alpha: What positives weigh, in [0, 1]; negatives weigh 1 - alpha. -1: both weigh 1.
        gamma: >= 0; 0 is the cross-entropy.

    Raises:
        ShapeError, DtypeError, DeviceError: inputs and targets are no float tensors of one shape, dtype and device.
        ArgumentError: an unknown reduction, or alpha or gamma out of range.
    """
    who = "sigmoid_focal_loss"
    check_pair(who, inputs, targets, reduction)
    if not is_real(alpha) or not (alpha == -1 or 0 <= alpha <= 1):
        raise ArgumentError(f"{who}: expected alpha in [0, 1], or -1 for none, got {alpha!r:.100}")
    gamma = as_amount(who, "gamma", gamma)
    losses = binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    if gamma:
        missed = sigmoid(-inputs) * targets + sigmoid(inputs) * (1.0 - targets)  # 1 - p, and exact where that is small
        losses = losses * missed**gamma
    if alpha >= 0:
        losses = losses * (targets * alpha + (1.0 - targets) * (1.0 - alpha))
    return reduced(losses, reduction)


# ---------------------------------------------------------------------------------- of counts, and of normal errors


@autocasts("high")
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """exp(x) - t·x, or x - t·ln(x + eps) without log_input, reduced: counts t that are Poisson with mean exp(x), or x.

    Shapes:
        input, target: (...) of one shape -> (), or as they are with reduction="none"

    Args:
        full: Add Stirling's t·ln t - t + ln(2πt)/2 for ln t!, where t > 1.
        eps: > 0.

    Raises:
        ShapeError, DtypeError, DeviceError: input and target are no float tensors of one shape, dtype and device.
        ArgumentError: an unknown reduction, a switch that is no bool, or eps out of range.
    """
    check_pair("poisson_nll_loss", input, target, reduction)
    check_switch("poisson_nll_loss", log_input=log_input, full=full)
    eps = as_real("poisson_nll_loss", "eps", eps, above=0.0, finite=True)
    losses = exp(input) - target * input if log_input else input - target * log(input + eps)
    if full:
        counted = target > 1
        many = where(counted, target, 1.0)
        losses = losses + where(counted, many * log(many) - many + 0.5 * log(2.0 * math.pi * many), 0.0)
    return reduced(losses, reduction)


@autocasts("high")
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """(ln v + (input - target)²/v)/2, reduced: targets that are normal with mean input and variance v = max(var, eps).

    Nix and Weigend, "Estimating the mean and variance of the target probability distribution", 1994. The gradient of
    var is that of v, also where var is below eps.

    Shapes:
        input, target: (...) that broadcast -> (), or their common shape with reduction="none"
        var: as input, with a length 1 for axes that share one, or without the last axis

    Args:
        full: Add the constant ln(2π)/2.
        eps: > 0.

    Raises:
        ShapeError, DtypeError, DeviceError: shapes, dtypes or devices that do not fit as above.
        ArgumentError: an unknown reduction, full is no bool, eps out of range; a negative var (on a GPU, of a number).
    """
    who = "gaussian_nll_loss"
    wide, target = _in_common_shape(who, input, target)
    check_pair(who, wide, target, reduction)
    check_switch(who, full=full)
    eps = as_real(who, "eps", eps, above=0.0, finite=True)
    spread = _variance(who, input, var)
    spread = spread + clamp(eps - spread.detach(), min=0.0)
    losses = 0.5 * (log(spread) + square(wide - target) / spread)
    return reduced(losses + 0.5 * math.log(2.0 * math.pi) if full else losses, reduction)


def _in_common_shape(who: str, input: Any, target: Any) -> tuple[Any, Any]:
    """Both in the shape that they broadcast to; what are no tensors as it is."""
    if not isinstance(input, Tensor) or not isinstance(target, Tensor) or input.shape == target.shape:
        return input, target
    try:
        shape = np.broadcast_shapes(input.shape, target.shape)
    except ValueError as error:
        raise broadcast_error(who, input, target) from error
    return input.expand(*shape), target.expand(*shape)


def _variance(who: str, input: Tensor, var: Any) -> Tensor:
    """A variance for each element, as a tensor that broadcasts to them."""
    if is_real(var):
        value = as_amount(who, "var", var)
        found = Tensor(array_module(input.data).full((1,) * input.ndim, value, input.dtype))
    elif not isinstance(var, Tensor):
        raise DtypeError(f"{who}: expected var to be a tensor or a number, got {kind_of(var)}")
    else:
        check_float(who, var)
        same_device(who, input, var)
        found = unsqueeze(var, -1) if input.ndim and var.shape == input.shape[:-1] else var
        if found.ndim != input.ndim:
            raise ShapeError(f"{who}: expected var of shape {input.shape}, or {input.shape[:-1]}, got {var.shape}")
        check_broadcast(who, "var", found, input)
        if var.data.__class__ is np.ndarray and (var.data < 0).any():
            raise ArgumentError(f"{who}: expected var >= 0, got {var.data.min()}")
    return found
