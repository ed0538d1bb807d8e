"""What reads a record of a run: where the time of a step went, who was late, and why."""

from minigrad.distributed.inspect.explain import Explanation, RankTime, explain
from minigrad.distributed.inspect.hangs import read_hang
from minigrad.distributed.inspect.late import Late, LateReport, explain_ranks
from minigrad.distributed.inspect.replay import Replayed, replay
from minigrad.distributed.inspect.steps import BucketTimes, RankStep, steps_of

__all__ = [
    "BucketTimes",
    "Explanation",
    "Late",
    "LateReport",
    "RankStep",
    "RankTime",
    "Replayed",
    "explain",
    "explain_ranks",
    "read_hang",
    "replay",
    "steps_of",
]
