"""Dropout: zero a random part of the elements, or of the channels, and scale up the rest; gumbel_softmax.

For dropout a 16-bit word is drawn for each element and compared with a threshold. The probability is thereby rounded to
a multiple of 2⁻¹⁶, and the scale is computed from the rounded one, so the expectation of the output is exactly x. Words
are drawn on the host, or by a kernel that draws the same, so a seed drops the same elements on a CPU and on a GPU.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from minigrad.arguments import as_real, check_generator, check_switch
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module, device_of, to_device
from minigrad.backend.dtypes import Array, converted
from minigrad.backend.fused.dropout import ELEMENTS_PER_WORD, drop, take_noise
from minigrad.backend.kernels import kernels_for
from minigrad.backend.random import noise_generator
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.activation import softmax
from minigrad.ops.assign import overwrite
from minigrad.ops.axes import normalize_axis
from minigrad.ops.extremum import argmax
from minigrad.ops.operands import TensorLike, check_float, float_operand, once
from minigrad.tensor import Tensor, record

__all__ = ["dropout", "dropout2d", "gumbel_softmax"]

_WORDS = 2**16


def dropout(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """Each element becomes 0 with probability p, and x / (1 - p) otherwise; x itself outside training.

    Shapes:
        x: (...) -> as x

    Args:
        p: In [0, 1].
        inplace: Write the result into x, as the methods with an underscore do.
        rng: Source of the noise; the noise stream of this context by default.

    Raises:
        ArgumentError: p out of range, training is no bool, or rng is no generator.
        DtypeError: no float tensor.
    """
    if inplace and training:
        return overwrite("dropout", functools.partial(_drop, "dropout"), x, p, training, rng)
    return _drop("dropout", x, p, training, rng)


def dropout2d(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """Like `dropout`, for whole channels: each is dropped with probability p.

    Shapes:
        x: (N, C, H, W) -> as x

    Raises:
        ShapeError: not a batch of images.
        ArgumentError: as `dropout`.
        DtypeError: no float tensor.
    """
    if isinstance(x, Tensor) and x.ndim != 4:
        raise ShapeError(f"dropout2d: expected x of shape (N, C, H, W), got {x.shape}")
    if inplace and training:
        return overwrite("dropout2d", functools.partial(_drop, "dropout2d"), x, p, training, rng)
    return _drop("dropout2d", x, p, training, rng)


def _drop(who: str, x: Tensor, p: float, training: bool, rng: np.random.Generator | None) -> Tensor:
    p = _probability(who, (x,), p, training)
    check_generator(who, rng)
    if p == 0.0:
        return x
    if who == "dropout":
        drops = take_drops(x.data, p, rng)
    else:
        generator = noise_generator() if rng is None else rng
        drops = _place(_mask((*x.data.shape[:2], 1, 1), p, generator), x.data)
    return record(dropped(x.data, drops), _drop_backward, (x,), drops)


@once
def _probability(who: str, tensors: tuple[Tensor], p: float, training: bool) -> float:
    """p, and 0 outside training; everything is checked."""
    (x,) = tensors
    if not isinstance(x, Tensor):
        raise DtypeError(f"{who}: expected a tensor, got {type(x).__name__}")
    check_float(who, x)
    p = as_real(who, "p", p, 0.0, 1.0)
    check_switch(who, training=training)
    return p if training else 0.0


def _drop_backward(node: Node, grad: Array) -> None:
    accumulate(node.inputs[0], dropped(grad, node.saved))


Drops = tuple[Any, ...]  # which elements stay, and their scale: as a mask, or as what the kernel draws them by


def take_drops(x: Array, p: float, rng: np.random.Generator | None = None) -> Drops:
    """Which elements of an array are dropped, each with probability p; see `dropped`.

    Args:
        rng: Source of the noise; the noise stream of this context by default.
    """
    generator = noise_generator() if rng is None else rng
    if p < 1.0 and kernels_for(x) is not None:
        position = take_noise(generator, _words(x.size), x)
        if position is not None:
            return (position, *_threshold(p))
    return _place(_mask(x.shape, p, generator), x)


def dropped(x: Array, drops: Drops, out: Array | None = None) -> Array:
    """An array without the elements that are dropped, and with the others scaled up.

    Args:
        out: May be written over, x itself too.
    """
    if len(drops) == 2:
        return _masked(x, *drops, out)
    position, threshold, scale = drops
    fits = out is not None and x.flags.c_contiguous and out.flags.c_contiguous
    return drop(x, position, threshold, scale, out if fits else None)


def _place(drops: tuple[Array, float], like: Array) -> Drops:
    mask, scale = drops
    return to_device(mask, device_of(like)), scale


@functools.lru_cache(maxsize=256)
def _threshold(p: float) -> tuple[int, float]:
    """What the 16 bits of an element that stays must reach, and the scale that keeps the expectation."""
    threshold = min(round(p * _WORDS), _WORDS - 1)
    return threshold, _WORDS / (_WORDS - threshold)


def _words(count: int) -> int:
    """The 64-bit words that hold 16 bits for each element."""
    return -(-count // ELEMENTS_PER_WORD)


def _mask(shape: tuple[int, ...], p: float, rng: np.random.Generator) -> tuple[Array, float]:
    """Which elements stay, on the host, and the scale that keeps the expectation."""
    if p == 1.0:
        return np.zeros(shape, bool), 1.0
    threshold, scale = _threshold(p)
    count = math.prod(shape)
    words = rng.integers(0, 2**64, _words(count), dtype=np.uint64).view(np.uint16)[:count]
    return (words >= threshold).reshape(shape), scale


def _masked(x: Array, mask: Array, scale: float, out: Array | None = None) -> Array:
    xp = array_module(x)
    out = xp.empty_like(x) if out is None else out
    xp.multiply(x, mask, out=out)
    out *= scale
    return out


def gumbel_softmax(
    logits: TensorLike,
    tau: float = 1,
    hard: bool = False,
    eps: float = 1e-10,
    dim: int = -1,
    *,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """softmax((logits + G) / τ) with noise G, whose largest element is drawn as softmax(logits) says.

    Source: Jang, Gu and Poole, Categorical Reparameterization with Gumbel-Softmax (2017).

    Args:
        tau: τ > 0, the temperature: the smaller, the nearer to 0 and 1.
        hard: Give 1 for the largest and 0 for the others, with the gradient of the soft ones.
        eps: Has no use any more, as in PyTorch.
        rng: Where G = -ln E, of exponential numbers E, is drawn from, on the host; the noise stream by default.

    Shapes:
        (...) -> as logits

    Raises:
        ArgumentError: tau <= 0, another eps, hard is no bool, or rng is no generator.
        DtypeError: an integer tensor.
        ShapeError: the axis is out of range.
    """
    logits = float_operand("gumbel_softmax", logits)
    if as_real("gumbel_softmax", "tau", tau) <= 0 or eps != 1e-10:
        raise ArgumentError(f"gumbel_softmax: expected tau > 0, and eps as it is, got tau={tau} and eps={eps}")
    check_switch("gumbel_softmax", hard=hard)
    check_generator("gumbel_softmax", rng)
    axis = normalize_axis("gumbel_softmax", dim, logits.ndim)
    noise = (noise_generator() if rng is None else rng).gumbel(size=logits.data.shape)
    drawn = to_device(converted(np.asarray(noise), logits.data.dtype), logits.device)
    soft = softmax((logits + Tensor(drawn)) / tau, axis)
    if not hard:
        return soft
    xp, best = array_module(soft.data), argmax(soft, axis, keepdim=True)
    places = xp.arange(soft.data.shape[axis]).reshape([-1 if i == axis else 1 for i in range(soft.ndim)])
    once = Tensor((places == best.data).astype(soft.data.dtype))
    return once - soft.detach() + soft
