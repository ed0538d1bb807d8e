"""Memory that arrays of a step take in turns: never two at once, never too much, no longer than somebody trains."""

import copy
import gc
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.autograd import grad
from minigrad.backend import workspace
from minigrad.backend.memory import address_of
from minigrad.backend.workspace import LEAST_BYTES, Workspace, empty, empty_like, shared_workspace
from minigrad.utils.checkpoint import checkpoint

FLOAT = np.dtype(np.float32)
SHAPE = (128, 128)  # 64 KiB


@pytest.fixture
def room():
    return Workspace()


def test_memory_is_taken_again_once_nobody_holds_it(room):
    first = room.empty(SHAPE, FLOAT)
    place, whole = address_of(first), first.base
    del first
    assert address_of(room.empty((64, 256), FLOAT)) != place  # `whole` is held
    del whole
    assert address_of(room.empty((64, 256), FLOAT)) == place and place % 64 == 0


@pytest.mark.parametrize(
    "hold",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: x[3:, ::2],
        lambda x: x.reshape(-1)[5:6],
        lambda x: x.view(np.int32),
        memoryview,
        lambda x: np.lib.stride_tricks.as_strided(x[1:], (2, 2), (4, 4)),
        lambda x: np.from_dlpack(x),
        lambda x: (value for value in x),
        lambda x: minigrad.Tensor(x).detach(),
    ],
)
def test_every_kind_of_view_holds_it(room, hold):
    array = room.empty(SHAPE, FLOAT)
    place = address_of(array)
    held = hold(array)
    del array
    other = room.empty(SHAPE, FLOAT)
    assert address_of(other) != place
    del held, other
    assert place in [address_of(array) for array in (room.empty(SHAPE, FLOAT), room.empty(SHAPE, FLOAT))]


def test_no_two_arrays_ever_share_memory(room):
    """Arrays and views come and go at random, in three threads; each has a number of its own in all its elements."""
    failures = []

    def work(seed):
        rng, held = np.random.default_rng(seed), {}
        for number in range(seed, 3000, 3):
            array = room.empty((int(rng.integers(90, 200)), 128), FLOAT)
            array[...] = number
            held[number] = array if rng.random() < 0.5 else array[int(rng.integers(80)) :, 7:]
            del array
            while len(held) > 5 or held and rng.random() < 0.4:
                known = list(held)[int(rng.integers(len(held)))]
                if (held.pop(known) != known).any():
                    failures.append(known)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and 0 < room.nbytes < 64 * 1024**2


def test_small_arrays_are_left_alone(room):
    array = room.empty((LEAST_BYTES // 4 - 1,), FLOAT)
    assert array.base is None and room.nbytes == 0


def test_no_more_is_kept_than_allowed(room, monkeypatch):
    monkeypatch.setattr(workspace, "MOST_BYTES", 150_000)
    held = [room.empty(SHAPE, FLOAT) for _ in range(4)]
    assert [array.base is None for array in held] == [False, False, True, True] and room.nbytes <= 150_000


def test_whoever_keeps_many_results_makes_no_long_list_to_search(room, monkeypatch):
    monkeypatch.setattr(workspace, "MOST_ALIKE", 3)
    held = [room.empty(SHAPE, FLOAT) for _ in range(5)]
    assert [array.base is None for array in held] == [False, False, False, True, True]
    assert room.empty((256, 128), FLOAT).base is not None  # of another size


def test_blocks_that_nobody_takes_are_given_up(room, monkeypatch):
    monkeypatch.setattr(workspace, "PATIENCE", 10)
    room.empty(SHAPE, FLOAT)
    for _ in range(20):
        room.empty((256, 128), FLOAT)
    assert room.nbytes == SHAPE[0] * SHAPE[1] * 4 + 256 * 128 * 4  # nothing else was needed
    room.empty((512, 128), FLOAT)
    assert room.nbytes == 256 * 128 * 4 + 512 * 128 * 4


def test_who_comes_meanwhile_gets_ordinary_memory(room):
    with room._lock:
        assert room.empty(SHAPE, FLOAT).base is None
    assert room.empty(SHAPE, FLOAT).base is not None


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)])
def test_like_another_means_its_order_in_memory(order):
    held = shared_workspace()
    x = np.empty((16, 18, 20, 22), np.float32).transpose(order)
    made = empty_like(x)
    assert made.shape == x.shape and made.strides == np.empty_like(x).strides and made.base is not None and held


# ---------------------------------------------------------------------------------------------------------- owners


def model(seed):
    minigrad.manual_seed(seed)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 128)]
    return nn.Sequential(*layers, nn.GELU(), nn.LayerNorm(128))


def test_it_ends_with_those_who_train(monkeypatch):
    monkeypatch.setattr(workspace, "_in_use", workspace._Nobody())  # the rest of the suite may hold one
    net, other = model(0), model(1)
    optimizers = [optim.SGD(each.parameters(), lr=0.1) for each in (net, other)]
    kept = weakref.ref(shared_workspace())
    out = net(minigrad.ones(16, 3, 16, 16)).detach()
    assert kept().nbytes > 0
    del net, optimizers[0]
    gc.collect()
    assert kept() is not None  # the other one's
    del other, optimizers
    gc.collect()
    assert kept() is None and out.isfinite().all()  # an array outlives it


