"""Normalisation layers: batch, layer, RMS and group norm."""

from __future__ import annotations

import numpy as np

from minigrad.arguments import check_counts, check_real, check_sizes, check_switch, kind_of
from minigrad.backend.device import Device
from minigrad.backend.dtypes import DtypeLike
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.nn import init
from minigrad.nn.module import Module
from minigrad.nn.parameter import zero_buffer, zero_parameter
from minigrad.nn.state import overwrite
from minigrad.ops import families as ops
from minigrad.ops.norms import counted_batch_norm
from minigrad.tensor import Tensor

__all__ = ["BatchNorm1d", "BatchNorm2d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "LayerNorm", "RMSNorm"]


class TrackingNorm(Module):
    """What batch and instance norms share: statistics that run; a subclass says how many axes its input may have."""

    axes: tuple[int, ...]
    _state_since = {"num_batches_tracked": 2}  # what of its state came with which version of PyTorch's layer

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_counts(self._who(), num_features=num_features)
        check_switch(self._who(), affine=affine, track_running_stats=track_running_stats, bias=bias)
        check_real(self._who(), 0.0, eps=eps)
        if momentum is not None:
            check_real(self._who(), 0.0, 1.0, momentum=momentum)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        shape = (num_features,)
        self.weight = zero_parameter(shape, device, dtype) if affine else None
        self.bias = zero_parameter(shape, device, dtype) if affine and bias else None
        tracked = track_running_stats
        self.running_mean = zero_buffer(shape, device, dtype) if tracked else None
        self.running_var = zero_buffer(shape, device, dtype) if tracked else None
        self.num_batches_tracked = zero_buffer((), device, "int64") if tracked else None
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Forget the batches seen so far: mean 0, variance 1."""
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            overwrite(self.num_batches_tracked, np.zeros((), np.int64))

    def reset_parameters(self) -> None:
        """Weight 1, bias 0, and no batch seen."""
        self.reset_running_stats()
        _reset_affine(self)

    def _check_axes(self, x: Tensor) -> None:
        if not isinstance(x, Tensor):
            raise DtypeError(f"{self._who()}: expected a tensor, got {kind_of(x)}")
        if x.ndim not in self.axes:
            listed = " or ".join(str(n) for n in self.axes)
            raise ShapeError(f"{self._who()}: expected x with {listed} axes, got shape {x.shape}")

    def extra_repr(self) -> str:
        """The sizes."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class BatchNorm(TrackingNorm):
    """What all batch norms share; a subclass says how many axes its input may have."""

    def forward(self, x: Tensor) -> Tensor:
        """The normalised batch; in training the running statistics move towards the batch's."""
        self._check_axes(x)
        counts = self.training and self.track_running_stats
        return counted_batch_norm(
            x,
            self.running_mean if counts or not self.training else None,
            self.running_var if counts or not self.training else None,
            self.num_batches_tracked if counts else None,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            self._share_of_next_batch() if counts else 0.0,
            self.eps,
        )

    def _share_of_next_batch(self) -> float:
        """How much of the running statistics a batch replaces."""
        if self.momentum is not None or self.num_batches_tracked is None:
            return self.momentum or 0.0
        return 1.0 / (int(self.num_batches_tracked) + 1)


class BatchNorm1d(BatchNorm):
    """Each feature normalised over the batch, scaled by weight and moved by bias; see `ops.batch_norm`.

    In evaluation the running mean and variance take the place of the batch's. The running variance is the unbiased
    one. An empty batch changes nothing, and is not counted. Ioffe and Szegedy, "Batch normalization", 2015.

    Shapes:
        x: (N, num_features) or (N, num_features, L) -> the same
        weight, bias, running_mean, running_var: (num_features,)

    Args:
        eps: Added to the variance.
        momentum: How much of the running statistics a batch replaces, in [0, 1]; None averages all batches equally,
            which waits for the device in every batch.
        affine: Have weight, and bias unless bias is False.
        track_running_stats: Have running statistics; without them the batch's are used in evaluation too.

    Raises:
        ArgumentError: num_features below 1, eps below 0, momentum outside [0, 1].
    """

    axes = (2, 3)


class BatchNorm2d(BatchNorm):
    """Each channel of images normalised over the batch and all pixels; see `BatchNorm1d`.

    Shapes:
        x: (N, num_features, H, W) -> the same
    """

    axes = (4,)


class InstanceNorm(TrackingNorm):
    """What all instance norms share; a subclass says how many axes its input may have."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised samples; in training the running statistics, where there are any, move towards theirs."""
        self._check_axes(x)
        alone = x.ndim == min(self.axes)
        if x.shape[0 if alone else 1] != self.num_features:
            raise ShapeError(f"{self._who()}: expected {self.num_features} channels, got x {x.shape}")
        y = ops.instance_norm(
            ops.unsqueeze(x, 0) if alone else x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            self.momentum or 0.0,
            self.eps,
        )
        return ops.squeeze(y, 0).clone() if alone else y  # a view could not be changed in place


class InstanceNorm1d(InstanceNorm):
    """Each channel of each sequence normalised by itself; see `ops.instance_norm`.

    It does not depend on the rest of the batch, so it computes the same on any number of ranks, but for running
    statistics.

    Shapes:
        x: (N, num_features, L) or (num_features, L) -> the same
        weight, bias, running_mean, running_var: (num_features,)

    Args:
        eps: Added to the variance.
        momentum: How much of the running statistics a batch replaces, in [0, 1]; None is 0, as in PyTorch.
        affine: Have weight, and bias unless bias is False.
        track_running_stats: Have running statistics, which are used in evaluation.

    Raises:
        ArgumentError: num_features below 1, eps below 0, momentum outside [0, 1].
    """

    axes = (2, 3)


class InstanceNorm2d(InstanceNorm):
    """Each channel of each image normalised by itself; see `InstanceNorm1d`.

    Shapes:
        x: (N, num_features, H, W) or (num_features, H, W) -> the same
    """

    axes = (3, 4)


class LayerNorm(Module):
    """The last axes normalised for each sample, then scaled by weight and moved by bias; see `ops.layer_norm`.

    Shapes:
        x: (..., *normalized_shape) -> the same
        weight, bias: normalized_shape

    Args:
        normalized_shape: Lengths of the last axes, or of the last one.
        eps: Added to the variance.
        elementwise_affine: Have a weight.
        bias: Have a bias too.

    Raises:
        ArgumentError: a length below 1, eps below 0.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
    ) -> None:
        super().__init__()
        check_sizes("LayerNorm", normalized_shape=normalized_shape)
        check_real("LayerNorm", 0.0, eps=eps)
        check_switch("LayerNorm", elementwise_affine=elementwise_affine, bias=bias)
        self.normalized_shape = _as_shape(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.weight = zero_parameter(self.normalized_shape, device, dtype) if elementwise_affine else None
        self.bias = zero_parameter(self.normalized_shape, device, dtype) if elementwise_affine and bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        _reset_affine(self)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input."""
        return ops.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(Module):
    """The last axes divided by the root of their mean square for each sample, then scaled; see `ops.rms_norm`.

    Shapes:
        x: (..., *normalized_shape) -> the same
        weight: normalized_shape

    Args:
        normalized_shape: Lengths of the last axes, or of the last one.
        eps: Added to the mean square; by default the eps of the dtype, of float32 for half precision.
        elementwise_affine: Have a weight.

    Raises:
        ArgumentError: a length below 1, eps below 0.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
    ) -> None:
        super().__init__()
        check_sizes("RMSNorm", normalized_shape=normalized_shape)
        if eps is not None:
            check_real("RMSNorm", 0.0, eps=eps)
        check_switch("RMSNorm", elementwise_affine=elementwise_affine)
        self.normalized_shape = _as_shape(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.weight = zero_parameter(self.normalized_shape, device, dtype) if elementwise_affine else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input."""
        return ops.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """Groups of channels normalised for each sample, then scaled and moved by channel; see `ops.group_norm`.

    It does not depend on the rest of the batch, so it computes the same on any number of ranks.

    Shapes:
        x: (N, num_channels, ...) -> the same
        weight, bias: (num_channels,)

    Args:
        num_groups: A divisor of num_channels.
        eps: Added to the variance.
        affine: Have weight, and bias unless bias is False.

    Raises:
        ArgumentError: num_groups does not divide num_channels, a number below 1, eps below 0.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_counts("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        check_real("GroupNorm", 0.0, eps=eps)
        check_switch("GroupNorm", affine=affine, bias=bias)
        if num_channels % num_groups:
            raise ArgumentError(
                f"GroupNorm: expected num_groups to divide num_channels, got {num_groups} and {num_channels}"
            )
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.weight = zero_parameter((num_channels,), device, dtype) if affine else None
        self.bias = zero_parameter((num_channels,), device, dtype) if affine and bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        _reset_affine(self)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input."""
        return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


def _as_shape(normalized_shape: int | tuple[int, ...] | list[int]) -> tuple[int, ...]:
    lengths = normalized_shape if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
    return tuple(int(length) for length in lengths)


def _reset_affine(layer: TrackingNorm | LayerNorm | GroupNorm) -> None:
    if layer.weight is not None:
        init.ones_(layer.weight)
    if layer.bias is not None:
        init.zeros_(layer.bias)
