"""Changes in place: how a tensor is written into, and assignment: x[i] = v, copy_, fill_ and random numbers.

Each computes the new values first and then writes them into the memory of x, so operands may overlap with it. Its
shape and dtype stay. While recording, x goes on with the node of what was written: the tape says where it comes from
now. A node that saved the old values notices by the stamp. Only a tensor with a history of its own can do that, which
neither a leaf that requires grad nor a view has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from minigrad.arguments import as_real, check_generator, check_real, is_number
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module, to_device
from minigrad.backend.dtypes import Array, common_dtype, converted, is_float
from minigrad.backend.memory import is_read_only, is_stretched
from minigrad.backend.random import noise_generator
from minigrad.errors import ArgumentError, AutogradError, DtypeError, IndexRangeError, ShapeError
from minigrad.ops.axes import unbroadcast
from minigrad.ops.index import check_index_arrays, plain_index
from minigrad.ops.methods import method, method_as
from minigrad.ops.operands import TensorLike, as_operand, as_truth, cast, check_float, operands, same_device
from minigrad.ops.sampling import tossed
from minigrad.recording import is_grad_enabled
from minigrad.stamp import check_taken, is_view, mark_changed
from minigrad.tensor import Tensor, record, rerecord

Same = TypeVar("Same", bound=Tensor)


# ------------------------------------------------------------------------------------------------- the mechanism


def _check_target(who: str, x: Tensor, *values: Any) -> None:
    """Refuse a tensor that can't be changed, or not while recording."""
    if is_grad_enabled():
        check_taken(x)
    recorded = is_grad_enabled() and (x.requires_grad or any(isinstance(v, Tensor) and v.requires_grad for v in values))
    if recorded and x.requires_grad and x.is_leaf:
        raise AutogradError(
            f"{who}: expected recording to be off, got a leaf of shape {x.shape} that requires grad: use no_grad()"
        )
    if recorded and is_view(x):
        raise AutogradError(
            f"{who}: expected recording to be off, got a view of shape {x.shape}, whose base would not get the "
            "gradient: use no_grad(), assign to the base, as in base[i] = base[i] + 1, or change a clone()"
        )
    if is_read_only(x.data):
        raise AutogradError(f"{who}: expected memory that may be written, got a read-only view of shape {x.shape}")
    if is_stretched(x.data):
        raise AutogradError(f"{who}: expected each element in a place of its own, got a view of shape {x.shape}")


def _check_dtype(who: str, x: Tensor, found: np.dtype[Any], value: Tensor) -> None:
    """Refuse a result of another dtype than x's, but for two floats, which meet inside autocast alone."""
    if found != x.data.dtype and not (is_float(found) and is_float(x.data.dtype) and is_float(value.data.dtype)):
        raise DtypeError(f"{who}: expected a value that fits into {x.dtype.name}, got {value.dtype.name}")


def _follow(x: Tensor, node: Node | None) -> None:
    """Let x have the history of what was written into it, where that is recorded."""
    if is_grad_enabled() and node is not x.node:
        rerecord(x, node)
    else:
        mark_changed(x)


def update(who: str, x: Same, function: Callable[..., Tensor], *args: Any, **options: Any) -> Same:
    """x = function(x, ...), in the memory of x; returns x."""
    _check_target(who, x, *args)
    old = Tensor(x.data)
    if is_grad_enabled():
        old.requires_grad, old.node = x.requires_grad, x.node
    out = function(old, *args, **options)
    if out.data.shape != x.data.shape:
        raise ShapeError(f"{who}: expected a value that fits into {x.shape} there, got {out.shape}")
    _check_dtype(who, x, out.data.dtype, out)
    out = cast(out, x.data.dtype)
    if out.node is not None and any(kept is old for kept in out.node.saved):
        old.data = old.data.copy()
    x.data[...] = out.data
    _follow(x, out.node)
    return x


def overwrite(who: str, function: Callable[..., Tensor], x: Tensor, *args: Any) -> Tensor:
    """function(x, ...) in the memory of x, as `inplace=True` asks for it; returns x.

    Raises:
        DtypeError: x is no tensor.
        AutogradError: x can't be changed, or not while recording: see `update`.
    """
    if not isinstance(x, Tensor):
        raise DtypeError(f"{who}: expected a Tensor with inplace=True, got {type(x).__name__}")
    return update(who, x, function, *args)


def _assign(who: str, x: Same, index: tuple[Any, ...], value: Tensor, watched: tuple[Tensor, ...] = ()) -> Same:
    """x[index] = value, for an index without tensors; returns x."""
    _check_target(who, x, value)
    same_device(who, x, value)
    _check_dtype(who, x, common_dtype(who, x.dtype, value.dtype), value)
    saved = (index, value.data.shape, value.data.dtype, *watched)
    node = record(x.data, _assign_backward, (x, value, *watched), saved).node
    try:
        x.data[index] = _apart(value.data, x.data)
    except ValueError as error:
        raise ShapeError(f"{who}: expected a value that fits into {x.shape} there, got {value.shape}") from error
    except IndexError as error:
        raise IndexRangeError(f"{who}: expected an index into shape {x.shape}, got {index!r}: {error}") from error
    _follow(x, node)
    return x


def _apart(value: Array, target: Array) -> Array:
    """A value in memory that is not written while it is read. NumPy sees to that by itself."""
    if value.__class__ is np.ndarray or not array_module(value).may_share_memory(value, target):
        return value
    return value.copy()


def _assign_backward(node: Node, grad: Array) -> None:
    index, shape, dtype = node.saved[:3]
    dx, dvalue = node.inputs[:2]
    if dvalue is not None:
        there = grad[index]
        there = unbroadcast(there.reshape((1,) * (len(shape) - there.ndim) + there.shape), shape)
        accumulate(dvalue, converted(there, dtype))
    if dx is not None:
        kept = grad.copy()
        kept[index] = 0
        accumulate(dx, kept)


