"""Losses of classification: cross-entropy on logits, and the negative log-likelihood on log-probabilities.

Both see the classes last: (N, C, ...) becomes rows of C. Softmax and loss are one operation, so the gradient is
softmax minus target, scaled by row.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from minigrad.arguments import as_integer, as_real, check_choice, kind_of
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype, is_float, widened
from minigrad.backend.flags import check_range, checked_by_kernel
from minigrad.backend.fused.cross_entropy import row_gradients, row_losses
from minigrad.backend.kernels import kernels_for
from minigrad.backend.memory import contiguous
from minigrad.backend.order import in_order
from minigrad.errors import DtypeError, IndexRangeError, ShapeError
from minigrad.ops.axes import row_sum
from minigrad.ops.losses import REDUCTIONS, check_constant, check_pair, element_gradient, reduce_losses
from minigrad.ops.operands import check_float, once, same_device
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = ["cross_entropy", "nll_loss"]

_INT64 = np.dtype(np.int64)


@autocasts("high")
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-Σ_c weight[c] · t[c] · log softmax(input)[c], reduced; t is one-hot for a label, smoothed to (1-s)·t + s/C.

    Shapes:
        input: (N, C), (N, C, ...) or (C,); target: labels of shape (N, ...) or (), or probabilities of input's shape
        -> (), or the shape of the labels with reduction="none"; weight: (C,)

    Args:
        target: Integers in [0, C) or ignore_index; or floats, the probability of each class.
        ignore_index: Rows with this label do not count and get no gradient; labels only.
        reduction: "mean", "sum" or "none". The mean of labels is Σ loss / Σ weight[label] over the rows that count,
            NaN where none does; that of probabilities is Σ loss / rows.
        label_smoothing: s, in [0, 1].

    Raises:
        ShapeError, DtypeError, DeviceError: shapes, dtypes or devices that do not fit as above.
        IndexRangeError: a label out of range. On a GPU, which nothing waits for, the loss becomes NaN, and the error
            is raised when the host next reads from it.
        AutogradError: weight requires grad.
        ArgumentError: an unknown reduction, or label_smoothing out of range.
    """
    who = "cross_entropy"
    has_labels = _takes_labels(who, (input, target), reduction, label_smoothing, ignore_index)
    if weight is not None:
        _check_weight(who, input, weight)
    label_smoothing = float(label_smoothing)
    if not has_labels:
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    ignore_index = int(ignore_index)
    if kernels_for(input.data) is not None:
        return _cross_entropy_by_kernels(input, target, weight, ignore_index, reduction, label_smoothing)
    labels = _read_labels(who, input, target, weight, ignore_index)
    softmax = _softmax(input.data)
    picked = softmax.shifted.reshape(-1)[labels.places]
    losses = labels.count(softmax.log_total - picked)
    if label_smoothing:
        spread = label_smoothing / softmax.shifted.shape[1]
        losses *= 1.0 - label_smoothing
        losses += labels.zero_ignored(_uniform_losses(softmax, weight) * spread)
    data = _reduce_labelled(losses, labels, reduction, target.data.shape, input.dtype)
    saved = (input.data.shape, softmax.exps, softmax.total, labels, weight, reduction, label_smoothing)
    return record(data, _cross_entropy_backward, _beside(weight, input), saved)


def _cross_entropy_backward(node: Node, grad: Array) -> None:
    shape, exps, total, labels, weight, reduction, smoothing = node.saved
    if labels.kept is None and labels.factor is None and not smoothing and reduction != "none":
        scale = element_gradient(grad, reduction, len(labels.places))  # the same for all rows
        dx = in_order("multiply", exps, (scale / total)[:, None])
        dx.reshape(-1)[labels.places] -= scale
        accumulate(node.inputs[0], _from_class_rows(dx, shape, grad.dtype))
        return
    at_label = labels.count(_row_scale(grad, labels, reduction)) * (1.0 - smoothing)
    pull = at_label
    if smoothing:
        everywhere = labels.zero_ignored(_row_scale(grad, labels, reduction)) * (smoothing / exps.shape[1])
        mass = exps.shape[1] if weight is None else widened(weight.data).sum()
        pull = at_label + everywhere * mass
    dx = in_order("multiply", exps, (pull / total)[:, None])
    dx.reshape(-1)[labels.places] -= at_label
    if smoothing:
        dx -= everywhere[:, None] * (1.0 if weight is None else widened(weight.data))
    accumulate(node.inputs[0], _from_class_rows(labels.zero_ignored(dx), shape, grad.dtype))


