"""Normalization over a batch, and over groups of channels; that over the last axes is in layer_norms.py.

Variances are computed in two passes, Σ(x - mean)² rather than Σx² - (Σx)², and halves are worked on as float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minigrad.arguments import as_integer, as_real, check_switch, kind_of
from minigrad.autograd.tape import Edge, Node, accumulate, spare
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import kernels_for
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.channel_norms import (
    Moved,
    affine_edges,
    batch_normalized,
    moves,
    normalized,
    normalized_by,
    segments_of,
)
from minigrad.ops.operands import check_float, once, same_device
from minigrad.ops.precision import at_precision, autocasts
from minigrad.ops.statistics import (
    Folding,
    affine,
    as_rows,
    batch_rows,
    from_rows,
    group_rows,
    height_and_width,
    input_gradient,
    row_sums,
    statistics,
    work_dtype,
)
from minigrad.recording import is_recomputing
from minigrad.stamp import mark_changed
from minigrad.tensor import Tensor, record

__all__ = ["batch_norm", "group_norm", "instance_norm"]


# ----------------------------------------------------------------------------------------------------------- batch


@autocasts("high", itself=True)
def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) · weight + bias for each channel (Ioffe and Szegedy, 2015).

    In training mean and variance (biased) are those of the batch, and the running statistics move towards them, in
    place: running = (1 - momentum) · running + momentum · new, with the unbiased variance. Otherwise the running ones
    are used. An empty batch moves nothing.

    Shapes:
        x: (N, C, ...); running_mean, running_var, weight, bias: (C,) -> as x

    Args:
        running_mean, running_var: May be None in training.
        momentum: In [0, 1].
        eps: >= 0.

    Raises:
        ShapeError: the shapes do not fit as above, or training with one value for each channel.
        ArgumentError: no running statistics outside training, or momentum or eps out of range.
        DtypeError: no float tensors, or weight and bias of another dtype than x.
    """
    return counted_batch_norm(x, running_mean, running_var, None, weight, bias, training, momentum, eps)


def counted_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    batches: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """`batch_norm` that counts the batches by which the running statistics moved, too; in place, int64 of no axes."""
    x, weight, bias = at_precision("batch_norm", x, weight, bias)  # the running statistics are written to
    folding = _batch_folding("batch_norm", (x, weight, bias, running_mean, running_var), training, momentum, eps)
    momentum = float(momentum)
    fixed = not training or not x.data.size
    if x.data.size and kernels_for(x.data) is not None:
        return _batch_norm_by_kernels(x, (running_mean, running_var, batches, momentum), weight, bias, eps, fixed)
    if fixed:
        mean, variance = _fixed_statistics(x, running_mean, running_var)
    else:
        mean, variance = statistics(as_rows(x.data, folding), folding)
        _move(running_mean, running_var, batches, mean, variance, folding.population, momentum)
    return _record_rows(x, weight, bias, folding, mean, inverse_root(variance, eps), fixed)


