"""A cadence under a guard: what it says of the ranks counts before the anchor moves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minigrad.distributed.balance.cadence import CadenceConfig, ElChe
from minigrad.distributed.balance.divergence import Divergence
from minigrad.distributed.balance.guards import Guard, NoGuard, Verdict, ask, guard_data, guard_from
from minigrad.distributed.balance.state import reading_state, resumed
from minigrad.errors import StateDictError

_UNKNOWN = Verdict("hold", reason="no divergence is known of this round")


@dataclass(frozen=True)
class GuardedCadence:
    """The state of El Che, and of the guard that watches it; `report` gives the next.

    Attributes:
        el_che: How many batches each rank runs.
        guard: See `guards`.
        guard_state: What the guard remembers: plain data.
        verdict: The last one; None before the first.

    Example:
        >>> from minigrad.distributed.balance.guards import LevelGuard
        >>> cadence = GuardedCadence(ElChe.start(2), LevelGuard(0.5))
        >>> cadence, *_ = cadence.report([500.0, 500.0], [10, 10], 50.0, Divergence((0.1, 0.1), (1.0, 1.0), (0.0, 0.0)))
        >>> apart = Divergence((0.9, 0.1), (1.0, 1.0), (0.0, 0.0))
        >>> cadence, counts, reason = cadence.report([500.0, 500.0], [10, 10], 100.0, apart)
        >>> counts, reason.split("; ")[0]
        ((10, 10), 'hold: rank 0 is 0.9 from the average, above 0.5')
    """

    el_che: ElChe
    guard: Guard = NoGuard()
    guard_state: Any = None
    verdict: Verdict | None = None

    @property
    def config(self) -> CadenceConfig:
        """The options of the cadence."""
        return self.el_che.config

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.el_che.world_size

    @property
    def is_guarded(self) -> bool:
        """Whether there is a guard that may say anything but "stable"."""
        return not isinstance(self.guard, NoGuard)

    def report(
        self,
        wall_ms: Sequence[float],
        batch_counts: Sequence[int],
        sync_ms: float,
        divergence: Divergence | None = None,
    ) -> tuple[GuardedCadence, tuple[int, ...], str]:
        """Take in what happened between two reductions: the guard is asked first, and El Che then does as it says.

        "hold" keeps the anchor from growing in this report; it may still shrink. "nudge" holds it too, and then lowers
        it, and its floor, by the factor.

        Args:
            wall_ms, batch_counts, sync_ms: See `ElChe.report_timing`.
            divergence: How far ranks were apart when they combined; where there is a guard and it is not known, the
                anchor does not grow.

        Returns:
            The new state, the counts to use next, and why they are these.

        Raises:
            ArgumentError: not one number a rank, or one that is negative or no number; a guard of a user's own that
                gave no verdict.
        """
        after, verdict = self, Verdict("stable")
        if self.is_guarded:
            state, verdict = (self.guard_state, _UNKNOWN) if divergence is None else self._ask(divergence)
            after = replace(self, guard_state=state, verdict=verdict)
        grows = verdict.action == "stable"
        el_che, counts, reason = self.el_che.report_timing(wall_ms, batch_counts, sync_ms, allow_growth=grows)
        if verdict.action == "nudge":
            el_che, counts, more = el_che.nudge_anchor_down(verdict.factor)
            reason = f"{reason}; {more}"
        if self.is_guarded:
            reason = f"{verdict.action}: {verdict.reason}; {reason}"
        return replace(after, el_che=el_che), counts, reason

    def _ask(self, divergence: Divergence) -> tuple[Any, Verdict]:
        return ask(self.guard, self.guard_state, divergence)

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data, for JSON, but for what a guard of a user's own is; `from_state_dict` takes it."""
        verdict = None if self.verdict is None else dict(vars(self.verdict))
        guard = {"guard": guard_data(self.guard), "guard_state": self.guard_state, "verdict": verdict}
        return {"el_che": self.el_che.state_dict(), **guard}

    @staticmethod
    def from_state_dict(state: Mapping[str, Any], guard: Guard | None = None) -> GuardedCadence:
        """The state that `state_dict` told.

        Args:
            guard: The one that watched, which has to be given where it is one of a user's own.

        Raises:
            StateDictError: it is no such data. ArgumentError: it is that of another guard.
        """
        with reading_state("GuardedCadence"):
            el_che, told = ElChe.from_state_dict(state["el_che"]), state["verdict"]
            verdict = None if told is None else Verdict(**told)
            watching, remembered = dict(state["guard"]), state["guard_state"]
        return GuardedCadence(el_che, guard_from(watching, guard), remembered, verdict)

    def resumed(self, who: str, state: Mapping[str, Any]) -> GuardedCadence:
        """The state that `state_dict` told, where it fits this one: the same ranks, options and guard.

        Raises:
            StateDictError: it does not, or is no such data.
        """
        with reading_state(who):
            got = state["guard"]
        if got != guard_data(self.guard):
            raise StateDictError(f"{who}: expected the state of guard {guard_data(self.guard)}, got that of {got}")
        return resumed(who, self, GuardedCadence.from_state_dict(state, self.guard))
