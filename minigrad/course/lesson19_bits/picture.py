"""The picture of lesson 19: the weights after some steps, to the last bit, on 1, 2, 4 and 8 ranks."""

from __future__ import annotations

import zlib

import numpy as np

from minigrad import nn, optim
from minigrad.backend.random import manual_seed
from minigrad.course.drawing import grid
from minigrad.distributed import DDP, Communicator, run
from minigrad.tensor import Tensor

SHARDS, BATCH, STEPS, WORLDS = 8, 32, 10, (1, 2, 4, 8)


def train(comm: Communicator, shards: int) -> tuple[str, str]:
    """The last weight of a small network after some steps, and the checksum of the bits of all of them.

    Args:
        comm: This rank's communicator.
        shards: Logical shards of a batch; with 0 each rank takes its part of the batch at once.
    """
    manual_seed(0)
    ddp = DDP(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)), comm)
    optimizer = optim.SGD(ddp.module.parameters(), lr=0.1)
    rng = np.random.default_rng(19)
    for _ in range(STEPS):
        batch = rng.standard_normal((BATCH, 4)).astype(np.float32)
        pieces = shards or comm.world_size
        each = pieces // comm.world_size
        mine = [Tensor(part) for part in np.split(batch, pieces)[comm.rank * each :][:each]]
        optimizer.zero_grad(set_to_none=True)
        if shards:
            ddp.backward_shards(lambda x: loss_of(ddp, x), mine)
        else:
            loss_of(ddp, mine[0]).backward()
        optimizer.step()
    values = [param.data for param in ddp.module.parameters()]
    return f"{values[-1].flat[0]:.9g}", f"{zlib.crc32(b''.join(value.tobytes() for value in values)):08x}"


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """How far the model is from the product of the first two numbers of a row."""
    error: Tensor = model(x) - x[:, :1] * x[:, 1:2]
    return (error * error).mean()


def trained(shards: int) -> list[tuple[str, str]]:
    """What `train` gives on 1, 2, 4 and 8 ranks."""
    return [run(train, world_size, shards, blas_threads=1)[0] for world_size in WORLDS]


def picture() -> str:
    """The weights of both ways, and whether they are those of one rank."""
    columns_of = [column for way in (trained(0), trained(SHARDS)) for column in zip(*way)]
    cells = [
        [(text, "the bits of one rank" if text == column[0] else "other bits") for text, column in zip(row, columns_of)]
        for row in zip(*columns_of)
    ]
    rows = [f"{world_size} rank{'s' if world_size > 1 else ''}" for world_size in WORLDS]
    columns = ["by ranks: the last one", "checksum of all", f"by {SHARDS} shards: the last one", "checksum of all"]
    return grid(f"The weights after {STEPS} steps on the same batches, which are cut", rows, columns, cells)