def _cross_entropy_by_kernels(
    input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, smoothing: float
) -> Tensor:
    rows, labels = contiguous(_class_rows(input.data)), contiguous(_flat(target.data))
    weights = None if weight is None else contiguous(weight.data)
    with checked_by_kernel("cross_entropy", "labels", labels, 0, rows.shape[1], ignore_index) as place:
        wide = labels if labels.dtype == _INT64 else labels.astype(_INT64)
        data, found = row_losses(rows, wide, weights, ignore_index, smoothing, reduction, place)
    if reduction == "none":
        data = data.astype(input.dtype, copy=False).reshape(target.data.shape)
    saved = (input, weight, target, found)  # found views the memory of the first three
    return record(data, _cross_entropy_by_kernels_backward, _beside(weight, input, target), saved)


def _cross_entropy_by_kernels_backward(node: Node, grad: Array) -> None:
    input, _, _, found = node.saved
    dx = row_gradients(found, contiguous(grad.reshape(-1)) if grad.ndim else grad)
    accumulate(node.inputs[0], _from_class_rows(dx, input.data.shape, grad.dtype))


def _beside(weight: Tensor | None, *others: Tensor) -> tuple[Tensor, ...]:
    """The inputs, with the weights of the classes as the last one where there are any."""
    return others if weight is None else (*others, weight)


def _uniform_losses(softmax: _Softmax, weight: Tensor | None) -> Array:
    """-Σ_c weight[c] · log softmax[c] of each row."""
    if weight is None:
        return softmax.log_total * softmax.shifted.shape[1] - row_sum(softmax.shifted)
    weights = widened(weight.data)
    return softmax.log_total * weights.sum() - softmax.shifted @ weights


def _soft_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    """The cross-entropy with probabilities."""
    softmax = _softmax(input.data)
    wanted = widened(_class_rows(target.data)) * (1.0 - smoothing) + smoothing / softmax.shifted.shape[1]
    if weight is not None:
        wanted *= widened(weight.data)
    losses = softmax.log_total * row_sum(wanted) - row_sum(wanted * softmax.shifted)
    data = reduce_losses(losses.reshape(_rows_shape(input.data.shape)), reduction, input.dtype)
    saved = (input.data.shape, softmax, wanted, weight, reduction, smoothing)
    return record(data, _soft_cross_entropy_backward, _beside(weight, input, target), saved)


def _soft_cross_entropy_backward(node: Node, grad: Array) -> None:
    shape, softmax, wanted, weight, reduction, smoothing = node.saved
    dinput, dtarget = node.inputs[:2]
    scale = element_gradient(grad, reduction, len(wanted)).reshape(-1, 1)
    if dinput is not None:
        dx = softmax.exps * (row_sum(wanted) / softmax.total)[:, None]
        dx -= wanted
        dx *= scale
        accumulate(dinput, _from_class_rows(dx, shape, grad.dtype))
    if dtarget is not None:
        dt = (softmax.log_total[:, None] - softmax.shifted) * (scale * (1.0 - smoothing))
        if weight is not None:
            dt *= widened(weight.data)
        accumulate(dtarget, _from_class_rows(dt, shape, grad.dtype))


@autocasts("high")
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """-weight[label] · input[label], reduced: the negative log-likelihood, for an input of log-probabilities.

    Shapes, Args, Raises: as `cross_entropy` with labels.
    """
    _check_classes("nll_loss", input, reduction)
    if weight is not None:
        _check_weight("nll_loss", input, weight)
    ignore_index = as_integer("nll_loss", "ignore_index", ignore_index)
    _check_labels("nll_loss", input, target)
    labels = _read_labels("nll_loss", input, target, weight, ignore_index)
    losses = labels.count(-widened(_class_rows(input.data)).reshape(-1)[labels.places])
    data = _reduce_labelled(losses, labels, reduction, target.data.shape, input.dtype)
    return record(data, _nll_loss_backward, (input,), (input.data.shape, labels, reduction))


