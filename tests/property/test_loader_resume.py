"""Stopping and resuming a loader anywhere loses no batch and repeats none."""

import itertools

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minigrad.backend.random import manual_seed, noise_generator
from minigrad import Tensor
from minigrad.data import (
    ArrayDataset,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)


class Noisy:
    """Sample i is i and a number drawn from the noise stream."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, noise_generator().random()


def make_dataset(kind, length):
    arrays = np.arange(length), -np.arange(length)
    if kind == "tensors":
        return TensorDataset(*map(Tensor, arrays))
    if kind == "two":
        return ConcatDataset([Noisy(length // 3), Noisy(length - length // 3)])
    return ArrayDataset(*arrays) if kind == "arrays" else Noisy(length)


def make_loader(kind, length, order, batch_size, drop_last, prefetch, seed):
    manual_seed(seed)
    dataset = make_dataset(kind, length)
    samplers = {
        "ranks": lambda: DistributedSampler(length, rank=1, world_size=3, seed=seed),
        "subset": lambda: SubsetRandomSampler(range(length // 2), seed=seed),
        "weighted": lambda: WeightedRandomSampler(np.arange(length), 20, seed=seed),
        "weighted ranks": lambda: DistributedSampler(
            WeightedRandomSampler(np.arange(length), 20), rank=1, world_size=3, seed=seed
        ),
        "repeated": lambda: RandomSampler(length, True, 11, seed=seed),
    }
    sampler = samplers[order]() if order in samplers else None
    shuffle = order == "shuffle"
    return DataLoader(dataset, batch_size, shuffle, sampler, drop_last=drop_last, prefetch=prefetch)


def as_lists(batches):
    return [[tensor.tolist() for tensor in batch] for batch in batches]


@settings(max_examples=60)
@given(
    kind=st.sampled_from(["arrays", "noisy", "tensors", "two"]),
    order=st.sampled_from(["shuffle", "ranks", "plain"]),
    length=st.integers(0, 30),
    batch_size=st.integers(1, 7),
    drop_last=st.booleans(),
    prefetches=st.tuples(*[st.sampled_from([None, 0, 1, 3])] * 2),
    epoch=st.integers(0, 2),
    stop=st.integers(0, 30),
    seed=st.integers(0, 2**64 - 1),
)
def test_resumed_anywhere(kind, order, length, batch_size, drop_last, prefetches, epoch, stop, seed):
    assume(not drop_last or length == 0 or batch_size <= (length if order != "ranks" else -(-length // 3)))
    check_resumed(kind, order, length, batch_size, drop_last, prefetches, epoch, stop, seed)


@settings(max_examples=40)
@given(
    kind=st.sampled_from(["arrays", "noisy", "tensors", "two"]),
    order=st.sampled_from(["subset", "weighted", "weighted ranks", "repeated"]),
    length=st.integers(2, 20),
    batch_size=st.integers(1, 7),
    epoch=st.integers(0, 2),
    stop=st.integers(0, 20),
    seed=st.integers(0, 2**64 - 1),
)
def test_resumed_anywhere_with_any_sampler(kind, order, length, batch_size, epoch, stop, seed):
    check_resumed(kind, order, length, batch_size, False, (None, 0), epoch, stop, seed)


def check_resumed(kind, order, length, batch_size, drop_last, prefetches, epoch, stop, seed):
    first, second = (
        make_loader(kind, length, order, batch_size, drop_last, prefetch, seed_used)
        for prefetch, seed_used in zip(prefetches, (seed, seed ^ 1))
    )
    manual_seed(seed)
    for _ in range(epoch):
        list(first)
    batches = iter(first)
    as_lists(itertools.islice(batches, min(stop, len(first))))
    state = first.state_dict()
    second.load_state_dict(state)
    assert as_lists(second) == as_lists(batches)
    assert first.state_dict()["sampler"] == second.state_dict()["sampler"]
