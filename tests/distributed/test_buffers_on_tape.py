"""Buffers that a tape has saved, as factors say: what it saved stays what it was, whatever the ranks agree on since."""

import contextlib

import numpy as np
import pytest

import minigrad
from minigrad import nn, ops
from minigrad.distributed import DDP, Ddp, NcclDevices, Recording, SoloCommunicator, init, run
from minigrad.distributed import collectives as in_memory
from minigrad.distributed.ddp.buffers import BufferMemory, BufferPiece
from minigrad.errors import AutogradError
from tests.distributed.fake_nccl import FakeNccl
from tests.distributed.models import Counting
from tests.distributed.worlds import run_ranks
from tests.strict_cupy.device import current_id

LABELS = np.array([2, 0])
FORMS = {
    "mul": lambda m: m.w * m.mask,
    "a view": lambda m: m.w * m.mask[None],
    "a view of a view": lambda m: m.w.reshape(2, 3, 1) * m.mask[1:].reshape(1, 1, -1),
    "matmul": lambda m: m.w @ m.mask,
    "where": lambda m: ops.where(m.kept, m.w, 0.0),
    "masked_fill": lambda m: m.w.masked_fill(m.kept, 0.0),
    "index": lambda m: m.w[m.index],
    "two indexes": lambda m: m.w[m.index, m.index],
    "gather": lambda m: m.w.gather(1, m.index[:, None]),
    "index_select": lambda m: m.w.index_select(1, m.index),
    "embedding": lambda m: ops.embedding(m.w, m.index),
    "cross_entropy": lambda m: ops.cross_entropy(m.w, minigrad.Tensor(LABELS), m.mask, label_smoothing=0.2),
    "soft cross_entropy": lambda m: ops.cross_entropy(m.w, ops.softmax(m.w.detach(), 1), m.mask),
    "weights of logits": lambda m: ops.binary_cross_entropy_with_logits(
        m.w, ops.sigmoid(m.w.detach()), m.mask, pos_weight=m.mask + 1.0
    ),
}


class Factor(nn.Module):
    """A parameter (2, 3) and buffers that differ by rank."""

    def __init__(self, form="mul", rank=0):
        super().__init__()
        self.w = nn.Parameter(np.arange(6.0).reshape(2, 3) / 4)
        self.mask = nn.Buffer(np.array([1.0, 0.5, 2.0]) + rank)
        self.kept = nn.Buffer(np.array([True, False, bool(rank)]))
        self.index = nn.Buffer(np.array([1, rank]))
        self.form = FORMS[form]

    def forward(self, x):
        return self.form(self).square().sum() * x.sum()


def twice(model, x, how):
    """Two backwards before the next forward."""
    if how == "one graph":
        loss = model(x)
        loss.backward(retain_graph=True)
        loss.backward()
    else:
        first, second = model(x), model(x)
        first.backward()
        second.backward()


def in_a_wrapper(comm, form, how):
    """The gradient under DDP, the bare module's, and the buffers before and after."""
    model, bare = Factor(form, comm.rank), Factor(form, comm.rank)
    x = minigrad.Tensor(np.ones(comm.rank + 1))
    twice(DDP(model, comm, init_sync=False), x, how)
    twice(bare, x, how)
    agree = [np.array_equal(b.data, one.data) for b, one in zip(model.buffers(), Factor(form, 0).buffers())]
    return model.w.grad.numpy().copy(), bare.w.grad.numpy().copy(), agree


def check(ranks):
    weights = np.arange(1, len(ranks) + 1)
    expected = sum(n * bare for n, (_, bare, _) in zip(weights, ranks)) / weights.sum()
    for gradient, _, agree in ranks:
        np.testing.assert_allclose(gradient, expected, atol=1e-12)
        assert all(agree)


@pytest.mark.parametrize("how", ["one graph", "two graphs"])
@pytest.mark.parametrize("form", FORMS)
def test_two_backwards_before_the_next_forward(form, how):
    check(run(in_a_wrapper, 2, form, how, timeout_s=10.0))


@pytest.mark.parametrize("kind, ranks", [("solo", 1), ("shm", 2), ("nccl", 3)])
def test_on_every_transport(kind, ranks):
    check(run_ranks(kind, lambda comm: in_a_wrapper(comm, "a view", "one graph"), ranks))


def test_a_buffer_that_no_tape_holds_is_written_where_it_lives():
    """Beside one that is held, and whoever else sees its memory; the one that is held comes to rest again."""

    def body(comm):
        model = Factor(rank=comm.rank)
        seen = model.index.detach()  # before it is wrapped
        ddp = DDP(model, comm, init_sync=False)
        x, places = minigrad.Tensor(np.ones(2)), [model.kept.data, model.index.data]
        for step in range(3):
            model.index.add_(comm.rank)
            held = ddp(x)
            held.backward(retain_graph=True)
            assert model.kept.data is places[0] and model.index.data is places[1]
            assert seen.tolist() == model.index.tolist() == [1, 0]
        mask = model.mask.data
        del held
        model.mask.add_(1.0 + comm.rank)
        ddp(x).backward()
        return model.mask.data is mask, model.mask.tolist()

    assert run(body, 2, timeout_s=10.0) == [(True, [2.0, 1.5, 3.0])] * 2


