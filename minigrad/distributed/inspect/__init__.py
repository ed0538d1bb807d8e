"""What reads a record of a run: where the time of a step went, who was late, and why."""

from minigrad.distributed.inspect.late import Late, LateReport, explain_ranks
from minigrad.distributed.inspect.steps import BucketTimes, RankStep, steps_of

__all__ = ["BucketTimes", "Late", "LateReport", "RankStep", "explain_ranks", "steps_of"]
