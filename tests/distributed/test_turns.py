"""Thread ranks that take turns by a seed: each order replays, and a race is found by searching orders."""

import threading
import time

import numpy as np
import pytest

import minigrad
from minigrad import nn
from minigrad.distributed import DistributedDataParallel, run
from minigrad.distributed.comm.turned import TurnedWorld, handing_over
from minigrad.distributed.comm.turns import Baton, scheduled
from minigrad.distributed.run import run_world
from minigrad.errors import ArgumentError, CollectiveTimeoutError, RankFailedError
from minigrad.testing import conformance, schedules
from minigrad.testing.conformance import CHECKS, MinigradAdapter
from minigrad.testing.schedules.__main__ import main


def gradients(comm):
    """Of two steps, in buckets of a parameter each."""
    minigrad.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    ddp = DistributedDataParallel(net, comm, bucket_cap_mb=1e-5, first_bucket_mb=1e-5)
    for step in range(2):
        x = np.random.default_rng((comm.rank, step)).standard_normal((comm.rank + 1, 4), np.float32)
        ddp(minigrad.tensor(x)).square().mean().backward()
    return [param.grad.numpy().tobytes() for param in net.parameters()]


def turns_of(fn, world_size, seed):
    world = TurnedWorld(world_size, timeout_s=20)
    world.turns = Baton(seed, world_size, 20)
    run_world(fn, world, world.communicators(), around=handing_over)
    return world.turns.taken


def test_a_step_has_the_same_bits_in_every_order():
    wanted = run(gradients, 3)
    assert all(run(gradients, 3, schedule=seed) == wanted for seed in range(20))


def test_an_order_replays_and_another_seed_gives_another():
    orders = [turns_of(gradients, 3, seed) for seed in (0, 1, 2)]
    assert [turns_of(gradients, 3, seed) for seed in (0, 1, 2)] == orders
    assert len({tuple(order) for order in orders}) == 3
    assert all(order.count(rank) > 10 for order in orders for rank in range(3))


def test_one_rank_runs_at_a_time():
    running, most = [], []

    def body(comm):
        for _ in range(20):
            running.append(comm.rank)
            most.append(len(running))
            running.remove(comm.rank)
            comm.all_reduce(np.ones(1)).wait()

    run(body, 4, schedule=5)
    assert set(most) == {1}


# ------------------------------------------------------------------------------------------------------- a race


class Counted:
    """A reducer of several threads, which counts those that have added their part; right where `reads_inside`."""

    def __init__(self, reads_inside):
        self.lock, self.total, self.count, self.reads_inside = threading.Lock(), np.zeros(3), 0, reads_inside

    def add(self, comm, array):
        seen = self.count
        work = comm.all_reduce(np.ones(1))  # tells the others that it is on its way
        with self.lock:
            self.total += array
            self.count = (self.count if self.reads_inside else seen) + 1
        work.wait()


def check_counted(reads_inside):
    reducer = Counted(reads_inside)
    run(lambda comm: reducer.add(comm, np.ones(3) * comm.rank), 2)
    assert reducer.count == 2


def test_a_planted_race_is_found_and_replays():
    found = schedules(lambda: check_counted(reads_inside=False), 200)
    assert isinstance(found.error, AssertionError)
    for _ in range(20):
        with scheduled(found.seed), pytest.raises(AssertionError):
            check_counted(reads_inside=False)
    for seed in range(found.seed):
        with scheduled(seed):
            check_counted(reads_inside=False)  # none of a smaller seed


def test_without_the_race_nothing_is_found():
    assert schedules(lambda: check_counted(reads_inside=True), 50) is None


class Once(MinigradAdapter):
    """Whose steps without a fault are made once before it: that they can be made twice is held without schedules."""

    controls = 1


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance_in_20_orders(check):
    found = schedules(lambda: check(Once()), 20)
    assert found is None, f"under schedule {found.seed}: {found.error}"


def test_the_program(capsys):
    assert main(["-n", "2", "-k", "zero_grad"]) == 0
    assert "1 checks, 2 schedules each: 0 failed, in " in capsys.readouterr().out


def test_the_program_names_the_seed_of_what_fails(capsys, monkeypatch):
    def check_first(adapter):
        came = []
        run(lambda comm: (comm.all_reduce(np.ones(1)), came.append(comm.rank)), 2)
        assert came == [0, 1]

    monkeypatch.setitem(main.__globals__, "CHECKS", (check_first,))
    assert main(["-n", "20"]) == 1
    assert "FAILED under" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ ends and errors


def test_ranks_that_wait_for_each_other_are_told_at_once():
    def body(comm):
        if comm.rank == 0:
            comm.recv(np.ones(3), 1).wait()
        else:
            comm.all_reduce(np.ones(3)).wait()

    began_s = time.monotonic()
    for seed in range(10):
        with pytest.raises(CollectiveTimeoutError, match="before no rank can go on, got"):
            run(body, 2, schedule=seed, timeout_s=300)
    assert time.monotonic() - began_s < 300  # nobody waited for the timeout


def test_a_rank_that_fails_is_told_to_the_others():
    def body(comm):
        if comm.rank == 1:
            raise ValueError("boom")
        with pytest.raises(RankFailedError, match="rank 1 failed first"):
            comm.all_reduce(np.ones(3)).wait()
        return True

    with pytest.raises(ValueError, match="boom"):
        run(body, 3, schedule=3)


def test_who_waits_for_what_a_paused_rank_holds_is_named():
    lock = threading.Lock()

    def body(comm):
        with lock:
            comm.all_reduce(np.ones(1))  # hands over, and holds the lock meanwhile

    found = schedules(lambda: run(body, 2, timeout_s=0.3), 20)
    assert isinstance(found.error, CollectiveTimeoutError)
    assert "schedule: expected rank" in str(found.error) and "whose turn it is, to come to" in str(found.error)


def test_groups_take_turns_too():
    def body(comm):
        part = comm.split(comm.rank % 2)
        array = np.full(2, float(comm.rank))
        part.all_reduce(array).wait()
        return array.tolist()

    for seed in range(5):
        assert run(body, 4, schedule=seed) == [[2.0] * 2, [4.0] * 2, [2.0] * 2, [4.0] * 2]


def test_a_loop_that_asks_whether_it_is_done_hands_over():
    def body(comm):
        work = comm.all_reduce(np.ones(1))
        while not work.done():
            pass
        return True

    assert run(body, 3, schedule=1, timeout_s=20) == [True] * 3


def test_wrong_arguments():
    for call, words in (
        (lambda: run(gradients, 2, schedule=-1), "run: expected schedule"),
        (lambda: run(gradients, 2, schedule=2**64), "run: expected schedule"),
        (lambda: run(gradients, 2, schedule="a"), "run: expected schedule"),
        (lambda: scheduled(-1).__enter__(), "scheduled: expected seed"),
        (lambda: schedules(3, 5), "schedules: expected a function without arguments, got 3"),
        (lambda: schedules(print, 0), "schedules: expected n"),
    ):
        with pytest.raises(ArgumentError, match=words):
            call()
    assert conformance.CHECKS is CHECKS
