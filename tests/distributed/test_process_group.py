"""Collectives by PyTorch's names: whose communicator they use, what they do with it, and what they refuse."""

import contextvars
from datetime import timedelta

import numpy as np
import pytest

import minigrad as torch
import minigrad.distributed as dist
from minigrad import nn
from minigrad.absent import INSTEAD
from minigrad.errors import AbsentNameError, ArgumentError, AutogradError, DtypeError, RankFailedError, ShapeError
from minigrad.utils.data.distributed import DistributedSampler
from tests.distributed.worlds import run_nccl, run_ranks


def everything(comm, group=None):
    """Each collective once; its results on this rank."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    assert (rank, size) == (comm.rank, comm.world_size)
    total, most, average = torch.ones(2, 2) * rank, torch.tensor(rank), torch.tensor([rank / 2])
    dist.all_reduce(total, group=group)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    dist.all_reduce(average, dist.ReduceOp.AVG, group)
    product = torch.tensor([rank + 1.0])
    dist.all_reduce(product, op=dist.ReduceOp.PRODUCT, group=group)
    sent = torch.full((3,), rank)
    dist.broadcast(sent, src=size - 1, group=group)
    parts, part = [torch.zeros(2, dtype=torch.int64) for _ in range(size)], torch.tensor([rank, -1])
    dist.all_gather(parts, part, group=group)
    whole = torch.empty(2 * size, dtype=torch.int64)
    dist.all_gather_into_tensor(whole, part, group=group)
    share, source = torch.zeros(2), torch.arange(2.0 * size)
    dist.reduce_scatter(share, list(source.reshape(size, 2)), group=group)
    same = np.zeros(2, np.float32)
    dist.reduce_scatter_tensor(same, source, group=group)
    assert source.tolist() == list(range(2 * size)) and share.tolist() == same.tolist()
    for reduce, given in ((dist.reduce_scatter, list(source.reshape(size, 2))), (dist.reduce_scatter_tensor, source)):
        reduce(same, given, op=dist.ReduceOp.MAX, group=group)
        assert same.tolist() == [2.0 * rank, 2.0 * rank + 1]
    objects, named = [None] * size, [rank, {"of": rank}]
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    dist.broadcast_object_list(named, src=size - 1, group=group, device="cpu")
    dist.barrier(group)
    tensors = [total, most, average, product, sent, *parts, whole, share]
    return [tensor.tolist() for tensor in tensors], objects, named


def expected(rank, size):
    """The same, computed without any rank."""
    ranks = range(size)
    total, parts = float(sum(ranks)), [[r, -1] for r in ranks]
    numbers = [[[total] * 2] * 2, size - 1, [total / 2 / size], [float(np.prod([r + 1 for r in ranks]))]]
    share = [2.0 * rank * size, (2 * rank + 1.0) * size]
    last = [size - 1, {"of": size - 1}]
    return [*numbers, [size - 1] * 3, *parts, sum(parts, []), share], [{"rank": r} for r in ranks], last


@pytest.mark.parametrize("size", [1, 3])
def test_collectives_by_name(size):
    assert dist.run(everything, size) == [expected(rank, size) for rank in range(size)]
    for kind in ("shm", "nccl"):  # whose tests make a communicator without `init`
        assert run_ranks(kind, lambda comm: everything(comm, comm), size) == [expected(r, size) for r in range(size)]


def test_a_work_is_waited_for():
    def body(comm):
        x, y = torch.ones(3), torch.ones(2)
        parts = [torch.zeros(2), torch.zeros(2)]
        works = [
            dist.all_reduce(x, async_op=True),
            dist.broadcast(y, 0, async_op=True),
            dist.all_gather(parts, y * (comm.rank + 1), async_op=True),
            dist.barrier(async_op=True),
        ]
        while not works[2].is_completed():  # and the parts are there, though nobody has waited
            pass
        assert [part.tolist() for part in parts] == [[1.0, 1.0], [2.0, 2.0]]
        for work in works:
            work.wait()
            assert work.is_completed()
        assert dist.all_reduce(x) is None
        return x.tolist()

    assert dist.run(body, 2) == [[4.0] * 3] * 2
    assert run_nccl(lambda comm: dist.all_reduce(torch.ones(1), group=comm, async_op=True).is_completed(), 1) == [True]


def test_the_communicator_of_a_context_is_the_innermost():
    def body(comm):
        outer = dist.init_process_group("gloo", "env://", world_size=2, rank=comm.rank)
        assert outer is comm and dist.get_backend() == "threads" and dist.get_world_size() == 2
        alone = dist.init(backend="solo")
        assert dist.get_world_size() == 1 and dist.get_backend() == "solo" and dist.get_world_size(comm) == 2
        dist.destroy_process_group()
        with pytest.raises(RankFailedError, match="closed"):
            alone.barrier()
        assert not dist.is_initialized()
        assert dist.init_process_group() is comm and dist.is_initialized() and dist.is_available()
        dist.barrier()
        return dist.get_backend(dist.Recording(comm))

    assert dist.run(body, 2) == ["threads"] * 2
    assert contextvars.Context().run(dist.is_initialized) is False


def test_without_a_communicator_all_say_what_to_do():
    x = torch.ones(1)
    calls = [
        *(dist.get_rank, dist.get_world_size, dist.get_backend, dist.destroy_process_group, dist.barrier),
        *(lambda: dist.all_reduce(x), lambda: dist.broadcast(x, 0), lambda: dist.all_gather([x], x)),
        *(lambda: dist.all_gather_object([x], 1), lambda: dist.reduce_scatter(x, [x])),
        *(lambda: dist.broadcast_object_list([1]), lambda: dist.all_gather_into_tensor(x, x)),
        *(lambda: dist.reduce_scatter_tensor(x, x), lambda: dist.DDP(nn.Linear(2, 1))),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=r"a communicator in this context, got none: call distributed.init\(\)"):
            contextvars.Context().run(call)


@pytest.mark.parametrize("name", INSTEAD["minigrad.distributed"])
def test_what_is_not_there_says_what_to_write(name):
    with pytest.raises(AbsentNameError, match=f"^minigrad.distributed: expected a name that it has, got '{name}': "):
        getattr(dist, name)


REFUSED = {
    "all_reduce: expected a tensor that does not require grad": (AutogradError, lambda w: dist.all_reduce(w)),
    "all_gather: expected a tensor that does not require": (AutogradError, lambda w: dist.all_gather([w.detach()], w)),
    r"all_gather: expected tensor_list of 1, one for each rank, got 2": (
        ArgumentError,
        lambda w: dist.all_gather([torch.ones(1)] * 2, torch.ones(1)),
    ),
    r"all_gather: expected tensor_list\[0\] to be float32 \(2,\), got float32 \(1,\)": (
        ShapeError,
        lambda w: dist.all_gather([torch.ones(1)], torch.ones(2)),
    ),
    r"reduce_scatter: expected input_list\[0\] to be float32 \(1,\), got int64 \(1,\)": (
        ShapeError,
        lambda w: dist.reduce_scatter(torch.ones(1), [torch.tensor([1])]),
    ),
    "all_gather: expected tensor_list to be a list or a tuple": (
        ArgumentError,
        lambda w: dist.all_gather(torch.ones(1, 1), torch.ones(1)),
    ),
    "all_gather_object: expected object_list of 1": (ArgumentError, lambda w: dist.all_gather_object([], 1)),
    "all_gather_object: expected data that JSON keeps": (DtypeError, lambda w: dist.all_gather_object([0], (1, 2))),
    r"got tensor\(.* write item\(\) or tolist\(\), or send tensors": (
        DtypeError,
        lambda w: dist.broadcast_object_list([{"weight": w}]),
    ),
    "broadcast_object_list: expected src to be": (ArgumentError, lambda w: dist.broadcast_object_list([0], 1)),
    "broadcast_object_list: expected no device but cpu, got 'cuda:0'": (
        ArgumentError,
        lambda w: dist.broadcast_object_list([0], 0, device="cuda:0"),
    ),
    "broadcast: expected root to be": (ArgumentError, lambda w: dist.broadcast(torch.ones(1), src=1)),
    "barrier: expected no device_ids but that of cpu": (ArgumentError, lambda w: dist.barrier(device_ids=[0])),
    "get_rank: expected a communicator, got int": (ArgumentError, lambda w: dist.get_rank(3)),
    "expected no store": (ArgumentError, lambda w: dist.init_process_group(store=1)),
    "expected no group_name": (ArgumentError, lambda w: dist.init_process_group(group_name="mine")),
    "init_method to be None or 'env://'": (ArgumentError, lambda w: dist.init_process_group(init_method="tcp://h:1")),
    "expected timeout to be a datetime.timedelta": (ArgumentError, lambda w: dist.init_process_group(timeout=5)),
    "expected backend to be one of 'gloo', 'threads'": (ArgumentError, lambda w: dist.init_process_group("ucc")),
    "expected backend to be that of this thread rank, 'gloo', got 'nccl'": (
        ArgumentError,
        lambda w: dist.init_process_group("nccl"),
    ),
    "expected world_size to be that of this thread rank, 1, got 4": (
        ArgumentError,
        lambda w: dist.init_process_group("gloo", world_size=4, rank=0),
    ),
    "expected timeout to be that of this thread rank": (
        ArgumentError,
        lambda w: dist.init_process_group(timeout=timedelta(minutes=7)),
    ),
    "expected no device_ids, got .0.: move the module": (
        ArgumentError,
        lambda w: dist.DDP(nn.Linear(1, 1), device_ids=[0]),
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words):
    kind, call = REFUSED[words]

    def body(comm):
        with pytest.raises(kind, match=words):
            call(torch.ones(1).requires_grad_())
        dist.barrier()

    dist.run(body, 1)


def test_lists_of_other_lengths_are_refused_where_they_are():
    def body(comm):
        if comm.rank == 0:
            return dist.broadcast_object_list([1, 2])
        with pytest.raises(ArgumentError, match="rank 1: .*: expected object_list of 2, as on rank 0, got 1"):
            dist.broadcast_object_list([None])

    dist.run(body, 2)


def test_gloo_is_what_moves_bytes_of_the_host(monkeypatch):
    """And never NCCL, whatever the environment says."""

    def start():
        comm = dist.init_process_group("gloo", timeout=timedelta(seconds=9))
        assert comm.timeout_s == 9.0 and dist.get_backend() == "shm"
        dist.destroy_process_group()
        monkeypatch.setenv("MINIGRAD_BACKEND", "nccl")
        with pytest.raises(ArgumentError, match="expected a GPU for backend 'nccl', got cpu"):
            dist.init_process_group("gloo")
        with pytest.raises(ArgumentError, match="expected no device_id for backend 'gloo'"):
            dist.init_process_group("gloo", device_id=0)

    monkeypatch.setenv("MINIGRAD_BACKEND", "shm")
    contextvars.Context().run(start)


def test_wrapper_sampler_and_batch_norm_take_the_ranks_of_the_context():
    assert torch.utils.data.distributed.DistributedSampler is DistributedSampler is torch.data.DistributedSampler

    def body(comm):
        sampler = DistributedSampler(range(4), shuffle=False)
        model = dist.DDP(nn.Linear(2, 1), device_ids=None)
        model(torch.ones(1 + comm.rank, 2)).mean().backward()
        assert model.comm is comm is dist.convert_sync_batchnorm(nn.BatchNorm1d(2)).comm
        return list(sampler), DistributedSampler(range(9), num_replicas=3).rank

    assert dist.run(body, 2) == [([0, 2], 0), ([1, 3], 1)]
