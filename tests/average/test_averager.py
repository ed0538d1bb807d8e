"""ParameterAverager on ranks: where it is data-parallel training, and where and by how much it is something else."""

import re
from functools import partial

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, ParameterAverager, Recording, SoloCommunicator, average_parameters, run, simulate
from minigrad.distributed.average import Async, DiLoCo, EveryK, Mean, StreamingDiLoCo, Sync
from minigrad.distributed.simulate import Cluster, Link
from minigrad.errors import ArgumentError, AutogradError, CollectiveMismatchError, ReplicaMismatchError
from tests.average import averaged
from tests.average.trained import (
    STEPS, batch, by_ddp, by_gradients, by_parameters, loss_of, make_model, single, values_of
)
from tests.distributed.worlds import mpirun, run_ranks

TIMEOUT_S = 20.0


def on(kind, world_size, body):
    if kind == "simulated":
        return simulate.run(body, Cluster.of_speeds([3, 2, 1, 1][:world_size])).results
    return run_ranks(kind, body, world_size, TIMEOUT_S)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["threads", "shm", "simulated"])
def test_gradients_after_each_step_are_a_ddp_bit_for_bit(kind, world_size):
    """With an optimizer that has a past, and a rank without samples now and then."""

    def body(comm):
        return [
            (by_ddp(comm, make, dtype), by_gradients(comm, make, dtype, policy))
            for make, dtype in ((optim.Adam, "float32"), (optim.SGD, "float64"))
            for policy in (Sync(), EveryK(1))
        ]

    for pairs in on(kind, world_size, body):
        for ddp, found in pairs:
            assert (ddp == found).all()


@pytest.mark.parametrize("kind, world_size", [("threads", 1), ("threads", 4), ("shm", 2), ("simulated", 3)])
@pytest.mark.parametrize("policy", [Sync(), EveryK(1)], ids=repr)
def test_parameters_after_each_step_of_plain_sgd_are_a_ddp_to_rounding(kind, world_size, policy):
    results = on(kind, world_size, lambda comm: (by_ddp(comm), by_parameters(comm, policy=policy)))
    for ddp, found in results:
        np.testing.assert_allclose(found, ddp, rtol=0, atol=1e-12)
        assert (found == results[0][1]).all()


def test_parameters_are_averaged_by_samples_and_not_by_ranks():
    """1 after 20 batches, 4 after 10: 2, on both ranks and by both calls."""

    def train(comm):
        model = nn.Linear(1, 1, bias=False)
        averager = ParameterAverager(model, comm)
        model.weight.data[...] = (1.0, 4.0)[comm.rank]
        report = averager.step((20, 10)[comm.rank])
        plain = nn.Linear(1, 1, bias=False)
        plain.weight.data[...] = (1.0, 4.0)[comm.rank]
        average_parameters(plain, comm, (20, 10)[comm.rank])
        return model.weight.item(), plain.weight.item(), report.samples, report.nbytes

    assert run(train, 2, timeout_s=TIMEOUT_S) == [(2.0, 2.0, 30.0, 64)] * 2


# --------------------------------------------------------------------------------- where it is another algorithm


def far(a, b):
    return float(np.abs(a - b).max())


def test_adam_on_averaged_parameters_is_not_adam_on_the_mean_gradient():
    """Gradients 1 and -0.01, rate 0.1: each rank's first step has the length of the rate."""

    def train(comm):
        def step(average):
            weight = nn.Linear(1, 1, bias=False)
            weight.weight.data[...] = 0.0
            averager = ParameterAverager(weight, comm, average=average)
            optimizer = optim.Adam(weight.parameters(), lr=0.1)
            weight.weight.grad = minigrad.Tensor(np.full((1, 1), (1.0, -0.01)[comm.rank], np.float32))
            if average == "gradients":
                averager.step(1)
            optimizer.step()
            if average == "parameters":
                averager.step(1)
            return weight.weight.item()

        return step("gradients"), step("parameters")

    for gradients, parameters in run(train, 2, timeout_s=TIMEOUT_S):
        assert gradients == pytest.approx(-0.1, abs=1e-6)
        assert parameters == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    "options, averaging, least, most",
    [
        ({}, {}, 0.0, 1e-12),
        ({"momentum": 0.9}, {}, 1e-3, 1e-1),  # parts of the samples change: a rank has none now and then
        ({"momentum": 0.9}, {"optimizer_state": "average"}, 0.0, 1e-12),
        ({"make": optim.Adam}, {}, 1e-2, 0.5),
        ({"make": optim.Adam}, {"optimizer_state": "average"}, 1e-2, 0.5),
        ({"policy": EveryK(2)}, {}, 1e-4, 1e-1),
    ],
)
def test_how_far_averaged_parameters_are_from_a_ddp(options, averaging, least, most):
    def train(comm):
        ddp = {name: value for name, value in options.items() if name != "policy"}
        return by_ddp(comm, **ddp), by_parameters(comm, averaging=averaging, **options)

    ddp, found = run(train, 2, timeout_s=TIMEOUT_S)[0]
    assert least <= far(ddp, found) <= most


