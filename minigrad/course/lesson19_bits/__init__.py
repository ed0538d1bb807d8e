"""Lesson 19: the same bits for any number of ranks."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson19_bits.checks import check_portable_batches, check_sum_in_one_order
from minigrad.course.lesson19_bits.picture import picture

LESSON = Lesson(
    number=19,
    title="The same bits for any N",
    minutes=45,
    needs=(1, 2),
    proves="Bits that do not depend on the number of ranks need logical shards: one order of sums, and data and noise "
    "that belong to the shard.",
    tasks=(
        Exercise(
            "sum_in_one_order",
            check_sum_in_one_order,
            (
                "(a + b) + (c + d) and ((a + b) + c) + d have other bits. Which of the two can two ranks share "
                "without ever adding in another order than one rank would?",
                "Let each rank add its own parts in pairs, then the pairs in pairs, until one array is left. What is "
                "left to add on all ranks is the upper part of the same tree.",
                "all_gather the array that is left on each rank into one of shape (world_size, ...), and add its rows "
                "up by the same function. Every rank does that, so all have the bits.",
            ),
            points=2,
        ),
        Exercise(
            "portable_batches",
            check_portable_batches,
            (
                "Ask of each number drawn: which arguments may it depend on? The rank is never one of them.",
                "One order of the whole epoch, from seed and epoch, the same on all ranks; a batch is a stretch of "
                "it, a shard a stretch of the batch. A rank only decides which shards it looks at.",
                "Make a new generator for each (seed, epoch, step, shard), for instance np.random.default_rng("
                "np.random.SeedSequence(seed, spawn_key=(1, epoch, step, shard))), and another one, of another key, "
                "for the order.",
            ),
            points=2,
        ),
    ),
    picture=picture,
)
