"""Our own: each phase of a rank beside that of the others, and the step as long as its last rank."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median

from minigrad.distributed.inspect import RankStep

PHASES = ("data", "forward", "backward", "link", "optimizer")

_LEAST = 1 / 20  # of the median step
_NO_ACCIDENT = 3  # steps


def who_was_late(steps: Mapping[int, Mapping[int, RankStep]]) -> tuple[int, str] | None:
    """See task.py."""
    made = list(steps.values())
    least_s = _LEAST * median(own.wall_s for each in made for own in each.values())
    found: dict[tuple[int, str], float] = {}
    for rank in made[0]:
        late_s = {phase: [_late_s(each, rank, phase) for each in made] for phase in PHASES}
        in_all_s = sum(fmean(seconds) for seconds in late_s.values())
        for phase, seconds in late_s.items():
            often = sum(late > least_s for late in seconds) >= _NO_ACCIDENT
            if often and fmean(seconds) > least_s and in_all_s > least_s:
                found[rank, phase] = fmean(seconds)
    return max(found, key=found.__getitem__, default=None)


def seconds_won(steps: Mapping[int, Mapping[int, RankStep]], rank: int, phase: str) -> float:
    """See task.py."""
    won_s = 0.0
    for each in steps.values():
        busy_s = {other: own.wall_s - own.idle_s - own.exposed_s for other, own in each.items()}
        before_s = max(busy_s.values())
        busy_s[rank] -= max(0.0, _late_s(each, rank, phase))
        won_s += before_s - max(busy_s.values())
    return won_s


def _late_s(each: Mapping[int, RankStep], rank: int, phase: str) -> float:
    """What a phase took a rank longer than the middle one of the others."""
    others_s = median(_seconds(own, phase) for other, own in each.items() if other != rank)
    return _seconds(each[rank], phase) - others_s


def _seconds(own: RankStep, phase: str) -> float:
    return float(getattr(own, "handing_s" if phase == "link" else f"{phase}_s"))