def test_momentum_agrees_while_the_parts_of_the_samples_stay():
    """A mean of buffers is the buffer of means, with weights that do not change."""

    def train(comm, wrapped):
        model = make_model()
        ddp = DDP(model, comm) if wrapped else model
        averager = None if wrapped else ParameterAverager(model, comm)
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y = batch(2 * comm.rank, step)
            loss_of(ddp, x, y).backward()
            optimizer.step()
            if averager is not None:
                averager.step(len(x))
        return values_of(model)

    (ddp, _), (found, _) = (run(lambda comm: train(comm, w), 2, timeout_s=TIMEOUT_S) for w in (True, False))
    np.testing.assert_allclose(found, ddp, rtol=0, atol=1e-12)


def test_gradients_of_k_steps_are_those_of_the_mean_over_all_their_samples():
    """As one batch of all ranks and all k steps would give; the loop steps where something was combined alone."""

    def train(comm):
        model = make_model()
        averager = ParameterAverager(model, comm, EveryK(3), average="gradients")
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
        reports = []
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y = batch(comm.rank, step)
            loss_of(model, x, y).backward()
            reports.append(averager.step(len(x)))
            optimizer.step()
        return values_of(model), [None if r is None else (r.samples, r.number) for r in reports]

    results = run(train, 2, timeout_s=TIMEOUT_S)
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    for first in (0, 3):
        parts = [batch(rank, step) for rank in (0, 1) for step in range(first, first + 3)]
        optimizer.zero_grad()
        loss_of(model, *(minigrad.cat(each) for each in zip(*parts))).backward()
        optimizer.step()
    for values, reports in results:
        np.testing.assert_allclose(values, values_of(model), rtol=0, atol=1e-12)
        assert reports == [None, None, (19.0, 1), None, None, (19.0, 2)]


# ------------------------------------------------------------------------------------------- what counts, and what not


def test_a_rank_without_samples_takes_over_the_others_and_gives_nothing():
    def train(comm):
        models = [single(0.0), single((1.0, np.nan)[comm.rank])]
        averager = ParameterAverager(models[0], comm)
        models[0].weight.data[...] = (1.0, np.nan)[comm.rank]
        apart = averager.step((3, 0)[comm.rank]).divergence
        average_parameters(models[1], comm, (3, 0)[comm.rank])
        return [model.weight.item() for model in models], apart.relative

    assert run(train, 2, timeout_s=TIMEOUT_S) == [([1.0, 1.0], (0.0, 0.0))] * 2


def test_without_samples_anywhere_all_stays_as_it_is():
    def train(comm):
        models = [single(0.0), single(comm.rank)]
        averager = ParameterAverager(models[0], comm, outer=DiLoCo(lr=1.0))
        models[0].weight.data[...] = comm.rank
        report = averager.step(0)
        average_parameters(models[1], comm, 0)
        velocity = averager.state_dict()["fragments"][0]["outer"][0]["velocity"].tolist()
        return [model.weight.item() for model in models], report.samples, velocity[0]

    assert run(train, 2, timeout_s=TIMEOUT_S) == [([0.0, 0.0], 0.0, 0.0), ([1.0, 1.0], 0.0, 0.0)]


def test_gradients_without_samples_are_zero_and_what_was_kept_of_older_ones_stays():
    """As in a DDP: the optimizer makes its step, and the memory of a gradient that is gone is not read."""

    def train(comm):
        model = single(1.0)
        averager = ParameterAverager(model, comm, average="gradients")
        (model.weight * float(comm.rank + 1)).sum().backward()
        averager.step(1)
        kept = model.weight.grad
        model.zero_grad()
        averager.step(0)
        return kept.item(), model.weight.grad.item()

    assert run(train, 2, timeout_s=TIMEOUT_S) == [(1.5, 0.0)] * 2


