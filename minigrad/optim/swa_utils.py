"""Averages of a model over its steps, under the names of `torch.optim.swa_utils`.

Sources: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992 (exponential averages);
Izmailov et al., "Averaging weights leads to wider optima and better generalization", UAI 2018 (SWA).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, as_real, check_choice, check_switch
from minigrad.backend.device import Device, to_device
from minigrad.backend.dtypes import Array, is_float, widened
from minigrad.errors import ArgumentError, ShapeError
from minigrad.foreign import spoken
from minigrad.nn.module import Module
from minigrad.nn.norm import BatchNorm
from minigrad.nn.parameter import Buffer
from minigrad.nn.state import overwrite
from minigrad.optim.lr_scheduler import rates_of_groups
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.scheduler import LRScheduler, check_optimizer
from minigrad.recording import no_grad
from minigrad.tensor import Tensor

__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn",
    "update_bn",
]

Average = Callable[[Tensor, Tensor, Any], Any]  # (averaged, the model's, number averaged so far) -> the new average
Averages = Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]  # the same for all at once, in place


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """An exponential average for `AveragedModel(multi_avg_fn=)`: decay · average + (1 - decay) · new.

    Raises:
        ArgumentError: decay outside [0, 1].
    """
    decay = as_real("get_ema_multi_avg_fn", "decay", decay, 0.0, 1.0)

    def ema_update(averaged: Sequence[Tensor], new: Sequence[Tensor], num_averaged: Any) -> None:
        for average, x in zip(averaged, new):
            _move(average, x, 1 - decay)

    return ema_update


def get_swa_multi_avg_fn() -> Averages:
    """The plain mean of all that was seen, for `AveragedModel(multi_avg_fn=)`, which is what it does by itself."""

    def swa_update(averaged: Sequence[Tensor], new: Sequence[Tensor], num_averaged: Any) -> None:
        for average, x in zip(averaged, new):
            _move(average, x, 1 / (int(num_averaged) + 1))

    return swa_update


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """As `get_ema_multi_avg_fn`, for one tensor and `AveragedModel(avg_fn=)`.

    Raises:
        ArgumentError: decay outside [0, 1].
    """
    decay = as_real("get_ema_avg_fn", "decay", decay, 0.0, 1.0)
    return lambda averaged, new, num_averaged: averaged * decay + new * (1 - decay)


def get_swa_avg_fn() -> Average:
    """As `get_swa_multi_avg_fn`, for one tensor and `AveragedModel(avg_fn=)`."""
    return lambda averaged, new, num_averaged: averaged + (new - averaged) / (int(num_averaged) + 1)


class AveragedModel(Module):
    """A copy of a model whose parameters are an average of those that the model had at each `update_parameters`.

    Every rank has its own; where the replicas are alike, so are these. Of a wrapper whose state is that of its module,
    such as `DistributedDataParallel`, the module is copied.

    Args:
        model: The model to average.
        device: Where the copy lives; by default where the model does.
        avg_fn: Gives the new average of one tensor; by default the plain mean.
        multi_avg_fn: Changes all averages in place, in the place of avg_fn.
        use_buffers: Average buffers of float dtypes too. Else, and for integers, they are those of the model.

    Attributes:
        module: The copy.
        n_averaged: How often it was updated, an integer buffer.

    Raises:
        ArgumentError: no Module, both functions, or something that is none.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        >>> averaged.update_parameters(model)
        >>> sorted(averaged.state_dict())
        ['module.bias', 'module.weight', 'n_averaged']
    """

    def __init__(
        self,
        model: Module,
        device: Device | str | None = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(model, Module):
            raise ArgumentError(f"AveragedModel: expected a Module, got {type(model).__name__}")
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError("AveragedModel: expected avg_fn or multi_avg_fn, got both")
        for name, function in (("avg_fn", avg_fn), ("multi_avg_fn", multi_avg_fn)):
            if function is not None and not callable(function):
                raise ArgumentError(f"AveragedModel: expected {name} as a function, got {function!r:.100}")
        check_switch("AveragedModel", use_buffers=use_buffers)
        self.module = copy.deepcopy(_inner(model))
        self.n_averaged = Buffer(np.zeros((), np.int64))
        if device is not None:
            self.to(device)
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged module gives."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the present parameters of the model into the average; the first ones become it.

        Raises:
            ArgumentError: another number of parameters or buffers. ShapeError: another shape of one.
        """
        source = _inner(model)
        pairs = _pairs("parameters", self.module.parameters(), source.parameters())
        buffers = _pairs("buffers", self.module.buffers(), source.buffers())
        if self.use_buffers:
            pairs += [pair for pair in buffers if is_float(pair[0].dtype)]
            buffers = [pair for pair in buffers if not is_float(pair[0].dtype)]
        with no_grad(), self.n_averaged.device.current():
            first = int(self.n_averaged) == 0
            if not first:
                self._average([(average.detach(), _beside(average, x)) for average, x in pairs])
            for average, x in (*(pairs if first else ()), *buffers):
                overwrite(average, x.data)
            self.n_averaged.add_(1)

    def _average(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        if self.avg_fn is not None:
            for average, x in pairs:
                with average.device.current():
                    average.copy_(self.avg_fn(average, x, self.n_averaged))
            return
        move = get_swa_multi_avg_fn() if self.multi_avg_fn is None else self.multi_avg_fn
        move([average for average, _ in pairs], [x for _, x in pairs], self.n_averaged)


def _inner(model: Any) -> Module:
    """The module itself, where this is a wrapper of the same state."""
    inner = getattr(model, "module", None)
    if isinstance(inner, Module) and model.state_dict().keys() == inner.state_dict().keys():
        return inner
    found: Module = model
    return found


def _pairs(what: str, own: Iterable[Tensor], other: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    averaged, new = list(own), list(other)
    if len(averaged) != len(new):
        raise ArgumentError(
            f"AveragedModel.update_parameters: expected a model of {len(averaged)} {what}, got {len(new)}"
        )
    for average, x in zip(averaged, new):
        if average.shape != x.shape:
            raise ShapeError(
                f"AveragedModel.update_parameters: expected {what} of the shapes of the first model, "
                f"got {x.shape} for {average.shape}"
            )
    return list(zip(averaged, new))


def _beside(average: Tensor, x: Tensor) -> Tensor:
    """A tensor where its average lives."""
    return x.detach() if x.device == average.device else Tensor(to_device(x.data, average.device))


def _move(average: Tensor, x: Tensor, weight: float) -> None:
    """average += weight · (x - average), in place; of 16 bits computed in float32."""
    with average.device.current():
        wide: Array = widened(average.data)
        overwrite(average, wide + (widened(x.data) - wide) * wide.dtype.type(weight))


@spoken
def update_bn(loader: Iterable[Any], model: Module, device: Device | str | None = None) -> None:
    """Compute the running statistics of all batch norms anew, as the plain mean over the batches of a loader.

    What a model that was averaged needs, for the statistics are those of other weights.

    Args:
        loader: Batches; of one that is a tuple or a list the first is the input.
        model: Runs forward in training mode without recording, then in the mode that it was in.
        device: Where batches are moved; they stay where they are by default.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm) and layer.running_mean is not None]
    if not layers:
        return
    momenta, training = [layer.momentum for layer in layers], [(m, m.training) for m in model.modules()]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    model.train()
    try:
        with no_grad():
            for batch in loader:
                x = batch[0] if isinstance(batch, (list, tuple)) else batch
                model(x if device is None else Tensor(to_device(x.data, Device(device))))
    finally:
        for layer, momentum in zip(layers, momenta):
            layer.momentum = momentum
        for module, mode in training:
            module.training = mode


class SWALR(LRScheduler):
    """From the rate that it finds at its first step to swa_lr, where it stays; it may follow another schedule.

    Args:
        optimizer: The optimizer.
        swa_lr: The rate of SWA, >= 0, one for all groups or one for each.
        anneal_epochs: Steps on the way, >= 0.
        anneal_strategy: "cos" or "linear".

    Raises:
        DtypeError: the optimizer is none. ArgumentError: a value out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
    ) -> None:
        self.swa_lrs = rates_of_groups("SWALR", "swa_lr", optimizer, swa_lr)
        self.anneal_epochs = as_integer("SWALR", "anneal_epochs", anneal_epochs, 0)
        check_choice("SWALR", ("cos", "linear"), anneal_strategy=anneal_strategy)
        self.straight = anneal_strategy == "linear"
        self._start(optimizer, base_lrs=_present(check_optimizer("SWALR", optimizer)))

    def options_at(self, step: Any, base_lrs: Sequence[float]) -> list[dict[str, Any]]:
        """Between the rates at the first step and swa_lr."""
        part = min(1.0, step / max(1, self.anneal_epochs))
        part = part if self.straight else (1 - math.cos(math.pi * part)) / 2
        groups = self.optimizer.param_groups
        kept = [{"initial_lr": group["initial_lr"]} if "initial_lr" in group else {} for group in groups]
        return [{"lr": base + (end - base) * part, **k} for base, end, k in zip(base_lrs, self.swa_lrs, kept)]

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step; the first one begins at the rates that another schedule has left."""
        if self.last_step == 0:
            self.base_lrs, self.optimizer.moved_by = _present(self.optimizer), None
        super().step(epoch)


def _present(optimizer: Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]
