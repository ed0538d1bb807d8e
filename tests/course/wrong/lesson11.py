"""Lesson 11: the wrong solutions."""

import numpy as np

from minigrad.course.lesson11_norm import solution as ours
from tests.course.wrong import Wrong

# ---------------------------------------------------------------------------------------------------- combine_moments


def filled(counts, *values):
    return [np.array(rows)[np.array(counts) > 0] for rows in (counts, *values)]


def mean_of_means(counts, means, variances):
    n, means, variances = filled(counts, means, variances)
    return int(n.sum()), means.mean(axis=0), variances.mean(axis=0)


def mean_of_variances(counts, means, variances):
    n, means, variances = filled(counts, means, variances)
    weights = n[:, None] / n.sum()
    return int(n.sum()), (weights * means).sum(axis=0), (weights * variances).sum(axis=0)


def squares(counts, means, variances):
    n, means, variances = filled(counts, means, variances)
    if not len(n):
        return 0, np.zeros(2), np.zeros(2)
    weights = n[:, None] / n.sum()
    mean = (weights * means).sum(axis=0)
    return int(n.sum()), mean, (weights * (variances + means**2)).sum(axis=0) - mean**2


def of_a_sample(counts, means, variances):
    count, mean, variance = ours.combine_moments(counts, means, variances)
    return count, mean, variance * (count / max(1, count - 1))


def takes_empty_ones(counts, means, variances):
    """0 · NaN is NaN."""
    n = np.array(counts)[:, None]
    mean = (n * means).sum(axis=0) / n.sum()
    return int(n.sum()), mean, (n * (np.array(variances) + (means - mean) ** 2)).sum(axis=0) / n.sum()


# -------------------------------------------------------------------------------------------------- sync_norm_forward


def normalised(x, mean, variance, eps, count):
    inverse = 1.0 / np.sqrt(variance + eps)
    return ((x - mean) * inverse).astype(x.dtype), inverse, count


def this_rank_alone(comm, x, eps=1e-5):
    count = np.array([float(len(x))])
    comm.all_reduce(count).wait()
    wide = x.astype(np.float64)
    return normalised(x, wide.mean(axis=0), wide.var(axis=0), eps, int(count[0]))


def sums_of_squares(comm, x, eps=1e-5):
    sums = np.concatenate([[len(x)], x.sum(axis=0), (x * x).sum(axis=0)]).astype(x.dtype)
    comm.all_reduce(sums).wait()
    sums = sums.astype(np.float64)
    mean, mean_square = np.split(sums[1:] / sums[0], 2)
    return normalised(x, mean, np.maximum(mean_square - mean**2, 0.0), eps, int(sums[0]))


def wide_sums_of_squares(comm, x, eps=1e-5):
    wide = x.astype(np.float64)
    rows, inverse, count = sums_of_squares(comm, wide, eps)
    return rows.astype(x.dtype), inverse, count


def gathers_the_rows(comm, x, eps=1e-5):
    most = max(comm.all_gather_object(len(x)))
    padded = np.full((most, x.shape[1]), np.nan)
    padded[: len(x)] = x
    everything = np.empty(comm.world_size * padded.size)
    comm.all_gather(everything, padded.reshape(-1)).wait()
    rows = everything.reshape(-1, x.shape[1])
    rows = rows[~np.isnan(rows[:, 0])]
    return normalised(x.astype(np.float64), rows.mean(axis=0), rows.var(axis=0), eps, len(rows))[0].astype(x.dtype), (
        1.0 / np.sqrt(rows.var(axis=0) + eps)
    ), len(rows)


def empty_rank_stays_out(comm, x, eps=1e-5):
    return ours.sync_norm_forward(comm, x, eps) if len(x) else (x, np.ones(x.shape[1]), 0)


def answers_in_float64(comm, x, eps=1e-5):
    return ours.sync_norm_forward(comm, x.astype(np.float64), eps)


def without_eps(comm, x, eps=1e-5):
    return ours.sync_norm_forward(comm, x, 0.0)


def eps_of_its_own(comm, x, eps=1e-5):
    return ours.sync_norm_forward(comm, x, 1e-5)