def _value(who: str, x: Tensor, value: TensorLike) -> Tensor:
    """What is to be written into x as a tensor; a number in the dtype of x, or a wider one where it does not fit."""
    return operands(who, x.detach(), as_truth(x, value))[1] if is_number(value) else as_operand(who, value)


# ---------------------------------------------------------------------------------------------------- assignment


@method_as("__setitem__")
def setitem(x: Tensor, index: Any, value: TensorLike) -> None:
    """x[index] = value. The index may be or hold tensors of integers or bools.

    dx is g, but 0 at the index; dvalue is g at the index. Which of several values for one place stays is not said.

    Raises:
        AutogradError: recording is on, and x is a leaf that requires grad or a view.
        ShapeError: value does not broadcast to x[index].
        DtypeError, DeviceError: value does not fit into x's dtype, or lives elsewhere.
    """
    parts = plain_index("setitem", x, index)
    watched = tuple(part for part in (index if isinstance(index, tuple) else (index,)) if isinstance(part, Tensor))
    _assign("setitem", x, parts, _value("setitem", x, value), watched)
    check_index_arrays("setitem", x, parts)


@method
def copy_(x: Same, value: TensorLike) -> Same:
    """Overwrite x with a value that broadcasts to its shape; returns x. dx = 0, dvalue = g.

    Raises:
        ShapeError, DtypeError, DeviceError: value does not fit into x's shape or dtype, or lives elsewhere.
    """
    given = _value("copy_", x, value)
    if given.ndim > x.ndim:  # NumPy would drop leading axes of length 1
        raise ShapeError(f"copy_: expected a value that fits into {x.shape} there, got {given.shape}")
    return _assign("copy_", x, (...,), given)


@method
def fill_(x: Same, value: TensorLike) -> Same:
    """Overwrite every element of x with a number, or a tensor of no axes; returns x.

    Raises:
        ShapeError: a value with axes. DtypeError: one that does not fit into the dtype of x.
    """
    given = _value("fill_", x, value)
    if given.ndim:
        raise ShapeError(f"fill_: expected a number or a tensor of no axes, got shape {given.shape}")
    return _assign("fill_", x, (...,), given)


@method
def zero_(x: Same) -> Same:
    """Overwrite every element of x with zero; returns x."""
    return _assign("zero_", x, (...,), _value("zero_", x, 0))


@method
def normal_(x: Same, mean: float = 0.0, std: float = 1.0, *, rng: np.random.Generator | None = None) -> Same:
    """Overwrite x with normal numbers of this mean and standard deviation, drawn on the host; returns x.

    Args:
        rng: Where they come from; this context's noise stream by default.

    Raises:
        DtypeError: x is not of floats.
        ArgumentError: std < 0, an argument that is not finite, or rng is no generator.
    """
    check_real("normal_", mean=mean)
    check_real("normal_", 0.0, std=std)
    return _drawn("normal_", x, "normal", (mean, std), rng)


@method
def uniform_(x: Same, low: float = 0.0, high: float = 1.0, *, rng: np.random.Generator | None = None) -> Same:
    """Overwrite x with numbers uniform in [low, high), rounded to its dtype, drawn on the host; returns x.

    Args:
        rng: Where they come from; this context's noise stream by default.

    Raises:
        DtypeError: x is not of floats.
        ArgumentError: low > high, an argument that is not finite, or rng is no generator.
    """
    check_real("uniform_", low=low, high=high)
    if low > high:
        raise ArgumentError(f"uniform_: expected low <= high, got low={low} and high={high}")
    return _drawn("uniform_", x, "uniform", (low, high), rng)


@method
def exponential_(x: Same, lambd: float = 1.0, *, rng: np.random.Generator | None = None) -> Same:
    """Overwrite x with numbers of density λ·e^(-λx), drawn on the host; returns x.

    Args:
        rng: Where they come from; this context's noise stream by default.

    Raises:
        DtypeError: x is not of floats.
        ArgumentError: lambd <= 0, or rng is no generator.
    """
    if as_real("exponential_", "lambd", lambd) <= 0:
        raise ArgumentError(f"exponential_: expected lambd > 0, got {lambd}")
    return _drawn("exponential_", x, "exponential", (1 / lambd,), rng)


@method
def bernoulli_(x: Same, p: TensorLike = 0.5, *, rng: np.random.Generator | None = None) -> Same:
    """Overwrite x with 1 with a probability, else 0, drawn on the host; returns x.

    Args:
        p: A number, or a tensor of probabilities that broadcasts to x.
        rng: Where they come from; this context's noise stream by default.

    Raises:
        ArgumentError: p or, on a CPU, an element of it outside [0, 1], or rng is no generator.
        IndexRangeError: an element of it outside [0, 1] on a GPU, when the host next reads from it.
    """
    _check_target("bernoulli_", x)  # before anything is drawn
    chances = p if isinstance(p, Tensor) else Tensor(np.asarray(as_real("bernoulli_", "p", p, 0.0, 1.0)))
    return _assign("bernoulli_", x, (...,), Tensor(tossed("bernoulli_", x, chances, rng)))


def _drawn(who: str, x: Same, method: str, facts: tuple[float, ...], rng: np.random.Generator | None) -> Same:
    check_float(who, x)
    check_generator(who, rng)
    _check_target(who, x)  # before anything is drawn
    drawn = getattr(noise_generator() if rng is None else rng, method)(*facts, x.data.shape)
    return _assign(who, x, (...,), Tensor(to_device(converted(np.asarray(drawn), x.data.dtype), x.device)))
