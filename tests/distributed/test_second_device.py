"""Ranks and threads on a GPU that is not the first one, on the stand-ins: nobody here enters a device for them."""

import contextvars
import re
import sys
import threading

import numpy as np
import pytest

import minigrad
from minigrad import Device, Tensor, distributed, nn, optim
from minigrad.autograd import tape
from minigrad.autograd.tape import run_backward
from minigrad.backend import device
from minigrad.backend import thread as threads_module
from minigrad.backend.device import to_device
from minigrad.backend.thread import new_thread
from minigrad.data import DataLoader
from minigrad.data.dataset import Dataset
from minigrad.distributed import (
    DDP,
    CompressionState,
    DivergenceMeter,
    NoiseMeter,
    SoloCommunicator,
    ThreadWorld,
    Twin,
    average_gradients,
    bf16_compress_hook,
    divergence_hook,
    init,
    noise_hook,
    run,
)
from minigrad.distributed.comm.nccl import communicator
from minigrad.distributed.comm.rendezvous import free_port
from minigrad.distributed.run import run_world
from minigrad.errors import DeviceError, DistributedError
from minigrad.testing import RingAllReduce
from tests.cases import CASES
from tests.cases.evaluate import evaluate
from tests.distributed import contrastive, resumed
from tests.distributed.fake_nccl import FakeNccl
from tests.distributed.models import Mlp, assert_gradients_close, data, gradients, mean_loss
from tests.distributed.test_apart import by_definition
from tests.distributed.test_noise import Rows, by_formula, drawn
from tests.examples.test_readme import ROOT
from tests.strict_cupy.device import current_id

FIRST, SECOND = Device("cuda:0"), Device("cuda:1")