def test_a_buffer_that_comes_home():
    """A held one leaves the array in which all travel, and comes back to it, held again, in the next pass."""

    def body(comm):
        model = Factor(rank=comm.rank)
        ddp, x = DDP(model, comm, init_sync=False), minigrad.Tensor(np.ones(1))
        for _ in range(4):
            model.mask.add_(1.0 + comm.rank)
            loss, saved = ddp(x), model.mask.data.copy()
            loss.backward(retain_graph=True)
            model.zero_grad()
            with ddp.no_sync():
                loss.backward()
            np.testing.assert_allclose(model.w.grad.data, 2 * model.w.data * saved**2)
            model.zero_grad()
        return model.mask.tolist()

    assert run(body, 2, timeout_s=10.0) == [[5.0, 4.5, 6.0]] * 2


def test_a_change_by_hand_is_still_noticed():
    """Before the pass in which ranks agree, and after it."""
    for after in (False, True):
        model = Factor()
        loss = DDP(model, SoloCommunicator())(minigrad.Tensor(np.ones(1)))
        view = model.mask.detach()
        if after:
            loss.backward(retain_graph=True)
        view.fill_(3.0)
        with pytest.raises(AutogradError, match="mul saved, got data changed in place since"):
            loss.backward()


def test_a_buffer_that_collects_a_gradient():
    model = Factor()
    model.mask.requires_grad_()
    twice(DDP(model, SoloCommunicator()), minigrad.Tensor(np.ones(1)), "one graph")
    np.testing.assert_allclose(model.w.grad.data, 4 * model.w.data * model.mask.data**2)
    np.testing.assert_allclose(model.mask.grad.data, (4 * model.w.data**2 * model.mask.data).sum(0))


def test_two_wrappers_that_share_a_buffer():
    def body(comm):
        first, second = Factor(rank=comm.rank), Factor("where", comm.rank)
        second.kept = first.kept
        second.mask = first.mask
        second.form = lambda m: FORMS["where"](m) * m.mask
        x = minigrad.Tensor(np.ones(2))
        wrapped = [DDP(model, comm) for model in (first, second)]
        y, z = (ddp(x) for ddp in wrapped)
        (y + z).backward(retain_graph=True)
        (y + z).backward()
        (wrapped[0](x) + wrapped[1](x)).backward()
        return first.w.grad.tolist(), second.w.grad.tolist()

    alone = [Factor(), Factor("where")]
    alone[1].form = lambda m: FORMS["where"](m) * m.mask
    for model in alone:
        (3.0 * model(minigrad.Tensor(np.ones(2)))).backward()
    expected = tuple(model.w.grad.tolist() for model in alone)
    assert run(body, 2, timeout_s=10.0) == [expected, expected]


def test_replicas_of_one_process():
    models = [Factor(rank=0), Factor(rank=1)]
    ddp = Ddp.wrap(models, ["cpu", "cpu"])
    losses = [model(minigrad.Tensor(np.ones(1))) for model in models]
    masks = [model.mask.data.copy() for model in models]
    ddp.sync_buffers(1)
    assert models[0].mask.tolist() == models[1].mask.tolist() == masks[1].tolist()
    for model, loss, mask in zip(models, losses, masks):
        loss.backward()
        np.testing.assert_allclose(model.w.grad.numpy(), 2 * model.w.data * mask**2)


def test_on_a_device(strict_cupy):
    devices = NcclDevices(["cuda:0", "cuda:1"], nccl=FakeNccl(current_device=current_id, timeout_s=5.0))
    with contextlib.closing(devices):
        replicas_on(devices)
    comm = init(device="cuda:1")
    model = Factor().to(comm.device)
    twice(DDP(model, comm), minigrad.ones(2, dtype="float64", device=comm.device), "one graph")
    np.testing.assert_allclose(model.w.grad.cpu().numpy(), 8 * Factor().w.data * Factor().mask.data ** 2)


def replicas_on(devices):
    models = [Factor("a view", rank).to(device) for rank, device in enumerate(devices.devices)]
    ddp = Ddp.wrap(models, devices.devices, collectives=devices)
    losses = []
    for model in models:
        with model.w.device.current() as xp:
            losses.append(model(minigrad.Tensor(xp.ones(1))))
    ddp.sync_buffers()
    for rank, (model, loss) in enumerate(zip(models, losses)):
        loss.backward()
        assert model.mask.tolist() == [1.0, 0.5, 2.0]
        np.testing.assert_allclose(model.w.grad.cpu().numpy(), 2 * Factor().w.data * Factor("mul", rank).mask.data ** 2)


