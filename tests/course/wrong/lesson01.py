"""Wrong solutions of lesson 1."""

import numpy as np

from tests.course.wrong import Wrong


def plain_mean(comm, gradient, samples):
    comm.all_reduce(gradient).wait()
    gradient /= comm.world_size


def sum_only(comm, gradient, samples):
    gradient *= samples
    comm.all_reduce(gradient).wait()


def nan_weighted(comm, gradient, samples):
    total = np.array([samples], np.float64)
    comm.all_reduce(total).wait()
    if total[0]:
        gradient *= samples / total[0]
        comm.all_reduce(gradient).wait()


def returns_early(comm, gradient, samples):
    if samples == 0:
        return
    total = np.array([samples], np.float64)
    comm.all_reduce(total).wait()
    gradient *= samples / total[0]
    comm.all_reduce(gradient).wait()


def returned(comm, gradient, samples):
    total = np.array([samples], np.float64)
    comm.all_reduce(total).wait()
    combined = gradient * (samples / total[0])
    comm.all_reduce(combined).wait()
    return combined


def in_single_precision(comm, gradient, samples):
    total = np.array([samples], np.float64)
    comm.all_reduce(total).wait()
    if total[0]:
        sent = np.nan_to_num(gradient).astype(np.float32) * np.float32(samples / total[0])
        comm.all_reduce(sent).wait()
        gradient[...] = sent


def divided_twice(comm, gradient, samples):
    nan_weighted(comm, gradient, samples)
    gradient /= comm.world_size


def never_empty(comm, gradient, samples):
    total = np.array([samples], np.float64)
    comm.all_reduce(total).wait()
    gradient[...] = np.nan_to_num(gradient) * samples / max(total[0], 1)
    comm.all_reduce(gradient).wait()


def a_mean_of_means(comm, counts):
    return [1 / len(counts)] * len(counts)


def a_mean_of_means_of_ranks(comm, counts):
    return [1 / len(counts) / comm.world_size] * len(counts)


def times_the_ranks(comm, counts):
    total = np.array([sum(counts)], np.float64)
    comm.all_reduce(total).wait()
    return [float(comm.world_size * count / max(total[0], 1)) for count in counts]


def tokens_in_single_precision(comm, counts):
    total = np.array([sum(counts)], np.float32)
    comm.all_reduce(total).wait()
    return [float(count / total[0]) for count in counts]


def numbers_of_numpy(comm, counts):
    total = np.array([sum(counts)], np.float64)
    comm.all_reduce(total).wait()
    return [count / max(total[0], 1) for count in counts]


def own_tokens(comm, counts):
    return [count / sum(counts) if count else 0.0 for count in counts]


def own_tokens_over_ranks(comm, counts):
    return [count / sum(counts) / comm.world_size if count else 0.0 for count in counts]


def only_where_there_are_some(comm, counts):
    if not counts:
        return []
    total = np.array([sum(counts)], np.float64)
    comm.all_reduce(total).wait()
    return [float(count / total[0]) for count in counts]


def divides_by_nothing(comm, counts):
    total = np.array([sum(counts)], np.float64)
    comm.all_reduce(total).wait()
    with np.errstate(invalid="ignore"):
        return [float(np.float64(count) / total[0]) for count in counts]


def arrays(comm, counts):
    total = np.array([sum(counts)], np.float64)
    comm.all_reduce(total).wait()
    return np.array(counts) / total


WRONG = {
    "combine_gradients": [
        Wrong(plain_mean, "the mean of the ranks' means"),
        Wrong(sum_only, "not yet divided by Σ n"),
        Wrong(nan_weighted, "0 · NaN is NaN"),
        Wrong(returns_early, "also those that have nothing"),
        Wrong(returned, "what was returned is lost"),
        Wrong(in_single_precision, "in the dtype of the gradient"),
        Wrong(divided_twice, "divided once more, by the number of ranks"),
        Wrong(never_empty, "since no rank has a sample"),
    ],
    "accumulation_weights": [
        Wrong(a_mean_of_means, "a mean of means"),
        Wrong(a_mean_of_means_of_ranks, "a mean of means"),
        Wrong(times_the_ranks, "Here gradients are added up"),
        Wrong(tokens_in_single_precision, "in float64?"),
        Wrong(numbers_of_numpy, "float(x) makes"),
        Wrong(own_tokens, "this rank's own tokens"),
        Wrong(own_tokens_over_ranks, "divided by the number of ranks"),
        Wrong(only_where_there_are_some, "has returned"),
        Wrong(divides_by_nothing, "do not divide by it"),
        Wrong(arrays, "Python floats"),
    ],
}
