"""Lengths, angles and distances of vectors, and losses that ask these to be small, or larger than a margin."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.arguments import as_amount, as_real, check_choice, check_switch, kind_of
from minigrad.bound import Dim
from minigrad.errors import DtypeError, ShapeError
from minigrad.ops.arithmetic import broadcast_error, minimum
from minigrad.ops.axes import normalize_axis, reduced_axes
from minigrad.ops.elementwise import clamp
from minigrad.ops.losses import REDUCTIONS, reduced
from minigrad.ops.mask import where
from minigrad.ops.operands import check_float, same_device
from minigrad.ops.precision import autocasts
from minigrad.ops.reduce import norm
from minigrad.ops.reduce import sum as sum_of
from minigrad.tensor import Tensor

__all__ = [
    "cosine_embedding_loss", "cosine_similarity", "hinge_embedding_loss", "margin_ranking_loss", "normalize",
    "pairwise_distance", "triplet_margin_loss",
]


@autocasts("high")
def normalize(x: Tensor, p: float = 2.0, dim: Dim = 1, eps: float = 1e-12) -> Tensor:
    """x / max(‖x‖ₚ, eps), the norm over dim: vectors of length 1.

    Args:
        p: As in `norm`.
        eps: >= 0, so that a vector of zeros stays one.

    Raises:
        DtypeError: no float tensor.
        ShapeError: an axis out of range, or named twice.
        ArgumentError: p or eps is no number, or eps < 0.
    """
    _check("normalize", x=x)
    reduced_axes("normalize", dim, x.ndim)
    length = norm(x, as_real("normalize", "p", p), dim, keepdim=True)
    return x / clamp(length, min=as_amount("normalize", "eps", eps))


@autocasts("high")
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1·x2 / (max(‖x1‖, eps) · max(‖x2‖, eps)) along dim: the cosine of the angle between vectors.

    Shapes:
        x1, x2: that broadcast -> the common shape without dim

    Args:
        eps: > 0. Below it, a norm still gets the gradient of a norm, as in PyTorch.

    Raises:
        ShapeError: the shapes do not broadcast, or dim is out of range.
        DtypeError, DeviceError: no float tensors of one dtype and device.
        ArgumentError: eps out of range.
    """
    x1, x2 = _common("cosine_similarity", x1=x1, x2=x2)
    eps = as_real("cosine_similarity", "eps", eps, above=0.0, finite=True)
    dim = normalize_axis("cosine_similarity", dim, x1.ndim)
    return sum_of(_directed(x1, dim, eps) * _directed(x2, dim, eps), dim)


def _directed(x: Tensor, dim: int, eps: float) -> Tensor:
    """x over its norm, which is at least eps."""
    length = norm(x, 2.0, dim, keepdim=True)
    return x / (length + clamp(eps - length.detach(), min=0.0))


@autocasts("high")
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """‖x1 - x2 + eps‖ₚ along the last axis.

    Shapes:
        x1, x2: (..., D) that broadcast -> (...), or (..., 1) with keepdim

    Args:
        p: As in `norm`.
        eps: Added to each difference, which keeps the gradient of equal vectors finite.

    Raises:
        ShapeError: the shapes do not broadcast.
        DtypeError, DeviceError: no float tensors of one dtype and device.
        ArgumentError: p or eps is no number, keepdim is no bool.
    """
    _check("pairwise_distance", x1=x1, x2=x2)
    p, eps = as_real("pairwise_distance", "p", p), as_real("pairwise_distance", "eps", eps, finite=True)
    check_switch("pairwise_distance", keepdim=keepdim)
    return norm(x1 - x2 + eps, p, -1, keepdim)


# ------------------------------------------------------------------------------------------------------- losses


