"""A tensor that `p.grad` gave: what is added shows in it, and once the gradient was dropped it keeps its numbers."""

import weakref

import numpy as np
import pytest

import minigrad
from minigrad import kept, nn, ops, optim
from minigrad.distributed import DDP, Ddp, SoloCommunicator, average_gradients
from minigrad.errors import AutogradError
from minigrad.nn.flat import flatten
from tests.distributed.worlds import run_ranks

KEPT = {
    "itself": lambda g: g,
    "detached": lambda g: g.detach(),
    "a part": lambda g: g[1],
    "every other": lambda g: g[:, ::2],
    "reshaped": lambda g: g.reshape(-1)[1:5],
    "transposed": lambda g: g.T[1:].detach(),
    "expanded": lambda g: g[:, :1].expand(2, 4),
    "nothing": lambda g: g[:0],
    "a buffer": nn.Buffer,
    "a parameter": nn.Parameter,
}
DROPS = {
    "module": lambda m, o: m.zero_grad(),
    "optimizer": lambda m, o: o.zero_grad(),
    "None": lambda m, o: [setattr(p, "grad", None) for p in m.parameters()],
}


class Net(nn.Module):
    """Each parameter gets its gradient in another way: into its place, added, at an index, by a copy."""

    def __init__(self):
        super().__init__()
        self.product = nn.Parameter(np.arange(6.0).reshape(2, 3))
        self.sum = nn.Parameter(np.arange(6.0).reshape(2, 3) + 1.0)
        self.rows = nn.Parameter(np.arange(6.0).reshape(2, 3) + 2.0)

    def forward(self, x):
        rows = ops.embedding(self.rows, minigrad.Tensor(np.array([0, 1, 0])).to(x.device))
        return (x @ self.product + self.sum.sum(0) * x.sum() + rows.square().sum()).sum()


def batch(factor):
    return minigrad.Tensor(np.arange(1.0, 9.0).reshape(4, 2) * factor)


def kept_of(module, how=KEPT["itself"]):
    """For each parameter that has a gradient what was kept of it, and a copy of that."""
    kept = [how(p.grad) for p in module.parameters() if p.grad is not None]
    return [(one, one.data.copy()) for one in kept]


def assert_kept(pairs):
    assert pairs
    for one, copy in pairs:
        np.testing.assert_array_equal(one.data, copy)


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("how", KEPT)
def test_what_is_kept_of_a_dropped_gradient_keeps_its_numbers(how, drop):
    net = Net()
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    net(batch(1.0)).backward()
    pairs = kept_of(net, KEPT[how])
    for factor in (2.0, 3.0):
        DROPS[drop](net, optimizer)
        net(batch(factor)).backward()
        assert_kept(pairs)
        optim.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        pairs += kept_of(net, KEPT[how])
    net.product.grad = minigrad.zeros(2, 3, dtype="float64")
    assert_kept(pairs)


def test_what_was_kept_is_one_memory_still():
    net = Net()
    flatten(net.parameters())
    net(batch(1.0)).backward()
    whole = net.product.grad
    part, again = whole[0], net.product.grad
    net.zero_grad()
    net(batch(2.0)).backward()
    part.fill_(7.0)
    assert whole[0].tolist() == again[0].tolist() == [7.0] * 3 and net.product.grad[0].tolist() != [7.0] * 3


@pytest.mark.parametrize("flat", ["before", "later", "wrapped", "never"])
def test_what_is_added_and_zeros_show_in_it(flat):
    """Also where the gradient moves into a flat layout, or to where ranks reduce it, in between."""
    net = Net()
    if flat == "before":
        flatten(net.parameters())
    net(batch(1.0)).backward()
    kept = [(p, p.grad, p.grad[0]) for p in net.parameters()]
    if flat == "later":
        flatten(net.parameters())
    model = DDP(net, SoloCommunicator()) if flat == "wrapped" else net
    for change in (lambda: model(batch(2.0)).backward(), lambda: net.zero_grad(set_to_none=False)):
        change()
        for param, grad, row in kept:
            np.testing.assert_array_equal(grad.data, param.grad.data)
            np.testing.assert_array_equal(row.data, param.grad.data[0])


def test_nothing_is_copied_where_nobody_kept_anything(monkeypatch):
    net = Net()
    flatten(net.parameters())
    for factor in (1.0, 2.0):
        net(batch(factor)).backward()
        assert all(p.grad.detach()[0].norm() > 0 for p in net.parameters())
        net.zero_grad()
        monkeypatch.setattr(kept, "_move_viewers", None)


def test_a_dropped_gradient_without_layout_is_freed():
    """Also where somebody had looked at it."""
    layer = nn.Linear(2, 1)
    for drop in (layer.zero_grad, lambda: setattr(layer.weight, "grad", None)):
        layer(minigrad.ones(3, 2)).sum().backward()
        memory = weakref.ref(layer.weight.grad.data)
        drop()
        assert memory() is None


def test_a_graph_that_saved_a_gradient():
    """It goes back by the numbers that it saw, or says that they are gone."""
    net = Net()
    flatten(net.parameters())
    for spoil in (None, lambda: net(batch(2.0)).backward(), lambda: net.zero_grad(set_to_none=False)):
        net.zero_grad()
        net(batch(1.0)).backward()
        x, expected = minigrad.ones(2, 3, dtype="float64", requires_grad=True), net.product.grad.data.copy()
        loss = (x * net.product.grad).sum()
        if spoil is None:
            net.zero_grad()
            net(batch(2.0)).backward()
            loss.backward()
            np.testing.assert_array_equal(x.grad.data, expected)
        else:
            spoil()
            with pytest.raises(AutogradError, match="mul saved, got data changed in place since"):
                loss.backward()


