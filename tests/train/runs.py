"""What the tests of runs train: a small network with everything that can differ, and the loop that a user writes."""

import hashlib

import numpy as np

import minigrad
from minigrad import nn, optim
from minigrad.data import ArrayDataset
from minigrad.data.order import largest_remainder, permutation
from minigrad.distributed import DDP, run
from minigrad.distributed.simulate import Cluster
from minigrad.train import Trainer

SEED, SAMPLES, BATCH = 7, 46, 4
LOSS = nn.CrossEntropyLoss()


def dataset(samples=SAMPLES):
    rng = np.random.default_rng(0)
    return ArrayDataset(rng.standard_normal((samples, 6)).astype(np.float32), rng.integers(0, 3, samples))


def doubles(samples):
    """The same in float64."""
    x, labels = dataset(samples).arrays
    return ArrayDataset(x.astype(np.float64), labels)


def make_model(device):
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    return nn.Sequential(*layers).to(device)


def make_plain(device):
    """One that a batch of one sample can train."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3)).to(device)


def make_optimizer(params):
    return optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3)


def train_fn(model, batch):
    return LOSS(model(batch[0]), batch[1])


def start(**options):
    """The run that the tests vary."""
    given = {"batch_size": BATCH, "epochs": 2, "seed": SEED, **options}
    if given.keys() & {"ranks", "devices", "cluster"}:
        given = {"timeout_s": 10.0, **given}
    makers = {name: given.pop(name, own) for name, own in MAKERS.items()}
    return Trainer.start(**makers, **given)


MAKERS = {"make_model": make_model, "make_optimizer": make_optimizer, "train_fn": train_fn, "dataset": dataset()}


def train(**options):
    """The bits that the run comes to."""
    return bits(start(**options).join())


def bits(state):
    return {name: x.numpy().tobytes() for name, x in {**state.params, **state.buffers}.items()}


def digest(found):
    """Bits in a word."""
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()


def by_hand(comm, samples=SAMPLES, make_model=make_model):
    """The loop that a user of DDP writes: each rank has a contiguous part of the epoch's order."""
    minigrad.manual_seed(SEED)
    arrays = dataset(samples).arrays
    ddp = DDP(make_model(comm.device), comm)
    optimizer = make_optimizer(ddp.module.parameters())
    sizes = largest_remainder(samples, [1 / comm.world_size] * comm.world_size)
    first = sum(sizes[: comm.rank])
    for epoch in range(2):
        mine = permutation(samples, SEED, epoch)[first : first + sizes[comm.rank]]
        for step in range(-(-max(sizes) // BATCH)):
            rows = mine[step * BATCH : (step + 1) * BATCH]
            optimizer.zero_grad()
            if len(rows):
                batch = tuple(minigrad.Tensor(array[rows]) for array in arrays)
                train_fn(ddp, batch).backward()
            else:
                ddp.flush()
            optimizer.step()
    tensors = {**dict(ddp.module.named_parameters()), **dict(ddp.module.named_buffers())}
    return {name: x.detach().numpy().tobytes() for name, x in tensors.items()}


def by_hand_on_threads(world_size, *args):
    return run(by_hand, world_size, *args, timeout_s=10.0)[0]


def cluster(world_size):
    return Cluster.of_speeds([1.0 + rank for rank in range(world_size)])
