"""Options of a run come to where they count."""

import pytest

from minigrad.backend.ranks import ranks_here
from minigrad.distributed.average import Async, Cadence, EveryK, NoGuard
from minigrad.errors import ArgumentError, ReplicaMismatchError
from minigrad.train import RunConfig
from minigrad.train.run.apart import coordinator_config
from tests.train.runs import MAKERS, make_plain, start, train, train_fn

PARAMETERS = {"average": "parameters", "policy": EveryK(2)}


@pytest.mark.parametrize(
    ("common", "option"),
    [
        ({}, {"autocast": "bfloat16"}),
        (PARAMETERS, {"autocast": "bfloat16"}),
        (PARAMETERS, {"average_options": {"optimizer_state": "reset"}}),
    ],
)
def test_it_changes_what_is_trained(common, option):
    assert train(ranks=2, **common, **option) != train(ranks=2, **common)


def test_a_guard_is_asked():
    asked = []

    def guard(state, divergence):
        asked.append(divergence)
        return NoGuard()(state, divergence)

    start(ranks=2, average="parameters", policy=Cadence(), guard=guard).join()
    assert asked


def test_options_of_ddp_are_told_to_it():
    with pytest.raises(ArgumentError, match="expected bucket_cap_mb"):
        start(ranks=2, ddp_options={"bucket_cap_mb": "x"}).join()


def test_replicas_are_compared():
    def astray(model, batch):
        if ranks_here().rank == 1:
            dict(model.named_parameters())["module.0.bias"].data[0] += 1.0
        return train_fn(model, batch)

    options = {"ranks": 2, "make_model": make_plain, "train_fn": astray}
    start(**options).join()
    with pytest.raises(ReplicaMismatchError):
        start(check_replicas_every=2, **options).join()


def test_limits_of_ranks_apart_are_told_to_the_coordinator():
    options = {"ranks": 2, "average": "parameters", "policy": Async(2), "max_overshoot": 3, "max_batch_diff": 5}
    dispatch = coordinator_config(RunConfig(**MAKERS, batch_size=4, epochs=2, **options), 2, 1.0).dispatch
    assert (dispatch.max_overshoot, dispatch.max_batch_diff, dispatch.epochs) == (3, 5, 2)
