import json

import numpy as np
import pytest

from minigrad.backend.random import manual_seed
from minigrad.data import (
    ArrayDataset,
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from minigrad.data.order import largest_remainder, permutation
from minigrad.data.sampler import index_batches
from minigrad.errors import StateDictError


def distributed(rank=0, world_size=2, length=20, **options):
    return DistributedSampler(length, rank=rank, world_size=world_size, **options)


# ------------------------------------------------------------------------------------------------------- orders


def test_a_shuffle_is_the_same_on_every_machine():
    """Values recorded once: Philox's raw output does not change between versions of NumPy."""
    assert permutation(8, seed=0).tolist() == [1, 4, 2, 3, 6, 0, 7, 5]
    assert permutation(8, seed=0, epoch=1).tolist() == [2, 3, 0, 5, 7, 6, 1, 4]
    assert permutation(8, seed=2**64 - 1, epoch=2**64 - 1).tolist() == [5, 6, 2, 3, 7, 0, 1, 4]


def test_sequential_order():
    sampler = SequentialSampler(4)
    assert list(sampler) == list(sampler) == [0, 1, 2, 3]


def test_a_sampler_takes_a_dataset_or_its_length():
    dataset = ArrayDataset(np.zeros(7))
    assert len(RandomSampler(dataset)) == len(RandomSampler(7)) == 7


@pytest.mark.parametrize("make", [lambda: RandomSampler(20, seed=5), distributed], ids=["random", "distributed"])
def test_a_forgotten_set_epoch_does_not_repeat_the_order(make):
    forgotten, called = make(), make()
    orders = []
    for epoch in range(3):
        called.set_epoch(epoch)
        orders.append(list(forgotten))
        assert orders[-1] == list(called) == make().order(epoch).tolist()
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_after_set_epoch_the_count_goes_on_from_there():
    sampler = RandomSampler(20, seed=5)
    sampler.set_epoch(7)
    assert [list(sampler), list(sampler)] == [sampler.order(7).tolist(), sampler.order(8).tolist()]


def test_without_a_seed_the_context_decides():
    def order(seed):
        manual_seed(seed)
        return list(RandomSampler(20))

    assert order(1) == order(1) != order(2)


def test_two_samplers_without_a_seed_differ():
    assert list(RandomSampler(20)) != list(RandomSampler(20))


# ----------------------------------------------------------------------------------------- other draws than shuffles


def test_draws_follow_the_weights():
    """Of 20,000 draws each of three has its part, to 4 standard deviations; a weight of 0 is never drawn."""
    sampler = WeightedRandomSampler([1.0, 0.0, 3.0, 4.0], 20000, seed=3)
    counts = np.bincount(list(sampler), minlength=4) / 20000
    assert counts[1] == 0
    assert np.abs(counts - np.array([1, 0, 3, 4]) / 8).max() < 4 * 0.5 / 20000**0.5
    assert list(sampler) != list(sampler) and len(sampler) == 20000


def test_draws_without_replacement_come_once_and_the_heavy_ones_first():
    first = [WeightedRandomSampler([0.0, 1.0, 9.0], 2, False, seed=seed).order(0).tolist() for seed in range(200)]
    assert {tuple(order) for order in first} == {(1, 2), (2, 1)}
    assert 160 < sum(order[0] == 2 for order in first) < 196  # 180 expected


def test_more_samples_than_there_are_is_one_shuffle_after_the_other():
    order = RandomSampler(4, num_samples=10, seed=2).order(1).tolist()
    assert order[:4] == permutation(4, 2, 1).tolist()
    assert sorted(order[:4]) == sorted(order[4:8]) == [0, 1, 2, 3] and len(order) == 10
    repeated = RandomSampler(4, replacement=True, num_samples=400, seed=2)
    assert len(repeated) == 400 and set(repeated) == {0, 1, 2, 3}


def test_a_subset_is_shuffled():
    sampler = SubsetRandomSampler([5, 9, 7], seed=1)
    assert sorted(sampler) == [5, 7, 9] and len(sampler) == 3


@pytest.mark.parametrize("make", [lambda: WeightedRandomSampler(np.arange(9), 12), lambda: RandomSampler(6, True, 12)])
def test_what_a_sampler_draws_is_divided_among_ranks(make):
    """By the seed of the DistributedSampler, since that of the sampler itself is each rank's own."""
    parts = [list(DistributedSampler(make(), rank=rank, world_size=3, seed=4)) for rank in range(3)]
    whole = make()
    whole.seed = 4
    assert [index for turn in zip(*parts) for index in turn] == list(whole)


def test_a_state_of_other_weights_is_refused():
    state = WeightedRandomSampler([1.0, 2.0], 3, seed=0).state_dict()
    with pytest.raises(StateDictError, match="expected a state with weights .*, got"):
        WeightedRandomSampler([2.0, 1.0], 3, seed=0).load_state_dict(state)


# ------------------------------------------------------------------------------------------------ ranks and modes


@pytest.mark.parametrize(
    "mode, expected",
    [("pad", [[0, 2, 4], [1, 3, 0]]), ("drop", [[0, 2], [1, 3]]), ("exact", [[0, 2, 4], [1, 3]])],
    ids=["pad", "drop", "exact"],
)
def test_five_samples_on_two_ranks(mode, expected):
    assert [list(distributed(rank, length=5, shuffle=False, mode=mode)) for rank in range(2)] == expected


def test_more_ranks_than_samples():
    def orders(mode):
        return [list(distributed(rank, 5, length=2, shuffle=False, mode=mode)) for rank in range(5)]

    assert orders("pad") == [[0], [1], [0], [1], [0]]
    assert orders("drop") == [[], [], [], [], []]
    assert orders("exact") == [[0], [1], [], [], []]


def test_batches_of_all_ranks_make_the_global_batches_of_one():
    one = list(BatchSampler(RandomSampler(24, seed=3), 8))
    ranks = [list(BatchSampler(distributed(rank, 4, length=24, seed=3), 2)) for rank in range(4)]
    assert [sorted(sum(parts, [])) for parts in zip(*ranks)] == [sorted(batch) for batch in one]


def test_shares_spread_evenly_over_the_order():
    parts = [list(distributed(rank, length=8, shuffle=False, mode="exact", shares=[0.75, 0.25])) for rank in range(2)]
    assert parts == [[0, 1, 3, 4, 5, 7], [2, 6]]


@pytest.mark.parametrize(
    "total, shares, expected",
    [
        (2, [0.25, 0.75], [0, 2]),  # equal remainders: the larger share
        (10, [0.55, 0.45], [6, 4]),
        (1, [0.5, 0.5], [1, 0]),  # equal shares: the lower rank
        (1, [1 / 3, 1 / 3, 1 / 3], [1, 0, 0]),
        (0, [0.3, 0.7], [0, 0]),
        (7, [0.0, 1.0], [0, 7]),  # a zero share gets nothing
        (10**18 + 1, [0.5, 0.5], [5 * 10**17 + 1, 5 * 10**17]),  # beyond the precision of a float
        (3, [1.0], [3]),
    ],
    ids=repr,
)
def test_largest_remainder(total, shares, expected):
    assert largest_remainder(total, shares) == expected


# --------------------------------------------------------------------------------------------------- batch sampler


def test_batches_of_a_sampler():
    assert list(BatchSampler(SequentialSampler(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(BatchSampler(SequentialSampler(5), 2, drop_last=True)) == [[0, 1], [2, 3]]
    assert list(BatchSampler(SequentialSampler(0), 2)) == []


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4, 5, 8])
def test_batches_as_arrays_are_the_same(length, drop_last):
    def make():
        return BatchSampler(RandomSampler(length, seed=1), 4, drop_last)

    batches, arrays = make(), make()
    for _ in range(2):
        expected = list(batches)
        assert [batch.tolist() for batch in index_batches(arrays)] == expected
        assert len(batches) == len(expected)


def test_batches_of_a_foreign_sampler():
    assert list(index_batches(BatchSampler([3, 1, 2], 2))) == [[3, 1], [2]]


def test_batches_of_a_derived_sampler_are_its_own():
    class Backwards(SequentialSampler):
        def __iter__(self):
            return iter([2, 1, 0])

    assert list(index_batches(BatchSampler(Backwards(3), 2))) == [[2, 1], [0]]


# --------------------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: RandomSampler(20, seed=seed),
        lambda seed: distributed(1, seed=seed),
        lambda seed: distributed(1, seed=seed, mode="exact", shares=[0.1, 0.9]),
        lambda seed: BatchSampler(RandomSampler(20, seed=seed), 3),
        lambda seed: SequentialSampler(20),
        lambda seed: RandomSampler(20, True, 7, seed=seed),
        lambda seed: SubsetRandomSampler([3, 1, 19], seed=seed),
        lambda seed: WeightedRandomSampler(np.arange(20), 9, seed=seed),
        lambda seed: DistributedSampler(WeightedRandomSampler(np.arange(20), 9), rank=1, world_size=2, seed=seed),
    ],
    ids=["random", "distributed", "shares", "batch", "sequential", "repeated", "subset", "weighted", "weighted ranks"],
)
def test_a_state_goes_through_json_and_brings_epoch_and_seed(make):
    first, second = make(1), make(2)
    list(first)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    assert list(second) == list(first)


def test_the_state_of_one_rank_serves_all():
    assert distributed(0).state_dict() == distributed(1).state_dict()


def test_a_state_of_another_batch_size_is_refused():
    state = BatchSampler(SequentialSampler(20), 4).state_dict()
    with pytest.raises(StateDictError, match="expected a state with batch_size 5, got 4"):
        BatchSampler(SequentialSampler(20), 5).load_state_dict(state)


# -------------------------------------------------------------------------------------------------- wrong arguments
