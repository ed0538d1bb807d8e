"""The step of all ranks on one of them: shard by shard, each with its rank's noise and statistics, then the optimizer.

Nothing of the wrapper is used: no bucket, no reducer, no collective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.backend.device import to_device, to_host
from minigrad.backend.dtypes import Array, as_dtype, float32, float64, float_dtypes_mixed, is_float, is_half
from minigrad.backend.random import set_rng_state
from minigrad.distributed.inspect.twin.compare import Floats
from minigrad.distributed.inspect.twin.parcels import Packed, unpack
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.nn.watch import watching_calls
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.state import MASTER
from minigrad.recording import enable_grad, no_grad
from minigrad.tensor import Tensor

Gradients = dict[str, "Floats | None"]  # by the name of the parameter, in float64
LossFn = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Micro:
    """One batch of a rank.

    Attributes:
        samples: What its loss is a mean over.
        batch: Packed; None where the rank had none.
        streams: The random streams as they were before its forward.
    """

    samples: float
    batch: Packed | None
    streams: dict[str, Any] | None


@dataclass(frozen=True)
class RankBatches:
    """What one rank had of a step.

    Attributes:
        micros: Its batches, one after the other.
        arrays: Those of its batches.
        buffers: Its buffers before the step, by name, and `after` as they are now.
    """

    micros: tuple[Micro, ...]
    arrays: Sequence[Array]
    buffers: Mapping[str, Array]
    after: Mapping[str, Array]

    @classmethod
    def of(cls, batches: Sequence[Sequence[Any]], arrays: Sequence[Array], buffers: Packed) -> RankBatches:
        """That of which a rank has told: samples, batch and streams of each of its batches, and its buffers twice."""
        before, after = unpack(buffers, arrays)
        return cls(tuple(Micro(*each) for each in batches), arrays, before, after)

    @property
    def samples(self) -> float:
        """Of all its batches."""
        return sum(micro.samples for micro in self.micros)


@dataclass(frozen=True)
class KeptOptimizer:
    """An optimizer as it was at one moment.

    Attributes:
        optimizer: It; its class and options count.
        state: By number of its parameter, copied.
        more: What its own class keeps beside what all optimizers do, a count of steps say: copied, with the parameters
            themselves in it, and optimizers in it as this class.
        shared: Names of what its own class keeps that can't be copied, a lock say: the twin's steps use the same one.
    """

    optimizer: Optimizer
    state: dict[int, dict[str, Any]]
    more: Mapping[str, Any]
    shared: tuple[str, ...]

    @classmethod
    def of(cls, optimizer: Optimizer) -> KeptOptimizer:
        """One as it is now."""
        shared = vars(Optimizer([Parameter(np.zeros(1, np.float32))], {}))
        own = {name: value for name, value in vars(optimizer).items() if name not in shared}
        same = {id(param): param for param in optimizer.params()}
        inner = {name: cls.of(each) for name, each in own.items() if isinstance(each, Optimizer)}
        alike: list[str] = []
        more = {name: _copied(each, same, alike, name) for name, each in own.items() if name not in inner}
        alike += [f"{name}.{which}" for name, each in inner.items() for which in each.shared]
        return cls(optimizer, state_of(optimizer), {**more, **inner}, tuple(alike))

    def remade(self, params: Mapping[int, Any], exact: bool) -> Optimizer:
        """It once more, for other parameters.

        Args:
            params: By the id of the old ones.
            exact: Whether in float64.
        """
        old = self.optimizer
        made: Optimizer = object.__new__(type(old))
        for name, each in self.more.items():  # a class of one's own may look at it
            copy = each.remade(params, exact) if isinstance(each, KeptOptimizer) else _copied(each, params, [], name)
            vars(made)[name] = copy
        groups = [{**group, "params": [params[id(param)] for param in group["params"]]} for group in old.param_groups]
        Optimizer.__init__(made, groups, old.defaults, master_weights=old.master_weights)
        made.load_state_dict({**made.state_dict(), "state": _as_state(self.state, made, exact)})
        return made


def _copied(value: Any, params: Mapping[int, Any], shared: list[str], name: str) -> Any:
    """A copy with other parameters, by the id of the old ones; of what can't be copied the name is added to shared."""
    try:
        return deepcopy(value, dict(params))
    except Exception:
        shared.append(name)
        return value


@dataclass(frozen=True)
class Begin:
    """The state in which a step begins.

    Attributes:
        module: A copy.
        optimizer: As it is then; None without one.
        scale: What losses are multiplied by.
    """

    module: Module
    optimizer: KeptOptimizer | None
    scale: float


@dataclass(frozen=True)
class ShardResult:
    """What one rank's part comes to.

    Attributes:
        gradients: Of each of its batches, without the loss's scale; None where it had no samples.
        buffers: After the last of them.
    """

    gradients: tuple[Gradients | None, ...]
    buffers: dict[str, Floats]


