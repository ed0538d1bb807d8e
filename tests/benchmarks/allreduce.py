"""All-reduce between two processes: minigrad's shared memory against PyTorch's gloo. Run by hand, with PyTorch:

    python -m tests.benchmarks.allreduce [--rounds 7] [--pin]

Both run in the same two processes and take turns, round by round; the ratios are those of one round. `segment` is an
array in shared memory, as gradients are; `plain` is any other array, which travels through a staging area. After gloo's
barrier the ranks often wake on one core; the kernel gives each its own within about 10 ms, and a round lasts longer.
Wanted for 4 KB, 1 MB and 25 MB: at least 8 times faster than gloo.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import numpy as np

from tests.benchmarks.ranks import interleaved, meet, part, run_ranks, spread

SIZES = {"4 KB": 4096, "64 KB": 65536, "1 MB": 2**20, "25 MB": 25 * 2**20}
# a round outlasts the time that the kernel needs to give each rank a core
CALLS = {"4 KB": 3000, "64 KB": 2500, "1 MB": 600, "25 MB": 20}


def serve(rank, ports, rounds, pin):
    """One rank; the first prints."""
    import torch

    comm = meet(rank, ports, pin)
    for name, nbytes in SIZES.items():
        segment = comm.empty(nbytes // 4, np.dtype(np.float32))
        plain, theirs = np.zeros(nbytes // 4, np.float32), torch.zeros(nbytes // 4)
        functions = {
            "segment": lambda array=segment: comm.all_reduce(array).wait(),
            "plain": lambda array=plain: comm.all_reduce(array).wait(),
            "gloo": lambda array=theirs: torch.distributed.all_reduce(array),
        }
        times = interleaved(functions, rounds, CALLS[name])
        if rank == 0:
            listed = "  ".join(f"{kind} {statistics.median(column) * 1e6:9.1f} us" for kind, column in times.items())
            ratios = {
                kind: spread([g / o for g, o in zip(times["gloo"], times[kind])]) for kind in ("segment", "plain")
            }
            print(f"{name:>6}  {listed}  gloo/segment {ratios['segment']}  gloo/plain {ratios['plain']}", flush=True)
    part(comm)


def main():
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pin", action="store_true", help="give each rank a core of its own")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is None:
        run_ranks("tests.benchmarks.allreduce", sys.argv[1:])
    else:
        serve(options.rank, options.ports, options.rounds, options.pin)


if __name__ == "__main__":
    main()
