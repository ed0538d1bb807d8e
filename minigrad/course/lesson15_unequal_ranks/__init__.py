"""Lesson 15: unequal ranks."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson15_unequal_ranks.checks import check_choose_shards, check_divide_batch
from minigrad.course.lesson15_unequal_ranks.picture import picture

LESSON = Lesson(
    number=15,
    title="Unequal ranks",
    minutes=60,
    needs=(1, 5),
    proves="Ranks of unequal speed are done at one time when their shards follow what was measured, and the gradient "
    "stays that of the whole batch.",
    tasks=(
        Exercise(
            "divide_batch",
            check_divide_batch,
            (
                "Rounding each part on its own does not sum to the batch. What is the least that each rank is sure of?",
                "Round all parts down; then fewer samples are left than there are ranks. Who was cut the most?",
                "exact = batch_size * speed / sum(speeds); sizes = floor of each; sort ranks by (size - exact, "
                "-speed, rank) and give the first batch_size - sum(sizes) of them one sample more.",
            ),
        ),
        Exercise(
            "choose_shards",
            check_choose_shards,
            (
                "What do (samples, seconds) say of a rank's speed? And what do they say once its shard has changed?",
                "Keep a share for each rank in the state, and move it a part of its way to the measured speed in each "
                "step: chance cancels out, and what is old fades. A fixed cost needs no model of its own, since the "
                "measured speed changes with the shard.",
                "share += 0.3 * (speed / sum of speeds - share) for each rank that was measured, the first time all "
                "the way; sizes = divide_batch(batch_size, shares); then a rank with none takes one from the largest. "
                "Return ([...plain lists...], sizes, text).",
            ),
            points=2,
        ),
    ),
    picture=picture,
)
