"""Collectives by PyTorch's names: whose communicator they use, what they do with it, and what they refuse."""

import contextvars
from datetime import timedelta

import numpy as np
import pytest

import minigrad as torch
import minigrad.distributed as dist
from minigrad import nn
from minigrad.absent import INSTEAD
from minigrad.backend.ranks import set_ranks_here
from minigrad.errors import (
    AbsentNameError,
    ArgumentError,
    AutogradError,
    CollectiveMismatchError,
    DtypeError,
    RankFailedError,
    ReplicaMismatchError,
    ShapeError,
)
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
    given_to_roots(rank, size, group)
    objects, named = [None] * size, [rank, {"of": rank}]
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    dist.broadcast_object_list(named, src=size - 1, group=group, device="cpu")
    dist.barrier(group)
    tensors = [total, most, average, product, sent, *parts, whole, share]
    return [tensor.tolist() for tensor in tensors], objects, named


def given_to_roots(rank, size, group):
    """What each root, or each rank, gets for itself; checked here."""
    for root in range(size):
        total, is_root = torch.full((2,), rank + 1.0), rank == root
        dist.reduce(total, root, group=group)
        assert total.tolist() == [sum(range(1, size + 1)) if is_root else rank + 1.0] * 2
        rows = [torch.zeros(2, 1) for _ in range(size)] if is_root else None
        dist.gather(torch.full((2, 1), float(rank)), rows, dst=root, group=group)
        assert rows is None or [row.tolist() for row in rows] == [[[r], [r]] for r in range(size)]
        got, objects, mine = torch.zeros(2, 1), [None] * size if is_root else None, [None, "stays"]
        dist.scatter(got, [row + 1 for row in rows] if is_root else None, src=root, group=group)
        assert got.tolist() == [[rank + 1.0]] * 2
        dist.gather_object({"of": rank}, objects, root, group)
        assert objects is None or objects == [{"of": r} for r in range(size)]
        dist.scatter_object_list(mine, [[r, root] for r in range(size)] if is_root else None, root, group)
        assert mine == [[rank, root], "stays"]
    turned = torch.zeros(size, 2)
    dist.all_to_all_single(turned, torch.arange(2.0 * size).view(size, 2) + 100 * rank, group=group)
    assert turned.tolist() == [[100.0 * r + 2 * rank, 100.0 * r + 2 * rank + 1] for r in range(size)]
    uneven = torch.cat([torch.full((r + 1, 2), 10.0 * rank + r) for r in range(size)])  # r + 1 rows go to rank r
    wanted = [[10.0 * r + rank] * 2 for r in range(size) for _ in range(rank + 1)]
    out = torch.zeros(size * (rank + 1), 2)
    dist.all_to_all_single(out, uneven, [rank + 1] * size, [r + 1 for r in range(size)], group=group)
    assert out.tolist() == wanted
    outputs = [torch.zeros(rank + 1, 2) for _ in range(size)]
    dist.all_to_all(outputs, list(uneven.split([r + 1 for r in range(size)])), group=group)
    assert torch.cat(outputs).tolist() == wanted


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
        rows = [torch.zeros(2), torch.zeros(2)] if comm.rank == 1 else None
        works = [
            dist.all_reduce(x, async_op=True),
            dist.broadcast(y, 0, async_op=True),
            dist.all_gather(parts, y * (comm.rank + 1), async_op=True),
            dist.barrier(async_op=True),
            dist.gather(y * comm.rank, rows, 1, async_op=True),
            dist.reduce(total := torch.ones(1), 1, async_op=True),
        ]
        while not works[2].is_completed():  # and the parts are there, though nobody has waited
            pass
        assert [part.tolist() for part in parts] == [[1.0, 1.0], [2.0, 2.0]]
        for work in works:
            work.wait()
            assert work.is_completed()
        assert total.item() == 1 + comm.rank and (rows is None or [row.tolist() for row in rows] == [[0, 0], [1, 1]])
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
        *(lambda: dist.reduce(x, 0), lambda: dist.gather(x, [x]), lambda: dist.scatter(x, [x])),
        *(lambda: dist.all_to_all([x], [x]), lambda: dist.all_to_all_single(x, x), lambda: dist.gather_object(1, [0])),
        lambda: dist.scatter_object_list([0], [0]),
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
    "broadcast: expected src to be one of the global ranks .0., got 1": (
        ArgumentError,
        lambda w: dist.broadcast(torch.ones(1), src=1),
    ),
    "reduce: expected dst to be one of the global ranks .0., got 1": (
        ArgumentError,
        lambda w: dist.reduce(torch.ones(1), 1),
    ),
    "reduce: expected a tensor that does not require grad": (AutogradError, lambda w: dist.reduce(w, 0)),
    "gather: expected gather_list on rank 0, got None": (ArgumentError, lambda w: dist.gather(torch.ones(1))),
    "gather: expected dst to be": (ArgumentError, lambda w: dist.gather(torch.ones(1), dst=1)),
    "gather: expected gather_list of 1, one for each rank": (ArgumentError, lambda w: dist.gather(torch.ones(1), [])),
    r"gather: expected gather_list\[0\] to be float32 \(1,\)": (
        ShapeError,
        lambda w: dist.gather(torch.ones(1), [torch.ones(2)]),
    ),
    "scatter: expected scatter_list on rank 0, got None": (ArgumentError, lambda w: dist.scatter(torch.ones(1))),
    "scatter: expected src to be": (ArgumentError, lambda w: dist.scatter(torch.ones(1), src=-1)),
    "all_to_all: expected output_tensor_list of 1": (ArgumentError, lambda w: dist.all_to_all([], [torch.ones(1)])),
    "all_to_all: expected sizes that fit, got 2 elements that rank 0 has for rank 0 and room for 1": (
        ShapeError,
        lambda w: dist.all_to_all([torch.ones(1)], [torch.ones(2)]),
    ),
    "all_to_all: expected tensors of one dtype, got float32 and int64": (
        DtypeError,
        lambda w: dist.all_to_all([torch.ones(1)], [torch.tensor([1])]),
    ),
    "all_to_all_single: expected input_split_sizes that add up to its 3 rows, got": (
        ShapeError,
        lambda w: dist.all_to_all_single(torch.ones(3), torch.ones(3), [3], [2]),
    ),
    "all_to_all_single: expected output with rows that 1 ranks can share": (
        ShapeError,
        lambda w: dist.all_to_all_single(torch.tensor(1.0), torch.ones(1)),
    ),
    r"all_to_all_single: expected output_split_sizes\[0\] to be an integer >= 0, got -1": (
        ArgumentError,
        lambda w: dist.all_to_all_single(torch.ones(1), torch.ones(1), [-1], [1]),
    ),
    "gather_object: expected object_gather_list on rank 0": (ArgumentError, lambda w: dist.gather_object(1)),
    "scatter_object_list: expected scatter_object_output_list to be a list with a place": (
        ArgumentError,
        lambda w: dist.scatter_object_list([], [1]),
    ),
    "scatter_object_list: expected scatter_object_input_list of 1": (
        ArgumentError,
        lambda w: dist.scatter_object_list([0], [1, 2]),
    ),
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


