"""Lesson 2: collectives as sums over ranks."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson02_collectives.checks import check_broadcast_by_sum, check_communicator_by_parts
from minigrad.course.lesson02_collectives.picture import picture

LESSON = Lesson(
    number=2,
    title="Collectives are sums over ranks",
    minutes=45,
    needs=(1,),
    proves="An all-reduce is a reduce-scatter and an all-gather, with the same bits; the order of a sum is part of it.",
    tasks=(
        Exercise(
            "communicator_by_parts",
            check_communicator_by_parts,
            hints=(
                "After the reduce_scatter each rank has one part of the sum. What does an all_gather of these give?",
                "Both want as many elements for each rank: take the next multiple of world_size, and fill up with "
                "zeros that nobody reads afterwards. Work on array.reshape(-1), which is a view.",
                "class ByParts(Wrapper) with all_reduce(self, array, op=ReduceOp.SUM, layout=''): part has "
                "ceil(size / world_size) elements, padded world_size times as many. reduce_scatter(part, padded, op), "
                "wait, all_gather(padded, part), wait, copy the first size elements back, return the last Work.",
            ),
            points=2,
        ),
        Exercise(
            "broadcast_by_sum",
            check_broadcast_by_sum,
            hints=(
                "What has every rank but the root to add, so that the sum is the root's array?",
                "Set it to 0 and do not multiply: NaN times 0 is NaN. Now find a float x for which x + 0.0 has other "
                "bits than x.",
                "It is -0.0. Integers have one zero: array.view(np.uint8) is the array's bytes, without a copy. "
                "All-reduce those.",
            ),
        ),
    ),
    picture=picture,
)
