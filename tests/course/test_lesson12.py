"""Lesson 12: the check takes what is right, in whatever way it is done."""

import numpy as np

from minigrad.course.lesson12_wire.checks import check_feedback_hook
from minigrad.course.lesson import Student
from tests.course.wrong.lesson12 import Done, sum_of_largest


def largest_with_memory(state, bucket, comm):
    """The largest fourteenth, and what was not among it next time."""
    flat = bucket.buffer()
    for param, gradient in zip(bucket.parameters(), bucket.gradients()):
        gradient.data[...] += state.get(param, 0.0)
    wanted = flat.copy()
    count = -(-len(flat) // 14)
    total = sum_of_largest(comm, flat, count)
    flat[np.argpartition(-np.abs(wanted), count)[:count]] = 0
    for param, gradient in zip(bucket.parameters(), bucket.gradients()):
        state[param] = gradient.data.copy()
    flat[...] = total
    return Done()


def test_the_largest_elements_with_feedback_are_taken():
    said = check_feedback_hook(Student({"feedback_hook": largest_with_memory}, {}))
    assert "nothing lost" in said
