"""Lifelines of thread ranks on GPUs, on the stand-ins: NCCL is aborted, and begins anew with an id of the lowest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minigrad.backend.device import CPU, Device
from minigrad.distributed.comm.nccl.communicator import NcclCommunicator
from minigrad.distributed.living.lifeline import Death, Lifeline
from minigrad.distributed.living.office import Office
from minigrad.errors import ArgumentError, RankFailedError
from tests.distributed.fake_nccl import FakeNccl
from tests.distributed.test_living import WAIT_S, run_living
from tests.strict_cupy.device import current_id

RANKS = 3


class CountingNccl(FakeNccl):
    """It knows who drew unique ids."""

    def __init__(self, **options: Any) -> None:
        super().__init__(timeout_s=WAIT_S, **options)
        self.drawn = 0

    def get_unique_id(self) -> Any:
        self.drawn += 1
        return super().get_unique_id()


def total(comm: Any, value: float) -> float:
    array = comm.empty(5, np.float32)
    array[...] = value
    comm.all_reduce(array).wait(host=True)
    return float(array[0])


def before_a_collective(lifeline: Lifeline, comm: Any) -> None:
    raise RuntimeError("boom")


def in_a_collective(lifeline: Lifeline, comm: Any) -> None:
    """NCCL has its part, and it does not wait for the others'."""
    comm.all_reduce(comm.empty(5, np.float32))
    raise RuntimeError("boom")


def while_the_others_begin(lifeline: Lifeline, comm: Any) -> None:
    comm.barrier()
    comm.close()
    raise RuntimeError("boom")


@pytest.mark.parametrize("moment", [before_a_collective, in_a_collective, while_the_others_begin])
@pytest.mark.parametrize("victim", range(RANKS))
def test_the_living_begin_anew(victim, moment, cuda):
    nccl = CountingNccl()
    office = Office(RANKS, timeout_s=WAIT_S, devices=[cuda] * RANKS, nccl=nccl, share_devices=True)

    def body(lifeline: Lifeline) -> Any:
        comm = lifeline.regroup(range(RANKS), 0)
        if lifeline.rank == victim:
            assert total(comm, victim + 1.0) == 6.0
            moment(lifeline, comm)
        with pytest.raises(RankFailedError):  # as soon as they hear of it, which may be at once
            assert total(comm, lifeline.rank + 1.0) == 6.0
            if moment is while_the_others_begin:
                comm.barrier()
                lifeline.regroup(range(RANKS), 1)
            else:
                total(comm, 1.0)
                total(comm, 1.0)
        assert isinstance(lifeline.take(WAIT_S), Death)
        comm = lifeline.regroup(lifeline.living, 2)
        assert isinstance(comm, NcclCommunicator) and comm.device == cuda
        return comm.rank, comm.global_ranks, total(comm, lifeline.rank + 1.0)

    outcomes = run_living(office, body)
    living = tuple(rank for rank in range(RANKS) if rank != victim)
    assert [outcomes[rank] for rank in living] == [(i, living, 6.0 - (victim + 1)) for i in range(2)]
    assert nccl.drawn == 2
    nccl.check_all_given_back()


def test_a_dropped_rank_on_a_gpu_ends_the_wait_of_the_others(cuda):
    nccl, devices = CountingNccl(current_device=current_id), [cuda, Device("cuda:0")]
    office = Office(2, timeout_s=WAIT_S, devices=devices, nccl=nccl)

    def body(lifeline: Lifeline) -> Any:
        comm = lifeline.regroup([0, 1], 0)
        if lifeline.rank == 1:
            lifeline.take(WAIT_S)
        office.outside.drop(1, "it was silent")
        with pytest.raises(RankFailedError, match="rank 1 is dead: it was dropped: it was silent"):
            total(comm, 1.0)
        return total(lifeline.regroup([0], 1), 3.0)

    outcomes = run_living(office, body)
    assert outcomes[0] == 3.0 and isinstance(outcomes[1], RankFailedError)
    nccl.check_all_given_back()


def test_devices_that_do_not_fit_are_refused(cuda):
    for devices in ([CPU, cuda], [cuda], [Device("cpu")] * 3):
        with pytest.raises(ArgumentError, match="Office: expected a device for each of 2 ranks, all of one type"):
            Office(2, devices=devices)
