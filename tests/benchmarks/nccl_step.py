"""What one DDP step over NCCL with 4 batch norms comes to, counted on the stand-ins, so that it needs no GPU:

    python -m tests.benchmarks.nccl_step [world sizes]

Of each rank: pieces of work for its device (array functions, products and kernels; no views), collectives, and waits of
the host, for other ranks or for the device. Of all ranks: messages beside NCCL, and apart from these those that say how
far each rank is, in the step and a second after it; they go out a few times a second however many steps are made.
A step is forward, backward and SGD; two have gone before. It runs on earlier commits, too: PYTHONPATH=<their checkout>
python <this file>.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

TIMEOUT_S = 120.0
VIEWS = {"getitem", "reshape", "transpose", "swapaxes", "broadcast_to", "expand_dims", "moveaxis", "squeeze", "ravel"}


@contextlib.contextmanager
def stand_ins() -> Iterator[Any]:
    """The stand-in for CuPy in its place, as tests/conftest.py has it."""
    from minigrad.backend.cublas import using_cublas
    from minigrad.backend.kernels import using_kernels
    from tests.kernels.cuda_on_cpu import StandInKernels
    from tests.strict_cupy import MODULES, cupy
    from tests.strict_cupy.products import StandInCublas

    sys.modules.update(MODULES)
    with using_kernels(StandInKernels()), using_cublas(StandInCublas()):
        yield cupy


def is_state(message: bytes) -> bool:
    """Whether a message says how far ranks are."""
    from minigrad.distributed.comm.nccl.messages import Kind, unbundled, unpacked

    return next(unbundled(unpacked(message))).kind == Kind.STATE


class Counts(Counter[str]):
    """Counts what passes the places where it is watched, while it is on."""

    def __init__(self, cupy: Any) -> None:
        super().__init__()
        self.on = False
        self.worlds: list[Any] = []
        self._cupy = cupy

    def watch(self) -> None:
        """Wrap these places, for the rest of the process."""
        from minigrad.distributed.comm.nccl import gatherings, launches
        from tests.distributed import fake_nccl
        from tests.strict_cupy import call, device, streams

        perform = streams.perform

        def performed(work: Callable[[], Any], who: str, arguments: list[Any], out: Any) -> Any:
            result = perform(work, who, arguments, out)
            self._piece(who, arguments, result)
            return result

        streams.perform = call.perform = performed
        self._before(fake_nccl.Communicator, "_collective", lambda *_: "collectives")
        self._before(gatherings.Gatherings, "gather", lambda *_: "waits for ranks")
        self._before(threading.Condition, "wait_for", self._wait)
        self._before(
            launches.Launches, "complete", lambda comm, entry, host: "waits for devices" if host else ""
        )
        self._before(type(device.syncs), "note", lambda *_: "waits for devices")
        self._before(
            Connection, "send_bytes", lambda link, data: data and ("states" if is_state(data) else "messages")
        )

    def _before(self, owner: Any, name: str, kind: Callable[..., Any]) -> None:
        inner = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            what = kind(*args) if self.on else ""
            if what:
                self[what] += 1
            return inner(*args, **options)

        setattr(owner, name, counted)

    def _wait(self, condition: Any, predicate: Callable[[], bool], *limit: float) -> str:
        """Waits of a rank for something else than a gathering, which is counted as such."""
        inside = sys._getframe(2).f_code.co_name == "gather"
        known = any(condition is each.failure.changed for each in self.worlds)
        is_rank = threading.current_thread().name.startswith("Thread")
        return "waits for ranks" if known and is_rank and not inside and not predicate() else ""

    def _piece(self, who: str, arguments: list[Any], result: Any) -> None:
        is_view = who in VIEWS and isinstance(result, np.ndarray) and result.base is not None
        same = who == "astype" and any(result is each for each in arguments)
        if self.on and not is_view and not same:
            self["pieces"] += 1


def step_of(comm: Any) -> Callable[[], None]:
    """A training step of a model with 4 batch norms on this rank's GPU."""
    import minigrad
    from minigrad import nn, optim
    from minigrad.distributed import DDP
    from minigrad.nn import functional as F

    layers = [m for _ in range(4) for m in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    ddp = DDP(nn.Sequential(*layers, nn.Linear(8, 3)).to(comm.device), comm)
    optimizer = optim.SGD(ddp.parameters(), lr=0.01)
    x = minigrad.randn(5, 8, device=comm.device)
    y = minigrad.tensor([0, 1, 2, 0, 1], device=comm.device)

    def step() -> None:
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def count(world_size: int, counts: Counts) -> dict[str, int]:
    """The counts of one step of all ranks, which share the second GPU of the stand-in."""
    from minigrad import Device
    from minigrad.distributed import NcclCommunicator
    from minigrad.distributed.comm.rendezvous import Rendezvous, free_port
    from tests.distributed.fake_nccl import FakeNccl

    here, fake, port = threading.Barrier(world_size), FakeNccl(timeout_s=TIMEOUT_S), free_port()
    device, found = Device("cuda:1"), dict[str, int]()

    def switched(rank: int, on: bool) -> None:
        here.wait(TIMEOUT_S)
        if rank == 0:
            time.sleep(1.0)  # longer than a tick: what went before is told
            counts.on = on
            found.update(counts)
            counts.clear()
        here.wait(TIMEOUT_S)

    def body(rank: int) -> None:
        meeting = Rendezvous(rank, world_size, "127.0.0.1", port, b"key", TIMEOUT_S)
        with device.current():
            comm = NcclCommunicator(meeting, device, timeout_s=TIMEOUT_S, share_devices=True, nccl=fake)
            counts.worlds.append(comm._world)
            step = step_of(comm)
            step()
            step()
            found.clear()
            switched(rank, True)
            step()
            switched(rank, False)
            comm.close()

    contexts = [contextvars.copy_context() for _ in range(world_size)]  # they have the kernels
    ranks = [threading.Thread(target=context.run, args=(body, rank)) for rank, context in enumerate(contexts)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    return found


def main(sizes: list[int]) -> None:
    """Print a row for each size."""
    with stand_ins() as cupy:
        counts = Counts(cupy)
        counts.watch()
        each = ("pieces", "collectives", "waits for ranks", "waits for devices")
        print(f"{'W':>2}  " + "  ".join(f"{name:>17}" for name in (*each, "messages", "states")))
        for world_size in sizes:
            found = count(world_size, counts)
            row = [f"{found.get(name, 0) / world_size:g}" for name in each]
            row += [str(found.get(name, 0)) for name in ("messages", "states")]
            print(f"{world_size:>2}  " + "  ".join(f"{cell:>17}" for cell in row))


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [1, 2, 4, 8])
