"""Two processes for a benchmark: how they are started, and how they meet, as ranks of minigrad and of PyTorch."""

from __future__ import annotations

import datetime
import gc
import os
import statistics
import subprocess
import sys
import time

WORLD_SIZE = 2
MISLEADING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # they would give NumPy the kernels of an older processor


def run_ranks(module, arguments):
    """Run `python -m module --rank r --ports ...` for each rank, with one BLAS thread; raise when one fails."""
    from minigrad.distributed.comm.rendezvous import free_port

    environment = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    environment.update({f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")})
    ports = [str(free_port()), str(free_port())]
    command = [sys.executable, "-m", module, *arguments, "--ports", *ports]
    processes = [subprocess.Popen([*command, "--rank", str(r)], env=environment) for r in range(WORLD_SIZE)]
    if any([process.wait() for process in processes]):
        raise SystemExit("a rank failed")


def meet(rank, ports, pin):
    """The shared-memory communicator of this rank; PyTorch's gloo group is its default group afterwards.

    Args:
        pin: Give each rank a core of its own. On a busy machine they else often share one; but gloo's threads then
            have to share one with the rank that they serve.
    """
    import torch

    if pin:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    from minigrad.distributed import ShmCommunicator
    from minigrad.distributed.comm.rendezvous import Rendezvous

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{ports[1]}",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=datetime.timedelta(seconds=60),
    )
    meeting = Rendezvous(rank, WORLD_SIZE, "127.0.0.1", ports[0], b"benchmark", 60.0)
    return ShmCommunicator(rank, WORLD_SIZE, meeting.all_gather, timeout_s=60.0)


def part(comm):
    """Leave both worlds, together: else PyTorch's threads abort one of the processes now and then.

    Nothing of PyTorch's that knows its group, as a wrapper does, may be left when this is called.
    """
    import torch

    gc.collect()
    comm.barrier()
    torch.distributed.destroy_process_group()
    comm.close()


def median_s(function, calls):
    """The median time of a call."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def interleaved(functions, rounds, calls):
    """For each name the medians of its rounds; the functions take turns, and the first round only warms up.

    Args:
        functions: By name; None where this rank sleeps while the other one runs.
        calls: Of each function in a round.
    """
    import torch

    times = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            torch.distributed.barrier()
            if function is not None:
                times[name].append(median_s(function, calls))
    return {name: column[1:] for name, column in times.items()}


def spread(values):
    """A median, and between what."""
    return f"{statistics.median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"