@once
def _batch_folding(who: str, tensors: tuple[Any, ...], training: bool, momentum: float, eps: float) -> Folding:
    """How a batch is folded; everything is checked."""
    x, weight, bias, running_mean, running_var = tensors
    check_input(who, x, weight, bias, eps)
    as_real(who, "momentum", momentum, 0.0, 1.0)
    check_switch(who, training=training)
    channels = x.data.shape[1]
    _check_vectors(who, channels, weight=weight, bias=bias)
    _check_running(who, x, running_mean, running_var, training)
    folding = batch_rows(x.data.size // max(channels, 1), channels)
    if training and folding.population == 1:
        raise ShapeError(
            f"{who}: expected several values for each channel in training, got x {x.shape}: make batches larger; "
            "where they are divided, granularity=2 (of BalanceConfig, of DdpConfig) leaves no shard with one sample, "
            "if the batch is a multiple of it"
        )
    return folding


def _batch_norm_by_kernels(
    x: Tensor, moved: Moved, weight: Tensor | None, bias: Tensor | None, eps: float, fixed: bool
) -> Tensor:
    running_mean, running_var, batches, momentum = moved
    if fixed:
        mean = None if running_mean is None else running_mean.data
        variance = None if running_var is None else running_var.data
        return normalized_by(x, mean, variance, weight, bias, eps)
    if is_recomputing():
        return batch_normalized(x, weight, bias, (None, None, None, 0.0), eps)
    if moves(x, running_mean, running_var):
        return batch_normalized(x, weight, bias, moved, eps)
    segments = segments_of(x.data.shape, False, x.data.shape[1])
    out, found = normalized(x, weight, bias, segments, eps, with_variance=True)
    _move(running_mean, running_var, batches, found.mean, found.variance, segments.population, momentum)
    return out


def _fixed_statistics(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None
) -> tuple[Array, Array]:
    """Copies of the running statistics, of shape (1, 1, C, 1); 0 and 1 where there are none."""
    xp, shape, dtype = array_module(x.data), (1, 1, x.data.shape[1], 1), work_dtype(x.data)
    mean = xp.zeros(shape, dtype) if running_mean is None else running_mean.data.astype(dtype).reshape(shape)
    variance = xp.ones(shape, dtype) if running_var is None else running_var.data.astype(dtype).reshape(shape)
    return mean, variance


def inverse_root(variance: Array, eps: float) -> Array:
    """1 / sqrt(variance + eps)."""
    return 1.0 / array_module(variance).sqrt(variance + eps)


def _move(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    batches: Tensor | None,
    mean: Array,
    variance: Array | None,
    population: int,
    momentum: float,
) -> None:
    """Move running statistics towards those of a batch, (C,) elements each, and count it."""
    move_running(running_mean, mean, momentum)
    if running_var is not None and variance is not None:
        move_running(running_var, variance * (population / (population - 1)), momentum)
    if batches is not None and not is_recomputing():
        batches.data += 1
        mark_changed(batches)


def move_running(running: Tensor | None, new: Array, momentum: float) -> None:
    """running = (1 - momentum) · running + momentum · new, in place; nothing where it is None, or was moved already."""
    if running is None or is_recomputing():
        return
    running.data *= 1.0 - momentum
    running.data += (new.reshape(-1) * momentum).astype(running.data.dtype, copy=False)
    mark_changed(running)


def _check_running(
    who: str, x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, training: bool
) -> None:
    if not training and (running_mean is None or running_var is None):
        raise ArgumentError(f"{who}: expected running_mean and running_var outside training, got None")
    _check_vectors(who, x.data.shape[1], running_mean=running_mean, running_var=running_var)
    for running in (running_mean, running_var):
        if running is not None:
            check_float(who, running)
            if running.data.__class__ is not np.ndarray or x.data.__class__ is not np.ndarray:
                same_device(who, x, running)


# ---------------------------------------------------------------------------------------------------------------- group


@autocasts("high")
def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """(x - mean) / sqrt(var + eps) · weight + bias, with the statistics of each sample's groups of channels.

    The variance is the biased one. One group is layer norm over (C, ...), a group for each channel instance norm (Wu
    and He, 2018).

    Shapes:
        x: (N, C, ...), weight, bias: (C,) -> as x

    Args:
        num_groups: A divisor of C.
        eps: >= 0.

    Raises:
        ShapeError: the shapes do not fit as above.
        ArgumentError: num_groups does not divide C, or eps out of range.
        DtypeError: no float tensors, or different dtypes.
    """
    _check_groups("group_norm", (x, weight, bias), num_groups, eps)
    if x.data.size and kernels_for(x.data) is not None:
        return normalized(x, weight, bias, segments_of(x.data.shape, True, num_groups), eps)[0]
    folding = _groups_of(x, num_groups)
    mean, variance = statistics(as_rows(x.data, folding), folding)
    return _record_rows(x, weight, bias, folding, mean, inverse_root(variance, eps), fixed=False)


@once
def _check_groups(who: str, tensors: tuple[Any, ...], num_groups: int, eps: float) -> None:
    x, weight, bias = tensors
    check_input(who, x, weight, bias, eps)
    channels = x.data.shape[1]
    if channels % as_integer(who, "num_groups", num_groups, 1):
        raise ArgumentError(f"{who}: expected num_groups to divide the {channels} channels, got {num_groups!r}")
    _check_vectors(who, channels, weight=weight, bias=bias)


def _groups_of(x: Tensor, groups: int) -> Folding:
    height, width = height_and_width(x.data)
    return group_rows(height, x.data.shape[0], width, x.data.shape[1], groups)


@autocasts("high", itself=True)
def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) · weight + bias for each channel of each sample: `group_norm` with groups of one.

    With use_input_stats the running statistics move, in place, towards the mean over the samples of their means and
    unbiased variances; without it they take the place of both (Ulyanov et al., "Instance normalization", 2016).

    Shapes:
        x: (N, C, ...); running_mean, running_var, weight, bias: (C,) -> as x

    Args:
        running_mean, running_var: May be None with use_input_stats.
        momentum: In [0, 1].
        eps: >= 0.

    Raises:
        ShapeError: the shapes do not fit as above, or use_input_stats with one value for each channel of a sample.
        ArgumentError: no running statistics without use_input_stats, or momentum or eps out of range.
        DtypeError: no float tensors, or weight and bias of another dtype than x.
    """
    x, weight, bias = at_precision("instance_norm", x, weight, bias)  # the running statistics are written to
    check_input("instance_norm", x, weight, bias, eps)
    momentum = as_real("instance_norm", "momentum", momentum, 0.0, 1.0)
    check_switch("instance_norm", use_input_stats=use_input_stats)
    channels = x.data.shape[1]
    _check_vectors("instance_norm", channels, weight=weight, bias=bias)
    _check_running("instance_norm", x, running_mean, running_var, use_input_stats)
    by_kernels = x.data.size and kernels_for(x.data) is not None
    if not use_input_stats and by_kernels and running_mean is not None and running_var is not None:
        return normalized_by(x, running_mean.data, running_var.data, weight, bias, eps)
    if not use_input_stats:
        folding = batch_rows(x.data.size // max(channels, 1), channels)
        mean, variance = _fixed_statistics(x, running_mean, running_var)
        return _record_rows(x, weight, bias, folding, mean, inverse_root(variance, eps), fixed=True)
    folding = _groups_of(x, channels)
    if folding.population == 1:
        raise ShapeError(
            f"instance_norm: expected several values for each channel of a sample in training, got x {x.shape}"
        )
    if by_kernels:
        tracks = running_mean is not None or running_var is not None
        out, found = normalized(x, weight, bias, segments_of(x.data.shape, True, channels), eps, with_variance=tracks)
        if tracks and found.variance is not None:
            _move_by_samples(running_mean, running_var, found.mean, found.variance, folding.population, momentum)
        return out
    mean, variance = statistics(as_rows(x.data, folding), folding)
    if x.data.size:
        _move_by_samples(running_mean, running_var, mean, variance, folding.population, momentum)
    return _record_rows(x, weight, bias, folding, mean, inverse_root(variance, eps), fixed=False)


def _move_by_samples(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Array,
    variance: Array,
    population: int,
    momentum: float,
) -> None:
    """Move running statistics towards the mean over the samples of theirs, whose first axis is of samples."""
    _move(running_mean, running_var, None, mean.mean(axis=0), variance.mean(axis=0), population, momentum)


# ------------------------------------------------------------------------------------------ from statistics to gradient


def _record_rows(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, folding: Folding, mean: Array, rstd: Array, fixed: bool
) -> Tensor:
    """The normalized tensor, from statistics (samples, 1, groups, 1); fixed: they do not depend on x."""
    center, scale = folding.spread(mean), folding.spread(rstd)
    if weight is not None:
        scale = scale * folding.spread_channels(weight.data, scale.dtype)
    shift = -center * scale
    if bias is not None:
        shift += folding.spread_channels(bias.data, scale.dtype)
    out = affine(as_rows(x.data, folding), scale, shift)
    return record_rows(x, weight, bias, out, OwnStatistics(folding, center, rstd, fixed))


def record_rows(x: Tensor, weight: Tensor | None, bias: Tensor | None, out: Array, statistics: Any) -> Tensor:
    """Rows that were normalized, as a tensor like x on the tape.

    Args:
        statistics: By which; what `OwnStatistics` has, as far as it is public.
    """
    inputs = tuple([t for t in (x, weight, bias) if t is not None])
    return record(from_rows(out, x.data, statistics.folding), _rows_backward, inputs, (x, weight, statistics))


def _rows_backward(node: Node, grad: Array) -> None:
    x, weight, statistics = node.saved
    dx, dweight, dbias = affine_edges(node, weight)
    rows, grad_rows = as_rows(x.data, statistics.folding), as_rows(grad, statistics.folding)
    sums = statistics.scaled(*row_sums(rows, grad_rows, statistics.center))
    for edge, vector in zip((dbias, dweight), statistics.by_channel(*sums)):
        give_vector(edge, vector, grad.dtype)
    if dx is not None:
        factors = statistics.factors(x, weight, *sums)
        if len(factors) == 2:
            dx_rows = affine(grad_rows, *factors)
        else:
            dx_rows = input_gradient(rows, grad_rows, *factors, spare=spare(node, grad) is not None)
        accumulate(dx, from_rows(dx_rows, x.data, statistics.folding))


class OwnStatistics(NamedTuple):
    """Those of the rows themselves, or fixed ones: how a gradient comes back through them.

    Attributes:
        center: What sums are taken about, at each element of a row.
        rstd: 1 / sqrt(var + eps), (samples, 1, groups, 1).
        fixed: Whether they do not depend on the rows.
    """

    folding: Folding
    center: Array
    rstd: Array
    fixed: bool

    def scaled(self, total: Array, weighted: Array) -> tuple[Array, Array, Array]:
        """Σ grad and Σ grad · normalized x, from what `row_sums` says, and rstd; as far summed as `factors` needs."""
        rstd = self.folding.spread(self.rstd)
        weighted *= rstd
        return total, weighted, rstd

    def by_channel(self, total: Array, weighted: Array, rstd: Array) -> tuple[Array, Array]:
        """These sums for each channel: (C,)."""
        return self.folding.channel_sums(total), self.folding.channel_sums(weighted)

    def factors(
        self, x: Tensor, weight: Tensor | None, total: Array, weighted: Array, rstd: Array
    ) -> tuple[Array, ...]:
        """What the gradient of x is made with, see `input_gradient`; or `affine`, where it is grad's alone."""
        folding = self.folding
        gain = None if weight is None else folding.spread_channels(weight.data, rstd.dtype)
        scale = rstd if gain is None else rstd * gain
        if self.fixed:
            return scale, 0 * scale
        slope = _mean_share(weighted, gain, self.rstd, folding) * rstd
        return scale, slope, self.center * slope - _mean_share(total, gain, self.rstd, folding)


