"""A trainer of two ranks that is stopped and resumed; their epochs, and the file that they save."""

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.data import DataLoader, DistributedSampler, ArrayDataset
from minigrad.distributed import run
from minigrad.train import DistributedTrainConfig, DistributedTrainer, SingleDeviceTrainer

TIMEOUT_S = 10.0
SAMPLES = 25  # 13 of one rank and 12 of the other, so 4 and 3 batches
DATA = np.random.default_rng(0).standard_normal((SAMPLES, 4)).astype(np.float32)


class Rows:
    """Samples that note who asked for them."""

    def __init__(self):
        self.taken = []

    def __len__(self):
        return SAMPLES

    def __getitem__(self, place):
        self.taken.append(int(place))
        return DATA[place], DATA[place, :1]


def loss_fn(model, batch):
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


class Training:
    """All that one rank trains with."""

    def __init__(self, comm, dataset, max_steps=None):
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 1))
        self.optimizer = optim.Adam(self.model.parameters(), lr=0.01)
        self.schedule = optim.LRScheduler(self.optimizer, optim.StepDecay(2, gamma=0.5))
        sampler = DistributedSampler(SAMPLES, rank=comm.rank, world_size=comm.world_size, mode="exact", seed=3)
        self.loader = DataLoader(dataset, batch_size=4, sampler=sampler)
        single = SingleDeviceTrainer(self.model, self.optimizer, loss_fn, self.schedule)
        config = DistributedTrainConfig(comm.world_size, comm.rank, max_steps=max_steps)
        self.trainer = DistributedTrainer(single, comm, config)

    def train(self, epochs):
        for _ in range(epochs):
            self.trainer.train_epoch(self.loader)
        return [param.detach().numpy().copy() for param in self.model.parameters()]

    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "loader": self.loader}


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 6])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(tmp_path, stop):
    def whole(comm):
        return Training(comm, ArrayDataset(DATA, DATA[:, :1])).train(2)

    def first(comm):
        training = Training(comm, ArrayDataset(DATA, DATA[:, :1]), max_steps=stop)
        training.train(2)  # where the first epoch is interrupted, the second leaves the loader alone
        minigrad.save(training.parts(), tmp_path / "run")

    def rest(comm):
        training = Training(comm, ArrayDataset(DATA, DATA[:, :1]))
        minigrad.load(tmp_path / "run", into=training.parts())
        training.loader.load_state_dict(minigrad.load(tmp_path / "run")["loader"])  # that of the others may be used up
        return training.train(2 if stop <= 4 else 1)  # the interrupted epoch first, even if nothing is left of it

    minigrad.manual_seed(1)
    expected = run(whole, 2, timeout_s=TIMEOUT_S)
    run(first, 2, timeout_s=TIMEOUT_S)
    minigrad.manual_seed(2)
    for mine, other in zip(run(rest, 2, timeout_s=TIMEOUT_S), expected):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(mine, other))


def test_ranks_with_different_numbers_of_batches_stay_in_one_epoch():
    """Each epoch takes each sample once, and in an order of its own."""

    def body(comm):
        rows, epochs = Rows(), []
        training = Training(comm, rows)
        for _ in range(3):
            training.train(1)
            epochs.append(list(rows.taken))
            rows.taken.clear()
        return epochs

    first, second = run(body, 2, timeout_s=TIMEOUT_S)
    for mine, others in zip(first, second):
        assert sorted(mine + others) == list(range(SAMPLES))
    assert len({tuple(mine) for mine in first}) == 3


def test_ranks_that_save_one_file_leave_a_whole_one(tmp_path):
    def body(comm):
        for _ in range(10):
            nn.save_file({"x": minigrad.full((1000,), float(comm.rank))}, tmp_path / "all")
            assert len(set(nn.load_file(tmp_path / "all")["x"].tolist())) == 1

    run(body, 4, timeout_s=TIMEOUT_S)
    assert [path.name for path in tmp_path.iterdir()] == ["all"]
