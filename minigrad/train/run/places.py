"""Where the ranks of a run live: each place calls body(comm) for each rank of this process, and returns what one gave.

A place is called in a thread of the run's own, so that its caller can look on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from minigrad.backend.device import Device
from minigrad.distributed.bootstrap import init
from minigrad.distributed.comm.checks import default_timeout_s
from minigrad.distributed.comm.nccl.communicator import NcclCommunicator
from minigrad.distributed.comm.protocol import Communicator, check_is_communicator
from minigrad.distributed.comm.rendezvous import Rendezvous, free_port
from minigrad.distributed.comm.threads import ThreadWorld
from minigrad.distributed.run import run as run_threads, run_world, be_rank
from minigrad.distributed.simulate import Cluster, Trace, run as simulate
from minigrad.distributed.simulate.cluster import check_cluster
from minigrad.errors import ArgumentError
from minigrad.train.run.config import WHO, RunConfig
from minigrad.train.run.handle import RunsRanks

T = TypeVar("T")


class Place(RunsRanks, Protocol):
    """Where ranks live.

    Attributes:
        trace: What they did, where they are simulated; else None.
    """

    trace: Trace | None

    def run(self, body: Callable[[Communicator], T]) -> T:
        """Call body(comm) for each rank of this process; what it gave, which is the same on all of them.

        Raises:
            Exception: what the first rank that failed has raised.
        """


class ThreadPlace:
    """Ranks that are threads, on CPUs."""

    leader, has_all_ranks = 0, True
    trace: Trace | None = None

    def __init__(self, world_size: int, timeout_s: float | None) -> None:
        self.world_size, self._timeout_s = world_size, timeout_s

    def run(self, body: Callable[[Communicator], T]) -> T:
        """See `Place`."""
        return run_threads(body, self.world_size, timeout_s=self._timeout_s)[0]


class ClusterPlace:
    """Ranks of a virtual cluster."""

    leader, has_all_ranks = 0, True

    def __init__(self, cluster: Cluster, timeout_s: float | None) -> None:
        check_cluster(WHO, cluster)
        self.world_size, self._cluster, self._timeout_s = cluster.world_size, cluster, timeout_s
        self.trace: Trace | None = None

    def run(self, body: Callable[[Communicator], T]) -> T:
        """See `Place`."""
        found: list[T] = []

        def first(comm: Communicator) -> None:
            result = body(comm)
            if comm.rank == 0:
                found.append(result)

        self.trace = simulate(first, self._cluster, timeout_s=self._timeout_s)
        return found[0]


class ProcessPlace:
    """One rank of this process, which has a communicator: a launcher's, mpirun's or one's own; or a world of one."""

    trace: Trace | None = None

    def __init__(self, comm: Communicator) -> None:
        self.world_size, self.leader, self._comm = comm.world_size, comm.rank, comm
        self.has_all_ranks = comm.world_size == 1

    def common_seed(self, own: int) -> int:
        """The seed of rank 0, where each process has drawn its own; all of them call it."""
        seed: int = self._comm.all_gather_object(own)[0]
        return seed

    def run(self, body: Callable[[Communicator], T]) -> T:
        """See `Place`; the other ranks are told where this one fails."""
        return _told_of_failure(body, self._comm, closes=False)


class DevicePlace:
    """Ranks that are threads with a GPU each, by NCCL."""

    leader, has_all_ranks = 0, True
    trace: Trace | None = None

    def __init__(self, devices: Sequence[Device], timeout_s: float | None) -> None:
        names = [str(device) for device in devices]
        if any(device.type == "cpu" for device in devices) or len({*names}) < len(names):
            raise ArgumentError(
                f"{WHO}: expected devices that are CPUs all, or GPUs each of which is another one, got {names}"
            )
        self.world_size, self._devices, self._timeout_s = len(names), list(devices), default_timeout_s(timeout_s)

    def run(self, body: Callable[[Communicator], T]) -> T:
        """See `Place`."""
        world = ThreadWorld(self.world_size, timeout_s=self._timeout_s)
        port, key = free_port(), secrets.token_bytes(32)

        def on_gpu(beside: Communicator) -> T:
            meeting = Rendezvous(beside.rank, beside.world_size, "127.0.0.1", port, key, self._timeout_s)
            comm = NcclCommunicator(meeting, beside.device, timeout_s=self._timeout_s)
            return _told_of_failure(body, comm, closes=True)

        return run_world(on_gpu, world, world.communicators(self._devices))[0]


def _told_of_failure(body: Callable[[Communicator], T], comm: Communicator, closes: bool) -> T:
    """What body(comm) gives in a rank's own thread; where it fails the other ranks are told."""
    be_rank(comm)
    try:
        return body(comm)
    except BaseException as error:
        comm.abort(f"it raised {type(error).__name__}: {error}")
        raise
    finally:
        if closes:
            comm.close()


def place_of(config: RunConfig) -> Place:
    """The place that a run's options say.

    Raises:
        ArgumentError: see `distributed.init`; or what was given is none, or shares are those of other ranks.
    """
    place = _place_of(config)
    if config.shares is not None and len(config.shares) != place.world_size:
        raise ArgumentError(
            f"{WHO}: expected a share for each of {place.world_size} ranks, got {len(config.shares)}: {config.shares}"
        )
    return place


def _place_of(config: RunConfig) -> Place:
    if config.ranks is not None:
        return ThreadPlace(config.ranks, config.timeout_s)
    if config.cluster is not None:
        return ClusterPlace(config.cluster, config.timeout_s)
    if config.devices is not None:
        devices = [Device(device) for device in config.devices]
        if all(device.type == "cpu" for device in devices):
            return ThreadPlace(len(devices), config.timeout_s)
        return DevicePlace(devices, config.timeout_s)
    if config.timeout_s is not None and config.comm is not None:
        raise ArgumentError(f"{WHO}: expected no timeout_s with comm=, which has its own, got {config.timeout_s}")
    comm = config.comm if config.comm is not None else init(timeout_s=config.timeout_s)
    check_is_communicator(WHO, comm)
    if comm.world_size > 1 and config.timeout_s not in (None, comm.timeout_s):
        raise ArgumentError(
            f"{WHO}: expected no timeout_s where ranks have theirs, {comm.timeout_s:g} s here, got {config.timeout_s}"
        )
    return ProcessPlace(comm)