def run_part(begin: Begin, part: RankBatches, loss_fn: LossFn, exact: bool) -> ShardResult:
    """Forward and backward of one rank's batches.

    Args:
        exact: Whether in float64; else in the model's dtypes.
    """
    return copy_context().run(_run_part, begin, part, loss_fn, exact)


def _run_part(begin: Begin, part: RankBatches, loss_fn: LossFn, exact: bool) -> ShardResult:
    module, scale = _copy(begin.module, exact), 1.0 if exact else begin.scale
    with no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(_as_tensor(part.buffers[name], buffer))
    found: list[Gradients | None] = []
    device = next(module.parameters()).device
    quiet = np.errstate(over="ignore", invalid="ignore")  # where it is right, the rank has warned of it
    with quiet, watching_calls(None), enable_grad(), float_dtypes_mixed(True) if exact else nullcontext():
        for micro in part.micros:
            if micro.batch is None or micro.streams is None:
                found.append(None)
                continue
            set_rng_state(micro.streams, noise_key="theirs")
            loss = loss_fn(module, unpack(micro.batch, part.arrays, device, exact))
            if not micro.samples:
                found.append(None)
                continue
            _scaled(loss, scale).backward()
            found.append(_taken(module, 1.0 / scale))
    return ShardResult(tuple(found), {name: _floats(buffer.data) for name, buffer in module.named_buffers()})


def _scaled(loss: Tensor, scale: float) -> Tensor:
    """A loss times the scale, as `GradScaler.scale` has it."""
    if scale == 1.0:
        return loss
    return (loss.to(dtype=float32) if is_half(loss.dtype) else loss) * scale


def _taken(module: Module, factor: float) -> Gradients:
    """The gradients, times a factor; they are dropped."""
    with np.errstate(invalid="ignore", over="ignore"):
        found: Gradients = {
            name: None if param.grad is None else factor * _floats(param.grad.data)
            for name, param in module.named_parameters()
        }
    module.zero_grad()
    return found


# ---------------------------------------------------------------------------------------------------- what comes then


def finished(begin: Begin, gradients: Gradients, before_step: Callable[[Module], Any], exact: bool) -> Gradients:
    """Gradients as the optimizer gets them, once before_step(module) has been at them."""
    module = _copy(begin.module, exact)
    _give(module, gradients)
    copy_context().run(before_step, module)
    return _taken(module, 1.0)


def stepped(
    begin: Begin, names: Sequence[str], gradients: Gradients, exact: bool, steps: int = 1
) -> dict[str, Floats]:
    """The parameters after a step of the optimizer with these gradients.

    Args:
        names: Of its parameters, in its order.
        steps: How often it makes the step.
    """
    assert begin.optimizer is not None
    module = _copy(begin.module, exact)
    params = dict(module.named_parameters())
    of = {id(old): params[name] for old, name in zip(begin.optimizer.optimizer.params(), names)}
    made = begin.optimizer.remade(of, exact)
    _give(module, gradients)
    with float_dtypes_mixed(True) if exact else nullcontext():
        for _ in range(steps):
            made.step()
    return values_of(module)


def state_of(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    """The state of an optimizer by number of its parameter, copied."""
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {
        index: {name: each.detach().clone() if isinstance(each, Tensor) else each for name, each in entry.items()}
        for index, entry in state.items()
    }


def _as_state(state: dict[int, dict[str, Any]], made: Optimizer, exact: bool) -> dict[int, dict[str, Any]]:
    if not exact:
        return state
    return {
        index: {
            name: each.to(dtype=float64) if isinstance(each, Tensor) and is_float(each.dtype) else each
            for name, each in entry.items()
            if name != MASTER
        }
        for index, entry in state.items()
    }


def values_of(module: Module) -> dict[str, Floats]:
    """The parameters by name."""
    return {name: _floats(param.data) for name, param in module.named_parameters()}


def gradients_of(module: Module) -> Gradients:
    """The gradients by name."""
    return {
        name: None if param.grad is None else _floats(param.grad.data) for name, param in module.named_parameters()
    }


def buffers_of(module: Module) -> dict[str, Array]:
    """Copies of the buffers by name, in host memory."""
    return {name: np.array(to_host(buffer.data)) for name, buffer in module.named_buffers()}


def _copy(module: Module, exact: bool) -> Module:
    made = deepcopy(module)
    return made.double() if exact else made


def _give(module: Module, gradients: Gradients) -> None:
    for name, param in module.named_parameters():
        gradient = gradients.get(name)
        param.grad = None if gradient is None else _as_tensor(gradient, param)


def _as_tensor(values: Array, like: Tensor) -> Tensor:
    with np.errstate(over="ignore"):
        return Tensor(to_device(np.array(values).astype(as_dtype(like.dtype)), like.device))


def _floats(array: Array) -> Floats:
    return to_host(array).astype(np.float64)
