"""The smallest inputs of faults that runs have had elsewhere (tests/balance/FAULTS.md), by `Trainer.start`."""

import numpy as np
import pytest

from minigrad import Trainer, nn, optim
from minigrad.data import ArrayDataset
from minigrad.errors import ArgumentError

MODES = {
    "gradients": {},
    "parameters": {"average": "parameters"},
    "cadence": {"policy": "cadence"},
    "proportional": {"policy": "cadence", "average": "parameters", "dispatch": "proportional"},
    "async": {"policy": "async", "average": "parameters"},
    "shrink": {"on_failure": "shrink"},
    "progressive": {"dispatch": "progressive"},
}


class Heard:
    def __init__(self):
        self.kinds = set()

    def event(self, kind, **fields):
        self.kinds.add(kind)


def start(samples=10, batch_size=32, train_fn=None, **options):
    """A run of a linear model and Adam at 1e-3 over numbered samples."""
    return Trainer.start(
        lambda device: nn.Linear(1, 1).to(device),
        lambda params: optim.Adam(params, lr=1e-3),
        train_fn or (lambda model, batch: (model(batch[0]) - 1).square().mean()),
        ArrayDataset(np.arange(samples, dtype=np.float32)[:, None]),
        **{"batch_size": batch_size, "epochs": 1, "seed": 0, "timeout_s": 10.0, **options},
    )


def samples_of(run):
    run.join()
    return [rank.samples for rank in run.history[-1].per_rank]


@pytest.mark.parametrize("mode", MODES)
def test_a_dataset_smaller_than_a_batch_is_divided(mode):
    assert samples_of(start(10, ranks=2, **MODES[mode])) == [5, 5]
    shares = {} if mode == "progressive" else {"shares": [0.5, 0.5]}
    assert samples_of(start(128, ranks=2, epochs=3, **MODES[mode], **shares)) == [64, 64]


def test_one_rank_has_all_options():
    """The timeline hears of it, and what is said of rates counts."""
    heard, rates = Heard(), []
    start(
        policy="cadence", ranks=1, timeline=heard, lr_scale=lambda world_size: 4 * world_size,
        schedule=lambda step: 0.5, callbacks=[lambda metrics, worker: rates.append(worker.lr)],
    ).join()
    assert heard.kinds >= {"cadence", "epoch"} and rates == [2e-3]


def test_the_rate_is_that_of_the_user_and_a_schedule_counts_steps():
    rates, places = [], []

    def schedule(step):
        places.append(step)
        return 1.0

    start(16, 1, ranks=8, schedule=schedule, callbacks=[lambda metrics, worker: rates.append(worker.lr)]).join()
    assert set(rates) == {1e-3} and sorted(set(places)) == [0, 1, 2]  # two steps of eight ranks


def test_shares_and_seeds_count():
    for shares in ([0.5, 0.25, 0.25], [1.0]):
        with pytest.raises(ArgumentError, match="expected a share for each of 2 ranks"):
            start(ranks=2, shares=shares).join()
    assert samples_of(start(12, 3, ranks=2, shares=[0.75, 0.25])) == [9, 3]
    orders = []
    for seed in (0, 1):
        orders.append([])

        def train_fn(model, batch):
            orders[-1].extend(batch[0].numpy()[:, 0])
            return model(batch[0]).mean()

        start(10, 2, train_fn, ranks=1, seed=seed).join()
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == list(range(10))


def test_an_error_of_what_a_user_gave_ends_the_run():
    def fails(metrics, worker):
        if worker.rank == 1:
            raise ZeroDivisionError("in a callback")

    with pytest.raises(ZeroDivisionError, match="in a callback"):
        start(ranks=2, callbacks=[fails]).join()