def test_frozen_parameters_stay_and_shared_ones_travel_once():
    def train(comm):
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        model[2].weight = model[0].weight
        model[1].weight.requires_grad = False
        recorder = Recording(comm)
        averager = ParameterAverager(model, recorder)
        model[0].weight.data[...] = comm.rank
        model[1].weight.data[...] = comm.rank
        recorder.calls.clear()
        report = averager.step(1)
        first, second = model[2].weight.tolist()[0], model[1].weight.tolist()[0]
        sums = [call.count for call in recorder.calls if call.kind == "all_reduce"]
        return first, second, sums, report.nbytes

    results = run(train, 2, timeout_s=TIMEOUT_S)
    assert results == [([0.5, 0.5], [float(r)] * 2, [2, 16], 64) for r in (0, 1)]  # padded to a cache line


def test_half_precision_is_averaged_in_float32_and_rounded_once():
    """2048 and 1 are not 2049 in float16, where a third of it is 683."""

    def train(comm):
        models = [single(0.0, dtype="float16"), single((2048.0, 1.0, 0.0)[comm.rank], dtype="float16")]
        averager = ParameterAverager(models[0], comm)
        models[0].weight.data[...] = (2048.0, 1.0, 0.0)[comm.rank]
        averager.step(1)
        average_parameters(models[1], comm, 1)
        return [model.weight.item() for model in models]

    assert run(train, 3, timeout_s=TIMEOUT_S) == [[683.0, 683.0]] * 3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("policy", [EveryK(2), Async(1)], ids=repr)
@pytest.mark.parametrize("dtype, value", [("float32", 3e38), ("bfloat16", 3e38), ("float16", 6e4), ("float32", 1e-27)])
def test_neither_large_nor_small_values_lose_anything_by_their_weight(dtype, value, policy):
    def train(comm):
        model = nn.Linear(1, 1, bias=False).to(dtype)
        averager = ParameterAverager(model, comm, policy)
        model.weight.data[...] = value
        averager.step((64, 10**9)[comm.rank])
        averager.step((64, 10**8)[comm.rank])
        averager.finish()
        return float(model.weight.data[0, 0]), float(model.weight.dtype.type(value))

    for found, right in run(train, 2):
        assert found == pytest.approx(right, rel=1e-6, abs=0)


def test_samples_that_values_cannot_be_weighted_by_are_refused():
    def step(dtype, n):
        return ParameterAverager(nn.Linear(1, 1).to(dtype), SoloCommunicator()).step(n)

    for dtype, n in [("float32", 1e39), ("float32", 1e-42), ("float16", 1e13), ("float64", 1e200), ("float64", 5e-324)]:
        with pytest.raises(ArgumentError, match="ParameterAverager.step: expected 0 samples, or .* to "):
            step(dtype, n)
    assert step("float64", 1e39).samples == 1e39
    with pytest.raises(ArgumentError, match="average_parameters: expected 0 samples, or"):
        average_parameters(nn.Linear(1, 1), SoloCommunicator(), 1e308)


@pytest.mark.parametrize("name, options", [("buffers", ("merge", "keep")), ("integer_buffers", ("compare", "keep"))])
def test_ranks_that_average_with_other_options_are_told_before_anything_is_changed(name, options):
    def body(comm):
        model = nn.BatchNorm1d(2)
        model.weight.data[...] = comm.rank
        with pytest.raises(CollectiveMismatchError, match=f"{name}='{options[1]}'"):
            average_parameters(model, comm, 1, **{name: options[comm.rank]})
        return model.weight.data.tolist()

    assert run(body, 2) == [[0.0, 0.0], [1.0, 1.0]]


def test_ranks_whose_optimizers_have_other_state_are_told_where_it_is_averaged():
    def body(comm, optimizer_state, *make):
        model = nn.Linear(1, 1)
        optimizer = make[comm.rank](model.parameters(), lr=0.1)
        return ParameterAverager(model, comm, optimizer=optimizer, optimizer_state=optimizer_state) is not None

    with_momentum = partial(optim.SGD, momentum=0.9)
    with pytest.raises(ReplicaMismatchError, match="optimizer is Adam on rank 0 and SGD on rank 1"):
        run(lambda comm: body(comm, "average", optim.Adam, optim.SGD), 2)
    with pytest.raises(ReplicaMismatchError, match="is no state of bias, weight on rank 0 and momentum_buffer of"):
        run(lambda comm: body(comm, "average", optim.SGD, with_momentum), 2)
    assert run(lambda comm: body(comm, "keep", optim.SGD, with_momentum), 2) == [True, True]


