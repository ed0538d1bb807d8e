"""Lesson 7: which gradients travel together."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson07_buckets.checks import check_best_cap_bytes, check_get_bucket_plan
from minigrad.course.lesson07_buckets.picture import picture

LESSON = Lesson(
    number=7,
    title="Buckets",
    minutes=60,
    needs=(5, 6),
    proves="A plan of buckets is a pure function; too small it pays latency, too big it cannot travel during backward.",
    tasks=(
        Exercise(
            "get_bucket_plan",
            check_get_bucket_plan,
            (
                "Walk once through the parameters, from the last to the first, and keep one open bucket for each kind.",
                "A dict {(dtype, device): bucket}: a bucket that would go over its cap is closed, a new one opened. "
                "The first of a kind has the cap first_cap_bytes; a bucket of one gradient may be over its cap.",
                "At the end sort all buckets by their last gradient, that of the lowest index, the highest first: "
                "`sorted(buckets, key=min, reverse=True)`.",
            ),
        ),
        Exercise(
            "best_cap_bytes",
            check_best_cap_bytes,
            (
                "A function step_s(cap) that follows the wire from bucket to bucket, and the best of all caps by it.",
                "free_s = max(ready_s, free_s) + cost_s(bucket): a bucket starts when it is complete and the wire is "
                "free; the step is over when the last is there. Gradients are complete by bytes, in the time of the "
                "slowest rank.",
                "Another plan comes only at a cap that is the sum of neighbouring gradients: try all of those sums.",
            ),
        ),
    ),
    picture=picture,
)
