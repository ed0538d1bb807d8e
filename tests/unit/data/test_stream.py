"""A loader over a dataset without indices: what batches it makes, how it resumes, what ranks do at uneven ends."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad import distributed, manual_seed, nn, optim
from minigrad.backend.random import noise_generator
from minigrad.data import DataLoader, IterableDataset, RandomSampler
from minigrad.errors import ArgumentError, CallError, RankFailedError, StateDictError
from minigrad.testing import assert_close


class Numbers(IterableDataset):
    """0, 1, 2, ... and a number of the noise stream beside each."""

    def __init__(self, length):
        self.length, self.read = length, 0

    def __iter__(self):
        for i in range(self.length):
            self.read += 1
            yield i, noise_generator().random()


class Stateful(Numbers):
    """The same, with a state; after a pass it begins anew."""

    def __init__(self, length):
        super().__init__(length)
        self.at = {"place": 0, "passes": 0}

    def __iter__(self):
        for i in range(self.at["place"], self.length):
            self.read += 1
            self.at["place"] = i + 1
            yield i + 100 * self.at["passes"], noise_generator().random()
        self.at.update(place=0, passes=self.at["passes"] + 1)

    def state_dict(self):
        return self.at  # as it is: the loader has to copy it

    def load_state_dict(self, state):
        self.at = state


KINDS = {"stateless": Numbers, "stateful": Stateful}


def as_lists(batches):
    return [[tensor.tolist() for tensor in batch] for batch in batches]


@given(st.integers(0, 12), st.integers(1, 5), st.booleans(), st.sampled_from([0, 1, 3]), st.sampled_from([*KINDS]))
def test_batches_are_the_samples_in_their_order(length, batch_size, drop_last, prefetch, kind):
    manual_seed(0)
    found = as_lists(DataLoader(KINDS[kind](length), batch_size, drop_last=drop_last, prefetch=prefetch))
    manual_seed(0)
    assert as_lists(DataLoader(KINDS[kind](length), batch_size, drop_last=drop_last, prefetch=0)) == found
    kept = length - length % batch_size if drop_last else length
    assert [number for numbers, _ in found for number in numbers] == list(range(kept))
    assert [len(numbers) for numbers, _ in found[:-1]] == [batch_size] * (len(found) - 1)


@given(
    kind=st.sampled_from([*KINDS]),
    length=st.integers(0, 9),
    batch_size=st.integers(1, 4),
    drop_last=st.booleans(),
    prefetches=st.tuples(*[st.sampled_from([0, 1, 3])] * 2),
    epoch=st.integers(0, 1),
    stop=st.integers(0, 9),
)
def test_resumed_anywhere(kind, length, batch_size, drop_last, prefetches, epoch, stop):
    """The state goes through JSON; what the dataset draws is the same too, and the epoch after the resumed one."""
    manual_seed(3)
    first, second = (DataLoader(KINDS[kind](length), batch_size, drop_last=drop_last, prefetch=p) for p in prefetches)
    for _ in range(epoch):
        list(first)
    batches = iter(first)
    number = length // batch_size if drop_last else -(-length // batch_size)
    as_lists(itertools.islice(batches, min(stop, number)))  # one more would find the end
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert json.dumps(second.state_dict()) == json.dumps(first.state_dict())
    assert as_lists(second) == as_lists(batches)
    assert first.state_dict()["sampler"] == second.state_dict()["sampler"]
    assert [numbers for numbers, _ in as_lists(second)] == [numbers for numbers, _ in as_lists(first)]


@pytest.mark.parametrize("kind", [*KINDS])
def test_a_state_that_is_loaded_in_mid_epoch_ends_that_epoch(kind):
    """What was being made ahead must not move on a dataset that was put back."""
    loader = DataLoader(KINDS[kind](9), 2, prefetch=3)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    [expected] = [numbers for numbers, _ in as_lists(itertools.islice(batches, 1))]
    loader.load_state_dict(state)
    assert list(batches) == [] and loader.state_dict() == state
    assert next(iter(loader))[0].tolist() == expected == [2, 3]


def test_only_a_dataset_without_state_is_read_again():
    for kind, read in (("stateless", 8), ("stateful", 4)):
        first, again = KINDS[kind](8), KINDS[kind](8)
        loader, resumed = (DataLoader(dataset, 2, prefetch=0) for dataset in (first, again))
        list(itertools.islice(loader, 2))
        resumed.load_state_dict(loader.state_dict())
        assert [numbers.tolist() for numbers, _ in resumed] == [[4, 5], [6, 7]]
        assert again.read == read


def test_a_stream_that_is_shorter_than_what_was_delivered_is_refused():
    loader = DataLoader(Numbers(9), 2)
    list(itertools.islice(loader, 4))
    shorter = DataLoader(Numbers(4), 2)
    shorter.load_state_dict(loader.state_dict())
    with pytest.raises(StateDictError, match="expected a stream of the 4 batches .* got one of 2: it has to give"):
        list(shorter)


def test_an_error_of_the_stream_comes_where_its_sample_would():
    class Broken(IterableDataset):
        def __iter__(self):
            yield from [1, 2, 3]
            raise OSError("the line is dead")

    for prefetch in (0, 2):
        batches = iter(DataLoader(Broken(), 2, prefetch=prefetch))
        assert next(batches).tolist() == [1, 2]
        with pytest.raises(OSError, match="the line is dead"):
            next(batches)


def test_the_length_is_what_the_dataset_says():
    class Known(Numbers):
        def __len__(self):
            return self.length

    assert [len(DataLoader(Known(7), 2, drop_last=drop)) for drop in (False, True)] == [4, 3]
    for what in (Numbers(3), DataLoader(Numbers(3))):
        with pytest.raises(TypeError, match="Numbers"):
            len(what)
    with pytest.raises(CallError, match="^len\\(DataLoader\\): expected a dataset with a length, got a Numbers"):
        len(DataLoader(Numbers(3)))
    loader = DataLoader(Numbers(3), 2)
    assert (loader.batch_size, loader.drop_last, loader.sampler) == (2, False, None)


@pytest.mark.parametrize(
    "options, given",
    [
        ({"shuffle": True}, "shuffle=True"),
        ({"shuffle": True, "seed": 1}, "shuffle=True"),
        ({"sampler": RandomSampler(3)}, "a sampler"),
        ({"batch_sampler": [[0]]}, "a batch_sampler"),
    ],
)
def test_a_stream_has_no_order_but_its_own(options, given):
    message = f"^DataLoader: expected an IterableDataset without shuffle, .* got it with {given}: its samples have no"
    with pytest.raises(ArgumentError, match=message):
        DataLoader(Numbers(3), **options)


def test_what_is_no_stream_is_refused():
    with pytest.raises(ArgumentError, match="__getitem__, got <generator .*: derive it from IterableDataset"):
        DataLoader(i for i in range(3))
    with pytest.raises(NotImplementedError, match="IterableDataset has no __iter__"):
        list(DataLoader(IterableDataset()))

    class Half(Numbers):
        def state_dict(self):
            return {}

    with pytest.raises(ArgumentError, match="both state_dict and load_state_dict or neither, got a Half with one"):
        DataLoader(Half(3))
    with pytest.raises(ArgumentError, match="a batch_size, got None: iterate over an IterableDataset that makes"):
        DataLoader(Numbers(3), None)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"batch_size": 3}, "expected a state with batch_size 2, got 3"),
        ({"drop_last": True}, "expected a state with drop_last False, got True"),
        ({"dataset": {"place": 0}}, "expected a state without one of the dataset, as a Numbers has it, got one with"),
        ({"more": 1}, r"expected a state with the keys \['batch_size', 'dataset', 'drop_last', 'has_ended'\]"),
    ],
)
def test_a_state_of_other_settings_is_refused(change, message):
    loader = DataLoader(Numbers(3), 2)
    state = loader.state_dict()
    with pytest.raises(StateDictError, match=f"^DataLoader: {message}"):
        loader.load_state_dict({**state, "sampler": {**state["sampler"], **change}})
    with pytest.raises(StateDictError, match="expected a state with one of the dataset, as a Stateful has it, got one"):
        DataLoader(Stateful(3), 2).load_state_dict(state)


# ------------------------------------------------------------------------------------------------- uneven ends


class Rows(IterableDataset):
    """Rows of an array, of which each rank has so many."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


