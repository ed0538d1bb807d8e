"""Wrong solutions of lesson 7."""

from minigrad.course.lesson07_buckets import solution
from tests.course.wrong import Wrong

_KEPT = []


def _nbytes(param):
    return param.numel() * param.dtype.itemsize


def _trainable(params):
    return [i for i in reversed(range(len(params))) if params[i].requires_grad]


def _cut(params, indices, cap, first_cap, over=lambda size, cap: size > cap):
    """Buckets of neighbours, whatever their kind."""
    buckets, size = [], 0
    for i in indices:
        most = first_cap if len(buckets) <= 1 else cap
        if not buckets or over(size + _nbytes(params[i]), most):
            buckets.append([])
            size = 0
        buckets[-1].append(i)
        size += _nbytes(params[i])
    return buckets


def forward_order(params, cap_bytes, first_cap_bytes):
    """From the first parameter to the last."""
    return _cut(params, _trainable(params)[::-1], cap_bytes, first_cap_bytes)


def frozen_too(params, cap_bytes, first_cap_bytes):
    """Frozen parameters take part."""
    return _cut(params, range(len(params))[::-1], cap_bytes, first_cap_bytes)


def any_kind(params, cap_bytes, first_cap_bytes):
    """Halves and floats in one bucket."""
    return _cut(params, _trainable(params), cap_bytes, first_cap_bytes)


def drops_the_large(params, cap_bytes, first_cap_bytes):
    """What is over the cap fits nowhere."""
    small = [i for i in _trainable(params) if _nbytes(params[i]) <= cap_bytes]
    return _cut(params, small, cap_bytes, first_cap_bytes)


def counts_elements(params, cap_bytes, first_cap_bytes):
    """The cap is taken for elements."""
    return _cut(params, _trainable(params), 4 * cap_bytes, 4 * first_cap_bytes)


def closes_late(params, cap_bytes, first_cap_bytes):
    """A bucket is closed when it is over its cap already."""
    buckets, size = [[]], 0
    for i in _trainable(params):
        buckets[-1].append(i)
        size += _nbytes(params[i])
        if size >= (cap_bytes if len(buckets) > 1 else first_cap_bytes):
            buckets.append([])
            size = 0
    return [bucket for bucket in buckets if bucket]


def first_like_the_others(params, cap_bytes, first_cap_bytes):
    """There is one cap."""
    return solution.get_bucket_plan(params, cap_bytes, cap_bytes)


def one_each(params, cap_bytes, first_cap_bytes):
    """A bucket for each."""
    return [[i] for i in _trainable(params)]


def reverses_in_place(params, cap_bytes, first_cap_bytes):
    """The caller's list is turned round."""
    plan = solution.get_bucket_plan(params, cap_bytes, first_cap_bytes)
    params.reverse()
    return plan


def remembers(params, cap_bytes, first_cap_bytes, done=_KEPT):
    """A default that is changed lives on to the next call."""
    plan = solution.get_bucket_plan(params, cap_bytes, first_cap_bytes)
    done.append(plan)
    return plan if len(done) % 2 else plan[::-1]


def kind_after_kind(params, cap_bytes, first_cap_bytes):
    """All buckets of one kind, then all of the next."""
    plan = solution.get_bucket_plan(params, cap_bytes, first_cap_bytes)
    return sorted(plan, key=lambda bucket: (str(params[bucket[0]].device), params[bucket[0]].dtype.name))


def whole_model(nbytes, cluster, samples):
    """PyTorch's 25 MiB."""
    return 25 * 2**20


def one_a_gradient(nbytes, cluster, samples):
    """The most overlap that there can be."""
    return 1


def fixed_part(nbytes, cluster, samples):
    """A rule of thumb: four buckets."""
    return sum(nbytes) // 4


def least_on_the_wire(nbytes, cluster, samples):
    """Counts what the wire takes, and not what backward hides."""

    def wire_s(cap):
        return sum(cluster.link.cost_s("all_reduce", size, cluster.world_size) for size in solution._cut(nbytes, cap))

    return min([*nbytes, sum(nbytes)], key=wire_s)


def _best_of(nbytes, step_s):
    """The best cap by a step that is not the one of the docstring."""
    sums = {sum(nbytes[i:j]) for j in range(len(nbytes) + 1) for i in range(j)}
    return min(sorted(sums), key=lambda cap: step_s(solution._cut(nbytes, cap)))


def _step(nbytes, cluster, compute_s, forward_s):
    def step_s(buckets):
        free_s, done = cluster.link.cost_s("all_reduce", 8, cluster.world_size), 0
        for size in buckets:
            done += size
            ready_s = forward_s + (compute_s - forward_s) * done / sum(nbytes)
            free_s = max(free_s, ready_s) + cluster.link.cost_s("all_reduce", size, cluster.world_size)
        return free_s

    return step_s


def no_forward(nbytes, cluster, samples):
    """All of the computing is taken for backward."""
    compute_s = max(cluster.compute_s(rank, samples, 0) for rank in range(cluster.world_size))
    return _best_of(nbytes, _step(nbytes, cluster, compute_s, 0.0))


def rank_0_alone(nbytes, cluster, samples):
    """Nobody waits for the slower ones."""
    compute_s = cluster.compute_s(0, samples, 0)
    return _best_of(nbytes, _step(nbytes, cluster, compute_s, compute_s / 3))


def a_fraction(nbytes, cluster, samples):
    """Not in bytes."""
    return 0.25


WRONG = {
    "get_bucket_plan": [
        Wrong(forward_order, "backward completes the last registered first"),
        Wrong(frozen_too, "it never becomes complete"),
        Wrong(any_kind, "they can't lie in one array"),
        Wrong(drops_the_large, "its gradient would stay that of one rank"),
        Wrong(counts_elements, "should have at most"),
        Wrong(closes_late, "should have at most"),
        Wrong(first_like_the_others, "should have at most first_cap_bytes"),
        Wrong(one_each, "each bucket costs a latency"),
        Wrong(reverses_in_place, "should stay as it is"),
        Wrong(remembers, "another plan for equal parameters"),
        Wrong(kind_after_kind, "would hold up others"),
    ],
    "best_cap_bytes": [
        Wrong(whole_model, "too much travels after backward is over"),
        Wrong(one_a_gradient, "pays the latency of the link again"),
        Wrong(fixed_part, "pays the latency of the link again"),
        Wrong(least_on_the_wire, "too much travels after backward is over"),
        Wrong(no_forward, "A forward comes before the first gradient"),
        Wrong(rank_0_alone, "a bucket waits for the slowest rank"),
        Wrong(a_fraction, "a number of bytes > 0 should come"),
    ],
}
