"""The balance of a run as a state machine: readings in, new state, division and reason out. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from minigrad.arguments import as_amount, as_integer, as_real, keep_as
from minigrad.data.order import Shares
from minigrad.distributed.balance.allocation import allocate, step_s
from minigrad.distributed.balance.cost import CostModel, History, Reading, median_cost, settle
from minigrad.distributed.balance.shares import (
    SpeedHint,
    as_hint,
    check_caps,
    check_min_ratio,
    compute_shard_sizes,
    hint_ratios,
    rebalance,
)
from minigrad.distributed.balance.state import config_from, config_of, reading_state, state_data
from minigrad.errors import ArgumentError

_FRACTION = 0.125  # by how much shards differ, in every second step of calibration, from those of the shares
_ROUNDING = 1e-9  # samples: 0.07 · 100 is meant to be 7
_LEAST_SLOPE = 0.01  # of fixed_s, for the whole batch: what samples cost at least, when a batch is divided


@dataclass(frozen=True)
class BalanceConfig:
    """How a batch is balanced over ranks.

    Attributes:
        calibration_steps: The first decision comes after so many steps, >= 1.
        interval_steps: And then one after so many each, >= 1.
        window_steps: The latest readings of a rank that count in a decision, at most the interval; None means all since
            the decision before.
        min_ratio: The smallest share of a rank; None means min(0.05, 0.5/world_size). Binds shares: a batch may be too
            small for a whole sample.
        hysteresis: A new division has to make the step faster by this fraction, in [0, 1); the first is taken anyhow.
        caps: The most samples that each rank can hold, None for no limit.
        granularity: Shards are multiples of it where the batch is.
        speed_hint: What to begin with; see `relative_speeds`.
    """

    calibration_steps: int = 10
    interval_steps: int = 50
    window_steps: int | None = None
    min_ratio: float | None = None
    hysteresis: float = 0.01
    caps: tuple[int | None, ...] | None = None
    granularity: int = 1
    speed_hint: SpeedHint | None = None

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "calibration_steps", "interval_steps", "granularity", least=1)
        keep_as(self, as_integer, "window_steps", least=1, optional=True)
        if self.window_steps is not None and self.window_steps > self.interval_steps:
            raise ArgumentError(
                f"BalanceConfig: expected window_steps <= interval_steps, got {self.window_steps} > "
                f"{self.interval_steps}: readings from before a division say little about the one after"
            )
        if self.min_ratio is not None:
            check_min_ratio("BalanceConfig", self.min_ratio, 1)
        keep_as(self, as_real, "hysteresis", least=0.0, below=1.0)
        keep_as(self, as_amount, "min_ratio", optional=True)
        if self.caps is not None:
            check_caps("BalanceConfig", self.caps, len(self.caps) if isinstance(self.caps, Sequence) else 1, 0)
            object.__setattr__(self, "caps", tuple(None if cap is None else int(cap) for cap in self.caps))
        if self.speed_hint is not None:
            object.__setattr__(self, "speed_hint", as_hint(self.speed_hint))

    def is_due(self, step: int) -> bool:
        """Whether a decision comes after so many steps.

        Example:
            >>> [step for step in range(200) if BalanceConfig().is_due(step)]
            [10, 60, 110, 160]
        """
        as_integer("is_due", "step", step, 0)
        return step >= self.calibration_steps and (step - self.calibration_steps) % self.interval_steps == 0


@dataclass(frozen=True)
class Division:
    """A division of the batch.

    Attributes:
        ratios: The share of each rank, of sum 1.
        batch_size: What it was made for; 0 before the first decision.
        shards: The samples of each rank at that batch size, empty before the first decision.
        costs: The models that it rests on, empty before the first decision.
    """

    ratios: tuple[float, ...]
    batch_size: int = 0
    shards: tuple[int, ...] = ()
    costs: tuple[CostModel, ...] = ()

    @property
    def expected_step_s(self) -> float:
        """Seconds that the slowest rank should take; 0 before the first decision."""
        return step_s(self.shards, self.costs)

    def sizes(self, batch_size: int, caps: Sequence[int | None] | None = None, granularity: int = 1) -> tuple[int, ...]:
        """The samples of each rank in a batch: the shards at its own size, else those of its ratios."""
        if batch_size == self.batch_size and self.shards:
            return self.shards
        return compute_shard_sizes(batch_size, self.ratios, caps=caps, granularity=granularity)

    def to_data(self) -> dict[str, Any]:
        """Its fields as plain data, without tuples, so that JSON gives them back alike."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Division:
        """The division whose fields came as plain data."""
        costs = tuple(CostModel(**cost) for cost in data["costs"])
        return Division(tuple(data["ratios"]), data["batch_size"], tuple(data["shards"]), costs)


