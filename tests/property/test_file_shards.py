"""Files dealt to ranks: every row once, whatever their lengths; resumed anywhere as if never stopped."""

import itertools
import json
import tempfile
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad.data import DataLoader, FileShards
from minigrad.data.dealing import blocks_of, files_by_rank, rank_counts, runs_at

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=5)
worlds = st.integers(1, 4)
deals, modes = st.sampled_from(["rows", "files"]), st.sampled_from(["exact", "drop", "pad"])
seeds, pools = st.integers(0, 2**64 - 1), st.integers(1, 12)


@given(lengths, worlds)
def test_whole_files_are_dealt_once_and_evenly(lengths, world_size):
    files = files_by_rank(lengths, world_size)
    assert sorted(itertools.chain(*files)) == list(range(len(lengths)))
    rows = [sum(lengths[file] for file in each) for each in files]
    assert rows == sorted(rows, reverse=True) and max(rows) - min(rows) <= max(lengths)


@given(lengths, worlds, deals, modes)
def test_counts_of_ranks(lengths, world_size, deal, mode):
    counts = rank_counts(lengths, world_size, deal, mode)
    exact = rank_counts(lengths, world_size, deal, "exact")
    assert sum(exact) == sum(lengths) and len(counts) == world_size and exact[0] == max(exact)
    if deal == "rows":
        assert max(exact) - min(exact) <= 1
    if mode != "exact":
        assert set(counts) == {min(exact) if mode == "drop" else max(exact)}


@given(lengths, st.one_of(st.none(), st.integers(1, 4)), st.integers(0, 100), st.integers(0, 60))
def test_runs_are_a_stretch_that_goes_round(lengths, most, start, count):
    blocks = blocks_of(lengths, range(len(lengths)), most)
    rows = [(file, row) for file, length in enumerate(lengths) for row in range(length)]
    assert [(file, row) for file, first, stop in blocks.tolist() for row in range(first, stop)] == rows
    runs = runs_at(blocks, start, count)
    found = [(file, row) for file, first, stop in runs for row in range(first, stop)]
    assert found == [rows[(start + i) % len(rows)] for i in range(count)]


def made(folder, lengths, world_size, **options):
    """The shards of all ranks; row j of all is j."""
    first = 0
    for i, length in enumerate(lengths):
        np.save(f"{folder}/{i}.npy", np.arange(first, first + length))
        first += length
    paths = [f"{folder}/{i}.npy" for i in range(len(lengths))]
    return [FileShards(paths, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def fitting(world_size, deal, lengths, mode):
    """As many ranks as there are files to deal, and samples to drop."""
    most = len(lengths) if deal == "files" else sum(lengths) if mode == "drop" else world_size
    return min(world_size, most)


@settings(max_examples=60)
@given(lengths, worlds, deals, modes, st.booleans(), seeds, pools, st.integers(0, 2))
def test_every_row_once_over_all_ranks(lengths, world_size, deal, mode, shuffle, seed, pool, epoch):
    world_size = fitting(world_size, deal, lengths, mode)
    options = {"deal": deal, "mode": mode, "shuffle": shuffle, "seed": seed, "pool_samples": pool}
    with tempfile.TemporaryDirectory() as folder:
        ranks = made(folder, lengths, world_size, **options)
        for rank in ranks:
            rank.set_epoch(epoch)
        parts = [[int(sample) for sample in rank] for rank in ranks]
        again = [[int(sample) for sample in rank] for rank in ranks]  # the next epoch
    assert [len(part) for part in parts] == [len(rank) for rank in ranks] == ranks[0].samples_of_ranks
    times = Counter(itertools.chain(*parts))
    if mode == "exact":
        assert times == dict.fromkeys(range(sum(lengths)), 1)
    if mode == "drop":
        assert set(times.values()) == {1}
    if mode == "pad":
        assert times.keys() == set(range(sum(lengths)))
        assert deal == "files" or sum(times.values()) - len(times) < world_size
    if not shuffle:
        assert parts == again
    if not shuffle and deal == "rows" and mode != "pad":
        assert list(itertools.chain(*parts)) == list(range(sum(map(len, parts))))


@settings(max_examples=60)
@given(
    lengths,
    worlds,
    deals,
    modes,
    st.booleans(),
    seeds,
    pools,
    st.integers(1, 4),
    st.tuples(*[st.sampled_from([0, 2])] * 2),
    st.integers(0, 1),
    st.data(),
)
def test_resumed_anywhere(lengths, world_size, deal, mode, shuffle, seed, pool, size, prefetches, epoch, data):
    """Through JSON, with and without a thread, by a loader and by hand; the state of the first rank serves all."""
    world_size = fitting(world_size, deal, lengths, mode)
    options = {"deal": deal, "mode": mode, "shuffle": shuffle, "pool_samples": pool}
    with tempfile.TemporaryDirectory() as folder:
        first = made(folder, lengths, world_size, seed=seed, **options)
        second = made(folder, lengths, world_size, **options)
        loaders = [DataLoader(rank, size, prefetch=prefetches[0]) for rank in first]
        for _ in range(epoch):
            for loader in loaders:
                list(loader)
        unstopped = [iter(loader) for loader in loaders]
        stop = data.draw(st.integers(0, max(map(len, loaders))))
        for loader, batches in zip(loaders, unstopped):
            list(itertools.islice(batches, min(stop, len(loader))))
        state = json.loads(json.dumps(loaders[0].state_dict()))
        for rank, batches in enumerate(unstopped):
            resumed = DataLoader(second[rank], size, prefetch=prefetches[1])
            resumed.load_state_dict(state)
            assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in batches]
            assert second[rank].state_dict() == first[rank].state_dict()
