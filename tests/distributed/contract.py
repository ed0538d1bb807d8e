"""The contract of `minigrad.testing`, and what holds of our own communicators alone."""

import re
import time

import numpy as np
import pytest

from minigrad.distributed import NcclCommunicator, algorithms
from minigrad.errors import CollectiveTimeoutError
from minigrad.testing import RingAllReduce, contract
from tests.distributed import contrastive, twin_scenarios


def the_users_line_of_each_rank_is_told(comm):
    comm.barrier()
    if comm.rank == 1:
        time.sleep(1.2)
        return
    with pytest.raises(CollectiveTimeoutError) as caught:
        comm.all_reduce(np.ones(3)).wait()
    here = r"[^ ]*contract.py:(\d+) in the_users_line_of_each_rank_is_told"
    lines = re.search(f"; rank 1: at {here}; rank 0: waiting at {here}$", str(caught.value))
    assert lines is not None and int(lines[2]) - int(lines[1]) == 3, caught.value


def all_but_nccl_tell_when_a_work_ran(comm):
    for count in (3, 700_001):
        work = comm.all_reduce(np.zeros(count))
        work.wait(host=True)
        assert (work.span is None) == isinstance(comm, NcclCommunicator)


OF_MESSAGES = (
    *("all_reduce-float16", "all_reduce-uint8", "all_reduce_of_many_elements"),
    *("several_calls_may_be_under_way_at_once", "arrays_of_any_shape_and_of_any_numbers"),
)


def an_all_reduce_of_messages_keeps_the_contract(comm):
    for name in OF_MESSAGES:
        contract.CASES[name].body(RingAllReduce(comm))


def schedules_keep_the_contract(comm):
    """Each of them some of the cases, in turn."""
    makers = (algorithms.tree, algorithms.halving_doubling, algorithms.all_pairs, by_nodes)
    for number, make in enumerate(makers * 2):
        contract.CASES[OF_MESSAGES[number % len(OF_MESSAGES)]].body(algorithms.Scheduled(comm, make))


def by_nodes(world_size):
    return algorithms.hierarchical(world_size, 2, "tree", "ring")


CASES = {
    **contract.CASES,
    "users_lines": contract.Case(the_users_line_of_each_rank_is_told, (2,), 0.4),
    "contrastive": contract.Case(contrastive.equals_one_device, (1, 2, 3, 4), 20.0),
    "schedules": contract.Case(schedules_keep_the_contract, (2,), 20.0),
    "ring": contract.Case(an_all_reduce_of_messages_keeps_the_contract, (1, 3), 20.0),
    "twin": contract.Case(twin_scenarios.on_any_world, (1, 3), 20.0),
    "spans": contract.Case(all_but_nccl_tell_when_a_work_ran, (2,), 20.0),
}
