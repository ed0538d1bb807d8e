"""Lesson 17: who was late."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson17_who_was_late.checks import check_seconds_won, check_who_was_late
from minigrad.course.lesson17_who_was_late.picture import picture

LESSON = Lesson(
    number=17,
    title="Who was late?",
    minutes=60,
    needs=(5, 8),
    proves="An all-reduce makes the steps of all ranks equally long; who was late, and in which phase, is in what each "
    "did itself, beside the middle one of the others.",
    tasks=(
        Exercise(
            "who_was_late",
            check_who_was_late,
            (
                "Which of the figures of a rank's step does another rank's lateness change, and which does it not?",
                "For each rank, phase and step: its seconds less the median of the other ranks' seconds. Then look at "
                "these numbers over the steps: how often, how much on average, and summed over phases.",
                "late[rank, phase] = list over steps of own - median(others). Told if at least 3 are above "
                "median(wall_s) / 20, their mean is above it, and so is the sum of the means of this rank's five "
                "phases. Of several the one with the largest mean.",
            ),
            points=2,
        ),
        Exercise(
            "seconds_won",
            check_seconds_won,
            (
                "When does the last rank come to the all-reduce, and when would it come then? Who is it then?",
                "What a rank did in a step without waiting is wall_s - idle_s - exposed_s. The step is as long as the "
                "largest of them; so is the step with one of them made smaller.",
                "Sum over steps of max(busy) - max(busy with busy[rank] - max(0, own - median(others))).",
            ),
        ),
    ),
    picture=picture,
)
