"""What people write in lesson 15."""

import math

from minigrad.course.lesson15_unequal_ranks.solution import divide_batch
from tests.course.wrong import Wrong


def rest_to_the_last(batch_size, speeds):
    sizes = [round(batch_size * speed / sum(speeds)) for speed in speeds[:-1]]
    return [*sizes, batch_size - sum(sizes)]


def each_rounded(batch_size, speeds):
    return [round(batch_size * speed / sum(speeds)) for speed in speeds]


def rest_to_the_first(batch_size, speeds):
    sizes = [math.floor(batch_size * speed / sum(speeds)) for speed in speeds]
    sizes[0] += batch_size - sum(sizes)
    return sizes


def one_each_at_least(batch_size, speeds):
    sizes = [max(1, size) for size in divide_batch(batch_size, speeds)]
    sizes[sizes.index(max(sizes))] -= sum(sizes) - batch_size
    return sizes


def not_whole(batch_size, speeds):
    return [batch_size * speed / sum(speeds) for speed in speeds]


def rest_to_the_fastest(batch_size, speeds):
    """Right but for whom the rest goes to: by speed, not by remainder."""
    sizes = [math.floor(batch_size * speed / sum(speeds)) for speed in speeds]
    for rank in sorted(range(len(sizes)), key=lambda rank: (-speeds[rank], rank))[: batch_size - sum(sizes)]:
        sizes[rank] += 1
    return sizes


def with_one_each(batch_size, sizes):
    while batch_size >= len(sizes) and 0 in sizes:
        sizes[sizes.index(max(sizes))] -= 1
        sizes[sizes.index(0)] += 1
    return sizes


def by_time_alone(state, batch_size, readings):
    speeds = [1.0 / seconds if seconds else 1.0 for _, seconds in readings]
    return None, with_one_each(batch_size, divide_batch(batch_size, speeds)), "the longer, the less"


def once_for_all(state, batch_size, readings):
    if state is None:
        state = [n / seconds if seconds else 1.0 for n, seconds in readings]
    return state, with_one_each(batch_size, divide_batch(batch_size, state)), "measured at first"


def mean_of_all(state, batch_size, readings):
    state = state or [[0.0, 0.0] for _ in readings]
    state = [[old_n + n, old_s + seconds] for (old_n, old_s), (n, seconds) in zip(state, readings)]
    speeds = [n / seconds if seconds else 1.0 for n, seconds in state]
    return state, with_one_each(batch_size, divide_batch(batch_size, speeds)), "all that was seen"


def without_samples_none_again(state, batch_size, readings):
    speeds = [n / seconds if seconds else 1e-9 for n, seconds in readings]
    return None, divide_batch(batch_size, speeds), "the last step"


def with_tuples(state, batch_size, readings):
    state = [*(state or []), tuple(readings)][-5:]
    return state, divide_batch(batch_size, [1.0] * len(readings)), "not yet"


_LAST = {}


def remembers_outside(state, batch_size, readings):
    """Its speeds are in the module, so that it is another function in each call."""
    speeds = [n / seconds if seconds else 1.0 for n, seconds in readings]
    before = _LAST.get(len(speeds), speeds)
    _LAST[len(speeds)] = speeds = [0.7 * old + 0.3 * new for old, new in zip(before, speeds)]
    return None, with_one_each(batch_size, divide_batch(batch_size, speeds)), "as before, and a little of now"


def no_sizes(state, batch_size, readings):
    return state, None, "left to somebody else"


def no_reason(state, batch_size, readings):
    return state, divide_batch(batch_size, [1.0] * len(readings))


WRONG = {
    "divide_batch": [
        Wrong(rest_to_the_last, "expected [4, 3, 3], got [3, 3, 4]"),
        Wrong(each_rounded, "expected [4, 3, 3], got [3, 3, 3]"),
        Wrong(rest_to_the_first, "the first and the last were cut the most"),
        Wrong(one_each_at_least, "expected [0, 2], got [1, 1]"),
        Wrong(not_whole, "samples can't be cut"),
        Wrong(rest_to_the_fastest, "expected [4, 2, 1]"),
    ],
    "choose_shards": [
        Wrong(by_time_alone, "a speed is samples over seconds"),
        Wrong(once_for_all, "expected steps 20 to 39 to take at most 1.05"),
        Wrong(mean_of_all, "what was measured long ago has to be forgotten"),
        Wrong(without_samples_none_again, "leave it one"),
        Wrong(with_tuples, "use lists for tuples"),
        Wrong(remembers_outside, "expected one decision on the same arguments"),
        Wrong(no_sizes, "expected the samples of each rank in a list, got None"),
        Wrong(no_reason, "expected (state, sizes, reason)"),
    ],
}
