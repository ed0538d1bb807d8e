"""Lesson 13: hunt the bug."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson13_hunt.checks import check_first_difference, check_name_the_bug
from minigrad.course.lesson13_hunt.picture import picture

LESSON = Lesson(
    number=13,
    title="Hunt the bug",
    minutes=60,
    needs=(1, 7, 9, 11),
    proves="A loss that falls proves little: most bugs are seen only beside other ranks, one process, or a right run.",
    tasks=(
        Exercise(
            "first_difference",
            check_first_difference,
            hints=(
                "What comes first: steps, then buckets, then ranks. Which loop is the outermost?",
                "A fingerprint has 64 bits, and a float 53. Compare integers; and what if one run has fewer steps?",
                "Three loops over zip(run, other), enumerated, return at the first entry that differs. Behind them: "
                "None where both runs have as many steps, else (the steps of the shorter one, 0, 0).",
            ),
        ),
        Exercise(
            "name_the_bug",
            check_name_the_bug,
            hints=(
                "Ask one question after the other: who read what, do ranks agree, what is the gradient made of?",
                "Which weights w make w @ own the combined gradient? np.linalg.lstsq says it, and what is left over.",
                "Samples first, then combined[0] against the others, bit for bit. Then lstsq(own.T, combined[0]): "
                "something left over is old, other weights than samples / samples.sum() are wrong, all with a "
                "tolerance of 1e-9. Buffers last. Do that for each step, and return the first kind found.",
            ),
            points=2,
        ),
    ),
    picture=picture,
)