@pytest.fixture
def ranks(strict_cupy, monkeypatch):
    """ranks(fn): what fn(comm) returns on two ranks, each a thread that knows of its GPU from `init` alone."""
    fake = FakeNccl(current_device=current_id, timeout_s=10.0)
    monkeypatch.setattr(communicator, "load_nccl", lambda: fake)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which each rank replaces
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "MINIGRAD_AUTHKEY": "k"}
    for name, value in {**names, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    found, errors = {}, []

    def body(rank, fn):
        try:
            comm = init(backend="nccl", rank=rank, world_size=2, device=f"cuda:{rank}", timeout_s=10.0)
        except BaseException as error:
            errors.append(error)
            return
        try:
            found[rank] = fn(comm)
        except BaseException as error:
            errors.append(error)
            comm.abort(str(error))
        finally:
            comm.close()

    def start(fn):
        errors.clear()
        contexts = [contextvars.copy_context() for _ in range(2)]
        threads = [threading.Thread(target=one.run, args=(body, rank, fn)) for rank, one in enumerate(contexts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [found[0], found[1]]

    yield start
    fake.check_all_given_back()


def test_the_loops_of_the_readme_train_on_two_gpus(ranks):
    names = {"__name__": "__main__"}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for block in [block for block in blocks if "\ndef train" in "\n" + block][:2]:
        exec(compile(block, "README.md", "exec"), names)
    (loss, state), (_, other) = ranks(names["train"])
    on_host = run(names["train"], 2)
    assert abs(loss - on_host[0][0]) < 1e-4
    for name, value in state.items():
        assert (str(value.device), str(other[name].device)) == ("cuda:0", "cuda:1")
        assert np.array_equal(value.cpu().numpy(), other[name].cpu().numpy())
        np.testing.assert_allclose(value.cpu().numpy(), on_host[0][1][name].numpy(), atol=1e-4)
    (half, scale), (other, _) = ranks(names["train_in_half"])
    assert np.isfinite([half, other]).all() and scale > 0


def test_a_collective_takes_a_tensor_of_its_device_alone(strict_cupy):
    x, comm = minigrad.ones(2), SoloCommunicator(SECOND)
    for other, place in ((x, "cpu"), (x.to(FIRST), "cuda:0")):
        with pytest.raises(DeviceError, match=f"all_reduce: expected a tensor on cuda:1, got one on {place}"):
            comm.all_reduce(other)
    comm.all_reduce(x.to(SECOND)).wait()


def given_to_ranks(comm):
    """By PyTorch's names, what each rank gets for itself stays on its device."""
    rank, x = comm.rank, minigrad.full((2, 1), comm.rank + 1.0, device=comm.device)
    rows = [minigrad.zeros_like(x) for _ in range(2)] if rank == 1 else None
    distributed.gather(x, rows, dst=1)
    distributed.scatter(x, rows, src=1)
    distributed.reduce(x, 1)
    turned, out = minigrad.zeros(2, 1, device=comm.device), minigrad.zeros(2 * (rank + 1), 1, device=comm.device)
    distributed.all_to_all_single(turned, x)
    distributed.all_to_all_single(out, minigrad.cat([x, turned])[:3].clone(), [rank + 1] * 2, [1, 2])
    assert x.tolist() == [[3.0 if rank else 1.0]] * 2 and turned.tolist() == [[1.0], [3.0]]
    assert out.tolist() == ([[1.0], [3.0]] if rank == 0 else [[1.0], [1.0], [3.0], [1.0]])
    assert {str(tensor.device) for tensor in (x, turned, out, *(rows or ()))} == {f"cuda:{rank}"}


def sent_by_ranks(comm):
    """Tensors go from one device to the other, in a ring too; what a rank has of another device is refused."""
    rank, other = comm.rank, 1 - comm.rank
    x, y = minigrad.full((2, 3), rank + 1.0, device=comm.device), minigrad.zeros(6, device=comm.device)
    work = distributed.isend(x, other)
    x2 = minigrad.full((5,), rank + 5.0, device=comm.device)
    second = comm.send(x2, other, tag=1)
    assert distributed.recv(y, other) == other
    late = comm.empty(5, x2.data.dtype)
    comm.recv(late, other, tag=1).wait()
    for each in (work, second):
        each.wait(host=True)
    assert y.tolist() == [other + 1.0] * 6 and Tensor(late).tolist() == [other + 5.0] * 5
    total = minigrad.full((5,), rank + 1.0, device=comm.device)
    RingAllReduce(comm).all_reduce(total).wait()
    assert total.tolist() == [3.0] * 5 and {str(z.device) for z in (y, total)} == {f"cuda:{rank}"}
    with pytest.raises(DeviceError, match=f"rank {rank}: send: expected a tensor on cuda:{rank}, got one on cpu"):
        comm.send(minigrad.ones(2), other)
    comm.barrier()


def test_messages_between_two_devices(ranks):
    """Over NCCL, and between threads."""
    ranks(sent_by_ranks)
    run_world(sent_by_ranks, world := ThreadWorld(2, timeout_s=10.0), world.communicators([FIRST, SECOND]))


def test_collectives_by_name_and_gradients_of_gathered_rows(ranks):
    """Of uneven parts, on the ranks' own devices."""
    counts = contrastive.UNEVEN[2]
    expected = contrastive.on_one_device(contrastive.views(sum(counts)))

    def body(comm):
        x = minigrad.full((2,), comm.rank, dtype="float32", device=comm.device)
        parts, whole = [minigrad.zeros_like(x) for _ in range(2)], minigrad.cat([x, x])
        distributed.all_gather(parts, x)
        distributed.reduce_scatter_tensor(x, whole)
        distributed.barrier(device_ids=[comm.rank])
        given_to_ranks(comm)
        batch = contrastive.views(sum(counts))[slice(*((0, 3), (3, None))[comm.rank])]
        model = contrastive.Encoder().to(comm.device)
        ddp = DDP(model, device_ids=[comm.rank], bucket_cap_bytes=64)
        z = ddp(minigrad.Tensor(batch).to(comm.device))
        contrastive.own_rows(z, distributed.nn.all_gather(z), comm.rank).backward()
        contrastive.assert_same({n: p.grad.cpu().numpy() for n, p in model.named_parameters()}, expected)
        return distributed.get_backend(), [part.tolist() for part in parts], x.tolist(), str(parts[0].device)

    assert ranks(body) == [("nccl", [[0.0] * 2, [1.0] * 2], [1.0] * 2, f"cuda:{rank}") for rank in range(2)]


def test_a_run_on_two_gpus_is_killed_and_resumed(ranks, tmp_path):
    """And ends in the bits of one that never stopped; see tests/distributed/test_saved_run.py."""

    def stop(rank):
        raise resumed.Killed

    expected = ranks(lambda comm: resumed.train(comm, tmp_path / "whole"))
    with pytest.raises(resumed.Killed):
        ranks(lambda comm: resumed.train(comm, tmp_path / "run", 3, stop))
    found = ranks(lambda comm: resumed.train(comm, tmp_path / "run", resumes=True))
    for mine, whole in zip(found, expected):
        assert mine[1] == whole[1][3:] and (mine[0], *mine[2:]) == (whole[0], *whole[2:])


def test_a_net_catches_a_thread_on_another_gpu(strict_cupy):
    """Forward and backward of a wrapper whose model is on cuda:1, in a thread that is on cuda:0, and stays there."""
    inputs, targets = data(8, 0)

    class WithLoss(Mlp):
        def forward(self, x, y):
            error = super().forward(x) - y
            return (error * error).sum() / len(x)

    model, one = WithLoss(0).to(SECOND), Mlp(0)
    ddp = DDP(model, SoloCommunicator(SECOND))
    x, y = (minigrad.Tensor(array).to(SECOND) for array in (inputs, targets))
    with minigrad.no_grad():
        assert str(ddp(x, y).device) == "cuda:1"
    ddp(x, y).backward()
    mean_loss(one(minigrad.Tensor(inputs)), targets).backward()
    assert_gradients_close({name: p.grad.cpu().numpy() for name, p in model.named_parameters()}, gradients(one))
    assert current_id() == 0


class Classifier(nn.Module):
    """Its output is its loss, so that nothing is computed outside of the wrapper."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    def forward(self, x, labels):
        return nn.functional.cross_entropy(self.layers(x), labels)


def in_steps(ddp, *batch):
    optimizer, scaler = optim.AdamW(ddp.parameters(), lr=0.1), optim.GradScaler()
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(ddp(*batch)).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert ddp.nonfinite_gradients() == []
    ddp.load_state_dict(ddp.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())


def in_flushes(ddp, *batch):
    with ddp.no_sync():
        ddp(*batch).backward()
    ddp.flush()
    ddp.broadcast_parameters()


def in_join(ddp, *batch):
    optimizer = optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    with ddp.join(also=[optimizer]):
        ddp(*batch).backward()
        optimizer.step()


def in_shards(ddp, *batch):
    ddp.backward_shards(ddp, [batch, batch])


def by_hand(ddp, *batch):
    ddp(*batch).backward()
    next(ddp.parameters()).grad = None  # its place beside the others is zeroed
    average_gradients(ddp.unwrap().parameters(), ddp.comm, 5)


def with_a_hook(ddp, *batch):
    ddp.register_comm_hook(CompressionState(), bf16_compress_hook)
    ddp(*batch).backward(minigrad.ones((), device=SECOND))


@pytest.mark.parametrize("train", [in_steps, in_flushes, in_join, in_shards, by_hand, with_a_hook])
def test_all_of_a_wrapper_works_in_a_thread_on_another_gpu(train, strict_cupy):
    ddp = DDP(Classifier().to(SECOND), SoloCommunicator(SECOND), bucket_cap_bytes=64, track_nonfinite=True)
    train(ddp, minigrad.randn(5, 4, device=SECOND), minigrad.tensor([0, 1, 2, 0, 1], device=SECOND))
    assert current_id() == 0


def test_noise_is_measured_on_two_gpus_that_wait_for_nothing(ranks, strict_cupy):
    batches, both = drawn((3, 1), 2), threading.Barrier(2, timeout=10.0)

    def body(comm):
        ddp, meter = DDP(Rows().to(comm.device), comm, bucket_cap_bytes=16), NoiseMeter()
        ddp.register_comm_hook(meter, noise_hook)
        inputs = [Tensor(parts[comm.rank]).to(comm.device) for parts in batches]
        both.wait()
        with strict_cupy.no_sync():  # for the threads of both
            for x in inputs:
                ddp(x).backward()
                ddp.zero_grad()
            both.wait()
        both.wait()
        return meter.estimate()

    for one in ranks(body):
        assert (one.variance, one.square) == pytest.approx(by_formula(batches), rel=1e-12) and one.steps == 2


def test_the_twin_of_two_gpus(ranks):
    def body(comm):
        ddp = DDP(Norm().to(comm.device), comm)
        optimizer = optim.Adam(ddp.parameters(), lr=0.1)
        twin, reports = Twin(ddp, optimizer, lambda module, x: module(x).square().mean(), raises=False), []
        for factor in (1.0, 3.0):
            optimizer.zero_grad()
            x = minigrad.randn(3 + comm.rank, 3).to(comm.device)
            (factor * ddp(x).square().mean()).backward()
            optimizer.step()
            reports.append(twin.step(x))
        return reports

    for right, wrong in ranks(body):
        assert right.agrees and not right.notes, right
        assert wrong.first.name == "fc.weight" and wrong.fault.startswith("times 3"), wrong


class Norm(nn.Module):
    """Statistics and noise of each rank's own."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(self.norm(self.fc(x)).tanh())


def test_divergence_is_measured_on_two_gpus_that_wait_for_nothing(ranks, strict_cupy):
    batches, both = drawn((3, 1), 1), threading.Barrier(2, timeout=10.0)

    def body(comm):
        ddp, meter = DDP(Rows().to(comm.device), comm, bucket_cap_bytes=16), DivergenceMeter()
        ddp.register_comm_hook(meter, divergence_hook)
        x = Tensor(batches[0][comm.rank]).to(comm.device)
        both.wait()
        with strict_cupy.no_sync():  # for the threads of both
            ddp(x).backward()
            both.wait()
        both.wait()
        return meter.report()

    for report in ranks(body):
        assert report.relative == pytest.approx(by_definition(batches[0])[0])


@pytest.mark.parametrize("end", ["cpu", "cuda:0", "cuda:1"])
def test_a_backward_through_two_gpus_enters_each(end, cuda):
    """In forward a thread enters a device by itself; on which one a gradient is computed it can't say."""
    host, there = (minigrad.arange(1.0, 4.0) for _ in range(2))
    host.requires_grad_(), there.requires_grad_()

    def loss(x, second, first, last):
        y = x.to(second) * x.to(second)
        return (y.to(last).sum() + x.to(first).to(second).sum().to(last)).to(last)

    loss(host, "cpu", "cpu", "cpu").backward()
    loss(there, "cuda:1", "cuda:0", "cuda:1").to(end).backward()
    assert there.grad.tolist() == host.grad.tolist() == [3.0, 5.0, 7.0]
    assert current_id() == 1


def test_a_leaf_of_another_gpu_collects_from_both(cuda):
    leaf = minigrad.ones(3, device="cuda:1").requires_grad_()
    for _ in range(2):
        (leaf * 2.0 + leaf.to("cuda:0").to("cuda:1")).sum().to("cuda:0").backward()
    assert leaf.grad.tolist() == [6.0] * 3 and str(leaf.grad.device) == "cuda:1"


def test_a_step_makes_no_device_from_text_and_counts_none(ranks, strict_cupy, monkeypatch):
    asked = []

    def train(comm):
        layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8))]
        ddp = DDP(nn.Sequential(*layers, nn.Linear(8, 3)).to(comm.device), comm, bucket_cap_bytes=512)
        optimizer = optim.Adam(ddp.parameters(), lr=0.01)
        x, labels = minigrad.randn(5, 8, device=comm.device), minigrad.tensor([0, 1, 2, 0, 1], device=comm.device)
        for step in range(4):
            comm.barrier()
            if step == 2 and comm.rank == 0:
                monkeypatch.setattr(device, "_SPEC", Noting(device._SPEC))
                monkeypatch.setattr(strict_cupy.cuda.runtime, "getDeviceCount", lambda: asked.append("count"))
            comm.barrier()
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(x), labels).backward()
            optim.clip_grad_norm_(ddp.parameters(), 0.1)
            optimizer.step()
            comm.barrier()
        if comm.rank == 0:
            Device("cuda:1")
        comm.barrier()

    class Noting:
        def __init__(self, pattern):
            self.pattern = pattern

        def fullmatch(self, text):
            asked.append(text)
            return self.pattern.fullmatch(text)

    ranks(train)
    assert asked == ["cuda:1"]  # what was asked for after the steps