def test_statistics_are_merged_and_counted_like_the_parameters():
    def train(comm, **options):
        model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
        averager = ParameterAverager(model, comm, **options)
        model[1].running_mean.fill_(10.0 * comm.rank)
        averager.step(4)
        return model[1].running_mean.item(), model[1].running_var.item()

    assert run(train, 2, timeout_s=TIMEOUT_S) == [(5.0, 26.0)] * 2
    assert run(lambda comm: train(comm, buffers="keep"), 2, timeout_s=TIMEOUT_S) == [(0.0, 1.0), (10.0, 1.0)]


@pytest.mark.parametrize("by_averager", [True, False])
def test_a_backward_through_parameters_that_were_averaged_since_is_refused(by_averager):
    comm = SoloCommunicator()
    model = make_model()
    averager = ParameterAverager(model, comm)
    loss = loss_of(model, *batch(0, 0))
    averager.step(3) if by_averager else average_parameters(model, comm, 3)
    with pytest.raises(AutogradError, match="changed"):
        loss.backward()


# ------------------------------------------------------------------------------------------------- ends, and fragments


@pytest.mark.parametrize("outer", [Mean(), Mean(fragments=2, delay=1), StreamingDiLoCo(0.7, fragments=2, delay=1)])
def test_a_rank_without_data_takes_part_until_none_has_any(outer):
    """Ranks with 3 and 11 steps end together, with equal values that nobody's samples are missing from."""

    def train(comm):
        model = make_model()
        averager = ParameterAverager(model, comm, EveryK(4), outer)
        optimizer = optim.SGD(model.parameters(), lr=0.05)
        samples = 0.0
        for epoch in range(2):
            for step in range((3, 11)[comm.rank]):
                optimizer.zero_grad()
                loss_of(model, *batch(0, step)).backward()
                optimizer.step()
                report = averager.step(3)
                if report and report.fragment == 0:
                    samples += report.samples
            samples += averager.finish().samples if outer == Mean() else averager.finish().samples * 0
        return values_of(model)

    first, second = run(train, 2, timeout_s=TIMEOUT_S)
    assert (first == second).all() and np.isfinite(first).all()


def test_all_samples_are_in_what_was_combined():
    def train(comm):
        averager = ParameterAverager(single(0.0), comm, EveryK(4))
        reports = [averager.step(1) for _ in range((3, 11)[comm.rank])]
        return [report.samples for report in reports if report], averager.finish().samples

    assert run(train, 2, timeout_s=TIMEOUT_S) == [([], 3.0), ([7.0, 4.0], 3.0)]


def test_a_rank_without_data_steps_with_the_others_where_gradients_are_combined():
    def train(comm):
        model = make_model()
        optimizer = optim.Adam(model.parameters(), lr=0.05)
        averager = ParameterAverager(model, comm, EveryK(2), average="gradients", optimizer=optimizer)
        for step in range((3, 8)[comm.rank]):
            optimizer.zero_grad()
            x, y = batch(0, step)
            loss_of(model, x, y).backward()
            averager.step(len(x))
            optimizer.step()
        optimizer.zero_grad()
        averager.finish()
        return values_of(model)

    first, second = run(train, 2, timeout_s=TIMEOUT_S)
    assert (first == second).all()


def test_what_is_on_its_way_is_not_waited_for():
    """What is sent at step 2 of 4, over a link of half a second, is there at step 4."""
    cluster = Cluster.of_speeds([1, 1], link=Link(latency_s=0.25))

    def train(comm, delay):
        averager = ParameterAverager(single(0.0), comm, EveryK(4), Mean(delay=delay))
        comm.barrier()
        began = comm.clock.now_s()
        for _ in range(8):
            comm.clock.advance(1.0)
            averager.step(1)
        return comm.clock.now_s() - began

    took_s = {delay: max(simulate.run(lambda comm: train(comm, delay), cluster).results) for delay in (0, 2)}
    assert took_s == {0: pytest.approx(8.0 + 2 * 2 * 0.5), 2: pytest.approx(8.0)}


@pytest.mark.parametrize("kind", ["shm", "mpi"])
def test_processes_come_to_the_bits_of_threads(kind):
    """By every kind of averaging, with ranks that end apart; two ranks of MPI add up as threads do."""
    expected = run(averaged.told, 2, timeout_s=TIMEOUT_S)
    if kind == "shm":
        found = run_ranks("shm", averaged.told, 2, TIMEOUT_S)
    else:
        done = mpirun(2, "-m", "mpi4py", "-m", "tests.average.averaged")
        # lines of two ranks may run together
        found = sorted(re.findall(r"\[\d\] \[.*?'(?:True|False)'\]", done.stdout))
        assert found, done.stderr
    assert found == expected and all(line.endswith("'True']") for line in found)
