"""A rank that a launcher has started: `python -m tests.gpu.rank`. It trains, and tells in JSON what came of it.

It asks `init` for NCCL and names no device, as a script does that is to run anywhere.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from minigrad import Tensor, distributed, optim
from minigrad.backend.device import to_host
from minigrad.distributed import DDP
from tests.distributed.models import Mlp, data, mean_loss

STEPS = 4


def train() -> dict[str, Any]:
    """Where this rank is, what its parameters hash to, and how far they are from those of one device on the host."""
    comm = distributed.init(backend="nccl")
    try:
        ddp, one = DDP(Mlp(comm.rank).to(comm.device), comm), Mlp(0)
        optimizers = [optim.SGD(model.parameters(), lr=0.005, momentum=0.9) for model in (ddp.module, one)]
        for step in range(STEPS):
            inputs, targets = data(9, step)
            mine = slice(comm.rank, None, comm.world_size)
            for optimizer in optimizers:
                optimizer.zero_grad()
            error = ddp(Tensor(inputs[mine]).to(comm.device)) - Tensor(targets[mine]).to(comm.device)
            ((error * error).sum() / len(inputs[mine])).backward()
            mean_loss(one(Tensor(inputs)), targets).backward()
            for optimizer in optimizers:
                optimizer.step()
        values = [to_host(param.data) for param in ddp.module.parameters()]
        off = max(float(np.abs(a - b.data).max()) for a, b in zip(values, one.parameters()))
        bits = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
        return {"rank": comm.rank, "device": str(comm.device), "off": off, "hash": bits}
    finally:
        comm.close()


if __name__ == "__main__":
    print(json.dumps(train()), flush=True)
