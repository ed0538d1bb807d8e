"""Strategies: how a batch is divided, as pure functions of plain data. What one of a user's own must keep to. Pure.

A strategy is called with its state (None at first), the batch of a step, and a row (samples, seconds of computing) of
each rank: zeros for one that had no samples or could not be measured. It returns its new state, which JSON gives back
as it is, the samples of each rank in such a batch, and the reason.
"""

from __future__ import annotations

import inspect
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minigrad.arguments import as_integer, as_list, is_integer
from minigrad.distributed.balance.cost import Reading
from minigrad.distributed.balance.division import Balance, BalanceConfig, Division, listed
from minigrad.distributed.balance.shares import measured_or_median, rebalance
from minigrad.distributed.balance.state import config_data, config_from, config_of, reading_state
from minigrad.errors import ArgumentError, StateDictError

Row = tuple[float, float]  # samples, seconds
Strategy = Callable[[Any, int, Sequence[Row]], tuple[Any, Sequence[int], str]]
BalanceFunction = Callable[[int, list[float]], Sequence[int]]

_WINDOW = 5  # throughputs of a rank to take the median of


def stateless(balancer: BalanceFunction) -> Strategy:
    """The strategy that divides by speed alone.

    Args:
        balancer: balancer(batch_size, throughputs) -> samples of each rank. A throughput, in samples per second, is the
            median of the last five that were measured; for a rank without any, the median of the others.

    Example:
        >>> from minigrad.distributed import compute_shard_sizes
        >>> strategy = stateless(lambda batch, speeds: compute_shard_sizes(batch, rebalance(speeds)))
        >>> state, sizes, reason = strategy(None, 60, [(20, 2.0), (20, 4.0), (0, 0.0)])
        >>> sizes, reason
        ((27, 13, 20), '(10, 5, 7.5) samples/s')
    """

    def strategy(state: Any, batch_size: int, readings: Sequence[Row]) -> tuple[Any, Sequence[int], str]:
        before = [[]] * len(readings) if state is None else state
        recent = [[*old, n / s][-_WINDOW:] if s else old for old, (n, s) in zip(before, readings)]
        medians = [statistics.median(rank) if rank else None for rank in recent]
        speeds = measured_or_median("stateless", medians)
        return recent, balancer(batch_size, speeds), f"{listed([f'{speed:.4g}' for speed in speeds])} samples/s"

    strategy.__qualname__ = f"stateless({name_of(balancer)})"
    return strategy


def balance_strategy(config: BalanceConfig | None = None) -> Strategy:
    """`Balance` as a strategy: what `Balancer` does by default, but with its state as plain data.

    Example:
        >>> strategy = balance_strategy(BalanceConfig(calibration_steps=1))
        >>> state, sizes, reason = strategy(None, 40, [(20, 2.0), (20, 6.0)])
        >>> sizes, reason
        ((30, 10), 'step 1: (20, 20) would take 6 s, (30, 10) takes 3 s')
    """

    def balance(state: Any, batch_size: int, readings: Sequence[Row]) -> tuple[Any, Sequence[int], str]:
        now = Balance.start(len(readings), config) if state is None else Balance.from_state_dict(state)
        after, _, reason = now.observe(batch_size, [Reading(*row) if all(row) else None for row in readings])
        return json.loads(json.dumps(after.state_dict())), after.shard_sizes(batch_size), reason

    return balance


def as_strategy(who: str, given: Strategy | BalanceFunction) -> Strategy:
    """A strategy; a function of a batch and throughputs becomes one by `stateless`.

    Raises:
        ArgumentError: it is no function, or one of other arguments.
    """
    if takes(given, 2):
        return stateless(given)  # type: ignore[arg-type]
    if takes(given, 3):
        return given  # type: ignore[return-value]
    raise ArgumentError(
        f"{who}: expected a strategy (state, batch_size, readings) -> (state, sizes, reason), or a function "
        f"(batch_size, throughputs) -> sizes, got {given!r:.100}"
    )