def forward_of_a_sample(comm, x, eps=1e-5):
    rows, inverse, count = ours.sync_norm_forward(comm, x, eps)
    unbiased = 1.0 / np.sqrt((1.0 / inverse**2 - eps) * count / max(1, count - 1) + eps)
    return (rows / inverse * unbiased).astype(x.dtype), unbiased, count


def mean_over_ranks(comm, x, eps=1e-5):
    wide = x.astype(np.float64)
    sums = np.concatenate([wide.mean(axis=0), wide.var(axis=0), [len(x) * comm.world_size]]) / comm.world_size
    comm.all_reduce(sums).wait()
    mean, variance = np.split(sums[:-1], 2)
    return normalised(x, mean, variance, eps, int(sums[-1]))


# ------------------------------------------------------------------------------------------------- sync_norm_backward


def with_sums(comm, grad, normalised, inverse, count, sums):
    mean, slope = np.split(sums / count, 2)
    return (inverse * (grad - mean - normalised * slope)).astype(grad.dtype)


def own_sums(grad, normalised):
    return np.concatenate([grad.sum(axis=0, dtype=np.float64), (grad * normalised).sum(axis=0, dtype=np.float64)])


def backward_alone(comm, grad, normalised, inverse, count):
    comm.barrier()
    return with_sums(comm, grad, normalised, inverse, max(1, len(grad)), own_sums(grad, normalised))


def backward_unsummed(comm, grad, normalised, inverse, count):
    comm.barrier()
    return with_sums(comm, grad, normalised, inverse, count, own_sums(grad, normalised))


def without_variance(comm, grad, normalised, inverse, count):
    sums = own_sums(grad, normalised)
    sums[grad.shape[1] :] = 0
    comm.all_reduce(sums).wait()
    return with_sums(comm, grad, normalised, inverse, count, sums)


def only_the_scale(comm, grad, normalised, inverse, count):
    comm.barrier()
    return (grad * inverse).astype(grad.dtype)


def backward_empty_stays_out(comm, grad, normalised, inverse, count):
    return ours.sync_norm_backward(comm, grad, normalised, inverse, count) if len(grad) else grad


def forgets_to_return(comm, grad, normalised, inverse, count):
    ours.sync_norm_backward(comm, grad, normalised, inverse, count)


def two_calls(comm, grad, normalised, inverse, count):
    parts = np.split(own_sums(grad, normalised), 2)
    for part in parts:
        comm.all_reduce(part).wait()
    return with_sums(comm, grad, normalised, inverse, count, np.concatenate(parts))


WRONG = {
    "combine_moments": [
        Wrong(mean_of_means, "the mean of the parts' means, whatever their counts"),
        Wrong(mean_of_variances, "the variances by count"),
        Wrong(squares, "A small difference of large squares"),
        Wrong(of_a_sample, "that of a sample"),
        Wrong(takes_empty_ones, "got [nan, nan]"),
    ],
    "sync_norm_forward": [
        Wrong(this_rank_alone, "by the statistics of this rank alone"),
        Wrong(sums_of_squares, "loses as many digits as mean² has"),
        Wrong(wide_sums_of_squares, "loses as many digits as mean² has"),
        Wrong(gathers_the_rows, "send sums, not rows"),
        Wrong(empty_rank_stays_out, "a rank without rows has to make the same calls"),
        Wrong(answers_in_float64, "expected rows of float32, got float64"),
        Wrong(without_eps, "this is what comes without eps"),
        Wrong(eps_of_its_own, "not of the one that was given"),
        Wrong(forward_of_a_sample, "the variance of a sample"),
        Wrong(mean_over_ranks, "the mean of the ranks' means"),
    ],
    "sync_norm_backward": [
        Wrong(backward_alone, "its rows act on those of the others too"),
        Wrong(backward_unsummed, "add the sums up over the ranks"),
        Wrong(without_variance, "without the part that comes through the variance"),
        Wrong(only_the_scale, "mean and variance depend on x, too"),
        Wrong(backward_empty_stays_out, "a rank without rows has to make the same calls"),
        Wrong(two_calls, "expected at most 1 collective"),
        Wrong(forgets_to_return, "expected a gradient of float64, got object"),
    ],
}