def _nll_loss_backward(node: Node, grad: Array) -> None:
    shape, labels, reduction = node.saved
    scale = labels.count(_row_scale(grad, labels, reduction))
    dx = array_module(grad).zeros((len(labels.places), shape[min(1, len(shape) - 1)]), scale.dtype)
    dx.reshape(-1)[labels.places] = -scale
    accumulate(node.inputs[0], _from_class_rows(dx, shape, grad.dtype))


# ------------------------------------------------------------------------------------------------------------ rows


class _Softmax(NamedTuple):
    """The parts of a softmax over rows: logits less their maximum, exp of it, its sum by row, and the log of that."""

    shifted: Array
    exps: Array
    total: Array
    log_total: Array


def _softmax(x: Array) -> _Softmax:
    xp = array_module(x)
    rows = xp.ascontiguousarray(widened(_class_rows(x)))  # Labels.places count elements in row order
    shifted = in_order("subtract", rows, rows.max(axis=1, keepdims=True))
    exps = in_order("exp", shifted)
    total = row_sum(exps)
    return _Softmax(shifted, exps, total, xp.log(total))


def _class_rows(x: Array) -> Array:
    """(N, C, ...) or (C,) as rows of classes: (R, C)."""
    if x.ndim < 3:
        return x if x.ndim == 2 else x.reshape(1, -1)
    return array_module(x).moveaxis(x, 1, -1).reshape(-1, x.shape[1])


def _flat(labels: Array) -> Array:
    return labels if labels.ndim == 1 else labels.reshape(-1)


