"""Lesson 1: a mean of means is not the mean."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson01_means.checks import check_accumulation_weights, check_combine_gradients
from minigrad.course.lesson01_means.picture import picture

LESSON = Lesson(
    number=1,
    title="A mean of means is not the mean",
    minutes=30,
    needs=(0,),
    proves="Σ n·g / Σ n over the ranks is the gradient of the whole batch, for any shards; a plain mean is not.",
    tasks=(
        Exercise(
            "combine_gradients",
            check_combine_gradients,
            hints=(
                "Each rank's gradient is a mean. Of which sum, and divided by what? Write both down for two ranks.",
                "First all ranks need Σ n: all-reduce an array of one element, samples, in float64.",
                "Scale the gradient by samples / Σ n in place (set it to 0 where samples is 0: NaN times 0 is NaN), "
                "then all-reduce it. Nobody divides afterwards. Only where Σ n is 0 do all ranks return early.",
            ),
        ),
        Exercise(
            "accumulation_weights",
            check_accumulation_weights,
            hints=(
                "How much of the mean over all tokens is one token worth? And a micro-batch of 6?",
                "Each rank knows its own tokens only. What all of them need is one number.",
                "All-reduce the sum of this rank's counts, also where it has none; each factor is count / that sum.",
            ),
        ),
    ),
    picture=picture,
)
