"""Guards: whether ranks drift apart, and so whether they may go on combining more rarely. Pure.

A guard is a function: it is called with its state (None at first) and the `Divergence` of a combination, and returns
its new state, which JSON gives back as it is, and a `Verdict`. It judges the rank that is farthest from the average.
`GuardedCadence` asks it before the anchor of a cadence moves. A reading that is no finite number is held, for whatever
it is, ranks are not known to be near each other; it changes no state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minigrad.arguments import as_integer, as_real, check_choice, keep_as, kind_of
from minigrad.distributed.balance.divergence import Divergence
from minigrad.distributed.balance.strategy import name_of, takes
from minigrad.errors import ArgumentError

ACTIONS = ("stable", "hold", "nudge")


@dataclass(frozen=True)
class Verdict:
    """What a guard makes of a divergence.

    Attributes:
        action: "stable": the anchor may grow; "hold": it may not; "nudge": it becomes `factor` times as large, now.
        factor: In (0, 1) where the action is "nudge", else 1.
        reason: Why.

    Raises:
        ArgumentError: another action, or a factor out of its range.
    """

    action: str
    factor: float = 1.0
    reason: str = ""

    def __post_init__(self) -> None:
        check_choice("Verdict", ACTIONS, action=self.action)
        if self.action == "nudge":
            keep_as(self, as_real, "factor", above=0.0, below=1.0)
        else:
            keep_as(self, as_real, "factor", least=1.0, most=1.0)
        if not isinstance(self.reason, str):
            raise ArgumentError(f"Verdict: expected reason as a text, got {self.reason!r:.100}")


Guard = Callable[[Any, Divergence], tuple[Any, Verdict]]


@dataclass(frozen=True)
class NoGuard:
    """Says "stable" of everything.

    Example:
        >>> NoGuard()(None, Divergence((0.9,), (1.0,), (0.0,)))[1].reason
        'no guard is asked'
    """

    def __call__(self, state: Any, divergence: Divergence) -> tuple[Any, Verdict]:
        """Stable."""
        return state, Verdict("stable", reason="no guard is asked")


@dataclass(frozen=True)
class LevelGuard:
    """Holds as long as a rank is farther from the average than a threshold, however long it has been.

    Attributes:
        threshold: The largest relative difference that is well, >= 0.
        patience: After so many readings in a row above it, >= 1, it nudges, and counts anew; None: it never does.
        factor: By which it nudges, in (0, 1).

    Example:
        >>> guard, state = LevelGuard(0.5), None
        >>> state, verdict = guard(state, Divergence((0.9, 0.1), (1.0, 1.0), (0.0, 0.0)))
        >>> verdict.action, verdict.reason
        ('hold', 'rank 0 is 0.9 from the average, above 0.5')
    """

    threshold: float
    patience: int | None = None
    factor: float = 0.5

    def __post_init__(self) -> None:
        keep_as(self, as_real, "threshold", least=0.0, finite=True)
        keep_as(self, as_integer, "patience", least=1, optional=True)
        keep_as(self, as_real, "factor", above=0.0, below=1.0)

    def __call__(self, state: int | None, divergence: Divergence) -> tuple[int, Verdict]:
        """The readings in a row above the threshold, and the verdict."""
        above, (level, rank) = state or 0, _farthest(divergence)
        if not math.isfinite(level):
            return above, _no_number(level, rank)
        said = f"rank {rank} is {level:.4g} from the average"
        if level <= self.threshold:
            return 0, Verdict("stable", reason=f"{said}, within {self.threshold:g}")
        if self.patience is not None and above + 1 >= self.patience:
            return 0, Verdict("nudge", self.factor, f"{said}, above {self.threshold:g} {_times(above + 1)}")
        return above + 1, Verdict("hold", reason=f"{said}, above {self.threshold:g}")


@dataclass(frozen=True)
class TrendGuard:
    """Holds while ranks drift apart: the last readings rise, each above a threshold.

    Readings that stay where they are it calls stable, however large they are: `LevelGuard` watches those.

    Attributes:
        threshold: The relative difference below which a rise is of no concern, >= 0.
        history: How many readings have to rise, >= 2.

    Example:
        >>> guard, state = TrendGuard(), None
        >>> for level in (0.06, 0.07, 0.09):
        ...     state, verdict = guard(state, Divergence((level,), (1.0,), (0.0,)))
        >>> verdict.action, verdict.reason
        ('hold', 'the last 3 readings rise, all above 0.05: 0.06, 0.07, 0.09')
    """

    threshold: float = 0.05
    history: int = 3

    def __post_init__(self) -> None:
        keep_as(self, as_real, "threshold", least=0.0, finite=True)
        keep_as(self, as_integer, "history", least=2)

    def __call__(self, state: list[float] | None, divergence: Divergence) -> tuple[list[float], Verdict]:
        """The last readings, and the verdict."""
        before, (level, rank) = state or [], _farthest(divergence)
        if not math.isfinite(level):
            return before, _no_number(level, rank)
        seen = [*before, level][-self.history :]
        told = ", ".join(f"{each:.4g}" for each in seen)
        if len(seen) < self.history:
            return seen, Verdict("stable", reason=f"{_times(len(seen), 'reading')} of {self.history} so far: {told}")
        if not all(old < new for old, new in zip(seen, seen[1:])):
            return seen, Verdict("stable", reason=f"the last {self.history} readings do not rise: {told}")
        said = f"the last {self.history} readings rise"
        if min(seen) <= self.threshold:
            return seen, Verdict("stable", reason=f"{said}, but not all above {self.threshold:g}: {told}")
        return seen, Verdict("hold", reason=f"{said}, all above {self.threshold:g}: {told}")


@dataclass(frozen=True)
class GrowthGuard:
    """Watches how fast ranks drift apart: the growth of the divergence per step, smoothed.

    A reading D after k steps gives log(D / D before) / k. Of these it keeps an exponential mean, divided by
    1 - smoothing^readings, so that the first ones are not drawn towards 0 (as Adam does, Kingma & Ba 2015). Where ranks
    are not apart at all there is no growth: the reading counts as calm, and the next one begins anew.

    Attributes:
        hold_above: It holds where the mean was above it `times` readings in a row.
        nudge_above: It nudges where the mean was above it `times` readings in a row, and counts these anew; >=
            hold_above.
        factor: By which it nudges, in (0, 1).
        smoothing: What the mean keeps of itself at each reading, in [0, 1).
        times: >= 1.

    Example:
        >>> guard, state = GrowthGuard(), None
        >>> for level in (0.010, 0.011, 0.012, 0.013):
        ...     state, verdict = guard(state, Divergence((level,), (1.0,), (0.0,), steps=10))
        >>> verdict.action, verdict.reason
        ('hold', 'divergence grows by 0.00869 a step, above 0.001 3 times')
    """

    hold_above: float = 1e-3
    nudge_above: float = 1e-2
    factor: float = 0.5
    smoothing: float = 0.9
    times: int = 3

    def __post_init__(self) -> None:
        keep_as(self, as_real, "hold_above", "nudge_above", finite=True)
        keep_as(self, as_real, "factor", above=0.0, below=1.0)
        keep_as(self, as_real, "smoothing", least=0.0, below=1.0)
        keep_as(self, as_integer, "times", least=1)
        if self.nudge_above < self.hold_above:
            raise ArgumentError(
                f"GrowthGuard: expected nudge_above >= hold_above, got {self.nudge_above:g} and {self.hold_above:g}"
            )

    def __call__(self, state: dict[str, Any] | None, divergence: Divergence) -> tuple[dict[str, Any], Verdict]:
        """The last reading, the mean, and how often in a row it was above each limit; and the verdict."""
        before = state or {"level": 0.0, "mean": 0.0, "readings": 0, "above": 0, "far_above": 0}
        level, rank = _farthest(divergence)
        if not math.isfinite(level):
            return before, _no_number(level, rank)
        if not level or not before["level"]:
            why = "no growth is known yet" if level else "ranks are not apart"
            return {**before, "level": level, "above": 0, "far_above": 0}, Verdict("stable", reason=why)
        readings = before["readings"] + 1
        growth = (math.log(level) - math.log(before["level"])) / divergence.steps
        mean = self.smoothing * before["mean"] + (1.0 - self.smoothing) * growth
        now = mean / -math.expm1(readings * math.log(self.smoothing)) if self.smoothing else growth
        above = before["above"] + 1 if now > self.hold_above else 0
        far = before["far_above"] + 1 if now > self.nudge_above else 0
        verdict = self._verdict(now, above, far)
        kept = 0 if verdict.action == "nudge" else far
        return {"level": level, "mean": mean, "readings": readings, "above": above, "far_above": kept}, verdict

    def _verdict(self, growth: float, above: int, far_above: int) -> Verdict:
        said = f"divergence grows by {growth:.3g} a step"
        if far_above >= self.times:
            return Verdict("nudge", self.factor, f"{said}, above {self.nudge_above:g} {_times(far_above)}")
        if above >= self.times:
            return Verdict("hold", reason=f"{said}, above {self.hold_above:g} {_times(above)}")
        if above:
            return Verdict("stable", reason=f"{said}, above {self.hold_above:g} only {_times(above)}")
        return Verdict("stable", reason=f"{said}, within {self.hold_above:g}")


def _times(count: int, what: str = "time") -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _farthest(divergence: Divergence) -> tuple[float, int]:
    if not isinstance(divergence, Divergence):
        raise ArgumentError(f"guard: expected a Divergence, got {kind_of(divergence)}: give report.divergence")
    return divergence.farthest


def _no_number(level: float, rank: int) -> Verdict:
    return Verdict("hold", reason=f"rank {rank} is {level:g} from the average, which is no finite number")


# --------------------------------------------------------------------------------------- guards of one's own, as data

_OURS: dict[str, type[Any]] = {each.__name__: each for each in (NoGuard, LevelGuard, TrendGuard, GrowthGuard)}


def as_guard(who: str, guard: Any) -> Guard:
    """A guard; `NoGuard` for None.

    Raises:
        ArgumentError: it is no function of a state and a divergence.
    """
    if guard is None:
        return NoGuard()
    if isinstance(guard, type):
        raise ArgumentError(f"{who}: expected a guard, got the class {guard.__name__}: write {guard.__name__}(...)")
    if not takes(guard, 2):
        raise ArgumentError(f"{who}: expected a guard (state, divergence) -> (state, verdict), got {guard!r:.100}")
    return guard  # type: ignore[no-any-return]


def guard_data(guard: Guard) -> dict[str, Any]:
    """What tells a guard: its name, and the options of one of ours; plain data."""
    if type(guard) in _OURS.values():
        return {"name": name_of(guard), **vars(guard)}
    return {"name": name_of(guard)}


def guard_from(data: dict[str, Any], guard: Guard | None = None) -> Guard:
    """The guard that `guard_data` told; one of a user's own is given again.

    Raises:
        ArgumentError: it is one of a user's own, and none, or another one, is given.
    """
    options = {name: value for name, value in data.items() if name != "name"}
    if guard is None and data["name"] in _OURS:
        return _OURS[data["name"]](**options)  # type: ignore[no-any-return]
    if guard is None or guard_data(guard) != data:
        got = "none: give it again" if guard is None else guard_data(guard)
        raise ArgumentError(f"guard: expected the guard {data}, got {got}")
    return guard


def ask(guard: Guard, state: Any, divergence: Divergence) -> tuple[Any, Verdict]:
    """Call a guard.

    Raises:
        ArgumentError: what it returned is no state and verdict.
    """
    told = guard(state, divergence)
    if not isinstance(told, tuple) or len(told) != 2 or not isinstance(told[1], Verdict):
        raise ArgumentError(f"{name_of(guard)}: expected (state, verdict), got {told!r:.100}")
    return told
