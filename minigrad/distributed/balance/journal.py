"""A run's readings and decisions as JSON lines, and the same decisions from the same readings again.

The first line is the state of a state machine; each line after it is one step: what went in, and what was decided,
with the reason. A line that is a state again is where a run was resumed. Floats are written so that they read back to
the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from minigrad.distributed.balance.cadence import ElChe
from minigrad.distributed.balance.cost import Reading
from minigrad.distributed.balance.divergence import Divergence
from minigrad.distributed.balance.division import Balance, Division
from minigrad.distributed.balance.guarded import GuardedCadence
from minigrad.distributed.balance.guards import Guard, Verdict
from minigrad.distributed.balance.strategy import BalanceFunction, Strategy, StrategyState, start
from minigrad.errors import ArgumentError


_Machine = Balance | ElChe | GuardedCadence | StrategyState
_KINDS: dict[type[Any], str] = {
    Balance: "balance",
    ElChe: "cadence",
    GuardedCadence: "guarded cadence",
    StrategyState: "strategy",
}


@dataclass(frozen=True)
class Decision:
    """What a step led to.

    Attributes:
        counts: Shards in samples, or batches, of each rank; empty before the first decision.
        reason: Why.
    """

    counts: tuple[int, ...]
    reason: str


class Journal:
    """Writes one state machine's run.

    Args:
        stream: Where lines go; it is flushed after each.
        state: The state before the first step.

    Example:
        >>> import io
        >>> stream, balance = io.StringIO(), Balance.start(2, BalanceConfig(calibration_steps=1))
        >>> journal = Journal(stream, balance)
        >>> balance, division, reason = balance.observe(8, [Reading(4, 1.0), Reading(4, 3.0)])
        >>> journal.observed(8, [Reading(4, 1.0), Reading(4, 3.0)], division, reason)
        >>> replay(stream.getvalue().splitlines())[0].counts
        (6, 2)
    """

    def __init__(self, stream: TextIO, state: _Machine) -> None:
        self._stream = stream
        self.started(state)

    def started(self, state: _Machine) -> None:
        """Note the state from which steps go on."""
        self._write({"kind": _KINDS[type(state)], "state": state.state_dict()})

    def observed(self, batch_size: int, readings: Sequence[Reading | None], division: Division, reason: str) -> None:
        """Note a `Balance.observe`, or a strategy's."""
        rows = [None if reading is None else [reading.samples, reading.seconds] for reading in readings]
        self._write({"batch_size": int(batch_size), "readings": rows, "counts": division.shards, "reason": reason})

    def reported(
        self,
        wall_ms: Sequence[float],
        batch_counts: Sequence[int],
        sync_ms: float,
        counts: Sequence[int],
        reason: str,
        *,
        allow_growth: bool = True,
    ) -> None:
        """Note an `ElChe.report_timing`."""
        entry = {**_report(wall_ms, batch_counts, sync_ms), "allow_growth": allow_growth}
        self._write({**entry, "counts": counts, "reason": reason})

    def judged(
        self,
        wall_ms: Sequence[float],
        batch_counts: Sequence[int],
        sync_ms: float,
        divergence: Divergence | None,
        after: GuardedCadence,
        reason: str,
    ) -> None:
        """Note a `GuardedCadence.report`, and what it led to."""
        apart = None if divergence is None else divergence.to_data()
        verdict = None if after.verdict is None else vars(after.verdict)
        entry = {**_report(wall_ms, batch_counts, sync_ms), "divergence": apart, "verdict": verdict}
        self._write({**entry, "counts": after.el_che.batch_counts, "reason": reason})

    def nudged(self, factor: float, counts: Sequence[int], reason: str) -> None:
        """Note an `ElChe.nudge_anchor_down`."""
        self._write({"nudge": factor, "counts": counts, "reason": reason})

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(entry) + "\n")
        self._stream.flush()


def _report(wall_ms: Sequence[float], batch_counts: Sequence[int], sync_ms: float) -> dict[str, Any]:
    walls, ran = list(map(float, wall_ms)), list(map(int, batch_counts))
    return {"wall_ms": walls, "batch_counts": ran, "sync_ms": float(sync_ms)}


def replay(
    lines: Iterable[str], strategy: Strategy | BalanceFunction | None = None, *, guard: Guard | None = None
) -> list[Decision]:
    """Decide again from the readings of a journal.

    Args:
        strategy: The one of a user's own that decided, where one did.
        guard: The same of a guard.

    Returns:
        The decision of each step.

    Raises:
        ArgumentError: a line that is no journal's, or a decision that is not the recorded one; the line is named.
    """
    decisions: list[Decision] = []
    state: _Machine | None = None
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if state is None or "kind" in entry:
                state = _start(entry, strategy, guard)
                continue
            state, counts, reason = _step(state, entry)
            recorded = Decision(tuple(entry["counts"]), entry["reason"])
        except ArgumentError as error:
            raise ArgumentError(f"replay: expected to decide line {number} again, got {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"replay: expected a journal's line, got line {number}: {error!r}") from error
        if recorded != Decision(counts, reason):
            raise ArgumentError(
                f"replay: expected {recorded} of line {number} again, got {Decision(counts, reason)}: "
                "the journal was changed, or the code that decides, or that is no function of its arguments"
            )
        decisions.append(recorded)
    return decisions


def _start(
    entry: Mapping[str, Any], strategy: Strategy | BalanceFunction | None, guard: Guard | None
) -> _Machine:
    kind, state = entry["kind"], entry["state"]
    if kind == "strategy":
        if strategy is None:
            raise ArgumentError(f"expected replay(lines, strategy) with {state['strategy']}, got no strategy")
        return start("replay", 1, strategy, None).from_state_dict(state)
    if kind == "guarded cadence":
        return GuardedCadence.from_state_dict(state, guard)
    return Balance.from_state_dict(state) if kind == "balance" else {"cadence": ElChe}[kind].from_state_dict(state)


def _step(state: _Machine, entry: Mapping[str, Any]) -> tuple[_Machine, tuple[int, ...], str]:
    if isinstance(state, GuardedCadence):
        return _judge(state, entry)
    if not isinstance(state, ElChe):
        readings = [None if row is None else Reading(*row) for row in entry["readings"]]
        balance, division, reason = state.observe(entry["batch_size"], readings)
        return balance, division.shards, reason
    if "nudge" in entry:
        return state.nudge_anchor_down(entry["nudge"])
    return state.report_timing(
        entry["wall_ms"], entry["batch_counts"], entry["sync_ms"], allow_growth=entry["allow_growth"]
    )


def _judge(state: GuardedCadence, entry: Mapping[str, Any]) -> tuple[_Machine, tuple[int, ...], str]:
    """A step under a guard.

    Raises:
        ArgumentError: the verdict is not the recorded one.
    """
    apart, told = entry["divergence"], entry["verdict"]
    divergence = None if apart is None else Divergence.from_data(apart)
    state, counts, reason = state.report(entry["wall_ms"], entry["batch_counts"], entry["sync_ms"], divergence)
    if state.verdict != Verdict(**told):
        raise ArgumentError(f"expected {Verdict(**told)} again, got {state.verdict}")
    return state, counts, reason
