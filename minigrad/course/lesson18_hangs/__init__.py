"""Lesson 18: hangs and deaths."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson18_hangs.checks import check_diagnose_hang, check_find_missing
from minigrad.course.lesson18_hangs.picture import picture

LESSON = Lesson(
    number=18,
    title="Hangs and deaths",
    minutes=60,
    needs=(2, 4),
    proves="Who has to be mended is seen from the numbered calls of all ranks, at the first number at which they are "
    "not one call; and a wait that ends can say who is missing.",
    tasks=(
        Exercise(
            "diagnose_hang",
            check_diagnose_hang,
            (
                "Which number do you look at? Not each rank's last call: a rank may be ahead, and after one slip all "
                "calls that follow differ too.",
                "Make a dict of each list, by number. Walk up from the highest first number to the highest last one, "
                "and stop at the first at which a rank lacks the call, or two ranks have different ones. If all is one "
                "call to the end, nobody is accused, whoever is gone.",
                "Different: count what was called (a Counter); the ranks of the rarer call are accused. Then two "
                "questions: is its line that of the others, and is (what, line) among the calls before this number? "
                "Missing: of the ranks that lack the call those that raised, else died, else left; else all, as late.",
            ),
            points=3,
        ),
        Exercise(
            "find_missing",
            check_find_missing,
            (
                "Somebody has to collect, and then to tell the others: how does rank 3 hear that rank 2 is missing?",
                "Rank 0 starts a recv from every rank, and looks at done() of all of them in one loop with one "
                "deadline. wait() would wait for the communicator's own timeout, and fail all ranks.",
                "After its deadline rank 0 sends an array of world_size flags to each rank that has come. The others "
                "look at done() of a recv from rank 0 for up to 2 timeout_s: it may be that late itself, and then has "
                "its own deadline. No answer by then: it is rank 0 that is missing.",
            ),
            points=2,
        ),
    ),
    picture=picture,
)
