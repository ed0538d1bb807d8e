"""The divergence meter: what it says of gradients is what their definitions say, on ranks of all kinds."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad
from minigrad.distributed import (
    DDP,
    CadenceConfig,
    DivergenceMeter,
    ParameterAverager,
    Rounds,
    SoloCommunicator,
    divergence_hook,
    run,
    simulate,
)
from minigrad.distributed.average import EveryK, NoGuard
from minigrad.errors import ArgumentError
from tests.distributed.models import Mlp, data, mean_loss
from tests.distributed.test_noise import Rows, drawn
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 10.0


def measured(comm, batches, **options):
    """What a meter says after each step, of the ranks' rows."""
    ddp, meter = DDP(Rows().to(comm.device), comm, bucket_cap_bytes=16, **options), DivergenceMeter()
    ddp.register_comm_hook(meter, divergence_hook)
    told = []
    for parts in batches:
        ddp(minigrad.Tensor(parts[comm.rank]).to(comm.device)).backward()
        ddp.zero_grad()
        told.append(meter.report())
    return told


def by_definition(parts):
    """Norms and angles of each rank's mean of rows beside the mean of all; a rank without rows is at that."""
    g = np.concatenate(parts).mean(axis=0)
    own = [part.mean(axis=0) if len(part) else g for part in parts]
    size = np.linalg.norm(g)
    relative = [np.linalg.norm(row - g) / size for row in own]
    cosine = [row @ g / np.linalg.norm(row) / size for row in own]
    return relative, cosine, [np.linalg.norm(row) / size - 1.0 for row in own]


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 9), min_size=2, max_size=3).filter(any))
@settings(max_examples=10)
def test_it_is_what_the_definitions_say(seed, shards):
    batches = drawn(shards, steps=2, seed=seed)
    told = run(measured, len(shards), batches, timeout_s=TIMEOUT_S)
    assert all(each == told[0] for each in told)
    for report, parts in zip(told[0], batches):
        for found, expected in zip((report.relative, report.cosine, report.magnitude), by_definition(parts)):
            assert found == pytest.approx(expected, abs=1e-7)  # a cosine of 1 is 1 - 1e-16


@pytest.mark.parametrize("kind", ["shm", "simulated"])
def test_processes_and_a_simulation_say_the_same(kind):
    batches = drawn((5, 2), steps=2)
    expected = run(measured, 2, batches, timeout_s=TIMEOUT_S)
    if kind == "shm":
        assert run_ranks(kind, lambda comm: measured(comm, batches), 2) == expected
    else:
        assert simulate.run(measured, simulate.Cluster.of_speeds([2, 1]), batches).results == expected


def trained(comm, hook):
    ddp = DDP(Mlp(0), comm, bucket_cap_bytes=64)
    if hook:
        ddp.register_comm_hook(DivergenceMeter(), divergence_hook)
    x, y = data(8 + comm.rank, comm.rank)
    mean_loss(ddp(minigrad.Tensor(x)), y).backward()
    return [param.grad_array.copy() for param in ddp.parameters()]


def test_it_changes_no_bit():
    plain, looked = (run(trained, 2, hook, timeout_s=TIMEOUT_S) for hook in (False, True))
    for one, other in zip(plain, looked):
        assert all(np.array_equal(a, b) for a, b in zip(one, other))


def test_gradients_that_are_sums_are_refused():
    with pytest.raises(ArgumentError, match="expected gradients that are means over samples, got reduce='sum'"):
        run(lambda comm: measured(comm, drawn((2, 2), 1), reduce="sum"), 2, timeout_s=TIMEOUT_S)


def test_a_copy_is_empty_and_one_rank_is_at_the_mean():
    ddp, meter = DDP(Rows(), SoloCommunicator()), DivergenceMeter()
    ddp.register_comm_hook(meter, divergence_hook)
    ddp(minigrad.ones(3, 5, dtype=minigrad.float64)).backward()
    report = meter.report(4)
    assert (report.relative, report.magnitude, report.steps) == ((0.0,), (0.0,), 4)
    assert report.cosine == pytest.approx([1.0])
    with pytest.raises(ArgumentError, match="expected a pass"):
        copy.deepcopy(meter).report()


def rounds_of(comm, batches):
    rounds, meter = Rounds(comm, CadenceConfig.fixed(2), guard=NoGuard()), DivergenceMeter()
    ddp = DDP(Rows(), rounds.comm)
    ddp.register_comm_hook(meter, divergence_hook)
    printed = []
    for mine in rounds.deal(range(len(batches))):
        with ddp.no_sync():
            for number in mine:
                (ddp(minigrad.Tensor(batches[number])) / len(mine)).backward()
        ddp.flush()
        ddp.zero_grad()
        rounds.report(meter.report(steps=2))
        printed.append(str(rounds.divergence))
    return printed


def test_rounds_print_how_far_each_rank_was():
    """A rank's gradient is that of its batches of the round, which are as large as each other."""
    batches = [part for parts in drawn((4, 4), steps=4, seed=3) for part in parts]
    trace = simulate.run(rounds_of, simulate.Cluster.of_speeds([1, 1]), batches)
    assert len(trace.results[0]) == 2
    for number, printed in enumerate(trace.results[0]):
        four = batches[4 * number : 4 * number + 4]
        table = by_definition([np.concatenate(four[:2]), np.concatenate(four[2:])])
        head, *rows = [line.split() for line in printed.splitlines()]
        assert head == ["rank", "relative", "cosine", "magnitude"]
        for rank, row in enumerate(rows):
            assert [float(cell) for cell in row] == pytest.approx([rank, *(each[rank] for each in table)], abs=6e-5)


def averaged(comm):
    model = Rows()
    averager = ParameterAverager(model, comm, EveryK(1))
    with minigrad.no_grad():
        for param, value in zip(model.parameters(), (1.0, 2.0 + comm.rank)):
            param.fill_(value)
    report = averager.step(3)
    return str(report), report.divergence


def test_a_combination_prints_what_it_did():
    for printed, divergence in run(averaged, 2, timeout_s=TIMEOUT_S):
        head, table = printed.split("\n", 1)
        assert head.startswith("combination 1: 6 samples, ") and "bytes sent: " in head
        assert table == str(divergence)
        a, p = np.array([1, 1, 2.5, 2.5, 2.5]), np.array([1, 1, 3, 3, 3])
        off = math.sqrt(3 * 0.25 / (a @ a))
        line = f"1  {off:.4f}  {p @ a / math.sqrt((p @ p) * (a @ a)):.4f}  {math.sqrt(p @ p / (a @ a)) - 1:+.4f}"
        assert table.splitlines()[2].split() == line.split()
