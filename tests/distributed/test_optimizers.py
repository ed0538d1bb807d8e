"""Each optimizer on two ranks with uneven shards is the same on one device; a state that parts is found."""

import copy

import numpy as np
import pytest

from minigrad import Tensor, distributed, manual_seed, nn, optim
from minigrad.errors import ReplicaMismatchError
from minigrad.testing import assert_close
from tests.unit.optim.models import OPTIMIZERS

DATA = np.random.default_rng(0).standard_normal((6, 5, 3))


def make_net():
    manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def train(model, make, options, part, back_at=None):
    """The parameters after all steps; back_at: a step at which the optimizer loads the state that it had before."""
    optimizer = make(model.parameters(), **options)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 0.05, len(DATA), cycle_momentum=False)
    for step, batch in enumerate(DATA):
        saved = optimizer.state_dict()
        model(Tensor(batch[part])).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step == back_at:
            optimizer.load_state_dict(saved)
    return [param.detach().numpy().copy() for param in model.parameters()]


@pytest.mark.parametrize("make, options", OPTIMIZERS)
def test_two_ranks_are_one_device(make, options):
    def body(comm):
        model = distributed.DistributedDataParallel(make_net(), comm)
        return train(model, make, options, slice(2) if comm.rank else slice(2, 5))

    first, second = distributed.run(body, 2)
    one = train(make_net(), make, options, slice(5))
    for a, b, expected in zip(first, second, one):
        assert np.array_equal(a, b)
        assert_close(a, expected, tolerance=1e-8)


def train_with_muon(model, part, back_at=None):
    """The same, with Muon for matrices and AdamW for the rest."""
    params = list(model.parameters())
    muon = optim.Muon([x for x in params if x.ndim == 2], lr=0.02)
    others = optim.AdamW([x for x in params if x.ndim != 2], lr=0.02)
    for step, batch in enumerate(DATA):
        saved = copy.deepcopy(muon.state_dict())
        model(Tensor(batch[part])).pow(2).mean().backward()
        for optimizer in (muon, others):
            optimizer.step()
            optimizer.zero_grad()
        if step == back_at:
            muon.load_state_dict(saved)
    return [param.detach().numpy().copy() for param in params]


def test_whole_matrices_on_two_ranks_are_those_of_one_device():
    """In buckets that each hold one parameter, whatever its size."""

    def body(comm, back_at=None):
        model = distributed.DistributedDataParallel(make_net(), comm, bucket_cap_bytes=8)
        return train_with_muon(model, slice(2) if comm.rank else slice(2, 5), back_at if comm.rank else None)

    first, second = distributed.run(body, 2)
    for a, b, expected in zip(first, second, train_with_muon(make_net(), slice(5))):
        assert np.array_equal(a, b)
        assert_close(a, expected, tolerance=1e-8)
    with pytest.raises(ReplicaMismatchError, match="beside the model on all ranks, got Muon: "):
        distributed.run(lambda comm: body(comm, back_at=2), 2)


@pytest.mark.parametrize("make, options", OPTIMIZERS[4:])
def test_a_rank_that_alone_loads_a_state_is_found(make, options):
    def body(comm):
        model = distributed.DistributedDataParallel(make_net(), comm)
        train(model, make, options, slice(5), back_at=2 if comm.rank else None)

    with pytest.raises(ReplicaMismatchError, match=f"beside the model on all ranks, got {make.__name__}: lr is"):
        distributed.run(body, 2)
