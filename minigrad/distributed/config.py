"""DdpConfig: the options of data-parallel training of a Graph, checked where they are written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from minigrad.absent import tell_lacking
from minigrad.absent_seeds import SEEDS
from minigrad.arguments import as_integer, as_real, keep_as
from minigrad.distributed.balance.cadence import DEFAULT_MAX_ANCHOR, DEFAULT_OVERHEAD_TARGET, CadenceConfig
from minigrad.distributed.record.listening import EventListener, check_timeline
from minigrad.distributed.balance.division import Balance, BalanceConfig
from minigrad.distributed.balance.shares import SpeedHint
from minigrad.distributed.balance.strategy import BalanceFunction, Strategy, StrategyState, start
from minigrad.errors import ArgumentError


class NoHint(dict[int, float]):
    """A hint that knows of no device."""

    def __hash__(self) -> int:  # type: ignore[override]
        """All are one, and nobody fills them."""
        return hash(NoHint)

    def __call__(self, *hint: float) -> DdpConfig:
        """Say how a hint is given; ArgumentError."""
        given = ", ".join(map(repr, hint))
        raise ArgumentError(f"DdpConfig: expected DdpConfig(speed_hint=({given})), got a call of speed_hint")


@dataclass(frozen=True)
class DdpConfig:
    """Options of `Trainer.setup_with` and `Graph.distribute`.

    Attributes:
        speed_hint: What is known of the devices before any is measured: (slow_rank, ratio), where every other device
            is `ratio` >= 1 times as fast as that one; or a mapping from rank to speed > 0. Measurements correct it.
            One device alone looks at none. None, an empty mapping from then on, knows of none.
        overhead_target: El Che's: the time of a reduction over that of the computing before it, in [0.01, 0.5]; None
            means 0.10.
        max_anchor: El Che's: batches of the slowest device between two reductions. None lets El Che find them, 0 turns
            El Che off, n >= 1 fixes them at n.
        max_grad_norm: Clip the combined gradient, in every mode and on any number of devices, to this L2 norm > 0.
        timeline: Gets `event(kind, **fields)` for every reduction of gradients over several devices ("reduction", with
            the step and the bytes of one device's gradients), step ("step") and decision ("balance" or "cadence"). A
            `Timeline` has the spans of each device, too: data, forward, backward (both as "compute" where whole batches
            are run), the buckets and the buffers on the wire, optimizer.
        min_ratio: The smallest share of a batch that a device gets, in [0, 1/world_size]; None means
            min(0.05, 0.5/world_size).
        calibration_steps: Shares are first decided after so many steps, >= 1.
        rebalance_interval: And then after so many each, >= 1.
        granularity: Shards are multiples of it where the batch is, >= 1.
        strategy: Divides batches where ours does, which is None: a function as `Balancer` takes it, asked after every
            step. It takes no options but when to decide; El Che, which divides no batch, is off unless it is asked for.

    Raises:
        ArgumentError: a value out of its range. What depends on the number of devices is checked by `distribute`.

    Example:
        >>> DdpConfig(speed_hint=(1, 2.3), max_grad_norm=1.0).max_grad_norm
        1.0
    """

    speed_hint: SpeedHint | None = None
    overhead_target: float | None = None
    max_anchor: int | None = None
    max_grad_norm: float | None = None
    timeline: EventListener | None = None
    min_ratio: float | None = None
    calibration_steps: int = 10
    rebalance_interval: int = 50
    granularity: int = 1
    strategy: Strategy | BalanceFunction | None = None

    def __post_init__(self) -> None:
        if self.speed_hint is None:
            object.__setattr__(self, "speed_hint", NoHint())
        keep_as(self, as_integer, "max_anchor", least=0, optional=True)
        keep_as(self, as_integer, "calibration_steps", "rebalance_interval", "granularity", least=1)
        keep_as(self, as_real, "max_grad_norm", above=0.0, finite=True, optional=True)
        if self.timeline is not None:
            check_timeline("DdpConfig", self.timeline)
        if self.strategy is not None:
            self.balance(1)
        self.balance_config()
        self.cadence_config()

    def balance(self, world_size: int) -> Balance | StrategyState:
        """How batches are divided over so many devices, before the first step."""
        options = self.balance_config()
        if world_size == 1 and self.strategy is None:
            options = replace(options, speed_hint=None)  # there is nothing to compare with
        return start("DdpConfig", world_size, self.strategy, options)

    def balance_config(self) -> BalanceConfig:
        """The options of balance."""
        return BalanceConfig(
            self.calibration_steps,
            self.rebalance_interval,
            min_ratio=self.min_ratio,
            granularity=self.granularity,
            speed_hint=self._hint(),
        )

    def cadence_config(self) -> CadenceConfig:
        """How El Che goes, where it is on."""
        target = DEFAULT_OVERHEAD_TARGET if self.overhead_target is None else self.overhead_target
        if not self.max_anchor:
            return CadenceConfig(overhead_target=target, max_anchor=DEFAULT_MAX_ANCHOR, speed_hint=self._hint())
        n = self.max_anchor
        return CadenceConfig(n, target, min_anchor=n, max_anchor=n, speed_hint=self._hint())

    def _hint(self) -> SpeedHint | None:
        return None if isinstance(self.speed_hint, Mapping) and not self.speed_hint else self.speed_hint


tell_lacking("DdpConfig", DdpConfig, SEEDS["DdpConfig"])