def takes(function: Any, count: int) -> bool:
    """Whether it can be called with so many arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def name_of(strategy: Callable[..., Any]) -> str:
    """What errors and journals call a strategy: the name of the function, else of its type."""
    return str(getattr(strategy, "__qualname__", type(strategy).__qualname__))


def ask(strategy: Strategy, state: Any, batch_size: int, readings: Sequence[Row]) -> tuple[Any, Any, str]:
    """Call a strategy.

    Raises:
        ArgumentError: it raised, or what it returned is no state, sizes and reason.
    """
    name = name_of(strategy)
    try:
        told = strategy(state, batch_size, readings)
    except Exception as error:
        raise ArgumentError(f"{name}: expected a decision, got {type(error).__name__}: {error}") from error
    if not isinstance(told, (tuple, list)) or len(told) != 3 or not isinstance(told[2], str):
        raise ArgumentError(f"{name}: expected (state, sizes, reason), got {told!r:.100}")
    return told[0], told[1], told[2]


def check_sizes(name: str, sizes: Any, batch_size: int, world_size: int) -> tuple[int, ...]:
    """The samples of each rank that a strategy gave.

    Raises:
        ArgumentError: not one whole number >= 0 for each rank, or their sum is not the batch.
    """
    given = as_list(name, "sizes", sizes)
    if len(given) != world_size:
        raise ArgumentError(f"{name}: expected {world_size} sizes, one a rank, got {len(given)}: {listed(given)}")
    if not all(is_integer(size) and size >= 0 for size in given):
        raise ArgumentError(f"{name}: expected sizes that are whole numbers >= 0, got {listed(given)}")
    if sum(given) != batch_size:
        raise ArgumentError(f"{name}: expected sizes of sum {batch_size}, got {listed(given)} of sum {sum(given)}")
    return tuple(map(int, given))


def as_text(name: str, state: Any) -> str:
    """The state of a strategy as JSON.

    Raises:
        ArgumentError: JSON refuses it, or would give it back as something else.
    """
    try:
        text = json.dumps(state)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name}: expected a state that JSON takes, got {state!r:.100}: {error}") from error
    if json.loads(text) != state:
        raise ArgumentError(
            f"{name}: expected a state that JSON gives back as it is, got {state!r:.100}: use lists for tuples, texts "
            "as keys, and no NaN"
        )
    return text


@dataclass(frozen=True)
class StrategyState:
    """The state of the balance of a run under a strategy of a user's own; `observe` gives the next.

    Attributes:
        strategy: Decides.
        config: When; its other options are those of `Balance`, and stay as they are.
        division: In use: what the strategy told when a decision was due.
        step: Steps observed so far.
        text: The strategy's own state, as JSON.
    """

    strategy: Strategy
    config: BalanceConfig
    division: Division
    step: int = 0
    text: str = "null"

    @property
    def name(self) -> str:
        """What errors and journals call the strategy."""
        return name_of(self.strategy)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.division.ratios)

    def shard_sizes(self, batch_size: int) -> tuple[int, ...]:
        """The samples of each rank in the coming step: what the strategy told, or for another batch its shares."""
        return self.division.sizes(batch_size)

    def observe(self, batch_size: int, readings: Sequence[Reading | None]) -> tuple[StrategyState, Division, str]:
        """Take in one step; see `Balance.observe`.

        Raises:
            ArgumentError: what the strategy did is no decision.
        """
        rows = [(0.0, 0.0) if reading is None else (reading.samples, reading.seconds) for reading in readings]
        state, told, reason = ask(self.strategy, json.loads(self.text), batch_size, rows)
        sizes = check_sizes(self.name, told, batch_size, self.world_size)
        step, division = self.step + 1, self.division
        if batch_size and self.config.is_due(step):
            division = Division(tuple(size / batch_size for size in sizes), batch_size, sizes)
        return replace(self, division=division, step=step, text=as_text(self.name, state)), division, reason

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data, for JSON, but for the strategy, of which it has the name."""
        own = {"strategy": self.name, "state": json.loads(self.text), "step": self.step}
        return {**own, "config": config_data(self.config), "division": self.division.to_data()}

    def from_state_dict(self, state: Mapping[str, Any]) -> StrategyState:
        """The state of this strategy that `state_dict` told.

        Raises:
            StateDictError: it is no such data, or that of another strategy.
        """
        with reading_state(self.name):
            config, division = config_from(BalanceConfig, state["config"]), Division.from_data(state["division"])
            loaded = StrategyState(self.strategy, config, division, state["step"], as_text(self.name, state["state"]))
            other = state["strategy"]
        if other != self.name:
            raise StateDictError(f"Balancer: expected the state of strategy {self.name}, got that of {other}")
        return loaded


def start(
    who: str, world_size: int, strategy: Strategy | BalanceFunction | None, config: BalanceConfig | None
) -> Balance | StrategyState:
    """The state before the first step: of a strategy, with equal shares, or of `Balance` where there is none.

    Raises:
        ArgumentError: it is no strategy, or has options besides when to decide; or see `Balance.start`.
    """
    if strategy is None:
        return Balance.start(world_size, config)
    own, config = as_strategy(who, strategy), config_of(who, config, BalanceConfig)
    when = BalanceConfig(config.calibration_steps, config.interval_steps)
    others = [name for name, value in vars(config).items() if value != getattr(when, name)]
    if others:
        raise ArgumentError(f"{who}: expected no {', '.join(others)} for a strategy of your own, got {config}")
    return StrategyState(own, config, Division(rebalance([1.0] * as_integer(who, "world_size", world_size, 1), 0.0)))