def test_copies_of_those_who_train_share_it():
    net = nn.Linear(2, 3)
    net.optimizer = optim.SGD(net.parameters(), lr=0.1)
    made = copy.deepcopy(net)
    assert made.optimizer.params()[0] is made.weight
    assert copy.deepcopy(net.weight.flat).workspace is net.weight.flat.workspace is shared_workspace()


def test_without_training_there_is_none(monkeypatch):
    monkeypatch.setattr(workspace, "_in_use", workspace._Nobody())
    assert empty(SHAPE, FLOAT, np.empty(0)).base is None
    held = shared_workspace()
    assert empty(SHAPE, FLOAT, np.empty(0)).base is not None
    place = weakref.ref(held)
    del held
    assert place() is None and empty(SHAPE, FLOAT, np.empty(0)).base is None


@pytest.mark.parametrize("missing", ["getrefcount", "gil"])
def test_where_references_are_not_counted_there_is_none(missing, monkeypatch):
    if missing == "gil":
        monkeypatch.setattr(workspace.sys, "_is_gil_enabled", lambda: False, raising=False)
    else:
        monkeypatch.delattr(workspace.sys, "getrefcount")
    assert shared_workspace() is None


class Recurrent(nn.Module):
    """An LSTM over tokens."""

    def __init__(self):
        super().__init__()
        self.tokens, self.memory = nn.Embedding(16, 8), nn.LSTM(8, 32, batch_first=True)
        self.head = nn.Linear(32, 16)

    def forward(self, tokens):
        return self.head(self.memory(self.tokens(tokens))[0])


class Attending(nn.Module):
    """A block of a transformer over tokens."""

    def __init__(self):
        super().__init__()
        self.tokens, self.joint = nn.Embedding(16, 32), nn.Linear(32, 96)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU("tanh"), nn.Linear(128, 16))

    def forward(self, tokens):
        x = self.tokens(tokens)
        query, key, value = self.joint(x).reshape(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4).unbind(0)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.mlp(x + seen.transpose(1, 2).reshape(*x.shape))


@pytest.mark.parametrize("build", [Recurrent, Attending])
@pytest.mark.parametrize("kept", [True, False])
def test_a_step_asks_for_no_large_memory_that_an_earlier_one_had(build, kept, monkeypatch):
    """But for some that an operation needs for itself; without a workspace it asks for all of it, some megabytes."""
    if not kept:
        monkeypatch.setattr("minigrad.nn.flat.shared_workspace", lambda: None)
        monkeypatch.setattr(workspace, "_in_use", workspace._Nobody())
    net = build()
    optimizer = optim.SGD(net.parameters(), lr=0.01)
    tokens = minigrad.tensor(np.random.default_rng(0).integers(0, 16, (16, 64)))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(tokens).reshape(-1, 16), tokens.reshape(-1)).backward()
        optimizer.step()

    for _ in range(2):
        step()
    tracemalloc.start()
    step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (peak < 2**20) == kept


# ------------------------------------------------------------------------------------------------- the same numbers


class Stop(Exception):
    """What a hook raises."""


def history(seed, keep):
    """What training in odd ways gives: kept graphs, kept outputs, recomputation, errors, gradients by a call."""
    rng = np.random.default_rng(seed)
    net = model(seed)
    optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    assert (net[0].weight.flat.workspace is not None) == keep
    seen, outputs = [], []
    for step in range(4):
        x = minigrad.tensor(rng.standard_normal((8, 3, 16, 16), np.float32), requires_grad=True)
        middle = net[:5](x) if step % 2 else checkpoint(net[:5], x)
        out = net[5:](middle)
        outputs.append(out)
        loss = (out * out).mean() + middle.mean()
        if step == 3:
            handle = middle.register_hook(fail)
            with pytest.raises(Stop):
                loss.backward(retain_graph=True)
            handle.remove()
            optimizer.zero_grad()
        else:
            seen.append(grad(loss, [x, middle], retain_graph=True)[0].numpy().copy())
            loss.backward(retain_graph=True)
        loss.backward()
        seen.extend(p.grad.numpy().copy() for p in net.parameters())
        optimizer.step()
        optimizer.zero_grad()
    return seen + [out.detach().numpy() for out in outputs]


def fail(gradient):
    raise Stop


def test_training_gives_the_same_bits_as_with_fresh_memory(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("minigrad.nn.flat.shared_workspace", lambda: None)
        patch.setattr(workspace, "_in_use", workspace._Nobody())
        expected = [history(seed, keep=False) for seed in (0, 1)]
    found = {}
    held = shared_workspace()
    threads = [threading.Thread(target=lambda seed=seed: found.update({seed: history(seed, True)})) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held.nbytes > 0
    for seed in (0, 1):
        assert len(found[seed]) == len(expected[seed])
        assert all(np.array_equal(a, b) for a, b in zip(found[seed], expected[seed]))
