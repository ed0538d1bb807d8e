"""Lesson 10: unused, frozen and tied parameters."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson10_unused.checks import check_get_ddp_unused, check_used_anywhere
from minigrad.course.lesson10_unused.picture import picture

LESSON = Lesson(
    number=10,
    title="Unused, frozen, tied: a hang against an error in the same backward",
    minutes=50,
    needs=(1, 5),
    proves="Where one rank leaves a parameter out, ranks that agree first raise an error on all, or count it as zero; "
    "ranks that do not, hang or add up the gradients of two parameters.",
    tasks=(
        Exercise(
            "used_anywhere",
            check_used_anywhere,
            (
                "Logical or is a sum, or a maximum, of zeros and ones.",
                "Put the list into one NumPy array of float32, add it up over the ranks, and see which entries are "
                "above 0.",
                "flags = np.array(used, np.float32); comm.all_reduce(flags).wait(); [flag > 0 for flag in flags]; "
                "and return [] at once where the list is empty.",
            ),
        ),
        Exercise(
            "get_ddp_unused",
            check_get_ddp_unused,
            (
                "A rank that finds that it lacks something must not act on it alone. What has every rank to know "
                "before the first gradient may travel?",
                "In finish(), ask two questions by used_anywhere, in one call: which parameters have a gradient on any "
                "rank, and which lack one on any rank that has samples. All ranks get the same answers, so they raise "
                "alike, or make the same sums.",
                "Take module.named_parameters() (a tied one comes once) with requires_grad. has = samples > 0 and grad "
                "is not None; lacks = samples > 0 and grad is None; answers = used_anywhere(comm, has + lacks). Sum up "
                "the samples and set them to 0. Raise on all where any is lacking, with the names. Then for each that "
                "is used anywhere: zeros where this rank has none, times samples / total, all_reduce, into grad.",
            ),
            points=3,
        ),
    ),
    picture=picture,
)