@dataclass(frozen=True)
class Balance:
    """The state of the balance of one run; `observe` gives the next.

    Attributes:
        division: In use, once calibration is over.
        step: Steps observed so far.
        histories: What is known of each rank.
        batch_size: The largest batch since the last decision.

    Example:
        >>> balance = Balance.start(2, BalanceConfig(calibration_steps=2))
        >>> for _ in range(2):
        ...     shards = balance.shard_sizes(40)
        ...     readings = [Reading(n, n * speed) for n, speed in zip(shards, (0.1, 0.3))]
        ...     balance, division, reason = balance.observe(40, readings)
        >>> division.shards, reason
        ((30, 10), 'step 2: (20, 20) would take 6 s, (30, 10) takes 3 s')
    """

    config: BalanceConfig
    division: Division
    histories: tuple[History, ...]
    step: int = 0
    batch_size: int = 0

    @staticmethod
    def start(world_size: int, config: BalanceConfig | None = None) -> Balance:
        """The state before the first step: equal shares, or those of the speed hint.

        Raises:
            ArgumentError: a configuration that does not fit the number of ranks.
        """
        config = config_of("Balance", config, BalanceConfig)
        as_integer("Balance", "world_size", world_size, 1)
        floor = check_min_ratio("Balance", config.min_ratio, world_size)
        check_caps("Balance", config.caps, world_size, 0)
        hint = config.speed_hint
        ratios = rebalance([1.0] * world_size, 0.0) if hint is None else hint_ratios(world_size, hint, floor)
        return Balance(config, Division(ratios), (History(),) * world_size)

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data, for JSON; `from_state_dict` takes it."""
        return state_data(self)

    @staticmethod
    def from_state_dict(state: Mapping[str, Any]) -> Balance:
        """The state that `state_dict` told.

        Raises:
            StateDictError: it is no such data.
        """
        with reading_state("Balance"):
            config = config_from(BalanceConfig, state["config"])
            histories = tuple(History.from_data(history) for history in state["histories"])
            division = Division.from_data(state["division"])
            return Balance(**{**state, "config": config, "division": division, "histories": histories})

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.histories)

    name = "Balance"  # as that of a strategy of a user's own; no field

    @property
    def is_calibrating(self) -> bool:
        """Whether the first decision is still to come."""
        return self.step < self.config.calibration_steps

    @property
    def throughput(self) -> tuple[float, ...]:
        """Samples per second of each rank at its present shard; zeros before the first decision."""
        shards, costs = self.division.shards, self.division.costs
        if not shards:
            return (0.0,) * self.world_size
        seconds = [cost.time_s(size) for cost, size in zip(costs, shards)]
        return tuple(size / s if s else 0.0 for size, s in zip(shards, seconds))

    def shard_sizes(self, batch_size: int) -> tuple[int, ...]:
        """The samples of each rank in the coming step.

        In the last step before a decision every rank is measured, also one whose floor is less than a sample: else a
        rank that was slow once would have nothing for ever. (With min_ratio=0 it has.)

        Raises:
            ArgumentError: a negative batch, or one that the caps leave no room for.
        """
        if self.is_calibrating:
            caps, granularity = self.config.caps, self.config.granularity
            return calibration_sizes(batch_size, self.division.ratios, self.step, caps=caps, granularity=granularity)
        sizes = self._divided(batch_size)
        return self._with_probes(sizes) if self.config.is_due(self.step + 1) else sizes

    def _with_probes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The same, but a granule from the largest shard for each rank without samples, where it may have one."""
        if not check_min_ratio("Balance", self.config.min_ratio, self.world_size):
            return sizes
        granule, probed = self.config.granularity, list(sizes)
        limits = check_caps("Balance", self.config.caps, self.world_size, granule)
        for rank, size in enumerate(sizes):
            giver = max(range(self.world_size), key=lambda i: (probed[i], -i))
            if not size and limits[rank] == granule and probed[giver] > granule:
                probed[giver] -= granule
                probed[rank] = granule
        return tuple(probed)

    def observe(self, batch_size: int, readings: Sequence[Reading | None]) -> tuple[Balance, Division, str]:
        """Take in one step.

        Args:
            batch_size: Samples of all ranks together.
            readings: Of each rank; None where it had no samples or could not be measured.

        Returns:
            The new state, the division for the steps to come, and why it is this one.

        Raises:
            ArgumentError: not one reading a rank, or a negative batch.
        """
        batch_size = as_integer("observe", "batch_size", batch_size, 0)
        if len(readings) != self.world_size:
            raise ArgumentError(f"observe: expected {self.world_size} readings, one a rank, got {len(readings)}")
        if not all(reading is None or isinstance(reading, Reading) for reading in readings):
            raise ArgumentError(f"observe: expected a Reading or None of each rank, got {readings!r}")
        histories = tuple(
            history if reading is None else history.add(reading, self.config.window_steps)
            for history, reading in zip(self.histories, readings)
        )
        largest = max(self.batch_size, batch_size)
        seen = replace(self, histories=histories, step=self.step + 1, batch_size=largest)
        if not self.config.is_due(seen.step):
            return seen, self.division, f"step {seen.step}: no decision is due"
        settled = settle(histories)
        division, reason = seen._decide([model for _, model in settled])
        kept = tuple(history for history, _ in settled)
        after = replace(seen, division=division, histories=kept, batch_size=0)
        return after, division, f"step {seen.step}: {reason}"

    def _decide(self, models: Sequence[CostModel | None]) -> tuple[Division, str]:
        known = [model for model in models if model is not None]
        if not known or not self.batch_size:
            return self.division, "no rank was measured, so the shares stay"
        middle = median_cost(known)
        costs = tuple(middle if model is None else model for model in models)
        present, best = self._divided(self.batch_size), self._best_sizes(costs)
        present_s, best_s = step_s(present, costs), step_s(best, costs)
        unknown = [rank for rank, model in enumerate(models) if model is None]
        note = f"; ranks {unknown}, not measured, count as the median" if unknown else ""
        if self.division.shards and best_s >= present_s * (1.0 - self.config.hysteresis):
            division, same_batch = self.division, self.batch_size == self.division.batch_size
            return replace(division, costs=costs) if same_batch else division, (
                f"{listed(present)} stays: {present_s:.4g} s, and {listed(best)} would take {best_s:.4g} s, "
                f"not {self.config.hysteresis:.3g} less{note}"
            )
        ratios = rebalance(best, self.config.min_ratio)
        reason = f"{listed(present)} would take {present_s:.4g} s, {listed(best)} takes {best_s:.4g} s{note}"
        return Division(ratios, self.batch_size, best, costs), reason

    def _divided(self, batch_size: int) -> tuple[int, ...]:
        """The shards of a batch under the division in use."""
        return self.division.sizes(batch_size, self.config.caps, self.config.granularity)

    def _best_sizes(self, costs: Sequence[CostModel]) -> tuple[int, ...]:
        config, total = self.config, self.batch_size
        floor = math.floor(check_min_ratio("Balance", config.min_ratio, self.world_size) * total + _ROUNDING)
        limits = check_caps("Balance", config.caps, self.world_size, total)
        at_least = [min(floor, limit) for limit in limits]
        sloped = [_sloped(cost, total) for cost in costs]
        return allocate(total, sloped, caps=config.caps, at_least=at_least, granularity=config.granularity)


