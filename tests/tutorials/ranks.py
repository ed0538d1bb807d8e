"""All tutorials on the ranks of one world: `python ranks.py FILE` in each process; a file of JSON for each rank."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import minigrad as torch  # noqa: E402
import minigrad.distributed as dist  # noqa: E402
import minigrad.nn as nn  # noqa: E402
import minigrad.nn.functional as F  # noqa: E402
import minigrad.optim as optim  # noqa: E402
from tests.tutorials import by_bucket, by_hook, by_parameter  # noqa: E402

TUTORIALS = {"by_parameter": by_parameter, "by_hook": by_hook, "by_bucket": by_bucket}
STEPS, ROWS = 3, 8


def start(model, rank=0):
    """The same weights whatever the library; those of another rank differ."""
    with torch.no_grad():
        for param in model.parameters():
            count = param.numel()
            values = [((7 * i) % 11 - 5) / 10 + rank for i in range(count)]
            param.copy_(torch.tensor(values).reshape(param.shape))
    return model


def batches(rank, size):
    """This rank's rows of a few batches, each of `ROWS` in all."""
    for step in range(STEPS):
        x = [[((3 * step + 5 * row + 2 * column) % 13 - 6) / 4 for column in range(4)] for row in range(ROWS)]
        y = [(step + row) % 3 for row in range(ROWS)]
        mine = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
        yield torch.tensor(x)[mine], torch.tensor(y)[mine]


def slope(model):
    """The weight of a line through 0, after a step from 0."""
    return model.weight.item()


def line():
    """y = weight · x, with weight 0."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    return model


def points(*values):
    """A batch of such values at x = 1."""
    return [(torch.ones(len(values), 1), torch.tensor(values).reshape(-1, 1))]


def everything():
    """What each tutorial leaves on this rank: parameters of a net, and lines that a step has fitted."""
    rank, size, found = dist.get_rank(), dist.get_world_size(), {}
    for name, tutorial in TUTORIALS.items():
        model = start(tutorial.Net(), 0 if tutorial is by_parameter else rank)
        tutorial.train(model, list(batches(rank, size)))
        found[name] = [param.detach().reshape(-1).tolist() for param in model.parameters()]
    if size == 2:
        for name in ("by_parameter", "by_hook"):
            model = line()
            batch = points(3.0) if rank == 0 else points(0.0, 0.0, 1.0)
            TUTORIALS[name].train(model, batch, F.mse_loss, optim.SGD, lr=0.5)
            found[f"{name}, uneven"] = slope(model)
        for what in ("accumulated", "last"):
            model = line()
            by_bucket.train(model, points(3.0, 1.0) if rank == 0 else points(5.0, 7.0), F.mse_loss, lr=0.5, what=what)
            found[f"by_bucket, {what}"] = slope(model)
    return found


def main(path):
    dist.init_process_group("gloo")
    Path(f"{path}.{dist.get_rank()}").write_text(json.dumps(everything()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
