"""The cases of the contract in which a communicator is split into groups: who is in which, and what fails with what."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.distributed import DDP, Communicator, ReduceOp
from minigrad.errors import (
    ArgumentError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DistributedError,
    RankFailedError,
)
from minigrad.tensor import Tensor
from minigrad.testing.contract import contract, refused


def _group(comm: Communicator, color: int | None, key: int = 0) -> Communicator:
    """The group of a rank that is in one."""
    group = comm.split(color, key)
    assert group is not None
    return group


def _sum(comm: Communicator, value: float, count: int = 3) -> float:
    """The sum of a number of each rank, from an array of so many elements."""
    array = np.full(count, value)
    comm.all_reduce(array).wait()
    assert (array == array[0]).all()
    return float(array[0])


@contract()
def a_group_has_the_ranks_of_a_color_in_order_of_key(comm: Communicator) -> None:
    """Its own numbers of ranks and calls, and the rest of its parent; a color None is in none."""
    rank, size = comm.rank, comm.world_size
    assert comm.global_ranks == tuple(range(size))
    odd, back, none = comm.split(7 if rank % 2 else None), _group(comm, 0, -rank), comm.split(None)
    same, last_first = _group(comm, 3), _group(comm, 2**40, int(rank != size - 1))
    assert none is None and (odd is None) == (rank % 2 == 0)
    assert (back.rank, back.world_size) == (size - 1 - rank, size) and same.rank == rank
    assert back.global_ranks == tuple(range(size))[::-1] and last_first.global_ranks[0] == size - 1
    assert (back.timeout_s, back.device, back.clock) == (comm.timeout_s, comm.device, comm.clock)
    if odd is not None:
        assert odd.global_ranks == tuple(range(1, size, 2)) and odd.rank == rank // 2
        assert _sum(odd, rank) == sum(range(1, size, 2)) and odd.all_gather_object(rank) == [*range(1, size, 2)]
    first = np.full(2, float(rank))
    back.broadcast(first, 0).wait()
    assert (first == size - 1).all() and back.all_gather_object(rank) == [*range(size)][::-1]


@contract(sizes=(4,))
def rows_and_columns_of_a_grid(comm: Communicator) -> None:
    """Calls of either, and of their parent, are under way at once; a group is split again."""
    row, column = divmod(comm.rank, 2)
    across, down = _group(comm, row), _group(comm, column, -row)
    for count in (1, 3000, 70_001):
        arrays = [group.empty(count, np.float32) for group in (across, down, comm)] + [np.empty(count) for _ in "rcw"]
        works = []
        for array, group in zip(arrays, (across, down, comm) * 2):
            array[...] = comm.rank
            works.append(group.all_reduce(array))
        for work in works[::-1]:
            work.wait()
        assert all((array == 4 * row + 1).all() for array in arrays[::3])
        assert all((array == 2 * column + 2).all() for array in arrays[1::3])
        assert all((array == 6).all() for array in arrays[2::3])
    most, part = np.array([float(comm.rank)]), np.empty(1)
    down.all_reduce(most, ReduceOp.MAX).wait()
    across.reduce_scatter(part, np.array([0.0, 1.0]) + comm.rank).wait()
    assert most[0] == 2 + column and part[0] == 4 * row + 1 + 2 * column
    again = _group(down, 0)
    alone = again.split(down.rank if row else None)
    assert again.global_ranks == down.global_ranks == (2 + column, column)
    assert alone is None if not row else (alone is not None and alone.global_ranks == (comm.rank,))
    assert _sum(again, comm.rank) == 2 * column + 2
    across.close()
    comm.barrier()
    assert _sum(down, 1.0) == 2.0
    with refused(RankFailedError, "closed"):
        across.barrier()


@contract(sizes=(2, 3))
def who_waits_in_a_group_does_its_share_elsewhere(comm: Communicator) -> None:
    """Of what it has begun in its parent, or in a group: other ranks may wait for that first."""
    last, group, other = comm.world_size - 1, _group(comm, 0), _group(comm, 0)
    for one, then in ((comm, group), (group, comm), (group, other)):
        mine = np.full(3, 1.0)
        work = one.all_reduce(mine)
        if comm.rank == last:
            then.barrier()
        work.wait()
        if comm.rank != last:
            then.barrier()
        assert (mine == comm.world_size).all()
    for one, then in ((comm, group), (group, comm)):
        if comm.rank == 0:
            one.send(np.full(3, 7.0), last).wait(host=True)
        if comm.rank == last:
            came = one.recv(mine, 0)
        then.barrier()
        if comm.rank == last:
            came.wait(host=True)
            assert (mine == 7.0).all()


@contract(sizes=(1, 3))
def a_color_or_a_key_that_is_none_is_an_error_on_all_ranks(comm: Communicator) -> None:
    """Which names the rank that gave it; the ranks may go on."""
    last = comm.world_size - 1
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: comm.split(-1), "color, where it is not None, to be an integer >= 0, got -1"),
        (lambda: comm.split("row"), "to be an integer >= 0, got 'row'"),  # type: ignore[arg-type]
        (lambda: comm.split(1.0), "to be an integer >= 0, got 1.0"),  # type: ignore[arg-type]
        (lambda: comm.split(0, None), "key to be an integer, got None"),  # type: ignore[arg-type]
    ]
    for call, words in wrong:
        with refused(ArgumentError, f"^rank {comm.rank}: split: expected .*{words} on rank {last}"):
            call() if comm.rank == last else comm.split(0)
    assert _sum(_group(comm, 0), 1.0) == comm.world_size


@contract(sizes=(3,))
def a_group_fails_by_itself(comm: Communicator) -> None:
    """Of calls that differ, an abort, or a rank that closes it; its parent and the other group go on."""
    both = comm.rank != 1
    of, named = r"of group \[0, 2\]", f"^rank {comm.rank // 2}.*"
    group = _group(comm, int(both))
    if both:
        with refused(CollectiveMismatchError, f"{named}call 0 {of}: .* and call 0 {of}: "):
            group.all_reduce(np.ones(3 + comm.rank)).wait()
        with refused(CollectiveMismatchError):
            group.barrier()
    assert _sum(comm, 1.0) == 3.0 and (both or _sum(group, 1.0) == 1.0)
    group = _group(comm, int(both))
    if comm.rank == 2:
        group.abort("no more")
    if both:
        with refused(RankFailedError, f"{named} {of}: rank 1 aborted: no more"):
            group.barrier()
    assert _sum(comm, 1.0) == 3.0
    group = _group(comm, int(both))
    if comm.rank == 0:
        group.close()
    if comm.rank == 2:
        with refused(RankFailedError, f"call 0 {of}: .*rank 0 closed its communicator"):
            group.barrier()
    assert _sum(_group(comm, 0), 1.0) == 3.0


@contract(sizes=(3,), timeout_s=0.4)
def a_rank_that_does_not_come_in_a_group_is_named(comm: Communicator) -> None:
    """By the ranks of the group alone, which wait no longer than in their parent."""
    group = _group(comm, int(comm.rank != 1))
    if comm.rank == 2:
        time.sleep(1.2)
    if comm.rank == 0:
        with refused(CollectiveTimeoutError, r"call 0 of group \[0, 2\]: barrier.*got ranks \[0\]: rank 1 ") as said:
            group.barrier()
        assert "within 0.4 s" in said[0]


@contract(sizes=(3,))
def what_fails_ranks_fails_their_groups(comm: Communicator) -> None:
    """At once, whoever waits in a group, and whoever fails them."""
    group, inner = _group(comm, int(comm.rank != 1)), _group(_group(comm, 0), int(comm.rank != 1))
    if comm.rank == 1:  # once the others have their groups: to abort also fails what they are still in
        for other in (0, 2):
            comm.recv(np.zeros(1, np.float32), other).wait(host=True)
        comm.abort("no more")
    else:
        comm.send(np.ones(1, np.float32), 1)
    told = r"of group \[0, 2\]: (the ranks that it was split off have failed: .*no more|.*rank 1 closed its comm)"
    for each in (group, inner) if comm.rank == 0 else ():
        with refused(RankFailedError, told):
            each.barrier()
    with refused(RankFailedError, "rank 1 aborted: no more"):
        comm.barrier()
    with refused(RankFailedError, "rank 1 aborted: no more"):
        comm.split(0)


@contract(sizes=(2, 3))
def to_close_ranks_closes_their_groups(comm: Communicator) -> None:
    """And those of groups; who waits there is told at once."""
    group = _group(_group(comm, 0), 0)
    comm.barrier()
    if comm.rank == 1:
        comm.close()
        with refused(RankFailedError, "closed"):
            group.barrier()
        return
    with refused(RankFailedError, "rank 1 closed its communicator|rank 1 is gone"):
        group.barrier()
    with refused(DistributedError):
        comm.split(0)


@contract(sizes=(2, 4))
def training_in_a_group_takes_the_mean_of_its_samples(comm: Communicator) -> None:
    """And of no other's, with other numbers of samples on each rank."""
    group = _group(comm, comm.rank % 2)
    model = nn.Linear(2, 1, bias=False)
    ddp = DDP(model, group)
    rows = [np.arange(2.0 * (r + 1)).reshape(-1, 2).astype(np.float32) + r for r in range(comm.world_size)]
    ddp(Tensor(rows[comm.rank])).mean().backward()
    mean = np.concatenate([rows[r] for r in group.global_ranks]).mean(0)
    assert model.weight.grad is not None
    np.testing.assert_allclose(model.weight.grad.numpy(), [mean], rtol=1e-6)