DATA = np.random.default_rng(0).standard_normal((16, 3))
PARTS = {0: slice(0, 5), 1: slice(5, 16)}  # batches of 2: 2 2 1 and 2 2 2 2 2 1


def train(model, batches):
    optimizer, number = optim.Adam(model.parameters(), lr=0.1), 0
    for number, batch in enumerate(batches, 1):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    return number


def make_net():
    manual_seed(1)
    return nn.Linear(3, 2).double()


def test_ranks_that_end_at_different_times_join_and_are_one_device():
    """The k-th global batch is what the k-th batches of those ranks that still have one come to."""

    def body(comm):
        ddp = distributed.DDP(make_net(), comm)
        with ddp.join():
            number = train(ddp, DataLoader(Rows(DATA[PARTS[comm.rank]]), 2))
        return number, ddp.module.weight.detach().numpy().copy()

    (few, first), (many, second) = distributed.run(body, 2)
    assert (few, many) == (3, 6) and np.array_equal(first, second)
    alone, parts = make_net(), [DATA[part] for part in PARTS.values()]
    whole = [np.concatenate([part[i : i + 2] for part in parts]) for i in range(0, 12, 2)]
    train(alone, [nn.Parameter(batch, requires_grad=False) for batch in whole])
    assert_close(first, alone.weight.detach().numpy(), tolerance=1e-8)


def test_without_join_the_others_are_told_who_has_ended():
    def body(comm):
        train(distributed.DDP(make_net(), comm), DataLoader(Rows(DATA[PARTS[comm.rank]]), 2))

    with pytest.raises(RankFailedError, match="rank 1: .* expected all 2 ranks, got ranks .*: rank 0 has returned"):
        distributed.run(body, 2)
