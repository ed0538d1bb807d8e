"""Wrong solutions of lesson 13."""

import numpy as np

from minigrad.course.lesson13_hunt.solution import first_difference, name_the_bug
from tests.course.wrong import Wrong


def as_floats(run, other):
    for step in range(min(len(run), len(other))):
        apart = np.argwhere(np.array(run[step], np.float64) != np.array(other[step], np.float64))
        if len(apart):
            return (step, *map(int, apart[0]))
    return None if len(run) == len(other) else (min(len(run), len(other)), 0, 0)


def bucket_by_bucket(run, other):
    found = np.argwhere(np.array(run[: len(other)], np.uint64) != np.array(other[: len(run)], np.uint64))
    if len(found):
        step, bucket, rank = min(found.tolist(), key=lambda place: (place[1], place[0], place[2]))
        return step, bucket, rank
    return None if len(run) == len(other) else (min(len(run), len(other)), 0, 0)


def of_equal_length(run, other):
    found = np.argwhere(np.array(run[: len(other)], np.uint64) != np.array(other[: len(run)], np.uint64))
    return tuple(map(int, found[0])) if len(found) else None


def of_rank_0(run, other):
    for step, (buckets, others) in enumerate(zip(run, other)):
        for bucket, (prints, theirs) in enumerate(zip(buckets, others)):
            if int(prints[0]) != int(theirs[0]):
                return step, bucket, 0
    return None if len(run) == len(other) else (min(len(run), len(other)), 0, 0)


def as_a_list(run, other):
    found = first_difference(run, other)
    return None if found is None else list(found)


def trusts_the_loss(steps):
    return "right" if steps[-1]["loss"].mean() < 2.0 * steps[0]["loss"].mean() else "weights"


def exactly(steps):
    for step in steps:
        wanted = step["samples"] / step["samples"].sum() @ step["own"]
        if (step["combined"][0] != wanted).any():
            return "weights"
    return "right"


def equal_weights(steps):
    for step in steps:
        if not np.allclose(step["combined"][0], step["own"].mean(axis=0)):
            return "weights"
    return name_the_bug(steps)


def first_step_alone(steps):
    return name_the_bug(steps[:1])


def rank_0_alone(steps):
    alone = [{**step, "combined": step["combined"][:1], "buffers": step["buffers"][:1]} for step in steps]
    return name_the_bug(alone)


def agreement_is_enough(steps):
    if any((step["combined"] != step["combined"][0]).any() for step in steps):
        return "not reduced"
    return "buffers" if any((step["buffers"] != step["buffers"][0]).any() for step in steps) else "right"


def believes_the_ranks(steps):
    """Looks at rank 0 where ranks do not have the same gradient; names all other kinds."""
    return name_the_bug([{**step, "combined": step["combined"][:1]} for step in steps])


def in_capitals(steps):
    return name_the_bug(steps).capitalize()


WRONG = {
    "first_difference": [
        Wrong(as_floats, "a fingerprint has 64 bits, and a float has 53"),
        Wrong(bucket_by_bucket, "steps come first, then buckets, then ranks"),
        Wrong(of_equal_length, "one ended after three steps: expected (3, 0, 0), got None"),
        Wrong(as_a_list, "got [3, 0, 0]: a tuple, and no list"),
        Wrong(of_rank_0, "runs that part in one bit"),
    ],
    "name_the_bug": [
        Wrong(trusts_the_loss, "got 'right': the ranks agree, and on a wrong number"),
        Wrong(exactly, "which is rounding; a tool that blames right programs"),
        Wrong(equal_weights, "a right run of 3 ranks: expected 'right', got 'weights'"),
        Wrong(first_step_alone, "got 'right': no weights make this gradient out of those of this step"),
        Wrong(rank_0_alone, "compare the ranks with each other"),
        Wrong(believes_the_ranks, "named, got none of 'not reduced'"),
        Wrong(in_capitals, "got 'Right', which is no kind"),
        Wrong(agreement_is_enough, "expected 8 of 10 planted bugs named, got 3"),
    ],
}
