"""Lesson 8: buckets travel while backward runs."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson08_overlap.checks import check_get_ddp_overlapped
from minigrad.course.lesson08_overlap.picture import picture

LESSON = Lesson(
    number=8,
    title="Overlap",
    minutes=60,
    needs=(5, 6, 7),
    proves="Communication that travels during backward costs no time; only the last bucket is seen.",
    tasks=(
        Exercise(
            "get_ddp_overlapped",
            check_get_ddp_overlapped,
            (
                "Nobody waits before finish(). What does a bucket need to leave: which gradients, which other buckets?",
                "Register one hook on each parameter when the wrapper is made. It counts down what its bucket misses; "
                "then `while the next bucket misses nothing: launch it`. Keep (array, work) for finish().",
                "A launch packs copies of n * gradient into one array and calls comm.all_reduce(array) without wait(). "
                "The sum of n is all-reduced in forward, also without wait(). finish() waits for it and for each "
                "bucket, divides by the sum, and copies into param.grad.data.",
            ),
            points=3,
        ),
    ),
    picture=picture,
)
