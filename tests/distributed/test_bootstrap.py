"""Which rank am I? From the environment of every launcher, and errors that name what is missing."""

import pytest

from minigrad.backend.device import CPU, Device
from minigrad.distributed import SoloCommunicator, init, run
from minigrad.distributed.bootstrap import Seat, choose_backend, detect
from minigrad.errors import ArgumentError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    "environ, place",
    [
        ({}, Seat()),
        (TORCHRUN, Seat(5, 8, 1, 4, "torchrun")),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Seat(1, 2, 1, 2, "torchrun")),
        ({"MINIGRAD_RANK": "0", "MINIGRAD_WORLD_SIZE": "2", **TORCHRUN}, Seat(0, 2, 0, 2, "minigrad")),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, Seat(1, 4, 1, 4, "mpi")),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, Seat(3, 4, 1, 2, "mpi")),
        (
            {
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            Seat(2, 4, 0, 2, "mpi"),
        ),
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NUM_TASKS": "7",
                "SLURM_PROCID": "6",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
                "SLURM_NODEID": "3",
            },
            Seat(6, 7, 0, 1, "slurm"),
        ),
        ({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Seat()),  # a batch script, no step
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, Seat()),
    ],
)
def test_detect(environ, place):
    assert detect(environ) == place


def test_backend_follows_from_the_place_and_the_device():
    assert choose_backend(Seat(), CPU, None) == "solo"
    assert choose_backend(Seat(0, 2, 0, 2, "minigrad"), CPU, None) == "shm"
    assert choose_backend(Seat(0, 2, 0, 2, "mpi"), CPU, None) == "mpi"
    assert choose_backend(Seat(0, 2, 0, 2, "torchrun"), Device("cuda"), None) == "nccl"
    assert choose_backend(Seat(0, 2, 0, 2, "torchrun"), CPU, "mpi") == "mpi"


def test_init_alone_is_a_world_of_one(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MINIGRAD_RANK", "PMI_RANK", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(init(), SoloCommunicator)
    with pytest.raises(ArgumentError, match="both or neither, got no world_size"):
        init(rank=0)
    with pytest.raises(ArgumentError, match="timeout_s: expected seconds to be a finite number > 0"):
        init(timeout_s=-1.0)
    monkeypatch.setenv("MINIGRAD_TIMEOUT_S", "soon")
    with pytest.raises(ArgumentError, match="MINIGRAD_TIMEOUT_S: expected seconds .*, got 'soon'"):
        init()


def test_init_under_thread_ranks_is_the_thread_s():
    assert run(lambda comm: init() is comm, 3) == [True, True, True]
