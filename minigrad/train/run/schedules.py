"""A schedule that depends on the number of ranks, which a run knows once its ranks are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

from minigrad.optim.schedule import ScheduleLike, check_schedule


@dataclass(frozen=True)
class ScheduleByRanks:
    """In the place of a schedule.

    Args:
        factory: factory(world_size) gives it.
    """

    factory: Callable[[int], ScheduleLike]

    def of(self, world_size: int) -> ScheduleLike:
        """That of so many ranks.

        Raises:
            ArgumentError: factory gives none.
        """
        return check_schedule("scheduler(world_size)", self.factory(world_size))


RunSchedule = Union[ScheduleLike, ScheduleByRanks]


def check_run_schedule(who: str, schedule: Any) -> RunSchedule:
    """One of both, as it is; ArgumentError for anything else."""
    return schedule if isinstance(schedule, ScheduleByRanks) else check_schedule(who, schedule)


def schedule_of(schedule: RunSchedule | None, world_size: int) -> ScheduleLike | None:
    """That of so many ranks."""
    return schedule.of(world_size) if isinstance(schedule, ScheduleByRanks) else schedule