@autocasts("high")
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - cos of the pairs with target 1, max(0, cos - margin) of those with target -1, reduced.

    The cosine is along the last of one or two axes: x1·x2 / √((‖x1‖² + 1e-12)·(‖x2‖² + 1e-12)).

    Shapes:
        input1, input2: (N, D), target: (N,) -> (), or (N,) with reduction="none"; or (D,) and ()

    Args:
        target: 1 where the two belong together, -1 where they do not; what is neither costs nothing.
        margin: The cosine up to which the latter cost nothing, in [-1, 1].

    Raises:
        ShapeError, DtypeError, DeviceError: shapes, dtypes or devices that do not fit as above.
        ArgumentError: an unknown reduction, or margin is no number.
    """
    who = "cosine_embedding_loss"
    _check(who, reduction, input1=input1, input2=input2)
    margin = as_real(who, "margin", margin, finite=True)
    _check_target(who, target, input1)
    axes = target.ndim + 1
    if axes > 2 or input1.ndim != axes or input2.ndim != axes:
        raise ShapeError(
            f"{who}: expected inputs (N, D) and target (N,), or (D,) and (), "
            f"got {input1.shape}, {input2.shape} and {target.shape}"
        )
    squares = [sum_of(x * x, -1) + 1e-12 for x in (input1, input2)]
    cosine = sum_of(input1 * input2, -1) / (squares[0] * squares[1]) ** 0.5
    _check_shapes(who, cosine, target)
    losses = where(target == 1, 1.0 - cosine, 0.0) + where(target == -1, clamp(cosine - margin, min=0.0), 0.0)
    return reduced(losses, reduction)


@autocasts("high")
def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """x where the target is 1, max(0, margin - x) where it is -1, reduced: distances x of pairs that belong or do not.

    Shapes:
        input, target: that broadcast -> (), or their common shape with reduction="none"

    Args:
        target: 1 or -1; what is neither costs both.

    Raises:
        ShapeError, DtypeError, DeviceError: shapes, dtypes or devices that do not fit.
        ArgumentError: an unknown reduction, or margin is no number.
    """
    who = "hinge_embedding_loss"
    _check(who, reduction, input=input)
    margin = as_real(who, "margin", margin, finite=True)
    _check_target(who, target, input)
    _check_shapes(who, input, target)
    losses = where(target != 1, clamp(margin - input, min=0.0), 0.0) + where(target != -1, input, 0.0)
    return reduced(losses, reduction)


@autocasts("high")
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, -target·(input1 - input2) + margin), reduced: 0 where the first is larger, for target 1, by the margin.

    Shapes:
        input1, input2, target: of as many axes each, that broadcast -> (), or their common shape with reduction="none"

    Args:
        target: 1 where the first is to be larger, -1 where the second is.

    Raises:
        ShapeError, DtypeError, DeviceError: shapes, dtypes or devices that do not fit.
        ArgumentError: an unknown reduction, or margin is no number.
    """
    who = "margin_ranking_loss"
    _check(who, reduction, input1=input1, input2=input2)
    margin = as_real(who, "margin", margin, finite=True)
    _check_target(who, target, input1)
    if not input1.ndim == input2.ndim == target.ndim:
        raise ShapeError(
            f"{who}: expected inputs and target of as many axes, "
            f"got {input1.shape}, {input2.shape} and {target.shape}"
        )
    _check_shapes(who, input1, input2, target)
    return reduced(clamp(margin - target * (input1 - input2), min=0.0), reduction)


@autocasts("high")
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), reduced; d is `pairwise_distance`.

    Schroff et al., "FaceNet", 2015. With swap the negative's distance is the smaller one of those to anchor and to
    positive (Balntas et al., 2016).

    Shapes:
        anchor, positive, negative: (..., D) of as many axes each, that broadcast -> (), or (...) with reduction="none"

    Args:
        margin: > 0.
        p, eps: As in `pairwise_distance`.

    Raises:
        ShapeError, DtypeError, DeviceError: no float tensors of as many axes, of one dtype and device.
        ArgumentError: an unknown reduction, or another argument out of range.
    """
    who = "triplet_margin_loss"
    _check(who, reduction, anchor=anchor, positive=positive, negative=negative)
    margin = as_real(who, "margin", margin, above=0.0, finite=True)
    check_switch(who, swap=swap)
    if not 0 < anchor.ndim == positive.ndim == negative.ndim:
        raise ShapeError(
            f"{who}: expected anchor, positive and negative (..., D) of as many axes, "
            f"got {anchor.shape}, {positive.shape} and {negative.shape}"
        )
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced(clamp(near - far + margin, min=0.0), reduction)


# ------------------------------------------------------------------------------------------------------ arguments


def _check(who: str, reduction: str = "mean", **tensors: Any) -> None:
    """Refuse what are no float tensors of one dtype and device that broadcast, or an unknown reduction."""
    check_choice(who, REDUCTIONS, reduction=reduction)
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise DtypeError(f"{who}: expected {name} to be a tensor, got {kind_of(x)}")
        check_float(who, x)
    dtypes = list(dict.fromkeys(x.dtype.name for x in tensors.values()))
    if len(dtypes) > 1:
        raise DtypeError(f"{who}: expected {', '.join(tensors)} of one dtype, got {' and '.join(dtypes)}")
    same_device(who, *tensors.values())
    _check_shapes(who, *tensors.values())


def _common(who: str, **tensors: Any) -> tuple[Tensor, ...]:
    """The tensors, checked, in their common shape."""
    _check(who, **tensors)
    shape = np.broadcast_shapes(*[x.shape for x in tensors.values()])
    return tuple(x if x.shape == shape else x.expand(*shape) for x in tensors.values())


def _check_target(who: str, target: Any, x: Tensor) -> None:
    if not isinstance(target, Tensor):
        raise DtypeError(f"{who}: expected target to be a tensor of 1 and -1, got {kind_of(target)}")
    same_device(who, x, target)


def _check_shapes(who: str, *tensors: Tensor) -> None:
    try:
        np.broadcast_shapes(*[x.shape for x in tensors])
    except ValueError as error:
        raise broadcast_error(who, *tensors) from error
