"""A script of ranks that are processes: what they come to by each kind of averaging, for comparison with threads."""

import hashlib

from minigrad import distributed, optim
from minigrad.distributed import ParameterAverager
from minigrad.distributed.average import EASGD, EveryK, Mean, StreamingDiLoCo
from tests.average.trained import batch, by_ddp, by_gradients, loss_of, make_model, values_of


def ragged(comm, outer):
    """Some steps on ranks that have different numbers of them, and what is left."""
    model = make_model()
    averager = ParameterAverager(model, comm, EveryK(4), outer)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(7 + 3 * comm.rank):
        optimizer.zero_grad()
        x, y = batch(comm.rank, step)
        loss_of(model, x, y).backward()
        optimizer.step()
        averager.step(len(x))
    relative = averager.finish().divergence.relative
    return values_of(model), relative


def told(comm):
    """All of it, as text: averages of parameters by their bits, and whether gradients are those of a DDP."""
    words = []
    for outer in (Mean(), EASGD(0.3), StreamingDiLoCo(0.7, fragments=2, delay=1, alpha=0.25)):
        values, relative = ragged(comm, outer)
        words.append(f"{hashlib.sha256(values.tobytes()).hexdigest()[:16]} {relative}")
    words.append(str(bool((by_ddp(comm) == by_gradients(comm)).all())))
    return f"[{comm.rank}] {words}"


if __name__ == "__main__":
    print(told(distributed.init()), flush=True)
