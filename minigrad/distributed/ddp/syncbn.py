"""Batch norm over the batches of all ranks, as if they were one batch.

Each rank takes count, mean and M2 = Σ(x - mean)² of its own part, one all-gather exchanges them, and every rank
merges them: see `ops.statistics.merge_moments`. Backward needs one all-reduce.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from minigrad.arguments import check_choice
from minigrad.backend.device import Device, array_module
from minigrad.backend.dtypes import Array, DtypeLike
from minigrad.distributed.comm.context import communicator_for
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.wrappers import innermost
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.nn.module import Module
from minigrad.nn.norm import BatchNorm
from minigrad.ops.norms import move_running, record_rows
from minigrad.ops.operands import check_float
from minigrad.ops.precision import at_precision
from minigrad.ops.statistics import Folding, affine, as_rows, batch_rows, merge_moments, moments, work_dtype
from minigrad.recording import is_recomputing
from minigrad.tensor import Tensor


class LossWeight(Protocol):
    """What knows how much this rank's loss counts in the backward under way; the reducer does."""

    unfinished: str  # empty where it hears of no backward under way

    @property
    def loss_weight(self) -> float:
        """n_r: this rank's loss counts n_r / Σn."""


class SyncBatchNorm(BatchNorm):
    """`BatchNorm1d` or `BatchNorm2d` with the statistics of the batches of all ranks.

    In training, each forward makes one collective, and each backward that reaches its input another: all ranks run
    it equally often, with an empty batch if need be. In evaluation there is none.

    What a rank's gradients say about the samples of the others depends on how much its loss counts. Inside
    DistributedDataParallel that is known. Elsewhere it is the number of samples in the batch, or, with reduce="sum",
    1: for losses that are sums or already global.

    Shapes:
        x: (N, num_features, ...) with N >= 0, which may differ between ranks -> the same
        weight, bias, running_mean, running_var: (num_features,)

    Args:
        comm: The ranks.
        eps, momentum, affine, track_running_stats: See `BatchNorm1d`.
        reduce: "mean" where each rank's loss is a mean over its own samples, as in DistributedDataParallel.

    Raises:
        ArgumentError: as `BatchNorm1d`, or reduce is neither.
        ShapeError: in training, all batches together have one value for each channel; on all ranks.

    Example:
        >>> from minigrad import distributed, randn
        >>> def body(comm):
        ...     layer = distributed.SyncBatchNorm(4, comm)
        ...     return layer(randn(1 + comm.rank, 4)).shape
        >>> distributed.run(body, 2)
        [(1, 4), (2, 4)]
    """

    axes = (2, 3, 4, 5)

    def __init__(
        self,
        num_features: int,
        comm: Communicator,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        reduce: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self._connect(comm, reduce)

    def _connect(self, comm: Communicator, reduce: Literal["mean", "sum"]) -> None:
        check_choice("SyncBatchNorm", ("mean", "sum"), reduce=reduce)
        self.comm, self.reduce = comm, reduce
        self.weigher: LossWeight | None = None
        self.follows = False  # the next wrapper's communicator

    def forward(self, x: Tensor) -> Tensor:
        """The normalised batch; in training the running statistics move towards those of all batches."""
        if not self.training:
            return super().forward(x)
        (x,) = at_precision("batch_norm", x)
        self._check_input(x)
        return _sync_batch_norm(self, x)

    def loss_weight(self, x: Tensor) -> float:
        """n_r, of the backward under way, up to a factor that all ranks share."""
        if self.weigher is not None and self.weigher.unfinished:  # else it is autograd.grad
            return self.weigher.loss_weight
        return float(x.shape[0]) if self.reduce == "mean" else 1.0

    def move_statistics(self, mean: Array, variance: Array) -> None:
        """Count a batch with this mean and unbiased variance, (num_features,) each, in the running statistics."""
        if self.num_batches_tracked is not None and not is_recomputing():
            share = self._share_of_next_batch()
            move_running(self.running_mean, mean, share)
            move_running(self.running_var, variance, share)
            self.num_batches_tracked.add_(1)

    def _check_input(self, x: Tensor) -> None:
        if not isinstance(x, Tensor):
            raise DtypeError(f"SyncBatchNorm: expected a tensor, got {type(x).__name__}")
        check_float("SyncBatchNorm", x)
        if x.ndim not in self.axes or x.shape[1] != self.num_features:
            raise ShapeError(f"SyncBatchNorm: expected x of shape (N, {self.num_features}, ...), got {x.shape}")
        for param in self.parameters():
            if param.dtype != x.dtype or param.device != x.device:
                raise DtypeError(
                    f"SyncBatchNorm: expected x in the dtype and on the device of the layer, {param.dtype.name} on "
                    f"{param.device}, got {x.dtype.name} on {x.device}"
                )

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        memo[id(self.comm)] = self.comm
        memo[id(self.weigher)] = None
        return super().__deepcopy__(memo)


def join_sync_batch_norms(module: Module, comm: Communicator, weigher: LossWeight) -> bool:
    """Tell the SyncBatchNorm layers of a module who knows the weight of its loss; whether there are any.

    Those that an earlier wrapper let go, and that had its communicator, use this one's from now on.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, SyncBatchNorm)]
    for layer in layers:
        layer.weigher = weigher
        if layer.follows:
            layer.comm, layer.follows = comm, False
    return bool(layers)


def leave_sync_batch_norms(module: Module, comm: Communicator) -> None:
    """A wrapper with this communicator lets go the SyncBatchNorm layers of a module."""
    for layer in module.modules():
        if isinstance(layer, SyncBatchNorm):
            layer.weigher, layer.follows = None, innermost(layer.comm) is innermost(comm)


def convert_sync_batchnorm(
    module: Module, comm: Communicator | None = None, reduce: Literal["mean", "sum"] = "mean"
) -> Module:
    """Replace every batch norm of a module by a SyncBatchNorm, in place.

    The new layers hold the very parameters, buffers and hooks of the old ones, so optimizers and flat layouts stay
    valid.

    Args:
        comm: The ranks; by default those of this context.

    Returns:
        The module; a new one where it is a batch norm itself.

    Example:
        >>> from minigrad import nn
        >>> from minigrad.distributed import SoloCommunicator
        >>> convert_sync_batchnorm(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), SoloCommunicator())[1]
        SyncBatchNorm(4, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
    """
    if not isinstance(module, Module):
        raise ArgumentError(f"convert_sync_batchnorm: expected a Module, got {type(module).__name__}")
    comm = communicator_for("convert_sync_batchnorm", comm)
    made: dict[int, SyncBatchNorm] = {}
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        if isinstance(layer, BatchNorm) and not isinstance(layer, SyncBatchNorm):
            if id(layer) not in made:
                made[id(layer)] = _as_sync(layer, comm, reduce)
            if path:
                parent, _, name = path.rpartition(".")
                module.get_submodule(parent).add_module(name, made[id(layer)])
    return made.get(id(module), module)


def _as_sync(layer: BatchNorm, comm: Communicator, reduce: Literal["mean", "sum"]) -> SyncBatchNorm:
    twin = SyncBatchNorm.__new__(SyncBatchNorm)
    twin.__dict__.update({k: v.copy() if isinstance(v, (dict, set)) else v for k, v in layer.__dict__.items()})
    twin._connect(comm, reduce)
    return twin


# ------------------------------------------------------------------------------------------------------ the operation


def _sync_batch_norm(layer: SyncBatchNorm, x: Tensor) -> Tensor:
    """Batch norm over all ranks: moves the running statistics, records one node."""
    folding = batch_rows(x.data.size // layer.num_features, layer.num_features)
    rows, dtype = as_rows(x.data, folding), work_dtype(x.data)
    center, own = _own_moments(rows, folding, dtype)
    count, mean, squares = merge_moments(_gathered(layer.comm, own))
    if not _is_batch(layer, x, folding.population, count):
        return BatchNorm.forward(layer, x)
    variance = squares / count
    layer.move_statistics(mean, squares / (count - 1.0))
    rstd = (1.0 / array_module(rows).sqrt(variance + layer.eps)).astype(dtype)
    rest = (center.astype(np.float64) - mean).astype(dtype)  # x - mean = (x - center) + rest
    gain = rstd if layer.weight is None else rstd * layer.weight.data.astype(dtype, copy=False)
    shift = gain * rest if layer.bias is None else gain * rest + layer.bias.data.astype(dtype, copy=False)
    about, scale, offset = (folding.spread_channels(v, dtype) for v in (center, gain, shift))
    statistics = SharedStatistics(folding, about, rest, rstd, count, layer)
    return record_rows(x, layer.weight, layer.bias, affine(rows, scale, offset, about), statistics)


class SharedStatistics(NamedTuple):
    """Those of the batches of all ranks; see `OwnStatistics`.

    Attributes:
        center: A rounded mean of this rank's rows, at each element of a row.
        rest: What it lacks to the mean of all, (C,).
        rstd: 1 / sqrt(var + eps), (C,).
        count: Values of a channel on all ranks.
    """

    folding: Folding
    center: Array
    rest: Array
    rstd: Array
    count: Array
    layer: SyncBatchNorm

    def scaled(self, total: Array, weighted: Array) -> tuple[Array, Array, Array]:
        """Σ grad and Σ grad · normalized x, from what `row_sums` says, and rstd: of each channel, (C,)."""
        total, weighted = self.folding.channel_sums(total), self.folding.channel_sums(weighted)
        return total, (weighted + self.rest * total) * self.rstd, self.rstd

    def by_channel(self, total: Array, weighted: Array, rstd: Array) -> tuple[Array, Array]:
        """They are so already."""
        return total, weighted

    def factors(
        self, x: Tensor, weight: Tensor | None, total: Array, weighted: Array, rstd: Array
    ) -> tuple[Array, ...]:
        """What the gradient of x is made with, see `input_gradient`; a collective."""
        dtype = rstd.dtype
        mean, slope = _shared_sums(self.layer, x, total, weighted, self.count)
        gain = rstd if weight is None else rstd * weight.data.astype(dtype, copy=False)
        slope = gain * rstd * slope.astype(dtype)
        shift = -gain * mean.astype(dtype) - self.rest * slope
        return (*(self.folding.spread_channels(v, dtype) for v in (gain, slope, shift)), self.center)


def _shared_sums(layer: SyncBatchNorm, x: Tensor, total: Array, weighted: Array, count: Array) -> tuple[Array, Array]:
    """Σ_s n_s·total_s / (n_r · count) over ranks s, and the same of weighted: (C,) each.

    The gradient of this rank will be scaled by n_r / Σn, which leaves n_s / Σn for what comes from rank s.
    """
    xp, weight = array_module(total), layer.loss_weight(x)
    sums = xp.concatenate([total, weighted]).astype(np.float64)
    if weight > 0.0:
        sums *= weight
    else:
        sums[...] = 0
    layer.comm.all_reduce(sums, layout="SyncBatchNorm").wait()
    sums /= count * (weight if weight > 0.0 else 1.0)
    return sums[: total.size], sums[total.size :]


# ------------------------------------------------------------------------------------------------------ statistics


def _own_moments(rows: Array, folding: Folding, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """A rounded mean of this rank's part (C,), and its count, mean and M2 in one float64 array (1 + 2C,)."""
    xp, channels = array_module(rows), folding.channels
    own = xp.zeros(1 + 2 * channels, np.float64)
    if not folding.population:
        return xp.zeros(channels, dtype), own
    mean, error, variance = (part.reshape(-1) for part in moments(rows, folding))
    own[0] = folding.population
    own[1 : 1 + channels] = mean.astype(np.float64) + error
    own[1 + channels :] = variance.astype(np.float64) * folding.population
    return mean, own


def _gathered(comm: Communicator, own: Array) -> Array:
    """The arrays of all ranks: (world_size, 1 + 2C)."""
    parts = array_module(own).empty(comm.world_size * own.size, own.dtype)
    comm.all_gather(parts, own).wait()
    return parts.reshape(comm.world_size, own.size)


def _is_batch(layer: SyncBatchNorm, x: Tensor, own: int, count: Array) -> bool:
    """Whether any rank has a sample; reads the count from the device only where it could be below 2."""
    if own > 1:
        return True
    everywhere = int(count)
    if everywhere == 1:
        raise ShapeError(
            f"rank {layer.comm.rank}: SyncBatchNorm: expected several values for each channel in training, got one "
            f"over all ranks, here x {x.shape}"
        )
    return everywhere > 0