# -------------------------------------------------------------------------------------------------------- threads


def test_a_thread_begins_on_the_gpu_of_the_one_that_makes_it(cuda):
    seen = []
    thread = new_thread(lambda *args: seen.append((*args, current_id())), 3, "a", name="mine")
    thread.start()
    thread.join()
    assert seen == [(3, "a", 1)] and thread.name == "mine"


def test_batches_are_made_ahead_on_the_gpu_of_the_consumer(cuda):
    class Here(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return (minigrad.ones(2, device=cuda) * index).to("cpu")

    loader = DataLoader(Here(), 2, device=cuda, prefetch=1)
    assert [(batch.tolist(), batch.device) for batch in loader] == [([[0.0, 0.0], [1.0, 1.0]], cuda)]


def test_thread_ranks_on_the_cpu_begin_on_the_gpu_of_the_caller(cuda):
    assert run(lambda comm: (str(comm.device), current_id()), 2) == [("cpu", 1)] * 2


# ------------------------------------------------------------------------------------------------ what is taken out


def multiply(ranks):
    ranks(lambda comm: minigrad.ones(2, 2, device=comm.device) @ minigrad.ones(2, 2, device=comm.device))


def bare_backward(self, grad=None):
    run_backward(self.node or self, self._seed(grad))


def netless_wrap(self, *args, wrap=DDP._wrap):
    wrap(self, *args)
    self._gpu = None


TAKEN_OUT = {
    "the device of a rank": (Device, "use", lambda self: None, multiply),
    "the net of forward": (DDP, "_wrap", netless_wrap, lambda ranks: test_a_net_catches_a_thread_on_another_gpu(None)),
    "the net of backward": (
        minigrad.Tensor,
        "backward",
        bare_backward,
        lambda ranks: test_a_net_catches_a_thread_on_another_gpu(None),
    ),
    "the device of a node": (
        tape,
        "device_of",
        lambda grad: Device("cpu"),
        lambda ranks: test_a_backward_through_two_gpus_enters_each("cuda:0", init(device="cuda:1")),
    ),
    "the device of a thread": (
        threads_module,
        "_chosen_gpu",
        lambda: None,
        lambda ranks: test_thread_ranks_on_the_cpu_begin_on_the_gpu_of_the_caller(init(device="cuda:1")),
    ),
}


@pytest.mark.parametrize("what", TAKEN_OUT)
def test_it_is_noticed_where_it_is_taken_out(ranks, monkeypatch, what):
    owner, name, instead, noticed = TAKEN_OUT[what]
    contextvars.copy_context().run(noticed, ranks)  # some make a communicator, which later tests are not to find
    monkeypatch.setattr(owner, name, instead)
    with pytest.raises((AssertionError, DeviceError, DistributedError)):
        contextvars.copy_context().run(noticed, ranks)


# ---------------------------------------------------------------------------------------------- what is refused


NOT_REFUSED = {
    **dict.fromkeys(["to", "expand_as"], "the other tensor is only looked at"),
    **dict.fromkeys(["batch_norm", "nll_loss", "masked_fill_"], "the case computes with it: see test_two_devices.py"),
}


def takes_several(case):
    return case.op not in NOT_REFUSED and sum(isinstance(x, np.ndarray) for x in case.draw()) > 1


SEVERAL = list({case.op: case for case in reversed(CASES) if takes_several(case)}.values())  # the first of each


@pytest.mark.parametrize("case", SEVERAL, ids=lambda case: case.id)
def test_operands_on_two_gpus_are_refused_by_our_own_error(case, cuda):
    """Before CuPy, or its stand-in, comes to it."""
    places = iter([cuda])
    with pytest.raises(DeviceError, match="one device.*cuda:[01].*cuda:[01]"):
        evaluate(case, lambda array: to_device(array, next(places, FIRST)))
