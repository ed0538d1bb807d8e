"""Lesson 3: ring, tree, halving and doubling."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson03_ring.checks import check_crossing_bytes, check_doubling_all_reduce, check_ring_all_reduce
from minigrad.course.lesson03_ring.picture import picture

LESSON = Lesson(
    number=3,
    title="Ring, tree, halving and doubling",
    minutes=75,
    needs=(2,),
    proves="An all-reduce sends no more than two arrays a rank, however many ranks there are; small arrays want few "
    "messages instead, and where one way becomes better than the other can be computed.",
    tasks=(
        Exercise(
            "ring_all_reduce",
            check_ring_all_reduce,
            (
                "First draw it for 3 ranks and 3 chunks: which chunk does rank 0 send in round 0, which one comes, and "
                "which one can it therefore send in round 1?",
                "np.array_split(array, W) makes views of as equal sizes as can be, the longer ones first. Send, then "
                "recv and wait, then wait for what was sent: in each round, in this order.",
                "In round t rank r sends chunk (r - t) mod W to rank r + 1, and adds what comes to chunk (r - t - 1) "
                "mod W. After W - 1 rounds chunk (r + 1) mod W is finished: in round t of the second half it sends "
                "chunk (r + 1 - t) mod W, and overwrites chunk (r - t) mod W.",
            ),
            points=3,
        ),
        Exercise(
            "doubling_all_reduce",
            check_doubling_all_reduce,
            (
                "Let each round double how many ranks' arrays are in each sum: with whom does rank 5 of 8 talk?",
                "rank ^ distance, for distance 1, 2, 4: both send, both take, and only after what was sent was taken "
                "does either add up. For other W than powers of two, make it one first.",
                "With P the largest power of two <= W: rank r >= P sends its array to r - P, which adds it; the ranks "
                "below P double; then r - P sends the sum back. That is log2 P + 2 rounds.",
            ),
            points=2,
        ),
        Exercise(
            "crossing_bytes",
            check_crossing_bytes,
            (
                "Write down both times as fixed + slope·n. Where do two lines cross?",
                "The ring: 2 (W - 1)·alpha fixed, and 2 (W - 1) / W·beta a byte. Doubling: its rounds times alpha, and "
                "its rounds times beta a byte. How many rounds are there for W = 6?",
                "n = (2 (W - 1) - rounds)·alpha / ((rounds - 2 (W - 1) / W)·beta), with rounds = floor(log2 W), and "
                "two more where W is no power of two; W = 2 makes the slopes equal.",
            ),
        ),
    ),
    picture=picture,
)
