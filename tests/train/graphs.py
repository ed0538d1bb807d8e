"""A small graph in float64, data for it, and the values that training gives it on one device."""

import numpy as np

import minigrad
from minigrad import FlowBuilder, nn, optim

OPTIMIZERS = {
    "sgd": lambda params: optim.SGD(params, lr=0.05),
    "momentum": lambda params: optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: optim.Adam(params, lr=0.02),
}
TOLERANCE = {"sgd": 1e-10, "momentum": 1e-10, "adam": 1e-8}


def make_graph(seed=0, device=None, dtype=minigrad.float64):
    """x (N, 3), mask (N, 4) -> (N, 2), with the tag "hidden"."""
    minigrad.manual_seed(seed)
    return (
        FlowBuilder("x")
        .input("mask")
        .through(nn.Linear(3, 4, dtype=dtype, device=device))
        .through(nn.Tanh())
        .through(Times())
        .using("mask")
        .tag("hidden")
        .through(nn.Linear(4, 2, dtype=dtype, device=device))
        .build()
    )


def make_nested():
    """x (N, 3) -> (N, 2), in float32, with the tag "hidden" in the sub-graph "encoder"."""
    minigrad.manual_seed(0)
    encoder = FlowBuilder.from_(nn.Linear(3, 4)).tag("hidden").through(nn.Tanh()).label("encoder").build()
    return FlowBuilder.from_(encoder).through(nn.Linear(4, 2)).build()


class Times(nn.Module):
    """x times a mask."""

    def forward(self, x, mask):
        return x * mask


def replica(device):
    """Another graph, whose values are other ones."""
    return make_graph(seed=99, device=device)


def graph_on(world_size, **options):
    """A graph on so many replicas, ready to train."""
    graph = make_graph()
    graph.distribute(replica, ["cpu"] * world_size, **options)
    graph.set_optimizer(OPTIMIZERS["sgd"])
    graph.set_loss_fn(loss_fn)
    return graph


def make_batch(samples, seed=0, device=None, dtype=np.float64):
    """(x, mask, target), targets in an order that tells rows apart."""
    rng = np.random.default_rng(seed)
    arrays = rng.standard_normal((samples, 3)), rng.integers(0, 2, (samples, 4)), rng.standard_normal((samples, 2))
    return tuple(minigrad.tensor(array.astype(dtype), device=device) for array in arrays)


def rows(batch, start, stop):
    """A part of a batch; None where it has no rows."""
    return tuple(x[start:stop] for x in batch) if stop > start else None


def cut(batch, sizes):
    """Consecutive parts of a batch."""
    edges = np.cumsum([0, *sizes]).tolist()
    return [rows(batch, start, stop) for start, stop in zip(edges, edges[1:])]


def loss_fn(model, batch):
    """The mean over samples of the summed squared error."""
    error = model.forward_batch(batch) - batch[2]
    return (error * error).sum() / len(error)


def values(graph):
    """A copy of every parameter."""
    return [param.data.copy() for param in graph.parameters()]


def trained_alone(batches, make_optimizer, max_norm=None):
    """Values after a step for each batch on one device."""
    graph = make_graph()
    optimizer = make_optimizer(list(graph.parameters()))
    for batch in batches:
        loss_fn(graph, batch).backward()
        if max_norm is not None:
            optim.clip_grad_norm_(graph.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    return values(graph)


def assert_trained(graph, expected, tolerance=1e-10):
    """Every replica holds the expected values, and all hold the same bits."""
    first, *others = [values(one) for one in graph.replicas]
    for mine, other in zip(first, expected):
        assert float(np.abs(mine - other).max()) <= tolerance * max(1.0, float(np.abs(other).max()))
    for other in others:
        assert all((mine == theirs).all() for mine, theirs in zip(first, other))
