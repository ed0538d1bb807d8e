"""What the twin of ranks and that of replicas share: options, when a step is due, and what a difference comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from minigrad.arguments import as_amount, as_integer, check_choice, check_switch
from minigrad.backend.device import Device
from minigrad.distributed.ddp.syncbn import SyncBatchNorm
from minigrad.distributed.inspect.twin.alone import Begin, Gradients, KeptOptimizer, gradients_of, values_of
from minigrad.distributed.inspect.twin.compare import TwinReport
from minigrad.distributed.inspect.twin.judge import Left, Task, judge
from minigrad.distributed.inspect.twin.watch import RankWatch
from minigrad.errors import ArgumentError, TwinMismatchError
from minigrad.nn.module import Module
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.scaler import GradScaler
from minigrad.tensor import LeafHook


class AnyTwin:
    """Knows how a step is made, and which is due; keeps what it begins with.

    Args:
        module: Whose step is compared.
        device: Where it lives.
        optimizer, loss_fn, every, reduce, before_step, scaler, ulps, raises: See `Twin`.

    Attributes:
        steps, first: See `Twin`.
    """

    def __init__(
        self,
        module: Module,
        device: Device,
        optimizer: Optimizer | None,
        loss_fn: Callable[[Any, Any], Any],
        every: int,
        *,
        reduce: str,
        before_step: Callable[[Module], Any] | None,
        scaler: GradScaler | None,
        ulps: float,
        raises: bool,
    ) -> None:
        self._module, self._device = module, device
        for what, function in (("loss_fn", loss_fn), ("before_step", before_step)):
            if not callable(function) and (what == "loss_fn" or function is not None):
                raise ArgumentError(f"Twin: expected {what} as a function, got {function!r:.100}")
        if scaler is not None and not isinstance(scaler, GradScaler):
            raise ArgumentError(f"Twin: expected scaler as a GradScaler, got {scaler!r:.100}")
        check_switch("Twin", raises=raises)
        check_choice("Twin", ("mean", "sum"), reduce=reduce)
        self._every = as_integer("Twin", "every", every, 1)
        names = _names_of(optimizer, module)
        self._task = Task(loss_fn, optimizer, names, reduce == "mean", before_step, as_amount("Twin", "ulps", ulps))
        self._scaler, self._raises = scaler, raises
        self.steps = 0
        self.first: TwinReport | None = None
        self._before: Gradients | None = None

    @property
    def _is_due(self) -> bool:
        """Whether the step under way is compared."""
        return (self.steps + 1) % self._every == 0

    def _take_state(self) -> None:
        """Keep what the step begins with."""
        optimizer, scaler = self._task.optimizer, self._scaler
        with self._device.current():
            kept = None if optimizer is None else KeptOptimizer.of(optimizer)
            self._begin = Begin(deepcopy(self._module), kept, 1.0 if scaler is None else scaler.get_scale())

    def _left(self) -> Left:
        """What the step has left."""
        hooked = tuple(name for name, param in self._module.named_parameters() if any(map(_is_hook, param.listeners)))
        return Left(gradients_of(self._module), values_of(self._module), self._before, hooked)

    def _judged(self, watches: Sequence[RankWatch], told: Sequence[Any], arrays: Sequence[Any]) -> TwinReport:
        """What differs in the step that is over, of which all ranks have told.

        Args:
            watches: Of the modules that nobody is to call meanwhile.
        """
        for watch in watches:
            watch.is_alone = True
        try:
            with self._device.current():
                return judge(self._task, self._begin, self._left(), told, arrays, self.steps)
        finally:
            for watch in watches:
                watch.is_alone = False

    def _keep_gradients(self) -> None:
        """Keep what a step has left that comes before one that is due."""
        self._before = gradients_of(self._module) if self._is_due else None

    def _conclude(self, who: str, report: TwinReport | None) -> TwinReport | None:
        if report is not None and not report.agrees:
            self.first = self.first or report
            if self._raises:
                raise TwinMismatchError(f"{who}: expected what one process gets, got {report}", report)
        return report


def check_parts(module: Module) -> None:
    """Refuse what no rank can run alone.

    Raises:
        ArgumentError: a SyncBatchNorm is inside.
    """
    if any(isinstance(inner, SyncBatchNorm) for inner in module.modules()):
        raise ArgumentError(
            "Twin: expected a module whose layers look at the samples of one rank, got a SyncBatchNorm, which looks at "
            "those of all"
        )


def _is_hook(listener: Any) -> bool:
    """Whether a listener of a leaf is a user's, or a wrapper's, that was not taken back."""
    return isinstance(listener, LeafHook) and bool(getattr(listener, "hooks", True))


def _names_of(optimizer: Any, module: Module) -> tuple[str, ...]:
    if optimizer is None:
        return ()
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"Twin: expected an Optimizer or None, got {type(optimizer).__name__}")
    names = {id(param): name for name, param in module.named_parameters()}
    if any(id(param) not in names for param in optimizer.params()):
        raise ArgumentError(
            f"Twin: expected an optimizer of the wrapped module's parameters, got {optimizer.name} of others too"
        )
    return tuple(names[id(param)] for param in optimizer.params())
