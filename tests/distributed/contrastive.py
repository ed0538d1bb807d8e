"""Losses that compare each sample with all samples, on gathered embeddings: on one device, and on ranks."""

import numpy as np

import minigrad
from minigrad import cat, nn
from minigrad.distributed import DDP, SoloCommunicator
from minigrad.distributed.nn import all_gather

TEMPERATURE = 0.3
UNEVEN = {1: [7], 2: [3, 5], 3: [4, 0, 7], 4: [1, 0, 6, 2]}


class Encoder(nn.Module):
    """Embeds two views of each sample."""

    def __init__(self):
        super().__init__()
        minigrad.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(4, 6, dtype="float64"), nn.Tanh(), nn.Linear(6, 3, dtype="float64"))

    def forward(self, views):
        """(N, 2, 4) -> (N, 2, 3), of length 1."""
        z = self.body(views)
        return z / (z * z).sum(dim=-1, keepdim=True).sqrt()


def views(count, seed=0):
    """Of so many samples."""
    return np.random.default_rng([seed, count]).standard_normal((count, 2, 4))


def info_nce(query, keys, first):
    """Row i of the queries is to find key first + i among all keys: the mean over the queries."""
    labels = minigrad.Tensor(np.arange(first, first + len(query))).to(query.device)
    return nn.functional.cross_entropy(query @ keys.T / TEMPERATURE, labels)


def nt_xent(z, everything, first):
    """SimCLR's: each view is to find the other one of its sample among all views but itself; 2N rows of N samples."""
    rows, total = 2 * len(z), 2 * len(everything)
    own = 2 * first + np.arange(rows)
    logits = z.reshape(rows, 3) @ everything.reshape(total, 3).T / TEMPERATURE
    logits = logits.masked_fill(minigrad.Tensor(own[:, None] == np.arange(total)).to(z.device), -1e30)
    return nn.functional.cross_entropy(logits, minigrad.Tensor(own ^ 1).to(z.device))


def own_rows(z, parts, rank):
    """The mean over this rank's own rows."""
    first, everything = sum(len(part) for part in parts[:rank]), cat(parts)
    return info_nce(z[:, 0], everything[:, 1], first) + 2 * nt_xent(z, everything, first)


def global_mean(z, parts, rank):
    """The mean over all rows, on each rank the same."""
    everything = cat(parts)
    return info_nce(everything[:, 0], everything[:, 1], 0) + 2 * nt_xent(everything, everything, 0)


def gradients(model):
    """By name."""
    return {name: param.grad.data.copy() for name, param in model.named_parameters()}


def on_one_device(batch):
    """The gradients of a batch."""
    model = DDP(Encoder(), SoloCommunicator())
    z = model(minigrad.Tensor(batch))
    own_rows(z, [z], 0).backward()
    return gradients(model.module)


def assert_same(found, expected):
    """To 1e-12."""
    for name, right in expected.items():
        np.testing.assert_allclose(found[name], right, rtol=0, atol=1e-12 * max(1.0, float(np.abs(right).max())))


def equals_one_device(comm):
    """A loss on gathered embeddings, as a mean over own rows and as the global mean, of even and uneven parts."""
    for counts in ([3] * comm.world_size, UNEVEN[comm.world_size]):
        batch, stop = views(sum(counts)), sum(counts[: comm.rank + 1])
        expected = on_one_device(batch)
        for loss in (own_rows, global_mean):
            model = DDP(Encoder(), comm, bucket_cap_bytes=64)
            z = model(minigrad.Tensor(batch[stop - counts[comm.rank] : stop]))
            loss(z, all_gather(z, comm), comm.rank).backward()
            assert_same(gradients(model.unwrap()), expected)
