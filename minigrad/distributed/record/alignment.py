"""How far the clocks of ranks are apart, from what they did together. Pure.

A collective is over on no rank before every rank has called it. So for each one that two ranks noted, with c when a
rank called it and e when it was over there, on the rank's own clock, and o what has to be added to the clock of rank r
to have that of rank 0:

    e_r + o >= c_0    and    c_r + o <= e_0

All collectives together leave an interval for o. Its middle is taken, as of the delays of the Network Time Protocol
(RFC 5905, section 8); where ranks have one clock, as those of a process or of a machine, it is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Meeting = tuple[float, float]  # when a rank called a collective, and when that was over, on its own clock
Meetings = Mapping[str, Meeting]


def offsets_of(clocks: Sequence[str], meetings: Sequence[Meetings]) -> list[float]:
    """Seconds to be added to the clock of each rank to have that of the first.

    Args:
        clocks: What tells the time of each rank: the same text for those that have one clock.
        meetings: Of each rank, by names that all ranks share.

    Example:
        >>> here, there = {"sum": (1.0, 4.0)}, {"sum": (13.0, 14.0)}
        >>> offsets_of(["a", "b"], [here, there])
        [0.0, -11.0]
    """
    known: dict[str, float] = {}
    for clock, own in zip(clocks, meetings):
        if clock not in known:
            known[clock] = _offset(meetings[0], own) if known else 0.0
    return [known[clock] for clock in clocks]


def _offset(first: Meetings, own: Meetings) -> float:
    """The middle of what the meetings of two ranks leave; 0 where they share none."""
    shared = [name for name in own if name in first]
    if not shared:
        return 0.0
    least = max(first[name][0] - own[name][1] for name in shared)
    most = min(first[name][1] - own[name][0] for name in shared)
    return (least + most) / 2.0
