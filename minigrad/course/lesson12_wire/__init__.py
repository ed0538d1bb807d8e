"""Lesson 12: precision on the wire."""

from minigrad.course.lesson import Exercise, Lesson
from minigrad.course.lesson12_wire.checks import check_feedback_hook, check_scaled_step
from minigrad.course.lesson12_wire.picture import picture

LESSON = Lesson(
    number=12,
    title="Precision on the wire: half the bytes, and nothing lost",
    minutes=60,
    needs=(2, 7),
    proves="A gradient that travels in half the bytes is rounded twice, as a part and as a sum; what is kept of both "
    "and sent later is never lost, as long as it belongs to a parameter and not to a bucket.",
    tasks=(
        Exercise(
            "feedback_hook",
            check_feedback_hook,
            (
                "Keep what a message left out, and add it to the next gradients before you make the next message. "
                "Where is something left out? An all_reduce of float16 rounds the sum, too.",
                "Either send the largest elements, with their places, by all_gather, and add up in float32: then only "
                "the choice leaves something out. Or add up by hand: comm.all_to_all gives each rank its part of all "
                "messages in float16; it adds them up in float32, rounds, and comm.all_gather gives the sums to all. "
                "The rank that has added up keeps what it has rounded off, in its own residual.",
                "for param, gradient in zip(bucket.parameters(), bucket.gradients()): gradient.data[...] += "
                "state.get(param, 0.0). Then flat = bucket.buffer() is what should be sent. After you have got the "
                "sums and what is left: write what is left into flat, state[param] = gradient.data.copy() for each "
                "param, and then write the sums into flat. Pad to a multiple of world_size.",
            ),
            points=3,
        ),
        Exercise(
            "scaled_step",
            check_scaled_step,
            (
                "A rank that has seen no overflow has to ask all the same.",
                "Add up a flag, 0 or 1, and not the gradients: finite numbers can have an infinite sum.",
                "flag = np.array([not np.isfinite(gradient).all()], np.float32); comm.all_reduce(flag).wait(); where "
                "it is above 0 return scale / 2; else param -= lr * (gradient.astype(np.float32) / scale).",
            ),
        ),
    ),
    picture=picture,
)
