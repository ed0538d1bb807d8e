"""Lesson 12: the wrong solutions."""

import numpy as np

from tests.course.wrong import Wrong

# ------------------------------------------------------------------------------------------------------ feedback_hook


class Done:
    def wait(self):
        pass


def half_without_memory(state, bucket, comm):
    wire = bucket.buffer().astype(np.float16)
    comm.all_reduce(wire).wait()
    bucket.buffer()[...] = wire
    return Done()


def half_with_own_memory(state, bucket, comm):
    """Nobody has what rounding takes from the sum."""
    flat = bucket.buffer()
    for param, gradient in zip(bucket.parameters(), bucket.gradients()):
        gradient.data[...] += state.get(param, 0.0)
    wire = flat.astype(np.float16)
    flat -= wire
    for param, gradient in zip(bucket.parameters(), bucket.gradients()):
        state[param] = gradient.data.copy()
    comm.all_reduce(wire).wait()
    flat[...] = wire
    return Done()


def both_ways(comm, wide):
    """The sum by parts, float16 both ways; and what is lost on this rank."""
    part = -(-len(wide) // comm.world_size)
    exact = np.zeros(comm.world_size * part, np.float32)
    exact[: len(wide)] = wide
    message = exact.astype(np.float16)
    rest, received = exact - message, np.empty_like(message)
    comm.all_to_all(received, message).wait()
    total = received.reshape(comm.world_size, part).astype(np.float32).sum(axis=0)
    rest[comm.rank * part :][:part] += total - total.astype(np.float16)
    comm.all_gather(received, total.astype(np.float16)).wait()
    return received[: len(wide)], rest[: len(wide)]


def adds_up_in_halves(state, bucket, comm):
    """The sum of the parts is rounded by reduce_scatter."""
    flat = bucket.buffer()
    for param, gradient in zip(bucket.parameters(), bucket.gradients()):
        gradient.data[...] += state.get(param, 0.0)
    part = -(-len(flat) // comm.world_size)
    wire, mine = np.zeros(comm.world_size * part, np.float16), np.empty(part, np.float16)
    wire[: len(flat)] = flat
    flat -= wire[: len(flat)]
    for param, gradient in zip(bucket.parameters(), bucket.gradients()):
        state[param] = gradient.data.copy()
    comm.reduce_scatter(mine, wire).wait()
    comm.all_gather(wire, mine).wait()
    flat[...] = wire[: len(flat)]
    return Done()


def divides(state, bucket, comm):
    half_without_memory(state, bucket, comm)
    bucket.buffer()[...] /= comm.world_size
    return Done()


def memory_by_bucket(state, bucket, comm):
    flat = bucket.buffer()
    kept = state.get(bucket.index(), 0.0)
    wide = flat + (kept if np.size(kept) == len(flat) else 0.0)
    flat[...], state[bucket.index()] = both_ways(comm, wide)
    return Done()


def largest(state, bucket, comm):
    """The largest sixteenth, and what was not among it is gone."""
    flat = bucket.buffer()
    flat[...] = sum_of_largest(comm, flat, len(flat) // 16)
    return Done()


def sum_of_largest(comm, flat, count):
    chosen = np.argpartition(-np.abs(flat), count)[:count].astype(np.int32)
    places, values = np.empty(comm.world_size * count, np.int32), np.empty(comm.world_size * count, np.float32)
    comm.all_gather(places, chosen).wait()
    comm.all_gather(values, flat[chosen]).wait()
    total = np.zeros_like(flat)
    np.add.at(total, places, values)
    return total


def nothing_smaller(state, bucket, comm):
    return bucket.all_reduce(comm)


def gathers_halves(state, bucket, comm):
    """All halves to all ranks: with four ranks that is what float32 costs."""
    flat = bucket.buffer()
    everything = np.empty(comm.world_size * len(flat), np.float16)
    comm.all_gather(everything, flat.astype(np.float16)).wait()
    flat[...] = everything.reshape(comm.world_size, -1).astype(np.float32).sum(axis=0)
    return Done()


def own_part_exact(state, bucket, comm):
    """Each rank has its own part before rounding."""
    flat = bucket.buffer()
    part, exact = len(flat) // comm.world_size, flat.copy()
    flat[...], _ = both_ways(comm, flat)
    mine = slice(comm.rank * part, comm.rank * part + part)
    flat[mine] += exact[mine] - exact[mine].astype(np.float16)
    return Done()


# -------------------------------------------------------------------------------------------------------- scaled_step


def agreed(comm, flag):
    flags = np.array([flag], np.float32)
    comm.all_reduce(flags).wait()
    return flags[0] > 0


def each_for_itself(comm, param, gradient, scale, lr):
    agreed(comm, False)
    if not np.isfinite(gradient).all():
        return scale / 2
    param -= lr * (gradient.astype(np.float32) / scale)
    return scale


def asks_when_it_overflows(comm, param, gradient, scale, lr):
    if not np.isfinite(gradient).all() and agreed(comm, True):
        return scale / 2
    param -= lr * (gradient.astype(np.float32) / scale)
    return scale


def unscales_in_float16(comm, param, gradient, scale, lr):
    if agreed(comm, not np.isfinite(gradient).all()):
        return scale / 2
    param -= lr * (gradient / np.float16(scale)).astype(np.float32)
    return scale


def adds_gradients_up(comm, param, gradient, scale, lr):
    total = np.array([gradient.sum()], np.float16)
    comm.all_reduce(total).wait()
    if not np.isfinite(total[0]):
        return scale / 2
    param -= lr * (gradient.astype(np.float32) / scale)
    return scale


def sees_only_nan(comm, param, gradient, scale, lr):
    if agreed(comm, np.isnan(gradient).any()):
        return scale / 2
    param -= lr * (gradient.astype(np.float32) / scale)
    return scale


def unscales_in_place(comm, param, gradient, scale, lr):
    if agreed(comm, not np.isfinite(gradient).all()):
        return scale / 2
    param -= lr * (gradient.astype(np.float32) / scale)
    gradient /= np.float16(scale)
    return scale


def steps_first(comm, param, gradient, scale, lr):
    param -= lr * (gradient.astype(np.float32) / scale)
    return scale / 2 if agreed(comm, not np.isfinite(gradient).all()) else scale


WRONG = {
    "feedback_hook": [
        Wrong(half_without_memory, "rounds the sum once more"),
        Wrong(half_with_own_memory, "rounds the sum once more"),
        Wrong(adds_up_in_halves, "reduce_scatter in 16 bits rounds the sum once more"),
        Wrong(divides, "add up, and don't divide"),
        Wrong(memory_by_bucket, "keep it by parameter"),
        Wrong(largest, "by rounding or by choice, has to be kept"),
        Wrong(nothing_smaller, "expected at most 0.55 of the bytes"),
        Wrong(gathers_halves, "expected at most 0.55 of the bytes"),
        Wrong(own_part_exact, "expected the same bits on all ranks"),
    ],
    "scaled_step": [
        Wrong(each_for_itself, "the ranks decide together"),
        Wrong(asks_when_it_overflows, "did not make the same calls"),
        Wrong(unscales_in_float16, "Is the scale taken out in float32"),
        Wrong(adds_gradients_up, "no step was made"),
        Wrong(sees_only_nan, "the ranks decide together"),
        Wrong(unscales_in_place, "expected gradient to stay as it is"),
        Wrong(steps_first, "before the first writes"),
    ],
}
