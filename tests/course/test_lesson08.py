"""Lesson 8: our wrapper has the gradients of DDP, and its wire moves under backward."""

from functools import partial

import numpy as np

import minigrad
from minigrad import Tensor, nn
from minigrad.course.lesson08_overlap import checks
from minigrad.course.lesson08_overlap.picture import bucketed, naive, overlapped, traced
from minigrad.course.lesson08_overlap.solution import get_ddp_overlapped
from minigrad.distributed import DDP, ThreadWorld, run
from minigrad.distributed.run import run_world
from minigrad.distributed.simulate import Link
from minigrad.testing.grading import best_step

SAMPLES = (5, 2, 3)
LINK = Link(latency_s=4e-4, bandwidth_bytes_s=3e7)  # of the picture


def gradients(comm, wrap):
    minigrad.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to("float64")
    ddp = wrap(module, comm)
    x = Tensor(np.random.default_rng(comm.rank).standard_normal((SAMPLES[comm.rank], 4)))
    ddp(x).square().mean().backward()
    if hasattr(ddp, "finish"):
        ddp.finish()
    return [param.grad.data.copy() for param in module.parameters()]


def test_gradients_are_those_of_ddp():
    for cap in (1, 100, 10**6):
        wrap = partial(get_ddp_overlapped, bucket_cap_bytes=cap)
        for theirs, ours in zip(run(gradients, 3, DDP), run(gradients, 3, wrap)):
            assert max(float(np.abs(a - b).max()) for a, b in zip(theirs, ours)) < 1e-12


def test_the_wire_of_the_picture_moves_under_backward():
    steps_s = [traced(wrap).step_times_s()[0] for wrap in (naive, bucketed, overlapped)]
    compute_s, layer_bytes = 16e-3, 64 * 65 * 8
    one_s = LINK.cost_s("all_reduce", 2 * layer_bytes, 2)
    each_s = LINK.cost_s("all_reduce", 64 * 64 * 8, 2) + LINK.cost_s("all_reduce", 64 * 8, 2)
    first_s = compute_s / 3 + compute_s * 2 / 3 / 4  # when a quarter of the gradients is complete
    assert (
        max(abs(a - b) for a, b in zip(steps_s, [compute_s + 8 * each_s, compute_s + 4 * one_s, first_s + 4 * one_s]))
        < 1e-9
    )


def test_what_is_asked_is_between_the_best_and_what_does_not_overlap():
    for place in checks.places().values():
        cluster, sizes = place.cluster, [4 * n for n in [32, 32 * 32] * 8]
        samples = checks.WORKLOAD.samples_of(cluster.world_size)
        best = best_step(cluster, samples, sizes)
        after_s = best.compute_s + 4 * cluster.link.cost_s("all_reduce", checks.CAP_BYTES, cluster.world_size)
        assert best.exposed_s / best.step_s < place.exposed_fraction < 1.0 - best.compute_s / after_s


def test_it_runs_on_devices(cuda):
    def body(comm):
        minigrad.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to(comm.device)
        ddp = get_ddp_overlapped(module, comm, bucket_cap_bytes=100)
        x = Tensor(np.random.default_rng(comm.rank).standard_normal((3 + comm.rank, 4)).astype(np.float32)).to(
            comm.device
        )
        ddp(x).square().mean().backward()
        ddp.finish()
        return [param.grad.tolist() for param in module.parameters()]

    world = ThreadWorld(2, timeout_s=120)
    first, second = run_world(body, world, world.communicators([cuda, cuda]))
    assert first == second
