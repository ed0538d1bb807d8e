import gc
import json
import threading
import traceback
from contextvars import ContextVar, copy_context

import numpy as np
import pytest

from minigrad.backend.device import Device
from minigrad.backend.random import manual_seed, noise_generator, set_noise_key
from minigrad.data import ArrayDataset, BatchSampler, DataLoader, DistributedSampler, RandomSampler, Subset
from minigrad.data.prefetch import ahead
from minigrad.errors import ArgumentError, StateDictError
from minigrad.recording import is_grad_enabled, no_grad
from minigrad.tensor import Tensor

PREFETCHES = [0, 1, 2, 5]


class Numbers:
    """Sample i is i; reading `bad` fails."""

    def __init__(self, length=10, bad=None):
        self.length, self.bad, self.read = length, bad, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.bad:
            raise KeyError(f"sample {index} is broken")
        self.read.append(index)
        return index


class Noisy(Numbers):
    """Sample i is i and a number drawn from the noise stream, as an augmentation would."""

    def __getitem__(self, index):
        return index, noise_generator().random()


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name == "minigrad-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert loader_threads() == []


def values(loader):
    return [batch.tolist() for batch in loader]


# ------------------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize("prefetch", PREFETCHES)
def test_batches_in_order(prefetch):
    loader = DataLoader(Numbers(5), 2, prefetch=prefetch)
    assert values(loader) == values(loader) == [[0, 1], [2, 3], [4]]
    assert len(loader) == 3


def test_the_last_batch_can_be_dropped():
    loader = DataLoader(Numbers(5), 2, drop_last=True)
    assert values(loader) == [[0, 1], [2, 3]] and len(loader) == 2


def never_a_batch(kind):
    def part(rank, **options):
        return DistributedSampler(20, rank=rank, world_size=2, mode="exact", **options)

    return {
        "plain": lambda: DataLoader(Numbers(10), 32, drop_last=True),
        "shuffled arrays": lambda: DataLoader(ArrayDataset(np.arange(10)), 32, shuffle=True, drop_last=True),
        "batch sampler": lambda: DataLoader(Numbers(10), batch_sampler=BatchSampler(range(10), 32, drop_last=True)),
        "subset": lambda: DataLoader(Subset(Numbers(90), range(10)), 32, drop_last=True),
        "a rank's tenth of 20": lambda: DataLoader(Numbers(20), 32, sampler=part(0), drop_last=True),
    }[kind]


def test_a_loader_whose_sampler_drops_all_samples_is_refused():
    with pytest.raises(ArgumentError, match=r"got none: .* leaves out all of 3 sample\(s\), for there are 4 ranks"):
        DataLoader(Numbers(3), sampler=DistributedSampler(3, rank=0, world_size=4, mode="drop"))
    assert len(DataLoader(Numbers(0), sampler=DistributedSampler(0, rank=0, world_size=4, mode="drop"))) == 0


def test_a_rank_alone_may_be_without_batches():
    def of_rank(rank):
        sampler = DistributedSampler(20, rank=rank, world_size=2, mode="exact", shares=[0.1, 0.9])
        return DataLoader(Numbers(20), 10, sampler=sampler, drop_last=True)

    assert [len(of_rank(rank)) for rank in range(2)] == [0, 1]
    assert len(DataLoader(Numbers(20), 10, sampler=[1, 2], drop_last=True)) == 0  # nobody knows of whom this is a part
    over = DataLoader(Numbers(4), 2, drop_last=True)
    batches = iter(over)
    next(batches), next(batches)
    rest = DataLoader(Numbers(4), 2, drop_last=True)
    rest.load_state_dict(over.state_dict())
    assert values(rest) == []


@pytest.mark.parametrize("prefetch", PREFETCHES)
def test_an_empty_dataset_has_no_batches(prefetch):
    assert values(DataLoader(Numbers(0), 2, prefetch=prefetch)) == []