def _sloped(cost: CostModel, total: int) -> CostModel:
    """The same model where samples cost something; else a little more, so that ranks of equal cost get equal shards.

    Where time hardly depends on samples any division takes the same time, and the present one would stay for ever.
    """
    return replace(cost, per_sample_s=max(cost.per_sample_s, _LEAST_SLOPE * cost.fixed_s / total))


def listed(sizes: Sequence[Any]) -> str:
    """Sizes for a reason: all, or the ends of many."""
    shown = list(map(str, sizes)) if len(sizes) <= 8 else [*map(str, sizes[:4]), "...", *map(str, sizes[-3:])]
    return f"({', '.join(shown)})"


# ----------------------------------------------------------------------------------------------------- calibration


def calibration_sizes(
    batch_size: int,
    ratios: Shares,
    step: int,
    *,
    caps: Sequence[int | None] | None = None,
    granularity: int = 1,
) -> tuple[int, ...]:
    """The shards of a step of calibration: those of the shares in even steps, an eighth more or less in odd ones.

    Fixed and per-sample cost can't be told apart at one size. Who gets more and who less goes round the ranks; with
    an odd number of them one is left out at a time. The change is at least a granule, so that small shards change too.

    Args:
        step: From 0.

    Example:
        >>> [calibration_sizes(32, [0.5, 0.5], step) for step in range(4)]
        [(16, 16), (18, 14), (16, 16), (14, 18)]
    """
    as_integer("calibration_sizes", "step", step, 0)
    base = compute_shard_sizes(batch_size, ratios, caps=caps, granularity=granularity)
    if step % 2 == 0:
        return base
    wanted = [
        float(ratio) * (1.0 + _sign(rank + step // 2, len(base)) * _change(size, granularity))
        for rank, (ratio, size) in enumerate(zip(ratios, base))
    ]
    total = math.fsum(wanted)
    return compute_shard_sizes(
        batch_size, [share / total for share in wanted], caps=caps, granularity=granularity
    )


def _sign(place: int, world_size: int) -> int:
    """1 and -1 in turn; 0 for the last of an odd number."""
    place %= world_size
    if place == world_size - 1 and world_size % 2:
        return 0
    return -1 if place % 2 else 1


def _change(size: int, granularity: int) -> float:
    return max(_FRACTION, granularity / size) if size >= 2 * granularity else _FRACTION