def test_the_gradient_of_a_tensor_that_is_no_parameter():
    for spoil in (lambda w: (w * w).sum().backward(), lambda w: w.grad.mul_(3.0)):
        w, x = (minigrad.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        (w * w).sum().backward()
        loss = (x * w.grad).sum()
        spoil(w)
        with pytest.raises(AutogradError, match="mul saved, got data changed in place since"):
            loss.backward()
    (x * 1.0 + (w + w)).backward(w.grad)
    assert w.grad.tolist() == [18.0, 36.0] and x.grad.tolist() == [6.0, 12.0]


def test_a_gradient_in_another_order_than_its_place():
    """The columns lie together in what the backward computes, and the rows do in a flat layout."""
    w, c = nn.Parameter(np.zeros((2, 3))), minigrad.Tensor(np.arange(6.0).reshape(3, 2))
    ((w * c.T).T * minigrad.ones(3, 2, dtype="float64")).sum().backward()
    row, column = w.grad[0], w.grad[:, 1]
    flatten([w])
    assert row.tolist() == [0.0, 2.0, 4.0] and column.tolist() == [2.0, 3.0]


def test_a_gradient_as_the_start_of_a_backward():
    """Its memory is that of the next gradient, which the backward writes before it has read all of the start."""
    a, b = nn.Parameter(np.ones(3)), nn.Parameter(np.ones(3))
    flatten([a, b])
    for drop in (False, True):
        a.grad = b.grad = None
        a.grad = minigrad.tensor([1.0, 2.0, 3.0], dtype="float64")
        start = a.grad
        if drop:
            a.grad = None
        (b * 1.0 + (a + a)).backward(start)
        assert b.grad.tolist() == [1.0, 2.0, 3.0]
        assert a.grad.tolist() == ([2.0, 4.0, 6.0] if drop else [3.0, 6.0, 9.0])


# ------------------------------------------------------------------------------------------------ data parallelism


class Half(Net):
    """Which parameters a pass reaches is said by the number of columns of the batch."""

    def forward(self, x):
        return super().forward(x) if x.shape[1] == 2 else self.sum.sum() * x.sum()


def under_ddp(comm):
    net = Half()
    ddp = DDP(net, comm, find_unused_parameters=True, bucket_cap_bytes=64)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    ddp(batch(1.0 + comm.rank)).backward()
    combined = kept_of(net) + kept_of(net, KEPT["reshaped"])
    with ddp.no_sync():
        optimizer.zero_grad()
        ddp(batch(3.0)).backward()
        assert_kept(combined)
        local = kept_of(net)
        net.zero_grad()
        ddp(minigrad.ones(1, 1, dtype="float64")).backward()
    ddp(minigrad.ones(1, 1, dtype="float64")).backward()  # the others' places are filled with zeros
    assert_kept(combined + local)
    combined += kept_of(net)
    net.zero_grad()
    ddp.flush()
    assert_kept(combined)
    combined += kept_of(net)
    net.zero_grad()
    ddp.backward_shards(lambda x: ddp(x), [batch(1.0), batch(2.0)] if comm.rank == 0 else [batch(3.0)] * 2)
    assert_kept(combined)
    return True


def averaged(comm):
    net = Net()
    net(batch(1.0)).backward()
    average_gradients(net.parameters(), comm, 1)
    pairs = kept_of(net)
    net.zero_grad()
    if comm.rank == 0:
        net(batch(2.0)).backward()
    average_gradients(net.parameters(), comm, 1 - comm.rank)
    assert_kept(pairs)
    return True


def test_averaged_by_hand():
    """Also on the rank that has none, whose place is filled with zeros."""
    assert run_ranks("threads", averaged, 2) == [True, True]


@pytest.mark.parametrize("kind, ranks", [("solo", 1), ("threads", 2), ("shm", 2), ("nccl", 2)])
def test_under_a_wrapper(kind, ranks):
    assert run_ranks(kind, under_ddp, ranks) == [True] * ranks


def test_hooks_that_keep_the_gradient_of_a_shard():
    net, pairs = Net(), []
    ddp = DDP(net, SoloCommunicator())
    net.product.register_post_accumulate_grad_hook(lambda p: pairs.append((p.grad, p.grad.data.copy())))
    ddp.backward_shards(lambda x: ddp(x), [batch(1.0), batch(2.0), batch(3.0), batch(4.0)])
    assert len(pairs) == 4
    assert_kept(pairs)


def test_replicas_of_one_process():
    models = [Half(), Half()]
    ddp = Ddp.wrap(models, ["cpu", "cpu"])
    for model in models:
        model(batch(1.0)).backward()
    ddp.all_reduce_gradients()
    pairs = kept_of(models[0]) + kept_of(models[1])
    for model in models:
        model.zero_grad()
    models[0](batch(2.0)).backward()
    ddp.weighted_all_reduce_gradients([1, 0])  # the second has none
    assert_kept(pairs)


def test_on_a_device(strict_cupy):
    device = minigrad.Device("cuda:1")
    net = Net().to(device)
    ddp = DDP(net, SoloCommunicator(device))

    ddp(batch(1.0).to(device)).backward()
    kept = [KEPT[how](p.grad) for p in net.parameters() for how in ("itself", "a part", "transposed")]
    copies = [one.cpu().data.copy() for one in kept]
    net.zero_grad()
    ddp(batch(2.0).to(device)).backward()
    for one, copy in zip(kept, copies):
        assert one.device == device
        np.testing.assert_array_equal(one.cpu().data, copy)