def test_a_shuffle_covers_all_and_differs_by_epoch():
    loader = DataLoader(Numbers(20), 3, shuffle=True, seed=1)
    first, second = (sum(values(loader), []) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


def test_the_seed_of_the_context_decides_a_shuffle():
    def epochs(seed):
        manual_seed(seed)
        loader = DataLoader(Numbers(20), 3, shuffle=True)
        return [values(loader), values(loader)]

    assert epochs(1) == epochs(1) != epochs(2)


def test_reading_arrays_by_the_batch_equals_reading_by_the_sample():
    arrays = np.arange(24.0).reshape(12, 2), np.arange(12), np.arange(12.0)
    dataset = Subset(ArrayDataset(*arrays), range(11, 0, -1))

    class BySample(Subset):
        pass

    fast = DataLoader(dataset, 4, shuffle=True, seed=2)
    slow = DataLoader(BySample(dataset.dataset, dataset.indices), 4, shuffle=True, seed=2)
    assert fast.prefetch == 0 and slow.prefetch == 2
    for batch, expected in zip(fast, slow, strict=True):
        for x, y in zip(batch, expected, strict=True):
            assert x.dtype == y.dtype and x.tolist() == y.tolist()


def test_a_sampler_of_a_rank():
    sampler = DistributedSampler(10, rank=1, world_size=2, shuffle=False)
    loader = DataLoader(Numbers(10), 2, sampler=sampler)
    assert loader.sampler is sampler
    assert values(loader) == [[1, 3], [5, 7], [9]]


def test_any_iterable_of_batches_will_do():
    assert values(DataLoader(Numbers(10), batch_sampler=[[7, 7], [1]])) == [[7, 7], [1]]
    rows = DataLoader(ArrayDataset(np.arange(10)), batch_sampler=[[7], []])
    assert [batch.tolist() for (batch,) in rows] == [[7], []]


def test_collate_fn_gets_the_samples():
    assert list(DataLoader(Numbers(5), 2, collate_fn=tuple)) == [(0, 1), (2, 3), (4,)]
    assert list(DataLoader(ArrayDataset(np.arange(3)), 2, collate_fn=len)) == [2, 1]


def test_two_iterations_at_once_do_not_mix():
    loader = DataLoader(Numbers(6), 2, shuffle=True, seed=0)
    alone = DataLoader(Numbers(6), 2, shuffle=True, seed=0)
    expected = [values(alone), values(alone)]
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader)]
    assert [list(column) for column in zip(*pairs)] == expected


def test_batches_go_to_the_device(strict_cupy):
    loader = DataLoader([{"x": np.arange(2), "name": "a", "pair": (1, 2.0)}] * 3, 2, device="cuda:1")
    for batch in loader:
        moved = [batch["x"], *batch["pair"]]
        assert [tensor.device for tensor in moved] == [Device("cuda:1")] * 3
        assert batch["name"] in (["a", "a"], ["a"])


def test_arrays_on_a_gpu_are_read_there(cuda, strict_cupy):
    loader = DataLoader(ArrayDataset(strict_cupy.arange(5), np.arange(5)), 2)
    strict_cupy.syncs.count = 0
    devices = [[str(tensor.device) for tensor in batch] for batch in loader]
    assert devices == [["cuda:1", "cpu"]] * 3
    assert strict_cupy.syncs.count == 0


# ------------------------------------------------------------------------------------------ contexts and threads


@pytest.mark.parametrize("prefetch", PREFETCHES)
def test_the_dataset_sees_the_context_of_the_consumer(prefetch):
    name = ContextVar("name", default="nobody")

    class Asks(Numbers):
        def __getitem__(self, index):
            return f"{name.get()}, gradients {'on' if is_grad_enabled() else 'off'}"

    name.set("consumer")
    with no_grad():
        assert list(DataLoader(Asks(2), 2, prefetch=prefetch)) == [["consumer, gradients off"] * 2]


