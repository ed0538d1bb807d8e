"""Wrong solutions of lesson 19."""

import functools

import numpy as np

from minigrad.course.lesson19_bits import solution
from minigrad.distributed import SoloCommunicator
from tests.course.wrong import Wrong


def _gathered(comm, array):
    everyone = np.empty((comm.world_size, *array.shape), array.dtype)
    comm.all_gather(everyone, array).wait()
    return everyone


def sum_one_by_one(comm, parts):
    everyone = _gathered(comm, np.stack(parts))
    return functools.reduce(np.add, everyone.reshape(-1, *parts[0].shape))


def sum_here_one_by_one(comm, parts):
    everyone = _gathered(comm, sum(parts[1:], parts[0]))
    return solution._tree([*everyone]).copy()


def sum_by_all_reduce(comm, parts):
    total = solution._tree(parts).copy()
    comm.all_reduce(total).wait()
    return total


def sum_in_float64(comm, parts):
    everyone = _gathered(comm, solution._tree([part.astype(np.float64) for part in parts]))
    return everyone.sum(0).astype(parts[0].dtype)


def sum_in_place(comm, parts):
    parts = list(parts)
    stride = 1
    while stride < len(parts):
        for i in range(0, len(parts), 2 * stride):
            parts[i] += parts[i + stride]
        stride *= 2
    return solution._tree([*_gathered(comm, parts[0])]).copy()


def sum_of_eight(comm, parts):
    """The tree over eight; what is left over is added in the end."""
    shards = [part for rank in _gathered(comm, np.stack(parts)) for part in rank]
    first = solution.sum_in_one_order(SoloCommunicator(), shards[:8])
    return functools.reduce(np.add, shards[8:], first)


def mean_in_order(comm, parts):
    return solution.sum_in_one_order(comm, parts) / np.float32(comm.world_size)


def _batches(length, batch_size, shards, rank, world_size, first_step, order, noise):
    """Ours, of another order and other noise."""
    size, each = batch_size // shards, shards // world_size
    for step in range(first_step, length // batch_size):
        batch = order[step * batch_size : (step + 1) * batch_size]
        yield [
            (shard, batch[shard * size : (shard + 1) * size], noise(step, shard))
            for shard in range(rank * each, (rank + 1) * each)
        ]


def _order(seed, epoch, length):
    return np.random.default_rng([seed, epoch, 99]).permutation(length)


def ranks_take_turns(length, batch_size, shards, rank, world_size, seed, epoch, first_step=0):
    mine = _order(seed, epoch, length)[rank::world_size]
    size, each = batch_size // shards, shards // world_size
    for step in range(first_step, length // batch_size):
        batch = mine[step * size * each : (step + 1) * size * each]
        yield [
            (rank * each + i, batch[i * size : (i + 1) * size], np.random.default_rng([seed, epoch, step, rank, i]))
            for i in range(each)
        ]


def noise_of_the_rank(length, batch_size, shards, rank, world_size, seed, epoch, first_step=0):
    generator = np.random.default_rng([seed, epoch, rank])
    order = _order(seed, epoch, length)
    return _batches(length, batch_size, shards, rank, world_size, first_step, order, lambda step, shard: generator)


def noise_added_up(length, batch_size, shards, rank, world_size, seed, epoch, first_step=0):
    order = _order(seed, epoch, length)
    return _batches(
        length, batch_size, shards, rank, world_size, first_step, order,
        lambda step, shard: np.random.default_rng([seed, epoch, step + shard]),
    )


def the_same_epoch(length, batch_size, shards, rank, world_size, seed, epoch, first_step=0):
    order = _order(seed, 0, length)
    return _batches(
        length, batch_size, shards, rank, world_size, first_step, order,
        lambda step, shard: np.random.default_rng([seed, epoch, step, shard]),
    )


def order_of_numpy(length, batch_size, shards, rank, world_size, seed, epoch, first_step=0):
    order = np.random.permutation(length)
    return _batches(
        length, batch_size, shards, rank, world_size, first_step, order,
        lambda step, shard: np.random.default_rng([seed, epoch, step, shard]),
    )


def seeds_numpy(length, batch_size, shards, rank, world_size, seed, epoch, first_step=0):
    """The same order everywhere, at the cost of whoever draws from np.random."""
    np.random.seed([seed, epoch])
    order = np.random.permutation(length)
    return _batches(
        length, batch_size, shards, rank, world_size, first_step, order,
        lambda step, shard: np.random.default_rng([seed, epoch, step, shard]),
    )


def seed_plus_epoch(length, batch_size, shards, rank, world_size, seed, epoch, first_step=0):
    """As PyTorch's DistributedSampler does for the order."""
    return _batches(
        length, batch_size, shards, rank, world_size, first_step, _order(seed, epoch, length),
        lambda step, shard: np.random.default_rng([seed + epoch, step, shard]),
    )


def from_the_start(length, batch_size, shards, rank, world_size, seed, epoch, first_step=0):
    return solution.portable_batches(length, batch_size, shards, rank, world_size, seed, epoch)


def short_last_batch(length, batch_size, shards, rank, world_size, seed, epoch, first_step=0):
    length += -length % batch_size
    return solution.portable_batches(length, batch_size, shards, rank, world_size, seed, epoch, first_step)


WRONG = {
    "sum_in_one_order": [
        Wrong(sum_one_by_one, "adding one shard after the other"),
        Wrong(sum_here_one_by_one, "the bits of adding one shard after the other"),
        Wrong(sum_by_all_reduce, "by the communicator, in an order of its own"),
        Wrong(sum_in_float64, "in a wider dtype"),
        Wrong(sum_in_place, "expected the parts to stay as they are"),
        Wrong(mean_in_order, "not the sum of all shards"),
        Wrong(sum_of_eight, "of 16 shards, float32 (257,), on 4 ranks: rank 0: expected the bits of the tree"),
    ],
    "portable_batches": [
        Wrong(ranks_take_turns, "cut the batch by shards, not by ranks"),
        Wrong(noise_of_the_rank, "not on the rank or on what was drawn before"),
        Wrong(noise_added_up, "0 + 1 is 1 + 0"),
        Wrong(the_same_epoch, "expected another order in epochs 2 and 3"),
        Wrong(order_of_numpy, "np.random's own state to stay as it is"),
        Wrong(seeds_numpy, "np.random's own state to stay as it is"),
        Wrong(seed_plus_epoch, "in seed 5, epoch 3, step 0, shard 0 and in seed 6, epoch 2"),
        Wrong(from_the_start, "a run that goes on after a restart"),
        Wrong(short_last_batch, "a short last batch is left out"),
    ],
}