REFUSED |= {
    "all_reduce: expected a group that this rank is in, got GroupMember.NON_GROUP_MEMBER": (
        ArgumentError,
        lambda w: dist.all_reduce(torch.ones(1), group=dist.GroupMember.NON_GROUP_MEMBER),
    ),
    r"new_group: expected each of .* one of 1, once, got \[1\]": (ArgumentError, lambda w: dist.new_group([1])),
    r"new_group: expected each of .* one of 1, once, got \[\]": (ArgumentError, lambda w: dist.new_group([])),
    r"new_group: expected .* one of 1, once, got \[0, 0\]": (ArgumentError, lambda w: dist.new_group([0, 0])),
    "new_group: expected ranks to be a list": (ArgumentError, lambda w: dist.new_group(0)),
    "new_group: expected each of ranks to be an integer": (ArgumentError, lambda w: dist.new_group(["0"])),
    r"new_group: expected timeout to be 0:05:00, got .*seconds=420\): leave it out": (
        ArgumentError,
        lambda w: dist.new_group(timeout=timedelta(minutes=7)),
    ),
    "new_group: expected backend to be gloo, got 'nccl'": (ArgumentError, lambda w: dist.new_group(backend="nccl")),
    "new_group: expected group_desc to be None": (ArgumentError, lambda w: dist.new_group(group_desc="rows")),
    "new_group: expected pg_options to be None": (ArgumentError, lambda w: dist.new_group(pg_options=1)),
    "new_group: expected device_id to be cpu": (ArgumentError, lambda w: dist.new_group(device_id="cuda:0")),
    "new_group: expected use_local_synchronization to be False": (
        ArgumentError,
        lambda w: dist.new_group(use_local_synchronization=True),
    ),
    "new_group: expected sort_ranks to be True or False": (ArgumentError, lambda w: dist.new_group(sort_ranks=2)),
    "get_group_rank: expected global_rank to be one of": (ArgumentError, lambda w: dist.get_group_rank(None, 1)),
    "get_global_rank: expected group_rank to be": (ArgumentError, lambda w: dist.get_global_rank(None, 1)),
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


def test_what_ranks_get_for_themselves_is_refused_in_words_on_all_of_them():
    """Sizes that do not fit, a list that only the root has, roots that differ."""

    def body(comm):
        one = torch.ones(1)
        with pytest.raises(ShapeError, match="1 elements that rank 0 has for rank 1 and room for 2 there"):
            dist.all_to_all([torch.ones(1), torch.ones(1)] if comm.rank == 0 else [torch.ones(2), one], [one, one])
        with pytest.raises(ReplicaMismatchError, match="equal roots .*, got dst is 0 on rank 0 and 1 on rank 1"):
            dist.gather_object(1, [0, 0], dst=comm.rank)
        with pytest.raises(ReplicaMismatchError, match="equal roots .*, got src is 0 on rank 0 and 1 on rank 1"):
            dist.scatter_object_list([0], [1, 2], src=comm.rank)
        with pytest.raises(ArgumentError, match=f"gather_list on rank {1 - comm.rank} alone, got one of 2"):
            dist.gather(one, [one, one], dst=1 - comm.rank)
        dist.gather(one, [one.clone(), one.clone()] if comm.rank == 0 else [])  # as PyTorch takes it
        with pytest.raises(CollectiveMismatchError, match="root 0.*root 1|root 1.*root 0"):
            dist.reduce(torch.ones(1), dst=comm.rank)

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


@pytest.mark.parametrize("kind", ["threads", "shm", "nccl"])
def test_a_group_of_some_ranks(kind):
    """Roots are global ranks, as in PyTorch; a rank that is not in it learns that it has no rank there."""

    def body(comm):
        set_ranks_here(comm)
        dist.barrier()
        group = dist.new_group([3, 1])
        turned, all_of_them = dist.new_group((3, 1), sort_ranks=False), dist.new_group()
        assert dist.get_process_group_ranks() == dist.get_process_group_ranks(all_of_them) == [0, 1, 2, 3]
        if comm.rank in (0, 2):
            assert group is turned is dist.GroupMember.NON_GROUP_MEMBER
            assert dist.get_rank(group) == dist.get_world_size(group) == -1
            dist.destroy_process_group(group)
            return None
        assert [dist.get_rank(group), dist.get_world_size(group)] == [comm.rank // 2, 2]
        assert dist.get_rank(turned) == 1 - comm.rank // 2 and dist.get_backend(group) == dist.get_backend()
        assert [dist.get_group_rank(of, 3) for of in (group, turned, None)] == [1, 0, 3]
        assert dist.get_global_rank(turned, 0) == 3 and dist.get_process_group_ranks(turned) == [3, 1]
        x, total, objects = torch.tensor([comm.rank]), torch.tensor([comm.rank]), [comm.rank]
        dist.broadcast(x, src=3, group=group)
        dist.reduce(total, dst=1, group=turned)
        dist.broadcast_object_list(objects, src=1, group=turned)
        parts = [torch.tensor([0]), torch.tensor([0])] if comm.rank == 3 else None
        dist.gather(torch.tensor([comm.rank]), parts, dst=3, group=group)
        share = torch.tensor([0])
        dist.scatter(share, [torch.tensor([7]), torch.tensor([8])] if comm.rank == 1 else None, src=1, group=turned)
        gathered, given = [None, None], [None]
        dist.gather_object(comm.rank, gathered if comm.rank == 1 else None, dst=1, group=turned)
        dist.scatter_object_list(given, ["a", "b"] if comm.rank == 3 else None, src=3, group=group)
        with pytest.raises(ArgumentError, match=r"src to be one of the global ranks \[1, 3\], got 0"):
            dist.broadcast(x, src=0, group=group)
        dist.destroy_process_group(group)
        with pytest.raises(RankFailedError, match="closed"):
            dist.barrier(group=group)
        seen = [x.item(), total.item(), objects, parts and [part.item() for part in parts], share.item()]
        return [*seen, gathered if comm.rank == 1 else None, given]

    expected = [None, [3, 4, [1], None, 8, [3, 1], ["a"]], None, [3, 3, [1], [1, 3], 7, None, ["b"]]]
    assert run_ranks(kind, body, 4) == expected


def test_other_ranks_for_a_group_are_told_on_all():
    def body(comm):
        with pytest.raises(ReplicaMismatchError, match=r"ranks is \[0\] on rank 0 and \[0, 1\] on rank 1"):
            dist.new_group([0] if comm.rank == 0 else [0, 1])
        return dist.get_world_size(dist.new_group(range(2)))

    assert dist.run(body, 2) == [2, 2]


def test_a_rank_of_the_group_may_be_named_in_place_of_a_global_one():
    """Ranks 2 and 1 are the group's 0 and 1; where no root is named it is global rank 0, which is not in it."""

    def body(comm):
        group = comm.split(0 if comm.rank else None, -comm.rank)
        if group is None:
            return True
        rank, ours, own = group.rank, [np.full(2, 2.0), np.full(2, 1.0)], np.full(2, float(comm.rank))
        for root in range(2):
            is_root, total, into, parts = rank == root, own.copy(), own.copy(), [np.zeros(2), np.zeros(2)]
            dist.reduce(total, group=group, group_dst=root)
            assert total.tolist() == ([3.0] * 2 if is_root else own.tolist())
            dist.broadcast(into, group=group, group_src=root)
            assert into.tolist() == ours[root].tolist()
            dist.gather(own, parts if is_root else None, group=group, group_dst=root)
            assert not is_root or [part.tolist() for part in parts] == [part.tolist() for part in ours]
            dist.scatter(into, ours if is_root else None, group=group, group_src=root)
            assert into.tolist() == ours[rank].tolist()
            objects, mine = [None, None], [None]
            dist.gather_object(rank, objects if is_root else None, group=group, group_dst=root)
            dist.scatter_object_list(mine, ["a", "b"] if is_root else None, group=group, group_src=root)
            assert mine == ["ab"[rank]] and objects == ([0, 1] if is_root else [None] * 2)
            dist.broadcast_object_list(objects, group=group, group_src=root)
            assert objects == [0, 1]
        for call in (dist.reduce, dist.broadcast):
            with pytest.raises(ArgumentError, match=f"{call.__name__}: expected either ... or group_..., got None"):
                call(own, group=group)
            with pytest.raises(ArgumentError, match="expected either ... or group_..., got 1 and 0"):
                call(own, 1, group=group, **{"group_dst" if call is dist.reduce else "group_src": 0})
        with pytest.raises(ArgumentError, match=r"scatter: expected src to be one of the global ranks \[2, 1\], got 0"):
            dist.scatter(own, group=group)
        with pytest.raises(ArgumentError, match=r"gather: expected group_dst to be an integer in \[0, 2\), got 2"):
            dist.gather(own, group=group, group_dst=2)
        return True

    assert run_ranks("threads", body, 3) == [True] * 3
