"""The inner optimizer's state where parameters are averaged: averaged by samples, or that of a new one."""

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import SoloCommunicator, run
from minigrad.distributed.average.moments import average_moments, reset_moments
from minigrad.errors import ReplicaMismatchError
from tests.distributed.worlds import run_ranks

MAKERS = {
    "sgd": lambda params: optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: optim.Adam(params, lr=0.1, amsgrad=True),
    "adamw": lambda params: optim.AdamW([{"params": params[:1], "lr": 0.1}, {"params": params[1:]}]),
    "groups": lambda params: optim.Adam([{"params": params[::2]}, {"params": params[1::2], "lr": 0.1}]),
    "muon": lambda params: optim.Muon([x for x in params if x.ndim == 2], lr=0.1),
    "lamb": lambda params: optim.LAMB(params, lr=0.1),
    "rmsprop": lambda params: optim.RMSprop(params, lr=0.1, momentum=0.5, centered=True),
    "adagrad": lambda params: optim.Adagrad(params, lr=0.1, initial_accumulator_value=0.5),
    "adadelta": lambda params: optim.Adadelta(params),
}


def model_of(seed=0, dtype=np.float64):
    minigrad.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4, dtype=dtype), nn.Tanh(), nn.Linear(4, 1, dtype=dtype))


def step(model, optimizer, seed):
    x = minigrad.Tensor(np.random.default_rng(seed).standard_normal((5, 3)).astype(model[0].weight.dtype))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def told(optimizer):
    """The state as numbers, by parameter and name."""
    return {
        (index, name): np.array(value.numpy() if hasattr(value, "numpy") else value)
        for index, entry in optimizer.state_dict()["state"].items()
        for name, value in entry.items()
    }


@pytest.mark.parametrize("name", MAKERS)
def test_the_mean_of_the_ranks_states(name):
    weights = (0.75, 0.25, 0.0)

    def body(comm):
        model, weight = model_of(), weights[comm.rank]
        optimizer = MAKERS[name](list(model.parameters()))
        for i in range(3 if weight else 1):  # who has no samples may have made fewer steps
            step(model, optimizer, 10 * comm.rank + i)
        own = told(optimizer)
        if not weight:
            for array in [array for parts in optimizer.parts for part in parts for array in part.state.values()]:
                array[...] = np.nan
        average_moments("test", optimizer, comm, 8 * weight, np.full(1, 8.0))
        mark, after = optimizer.mark(), told(optimizer)
        step(model, optimizer, 7)  # it goes on
        assert np.isfinite(model[0].weight.data).all()
        return own, after, mark

    (first, after, mark), (second, *same), (_, *unused) = run(body, 3)
    assert mark == same[1] == unused[1] and set(after) == set(first)
    for key, value in after.items():
        assert np.array_equal(value, same[0][key]) and np.array_equal(value, unused[0][key])
        wanted = 0.75 * first[key] + 0.25 * second[key]
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-12 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("name", MAKERS)
def test_reset_is_a_new_one(name):
    model = model_of(dtype=np.float32)
    optimizer, twin = MAKERS[name](list(model.parameters())), model_of(dtype=np.float32)
    for i in range(3):
        step(model, optimizer, i)
    reset_moments(optimizer)
    twin.load_state_dict(model.state_dict())
    new = MAKERS[name](list(twin.parameters()))
    assert told(optimizer) == {} and optimizer.mark() == new.mark()
    for i in range(2):
        step(model, optimizer, 5 + i)
        step(twin, new, 5 + i)
    for mine, other in zip(model.parameters(), twin.parameters()):
        assert mine.tolist() == other.tolist()


def test_wide_copies_are_averaged_with_the_rest():
    """They hold what is too small for the parameters: 1 - 2**-13 on one rank, 1 - 2**-12 on the other."""

    def body(comm):
        weight = nn.Parameter(minigrad.ones(1, dtype="float16"))
        optimizer = optim.SGD([weight], lr=2.0**-13, master_weights=True)
        (weight * float(1 + comm.rank)).sum().backward()
        optimizer.step()
        average_moments("test", optimizer, comm, (3, 1)[comm.rank], np.full(1, 4.0))
        (state,) = optimizer.state.values()
        return weight.item(), state["master_weights"].item()

    assert run(body, 2) == [(1.0, 1 - 1.25 * 2.0**-13)] * 2


def test_numbers_of_steps_that_differ_are_told_on_all_ranks():
    def body(comm):
        model = model_of()
        optimizer = optim.Adam(model.parameters())
        for i in range(1 + comm.rank):
            step(model, optimizer, i)
        with pytest.raises(ReplicaMismatchError, match="the steps of number 0 is 1 on rank 0 and 2 on rank 1: average"):
            average_moments("test", optimizer, comm, 1.0, np.full(1, 2.0))

    run(body, 2)


def test_no_samples_anywhere_changes_nothing():
    model = model_of()
    optimizer = optim.Adam(model.parameters())
    step(model, optimizer, 0)
    before = told(optimizer)
    average_moments("test", optimizer, SoloCommunicator(), 0.0, np.zeros(1))
    assert {key: value.tolist() for key, value in told(optimizer).items()} == {k: v.tolist() for k, v in before.items()}


@pytest.mark.parametrize("kind", ["shm", "nccl"])
def test_on_other_ways_to_run(kind):
    assert run_ranks(kind, _two_ranks, 2) == [0.4, 0.4]


def _two_ranks(comm):
    layer = nn.Linear(1, 1, bias=False)
    optimizer = optim.SGD(layer.parameters(), lr=1.0, momentum=0.5)
    layer(minigrad.full((1, 1), 2.0 * comm.rank - 1.2)).mean().backward()
    optimizer.step()
    average_moments("test", optimizer, comm, 1 + 3 * comm.rank, np.full(1, 5.0))
    (state,) = optimizer.state.values()
    return round(state["momentum_buffer"].item(), 6)


def test_on_a_device(cuda, strict_cupy):
    model = nn.Linear(3, 2, device=cuda)
    optimizer = optim.Adam(model.parameters())
    model(minigrad.ones(4, 3, device=cuda)).sum().backward()
    optimizer.step()
    total = minigrad.full((1,), 4.0, dtype="float64", device=cuda).data
    average_moments("test", optimizer, SoloCommunicator(cuda), 4.0, total)
    reset_moments(optimizer)
    assert len(optimizer.state) == 0
