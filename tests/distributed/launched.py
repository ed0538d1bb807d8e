"""Ranks as the launcher starts them, with a GPU each, on the stand-ins: threads, each told its place as its process is.

That for NCCL joins threads, not processes; `init` finds everything else as it would.
"""

import contextvars
import sys
import threading

from threadpoolctl import threadpool_limits

from minigrad import distributed
from minigrad.distributed import bootstrap
from minigrad.distributed.comm.nccl import communicator
from minigrad.distributed.comm.rendezvous import free_port
from tests.distributed.fake_nccl import FakeNccl
from tests.strict_cupy.device import current_id

place = contextvars.ContextVar("place", default=bootstrap.Seat())


def launcher(monkeypatch):
    """For a fixture: yields launch(main, world_size), which gives what main() returns on each rank, or raises."""
    fake = FakeNccl(current_device=current_id, timeout_s=10.0)
    monkeypatch.setattr(communicator, "load_nccl", lambda: fake)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which each rank replaces
    monkeypatch.setattr(bootstrap, "detect", lambda environ: place.get())
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "MINIGRAD_AUTHKEY": "k"}
    for name, value in {**names, "OMP_NUM_THREADS": "1", "MINIGRAD_TIMEOUT_S": "10"}.items():
        monkeypatch.setenv(name, value)
    init, made = distributed.init, {}

    def starting(**options):
        made[place.get().rank] = init(**options)
        return made[place.get().rank]

    monkeypatch.setattr(distributed, "init", starting)

    def launch(main, world_size):
        outcomes = [None] * world_size

        def body(rank):
            place.set(bootstrap.Seat(rank, world_size, rank, world_size, "minigrad"))
            try:
                outcomes[rank] = main()
            except BaseException as error:
                outcomes[rank] = error
                if rank in made:
                    made[rank].abort(f"it raised {error!r}")
            finally:  # as at the end of its process
                if rank in made:
                    made[rank].close()

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(body, rank), daemon=True)
            for rank in range(world_size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40.0)
        return outcomes

    with threadpool_limits(limits=1, user_api="blas"):
        yield launch
    fake.check_all_given_back()