def _mean_share(row: Array, gain: Array | None, rstd: Array, folding: Folding) -> Array:
    """What each element gives back because it moved its mean or variance: rstd · mean(row · gain), (K,)."""
    pooled = folding.sums(row if gain is None else row * gain)
    return folding.spread(rstd * (pooled / folding.population))


def give_vector(edge: Edge, grad: Array, dtype: np.dtype[Any]) -> None:
    """Add the gradient of a weight or bias, in its dtype."""
    if edge is not None:
        accumulate(edge, grad.astype(dtype, copy=False))


# ------------------------------------------------------------------------------------------------------- arguments


def check_input(
    who: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, least_ndim: int = 2
) -> None:
    """Refuse what no norm takes: other things than tensors, integers, too few axes, two dtypes or devices."""
    for tensor in (x, weight, bias):
        if (tensor is not None or x is None) and not isinstance(tensor, Tensor):
            raise DtypeError(f"{who}: expected tensors, got {kind_of(tensor)}")
    check_float(who, x)
    if x.data.ndim < least_ndim:
        raise ShapeError(f"{who}: expected x with at least {least_ndim} axes, got {x.shape}")
    as_real(who, "eps", eps, 0.0)
    data, parameters = x.data, [tensor for tensor in (weight, bias) if tensor is not None]
    on_host = data.__class__ is np.ndarray
    for tensor in parameters:
        if tensor.data.dtype is not data.dtype and tensor.data.dtype != data.dtype:
            raise DtypeError(f"{who}: expected one dtype, got x {x.dtype.name} and {tensor.dtype.name} parameters")
        on_host &= tensor.data.__class__ is np.ndarray
    if not on_host:
        same_device(who, x, *parameters)


def _check_vectors(who: str, channels: int, **vectors: Tensor | None) -> None:
    for name, vector in vectors.items():
        if vector is None:
            continue
        if not isinstance(vector, Tensor):
            raise DtypeError(f"{who}: expected {name} to be a tensor, got {type(vector).__name__}")
        if vector.data.shape != (channels,):
            raise ShapeError(f"{who}: expected {name} of shape ({channels},), got {vector.shape}")
