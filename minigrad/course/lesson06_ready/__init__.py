"""Lesson 6: in which order, and when, backward completes gradients."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson06_ready.checks import check_ready_fractions, check_ready_order
from minigrad.course.lesson06_ready.picture import picture

LESSON = Lesson(
    number=6,
    title="Backward tells when",
    minutes=40,
    needs=(5,),
    proves="Each gradient is complete at a moment of its own, long before backward is over, and backward says which.",
    tasks=(
        Exercise(
            "ready_order",
            check_ready_order,
            (
                "Who knows that no operation will add to a gradient any more? Not the layer: it may be used again.",
                "loss.backward(on_leaf=f) calls f(leaf) once for each leaf; build {id(parameter): name} before it.",
                "In f: `if id(leaf) in names: order.append(names[id(leaf)])`. An input that requires grad is a leaf "
                "too. named_parameters() has a shared parameter once, under its first name.",
            ),
        ),
        Exercise(
            "ready_fractions",
            check_ready_fractions,
            (
                "A fraction of what? Of backward alone: forward is over, and other things may have taken time since.",
                "Read the clock before backward, in each call of on_leaf, and once more when backward has returned.",
                "(ready - began) / (ended - began) for each, which can be computed after loss.backward() only: keep "
                "the moments in a dict until then.",
            ),
        ),
    ),
    picture=picture,
)
