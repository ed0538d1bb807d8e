"""What a training step gives a GPU to do, counted on the stand-ins: `python -m tests.benchmarks.launches [name ...]`.

Each piece of device work costs a GPU's host some ten microseconds, so their number is what a small step takes. The
stand-in for CuPy counts it on any machine: pieces of work (array functions, products, copies, kernels), views, which
cost the device nothing, uploads, waits of the host, and bytes read and written by the pieces. `--places` lists them by
the function that asked. Workloads: see tests/benchmarks/workloads.py.
"""

from __future__ import annotations

import argparse
import sys
from unittest import mock

from tests.benchmarks.workloads import TRAININGS, train_step
from tests.kernels.cuda_on_cpu import StandInKernels
from tests.strict_cupy import MODULES, Work, counted
from tests.strict_cupy.products import StandInCublas

SAMPLES = 4  # in a batch: the number of pieces is the same for any


def count_step(name: str, samples: int = SAMPLES) -> Work:
    """The work of one step of a workload, after one that made what is kept; on the stand-in, which must be in place."""
    import minigrad
    from minigrad import nn, optim

    training = TRAININGS[name]
    device = minigrad.distributed.init(backend="solo", device="cuda:1").device
    minigrad.manual_seed(0)
    model = training.build(nn).to(device)
    x, labels = (minigrad.tensor(array, device=device) for array in training.batch(samples))
    optimizer = training.optimizer(optim, model.parameters())
    train_step(model, optimizer, nn.functional.cross_entropy, x, labels)
    with counted() as work:
        train_step(model, optimizer, nn.functional.cross_entropy, x, labels)
    return work


def main() -> None:
    """Count the workloads that were asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(TRAININGS), metavar="workload", help=", ".join(TRAININGS))
    parser.add_argument("--places", action="store_true", help="list the pieces by name and by place")
    options = parser.parse_args()
    from minigrad.backend.cublas import using_cublas
    from minigrad.backend.kernels import using_kernels

    print(f"{'':8}{'pieces':>8}{'views':>8}{'uploads':>8}{'waits':>8}{'MB':>8}")
    stand_ins = mock.patch.dict(sys.modules, MODULES), using_kernels(StandInKernels()), using_cublas(StandInCublas())
    with stand_ins[0], stand_ins[1], stand_ins[2]:
        for name in options.workloads:
            work = count_step(name)
            counts = (work.total, work.views, work.uploads, work.waits)
            print(f"{name:8}" + "".join(f"{count:8}" for count in counts) + f"{work.nbytes / 1e6:8.1f}", flush=True)
            for found in (work.pieces, work.places) if options.places else ():
                print("", *(f"{count:6}  {what}" for what, count in found.most_common(40)), sep="\n")


if __name__ == "__main__":
    main()