def test_what_a_dataset_draws_does_not_depend_on_prefetch():
    def draws(prefetch, consume):
        manual_seed(3)
        loader = DataLoader(Noisy(9), 2, shuffle=True, prefetch=prefetch)
        seen = []
        for _ in range(2):
            for _, noise in loader:
                seen.append(noise.tolist())
                consume()
        return seen

    expected = draws(0, lambda: None)
    assert len({value for batch in expected for value in batch}) == 18
    disturbed = draws(0, lambda: noise_generator().random())
    for prefetch in PREFETCHES:
        assert draws(prefetch, lambda: None) == expected
        assert draws(prefetch, lambda: noise_generator().random()) == disturbed


def test_a_dataset_does_not_disturb_the_streams_of_the_consumer():
    def draws(dataset, prefetch):
        manual_seed(3)
        return [noise_generator().random() for _ in DataLoader(dataset, 2, prefetch=prefetch)]

    assert draws(Noisy(9), 2) == draws(Numbers(9), 2) == draws(Noisy(9), 0)


@pytest.mark.parametrize("prefetch", PREFETCHES)
def test_an_exception_arrives_in_its_place_with_its_traceback(prefetch):
    seen = []
    with pytest.raises(KeyError, match="sample 5 is broken") as caught:
        for batch in DataLoader(Numbers(10, bad=5), 2, prefetch=prefetch):
            seen.append(batch.tolist())
    assert seen == [[0, 1], [2, 3]]
    assert "__getitem__" in [frame.name for frame in traceback.extract_tb(caught.tb)]


@pytest.mark.parametrize("prefetch", PREFETCHES)
def test_an_exception_in_a_sampler_arrives_too(prefetch):
    def batches():
        yield [0]
        raise OSError("no more indices")

    with pytest.raises(OSError, match="no more indices"):
        values(DataLoader(Numbers(3), batch_sampler=batches(), prefetch=prefetch))


