"""Steps that a twin looks at after the fingerprint has: in a process of their own, where a mutant is in force."""

import contextlib

from minigrad import manual_seed, nn, optim, randn
from minigrad.distributed import DDP, CompressionState, Twin, fp16_predivide_hook, replicas_agree, run
from tests.distributed.mutants import RANKS_S


class Parted(Exception):
    """The replicas differ, which the fingerprint finds by itself."""


class Net(nn.Module):
    """Two layers, of which the second need not be used."""

    def __init__(self, norm):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
        self.second = nn.Linear(4, 4)

    def forward(self, x, both=True):
        hidden = self.norm(self.first(x))
        return self.second(hidden) if both else hidden


def loss_of(model, batch):
    return model(batch["x"], batch["both"]).square().mean()


def sum_of(model, batch):
    return model(batch["x"], batch["both"]).square().sum()


# For each step the sizes of the batches of each rank; what else is done is in `steps`.
SCENARIOS = {
    "unequal batches": [[[2], [5], [3]], [[4], [1], [6]]],
    "accumulated": [[[2, 3], [4, 1]], [[1, 2], [2, 5]]],
    "sums": [[[2], [5]]],
    "unused": [[[2], [2]], [[3], [2]]],
    "statistics": [[[4], [3]]],
    "predivided": [[[2], [5]]],
    "dropped": [[[2], [5]], [[3], [4]]],
    "looked at": [[[2], [5]]],
    "zeros are kept": [[[2], [5]], [[4], [2]]],
}


def steps(comm, name):
    """The steps of a scenario on one rank."""
    manual_seed(11)
    sums, unused = name == "sums", name == "unused"
    loss_fn = sum_of if sums else loss_of
    net, options = Net(norm=name == "statistics"), {"reduce": "sum"} if sums else {}
    ddp = DDP(net, comm, find_unused_parameters=unused, bucket_cap_bytes=64, **options)
    if name == "predivided":
        ddp.register_comm_hook(CompressionState(), fp16_predivide_hook)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    twin = Twin(ddp, optimizer, loss_fn, ulps=2.0**14 if name == "predivided" else 8.0)
    for step, sizes in enumerate(SCENARIOS[name]):
        optimizer.zero_grad(set_to_none=name != "zeros are kept")
        own = sizes[comm.rank]
        if name == "dropped":  # a batch that comes to nothing
            with ddp.no_sync():
                loss_fn(ddp, {"x": randn(1 + 6 * comm.rank, 3), "both": True}).backward()
            optimizer.zero_grad()
        for k, n in enumerate(own):
            is_last = k == len(own) - 1
            batch = {"x": randn(n, 3), "both": not (unused and step == comm.rank == 1)}
            with contextlib.nullcontext() if is_last else ddp.no_sync():
                loss = loss_fn(ddp, batch)
                if name == "looked at":  # a forward without backward
                    loss_fn(ddp, {"x": randn(1 + 6 * comm.rank, 3), "both": True})
                loss.backward()
            if not is_last:
                twin.accumulate(batch)
        optimizer.step()
        if not replicas_agree(ddp.module, comm):
            raise Parted(f"step {step + 1}")
        twin.step(batch)


def check(name):
    """Make the steps of a scenario; TwinMismatchError where they are not what one process makes."""
    run(steps, len(SCENARIOS[name][0]), name, timeout_s=RANKS_S)


def on_any_world(comm):
    """Whatever carries the batches: a step that is right, and one whose loss is not the one that the twin is told."""
    ddp = DDP(Net(norm=True).to(comm.device), comm)
    optimizer = optim.Adam(ddp.parameters(), lr=0.1)
    twin = Twin(ddp, optimizer, loss_of, raises=False)
    for factor in (1.0, 5.0):
        optimizer.zero_grad()
        batch = {"x": randn(3 + comm.rank, 3).to(comm.device), "both": True}
        (factor * loss_of(ddp, batch)).backward()
        optimizer.step()
        report = twin.step(batch)
        assert report.agrees == (factor == 1.0), report
    assert report.first.name == "first.weight" and report.fault.startswith("times 5"), report