def _from_class_rows(rows: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What `_class_rows` did to an array of this shape, undone, in another dtype."""
    rows = rows.astype(dtype, copy=False)
    if len(shape) < 3:
        return rows.reshape(shape)
    return array_module(rows).moveaxis(rows.reshape(shape[0], *shape[2:], shape[1]), -1, 1)


def _rows_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without its axis of classes."""
    return shape[:-1] if len(shape) < 3 else (shape[0], *shape[2:])


# ---------------------------------------------------------------------------------------------------------- labels


class _Labels(NamedTuple):
    """Labels, checked, one for each row of classes.

    places: where in the flat rows the label's class is, any place of the row where it is ignored. kept: False where a
    label is ignored, None where none is. factor: the weight of each row, None where all are 1. total: their sum.
    """

    places: Array
    kept: Array | None
    factor: Array | None
    total: Array | int

    def zero_ignored(self, rows: Array) -> Array:
        """The same array, with zeros in the rows that are ignored, whatever was there."""
        if self.kept is not None:
            rows[~self.kept] = 0
        return rows

    def count(self, rows: Array) -> Array:
        """A new array's rows times their weights."""
        self.zero_ignored(rows)
        return rows if self.factor is None else rows * self.factor


def _read_labels(who: str, input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> _Labels:
    """Find where in the rows of classes the labels point.

    A label out of range is an error on a CPU; on a GPU the factor of its row, and with it the loss, is NaN.
    """
    xp, dtype = array_module(input.data), accumulator_dtype(input.dtype)
    classes = input.data.shape[min(1, input.ndim - 1)]
    labels = _flat(target.data).astype(_INT64, copy=False)
    if xp is np and weight is None and _all_inside(labels, classes, ignore_index):
        return _Labels(_row_starts(len(labels), classes) + labels, None, None, len(labels))
    kept = labels != ignore_index
    bad = kept & ((labels < 0) | (labels >= classes))
    if xp is np:
        if bad.any():
            raise _label_error(who, target.data, classes, int(bad.argmax()))
        if kept.all():
            kept = None
    else:
        check_range(who, "labels", labels, 0, classes, ignore_index)
    inside = labels if kept is None else xp.where(kept & ~bad, labels, 0)
    factor = None if weight is None else weight.data.astype(dtype, copy=False)[inside]
    if kept is not None:
        factor = kept.astype(dtype) if factor is None else factor * kept
        if xp is not np:
            factor[bad] = math.nan
    places = xp.arange(len(labels)) * classes + inside
    return _Labels(places, kept, factor, len(labels) if factor is None else factor.sum())


def _all_inside(labels: Array, classes: int, ignore_index: int) -> bool:
    """Whether every label counts: negative ones are the largest, taken as numbers without a sign."""
    return not 0 <= ignore_index < classes and bool(labels.size) and labels.view(np.uint64).max() < classes


@functools.lru_cache(maxsize=16)
def _row_starts(rows: int, classes: int) -> Array:
    starts = np.arange(rows) * classes
    starts.flags.writeable = False
    return starts


def _label_error(who: str, target: Array, classes: int, index: int) -> IndexRangeError:
    position = tuple(int(i) for i in np.unravel_index(index, target.shape)) if target.ndim else ()
    return IndexRangeError(
        f"{who}: expected labels in [0, {classes}), got {int(target.reshape(-1)[index])} "
        f"at position {position} of {target.shape}"
    )


def _reduce_labelled(
    losses: Array, labels: _Labels, reduction: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """Losses of rows to one number, or to the shape of the labels."""
    if reduction != "mean" or isinstance(labels.total, int):
        return reduce_losses(losses.reshape(shape), reduction, dtype)
    xp = array_module(losses)
    none = xp.asarray(labels.total == 0)
    mean = losses.sum() / (labels.total + none)
    return xp.where(none, xp.full_like(mean, math.nan), mean).astype(dtype)


def _row_scale(grad: Array, labels: _Labels, reduction: str) -> Array:
    """The gradient of each row's loss, before its weight, as a new array: (R,)."""
    xp = array_module(grad)
    if isinstance(labels.total, int) or reduction != "mean":
        scale = element_gradient(grad, reduction, len(labels.places))
    else:
        scale = widened(grad) / (labels.total + (labels.total == 0))
    return xp.broadcast_to(scale.reshape(-1), labels.places.shape).copy()


# ------------------------------------------------------------------------------------------------------- arguments


@once
def _takes_labels(
    who: str, tensors: tuple[Tensor, Tensor], reduction: str, label_smoothing: float, ignore_index: int
) -> bool:
    """Whether the target is of labels rather than of probabilities; all but a weight is checked."""
    input, target = tensors
    _check_classes(who, input, reduction)
    as_real(who, "label_smoothing", label_smoothing, 0.0, 1.0)
    if isinstance(target, Tensor) and is_float(target.data.dtype):
        check_pair(who, input, target, reduction)
        return False
    as_integer(who, "ignore_index", ignore_index)
    _check_labels(who, input, target)
    return True


def _check_classes(who: str, input: Tensor, reduction: str) -> None:
    if not isinstance(input, Tensor):
        raise DtypeError(f"{who}: expected a tensor, got {kind_of(input)}")
    check_float(who, input)
    check_choice(who, REDUCTIONS, reduction=reduction)
    if not input.ndim or not input.data.shape[min(1, input.ndim - 1)]:
        raise ShapeError(f"{who}: expected input of shape (N, C, ...) or (C,) with C >= 1, got {input.shape}")


def _check_weight(who: str, input: Tensor, weight: Tensor | None) -> None:
    if weight is not None:
        check_constant(who, "weight", weight, input)
        classes = input.data.shape[min(1, input.ndim - 1)]
        if weight.data.shape != (classes,):
            raise ShapeError(f"{who}: expected weight of shape ({classes},), got {weight.shape}")


def _check_labels(who: str, input: Tensor, target: Tensor) -> None:
    if not isinstance(target, Tensor) or target.data.dtype.kind not in "iu":
        got = target.dtype.name if isinstance(target, Tensor) else kind_of(target)
        raise DtypeError(f"{who}: expected labels to be a tensor of integers, got {got}")
    expected = _rows_shape(input.data.shape)
    if target.data.shape != expected:
        raise ShapeError(f"{who}: expected labels of shape {expected} for input {input.shape}, got {target.shape}")
    if target.data.__class__ is not np.ndarray or input.data.__class__ is not np.ndarray:
        same_device(who, input, target)