def test_an_exception_frees_what_it_held_without_the_garbage_collector():
    loader = DataLoader(Numbers(3, bad=0), 1)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(KeyError):
            next(iter(loader))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [item for item in gc.garbage if isinstance(item, KeyError)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_at_most_prefetch_batches_are_made_ahead():
    dataset, made = Numbers(100), threading.Event()

    class Signals(Numbers):
        def __getitem__(self, index):
            if index == 3:
                made.set()
            return dataset[index]

    batches = iter(DataLoader(Signals(100), 1, prefetch=3))
    next(batches)
    assert made.wait(10)  # one was taken, three more are made
    next(batches)
    batches.close()
    assert dataset.read in ([0, 1, 2, 3], [0, 1, 2, 3, 4])


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_breaking_out_leaves_no_thread(taken):
    batches = iter(DataLoader(Numbers(100), 1, prefetch=2))
    for _ in range(taken):
        next(batches)
    assert len(loader_threads()) == (taken > 0)
    del batches
    assert loader_threads() == []


def test_a_failing_consumer_leaves_no_thread():
    def train():
        for _ in DataLoader(Numbers(100), 1, prefetch=2):
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        train()
    assert loader_threads() == []


def test_a_consumer_that_is_dropped_in_the_thread_itself_does_not_wait_for_itself():
    """As the garbage collector may do, when it runs there."""
    consumers, dropped = [], threading.Event()

    def items():
        yield 0
        consumers.pop().close()
        dropped.set()
        yield 1

    go = threading.Event()

    def gated():
        for item in items():
            yield item
            go.wait(10)

    consumer = ahead(gated(), 2)
    assert next(consumer) == 0
    [thread] = loader_threads()
    consumers.append(consumer)
    del consumer
    go.set()
    assert dropped.wait(10)
    thread.join(10)
    assert not thread.is_alive()


# ------------------------------------------------------------------------------------------------------ resuming


@pytest.mark.parametrize("prefetch", PREFETCHES)
@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_a_resumed_loader_goes_on_with_the_rest(prefetch, stop):
    def make(seed):
        manual_seed(seed)
        return DataLoader(Noisy(9), 2, shuffle=True, prefetch=prefetch)

    def batch_values(batches):
        return [(numbers.tolist(), noise.tolist()) for numbers, noise in batches]

    first = make(1)
    list(first)
    batches = iter(first)
    for _ in range(stop):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    rest, following = batch_values(batches), [numbers.tolist() for numbers, _ in first]
    assert len(rest) == 5 - stop
    second = make(2)
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert batch_values(second) == rest
    assert [numbers.tolist() for numbers, _ in second] == following


def test_the_state_of_another_rank_brings_the_order_but_not_the_noise():
    """Else all ranks would augment alike after a resume."""

    def rest(rank, state=None):
        manual_seed(1)
        set_noise_key(rank)
        loader = DataLoader(Noisy(9), 2, sampler=DistributedSampler(9, rank=0, world_size=2))
        if state is not None:
            loader.load_state_dict(state)
            return state, [(x.tolist(), noise.tolist()) for x, noise in loader]
        batches = iter(loader)
        next(batches)
        return loader.state_dict(), [(x.tolist(), noise.tolist()) for x, noise in batches]

    def in_context(*arguments):
        return copy_context().run(rest, *arguments)

    state, expected = in_context(0)
    assert in_context(0, state)[1] == expected
    _, other = in_context(1, state)
    assert [x for x, _ in other] == [x for x, _ in expected]
    assert all(noise != same for (_, noise), (_, same) in zip(other, expected))


def test_between_epochs_the_state_is_the_start_of_the_next():
    first, second = (DataLoader(Numbers(9), 2, shuffle=True, seed=seed) for seed in (1, 2))
    values(first)
    state = first.state_dict()
    assert state["delivered"] == 0 and state["sampler"]["sampler"]["epoch"] == 1
    second.load_state_dict(state)
    assert values(second) == values(first)


def test_after_a_break_the_state_is_the_interrupted_epoch():
    first, second = (DataLoader(Numbers(9), 2, shuffle=True, seed=seed) for seed in (1, 1))
    order = values(second)
    for _ in first:
        break
    second.load_state_dict(first.state_dict())
    assert values(second) == order[1:]
    assert values(first) == values(second), "both go on with the second epoch"


def test_set_epoch_before_the_rest_of_an_epoch():
    def make():
        return DataLoader(Numbers(9), 2, shuffle=True, seed=1)

    first, order = make(), values(make())
    next(iter(first))
    for epoch in (0, 1):
        second = make()
        second.load_state_dict(first.state_dict())
        second.sampler.set_epoch(epoch)
        if epoch == 0:
            assert values(second) == order[1:]
        else:
            with pytest.raises(StateDictError, match="the epoch of the loaded state, .*'epoch': 0, .*'epoch': 1"):
                iter(second)
            second.sampler.set_epoch(0)
            assert values(second) == order[1:]


def test_set_epoch_after_a_state_between_epochs():
    loader = DataLoader(Numbers(9), 2, shuffle=True, seed=1)
    loader.load_state_dict(loader.state_dict())
    loader.sampler.set_epoch(4)
    next(iter(loader))
    assert loader.state_dict()["sampler"]["sampler"]["epoch"] == 4


def test_a_sampler_without_state_iterates_but_has_no_state():
    loader = DataLoader(Numbers(3), 2, sampler=[2, 1, 0])
    for _ in loader:
        with pytest.raises(ArgumentError, match="expected a sampler with state_dict and load_state_dict, got list"):
            loader.state_dict()


# ---------------------------------------------------------------------------------------------- wrong arguments


def test_batches_are_tensors():
    [(batch,)] = DataLoader(ArrayDataset(np.zeros((2, 3))), 2)
    assert isinstance(batch, Tensor)
    assert len(DataLoader(Numbers(3), batch_sampler=BatchSampler(RandomSampler(3), 2))) == 2