# ------------------------------------------------------------------------------------------------ one collective


def batch_norms(count):
    return nn.Sequential(*(nn.BatchNorm1d(3) for _ in range(count)))


@pytest.mark.parametrize(
    "policy, calls",
    [
        ("broadcast", [("broadcast", "float32"), ("broadcast", "int64")]),
        ("mean", [("all_reduce", "float32"), ("broadcast", "int64")]),
        ("none", []),
    ],
)
def test_buffers_of_one_dtype_travel_together(policy, calls):
    model, recording = batch_norms(20), Recording(SoloCommunicator())
    ddp = DDP(model, recording, broadcast_buffers=policy)
    for _ in range(2):
        recording.calls.clear()
        ddp(minigrad.randn(4, 3)).square().sum().backward()
        found = [(call.kind, call.dtype) for call in recording.calls if call.dtype != "float64"]
        assert found == [("all_reduce", "float32"), *calls]  # the first is the bucket


def test_one_collective_for_float32_alone():
    model, recording = Factor(), Recording(SoloCommunicator())
    del model.kept, model.index
    ddp = DDP(model.float(), recording)
    recording.calls.clear()
    ddp(minigrad.ones(2)).backward()
    assert [call.kind for call in recording.calls] == ["all_reduce", "all_reduce", "broadcast"]  # samples, bucket


def test_those_of_replicas_too():
    counting = Counting()
    ddp = Ddp.wrap([batch_norms(20), batch_norms(20)], ["cpu", "cpu"], collectives=counting)
    ddp.sync_buffers()
    assert [arrays[0].dtype.name for arrays in counting.broadcasts] == ["float32", "int64"]


def test_it_is_noticed_where_each_buffer_travels_alone(monkeypatch):
    def pieces(self):
        return [BufferPiece([buffer]) for buffer in self._inventory.buffers()]

    monkeypatch.setattr(BufferMemory, "pieces", pieces)
    calls = [("broadcast", "float32"), ("broadcast", "int64")]
    for notices in (
        lambda: test_buffers_of_one_dtype_travel_together("broadcast", calls),
        test_those_of_replicas_too,
    ):
        with pytest.raises(AssertionError):
            notices()


def test_buffers_of_another_dtype_or_shape_since_the_last_pass():
    """None of their digits or elements is lost, as they would be in the memory that was made for the others."""

    def body(comm):
        model = nn.Sequential(nn.Linear(2, 1), nn.Module())
        model[1].mask = nn.Buffer(minigrad.ones(3))
        model.forward = lambda x: model[0](x).sum()
        ddp = DDP(model, comm)
        ddp(minigrad.ones(1, 2)).backward()
        seen = []
        for change in (model[1].double, lambda: setattr(model[1].mask, "data", np.zeros((1, 2)))):
            change()
            model[1].mask.fill_((comm.rank + 1) / 3)
            ddp(minigrad.ones(1, 2)).backward()
            seen.append(model[1].mask.tolist())
        return seen

    assert run(body, 2, timeout_s=10.0) == [[[1 / 3] * 3, [[1 / 3] * 2]]] * 2


def test_buffers_that_cannot_be_written_where_they_live():
    """Read-only ones, and those whose elements share a place, get memory of their own."""

    def body(comm):
        model = Factor()
        values = np.frombuffer(np.array([1.0 + comm.rank, 2.0, 3.0]).tobytes())
        model.mask, model.more = nn.Buffer(values), nn.Buffer((minigrad.ones(1) + comm.rank).expand(3))
        DDP(model, comm, init_sync=False)(minigrad.Tensor(np.ones(1))).backward()
        return model.mask.tolist(), model.more.tolist()

    assert run(body, 2, timeout_s=10.0) == [([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])] * 2


def statistics(comm, policy):
    """The running statistics of four batch norms after a pass on batches that differ by rank."""
    model = batch_norms(4)
    ddp = DDP(model, comm, broadcast_buffers=policy)
    ddp(minigrad.Tensor(np.random.default_rng(comm.rank).standard_normal((5, 3)).astype("f"))).sum().backward()
    return {name: b.data.copy() for name, b in model.named_buffers()}


def test_batch_norms_keep_their_bits():
    """Those of combining each buffer by itself."""
    own, mean, first = (run(statistics, 3, policy, timeout_s=10.0) for policy in ("none", "mean", "broadcast"))
    for name in own[0]:
        each = [rank[name].copy() for rank in own]
        assert all(rank[name].tobytes() == each[0].tobytes() for rank in first)
        if each[0].dtype.kind == "f":
            in_memory.all_reduce(each, in_memory.ReduceOp.AVG)
        assert all(rank[name].tobytes() == each[0].tobytes() for rank in mean)
