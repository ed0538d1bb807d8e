"""Ranks under Async: what they hold beside the synchronous mean, to the bit; how they end, and what stops them."""

import threading

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import SoloCommunicator, ThreadWorld, run, simulate
from minigrad.distributed.average import Async, EveryK, ParameterAverager
from minigrad.distributed.average.snapshots import Courier, Snapshot
from minigrad.distributed.run import run_world
from minigrad.distributed.simulate import Cluster, Link
from minigrad.errors import (
    AutogradError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    RankFailedError,
    StateDictError,
)
from tests.distributed.worlds import run_ranks


def make_model(dtype="float64"):
    minigrad.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def values(model):
    return [p.detach().cpu().numpy().copy() for p in model.parameters()]


def train(comm, policy, steps, dtype="float64", between=lambda comm, i: None):
    """Values in the end, and the reports."""
    model = make_model(dtype).to(comm.device)
    averager = ParameterAverager(model, comm, policy)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    rng, reports = np.random.default_rng(comm.rank), []
    for i in range(steps[comm.rank]):
        count = (i + comm.rank) % 3  # none at times
        x = minigrad.Tensor(rng.standard_normal((count, 5))).to(comm.device, model[0].weight.dtype)
        optimizer.zero_grad()
        if count:
            model(x).square().mean().backward()
            optimizer.step()
        reports.append(averager.step(count))
        between(comm, i)
    reports.append(averager.finish())
    return values(model), [(r.number, r.samples, r.divergence) for r in reports if r is not None]


def same(one, other):
    return all((a == b).all() for a, b in zip(one, other))


def with_none_waiting_at_random(comm, i):
    """Let another rank run, or not."""
    if (7 * i + 3 * comm.rank) % 4 == 0:
        threading.Event().wait(0.002)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_bound_of_0_is_the_synchronous_mean_to_the_bit(world_size):
    steps = [6] * world_size
    for k in (1, 2):
        apart = run(lambda comm, k=k: train(comm, Async(0, k), steps), world_size)
        together = run(lambda comm, k=k: train(comm, EveryK(k), steps), world_size)
        assert all(same(one[0], other[0]) for one, other in zip(apart, together))
        for mine, theirs in zip(apart[0][1][:3], together[0][1][:3]):
            assert mine[:2] == theirs[:2] and mine[2].steps == theirs[2].steps == k
            np.testing.assert_allclose(mine[2].relative, theirs[2].relative, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_other_dtypes(dtype):
    apart = run(lambda comm: train(comm, Async(0), [4] * 3, dtype), 3)
    together = run(lambda comm: train(comm, EveryK(1), [4] * 3, dtype), 3)
    assert all(same(one[0], other[0]) for one, other in zip(apart, together))
    bounded = run(lambda comm: train(comm, Async(2), [4, 2, 6], dtype, with_none_waiting_at_random), 3)
    assert same(bounded[0][0], bounded[1][0]) and same(bounded[0][0], bounded[2][0])


@pytest.mark.parametrize("kind", ["threads", "shm", "nccl"])
def test_all_ranks_end_with_the_same_bits_whatever_each_has_made(kind):
    def body(comm):
        return [train(comm, Async(bound, k), [9, 0, 4], between=with_none_waiting_at_random) for bound, k in CASES]

    results = run_ranks(kind, body, 3)
    for case in zip(*results):
        assert same(case[0][0], case[1][0]) and same(case[0][0], case[2][0])
        assert np.isfinite(np.concatenate([each.ravel() for each in case[0][0]])).all()
        last = max(reports[-1][0] for _, reports in case)
        assert all(reports[-1] == case[0][1][-1] for _, reports in case) and last >= 5


CASES = [(0, 1), (1, 1), (3, 2), (20, 1)]


def test_who_is_ahead_waits_beyond_the_bound_and_not_within():
    """Rank 1 makes its first step only when rank 0 has made bound + 1 rounds, and is asked to wait in the next."""
    bound, gone_on, in_the_next = 2, threading.Event(), threading.Event()

    def body(comm):
        model = make_model()
        averager = ParameterAverager(model, comm, Async(bound))
        if comm.rank == 1:
            assert gone_on.wait(20.0)  # rank 0 made bound rounds and waited for none
            assert not in_the_next.wait(0.2)
            averager.step(1)
            assert in_the_next.wait(20.0)
        else:
            for _ in range(bound):
                averager.step(1)
            gone_on.set()
            averager.step(1)
            in_the_next.set()
        averager.finish()
        return values(model)

    first, second = run(body, 2)
    assert same(first, second)


def test_steps_made_while_an_update_is_on_its_way_stay():
    """A snapshot of 10 at step 10, of 4 on the other rank; when the mean arrives, 13 steps are made: 7 + 3."""
    at_13, there = threading.Event(), threading.Event()

    def body(comm):
        model = nn.Linear(1, 1, bias=False).to("float64")
        model.weight.data[...] = 0.0
        averager = ParameterAverager(model, comm, Async(5, k=10))
        if comm.rank == 1:
            assert at_13.wait(20.0)
        for i in range(13 if comm.rank == 0 else 10):
            with minigrad.no_grad():
                model.weight += 1.0 if comm.rank == 0 else 0.4
            averager.step(8)
        (at_13, there)[comm.rank].set()
        assert there.wait(20.0)
        if comm.rank == 1:
            return model.weight.item()
        before, report = model.weight.item(), averager.step(0)
        return before, model.weight.item(), report.number, report.reason

    (before, after, number, reason), other = run(body, 2)
    assert (before, after, number) == (13.0, pytest.approx(10.0, abs=1e-12), 1) and other == pytest.approx(7.0)
    assert reason == "round 1 of all ranks is there, 4 steps since stay"


def test_several_rounds_on_their_way_come_to_what_synchronous_ones_do():
    """Where steps do not depend on parameters; rank 0 is two rounds ahead, and hears of the first then."""
    two, one, four = threading.Event(), threading.Event(), threading.Event()

    def body(comm, policy, ordered):
        model = nn.Linear(3, 1, bias=False).to("float64")
        model.weight.data[...] = 1.0
        averager = ParameterAverager(model, comm, policy)
        rng = np.random.default_rng(comm.rank)
        for i in range(6):
            if ordered and (comm.rank, i) == (0, 2):
                two.set()
                assert one.wait(20.0)
            if ordered and (comm.rank, i) == (1, 0):
                assert two.wait(20.0)
            with minigrad.no_grad():
                model.weight += minigrad.Tensor(rng.standard_normal((1, 3)))
            averager.step(1 + (i + comm.rank) % 3)
            if (comm.rank, i) == (0, 3):
                four.set()
            if ordered and (comm.rank, i) == (1, 0):
                one.set()
                assert four.wait(20.0)
        averager.finish()
        return values(model)[0]

    (first, second), (expected, _) = run(body, 2, Async(9), True), run(body, 2, EveryK(1), False)
    assert (first == second).all()
    np.testing.assert_allclose(first, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("stop", [5, 4])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(tmp_path, stop):
    """Between two rounds, and in the midst of one, by the file of a saved run; ranks differ then."""

    def parts(comm):
        model = make_model()
        optimizer = optim.Adam(model.parameters(), lr=0.05)
        averager = ParameterAverager(model, comm, Async(0, k=2), optimizer=optimizer)
        return {"averager": averager, "optimizer": optimizer, "model": model}

    def go(comm, these, steps):
        for step in steps:
            rng = np.random.default_rng([comm.rank, step])
            these["optimizer"].zero_grad()
            these["model"](minigrad.Tensor(rng.standard_normal((3, 5)))).square().mean().backward()
            these["optimizer"].step()
            these["averager"].step(1 + comm.rank)
        return these

    def whole(comm):
        these = go(comm, parts(comm), range(9))
        these["averager"].finish()
        return values(these["model"])

    def rest(comm):
        minigrad.load(tmp_path / "run", into=(these := parts(comm)))
        go(comm, these, range(stop, 9))["averager"].finish()
        return values(these["model"])

    run(lambda comm: minigrad.save(go(comm, parts(comm), range(stop)), tmp_path / "run"), 2)
    for found, expected in zip(run(rest, 2), run(whole, 2)):
        assert same(found, expected)


def test_what_is_on_its_way_is_in_no_state():
    def body(comm):
        averager = ParameterAverager(make_model(), comm, Async(2))
        if comm.rank == 1:
            comm.barrier()
        averager.step(1)
        if comm.rank == 0:
            with pytest.raises(StateDictError, match="got 1 rounds of this rank that are not applied: call finish"):
                averager.state_dict()
            comm.barrier()
        averager.finish()
        return averager.state_dict()["rounds"]["rounds"]

    assert run(body, 2) == [2, 2]


def test_training_goes_on_after_an_epoch_and_from_states_of_one_round():
    def body(comm):
        model = make_model()
        averager, seen = ParameterAverager(model, comm, Async(2)), []
        for epoch in range(2):
            for i in range(3 + comm.rank):
                with minigrad.no_grad():
                    model[0].weight += 0.25 * (i + comm.rank + epoch)
                averager.step(1)
            seen.append((averager.finish().number, values(model)))
        return seen, averager.state_dict()

    (first, state), (second, _) = run(body, 2)
    assert [number for number, _ in first] == [number for number, _ in second] == [5, 10]
    assert all(same(a, b) for (_, a), (_, b) in zip(first, second)) and not same(first[0][1], first[1][1])

    def of_another_round(comm):
        averager = ParameterAverager(make_model(), comm, Async(0))
        if comm.rank == 1:
            averager.load_state_dict({**state, "options": averager.options.facts()})
        averager.step(1)

    with pytest.raises(CollectiveMismatchError, match="that of round 1, got that of round 11|round 11, got that of ro"):
        run(of_another_round, 2, timeout_s=10.0)


def test_a_state_that_does_not_fit_is_refused():
    averager = ParameterAverager(make_model(), SoloCommunicator(), Async(2))
    state = averager.state_dict()
    for change, words in [
        ({"common": []}, "expected a state of 1 dtypes, got 0"),
        ({"common": [minigrad.zeros(3)]}, "expected the mean of the last round of float64"),
        ({"rounds": -1}, "rounds .*-1"),
        ({"samples": -1.0}, "samples >= 0, got -1"),
    ]:
        with pytest.raises(StateDictError, match=words):
            averager.load_state_dict({**state, "rounds": {**state["rounds"], **change}})


def test_what_others_have_taken_is_let_go_of():
    def body(comm):
        averager, most = ParameterAverager(make_model(), comm, Async(1)), 0
        for _ in range(9):
            averager.step(1)
            most = max(most, *(len(sent) for sent in averager._rounds._courier._sent.values()))
        averager.finish()
        return most, [len(sent) for sent in averager._rounds._courier._sent.values()]

    for most, left in run(body, 2):
        assert most <= 4 and left == [0, 0]


@pytest.mark.parametrize("call", ["step", "finish"])
def test_a_backward_through_parameters_that_were_averaged_since_is_refused(call):
    model = make_model()
    averager = ParameterAverager(model, SoloCommunicator(), Async(2))
    loss = model(minigrad.ones(2, 5, dtype="float64")).sum()
    averager.step(1) if call == "step" else averager.finish()
    with pytest.raises(AutogradError, match="changed"):
        loss.backward()


def test_buffers_stay_each_ranks_own():
    def body(comm):
        minigrad.manual_seed(0)
        model = nn.BatchNorm1d(3)
        averager = ParameterAverager(model, comm, Async(1))
        model(minigrad.full((4, 3), float(comm.rank)))
        averager.step(4)
        averager.finish()
        return model.running_mean.numpy().copy()

    first, second = run(body, 2)
    assert (first == 0.0).all() and (second != 0.0).all()


def test_no_state_is_taken_in_while_rounds_are_on_their_way():
    """The message that was asked for before would be lost, and the next one be taken for another."""

    def body(comm):
        averager = ParameterAverager(make_model(), comm, Async(2))
        state = averager.state_dict()
        if comm.rank == 1:
            comm.barrier()
        averager.step(1)
        if comm.rank == 0:
            with pytest.raises(StateDictError, match="^rank 0: Async: expected a state .*got 1 rounds of this rank"):
                averager.load_state_dict(state)
            comm.barrier()
        return averager.finish().number

    assert run(body, 2) == [2, 2]


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_round_without_samples_brings_not_even_nan(dtype):
    """NaN of a step without samples, and a step with some before the mean is there."""
    gone_on = threading.Event()

    def body(comm):
        model = nn.Linear(1, 1, bias=False).to(dtype)
        model.weight.data[...] = 1.0
        averager = ParameterAverager(model, comm, Async(5))
        model.weight.data[...] = np.nan if comm.rank == 0 else 3.0
        if comm.rank == 1:
            assert gone_on.wait(20.0)
        averager.step(comm.rank)
        if comm.rank == 0:
            assert model.weight.item() == 1.0
            model.weight.data[...] += 1.0
        averager.step(1)
        gone_on.set()
        averager.finish()
        return model.weight.item()

    assert run(body, 2) == [3.5, 3.5]  # round 1 is 3; in round 2 one rank adds 1


# ---------------------------------------------------------------------------------------------- what goes wrong


def test_a_dead_rank_is_named():
    def body(comm):
        averager = ParameterAverager(make_model(), comm, Async(1))
        for _ in range(9):
            averager.step(1)
            if comm.rank == 1:
                raise KeyError("mine")

    with pytest.raises(KeyError):
        run(body, 3, timeout_s=10.0)

    heard = {}

    def listening(comm):
        try:
            body(comm)
        except RankFailedError as error:
            heard[comm.rank] = str(error)
            raise

    with pytest.raises(KeyError):
        run(listening, 3, timeout_s=10.0)
    assert all("rank 1" in words for words in heard.values()) and set(heard) == {0, 2}


def test_a_rank_that_does_not_come_is_named():
    release = threading.Event()

    def body(comm):
        averager = ParameterAverager(make_model(), comm, Async(0))
        if comm.rank == 1:
            release.wait(20.0)
            return
        try:
            averager.step(1)
        finally:
            release.set()

    with pytest.raises(CollectiveTimeoutError, match="recv.from 1, tag .*expected rank 1 to send it within 0.3 s"):
        run(body, 2, timeout_s=0.3)


def test_a_wrong_number_is_an_error():
    """As of a snapshot that was sent before the ranks began anew."""

    def body(comm):
        model = make_model()
        averager = ParameterAverager(model, comm, Async(1))
        if comm.rank == 1:
            flat = [model[0].weight.flat.data]
            courier = Courier(comm, flat)
            courier.send(Snapshot(3, 1.0, 1, False, False, flat))
            courier.flush()
        for _ in range(3):
            averager.step(1)

    with pytest.raises(CollectiveMismatchError, match="snapshot of rank 1, that of round 1, got that of"):
        run(body, 2, timeout_s=10.0)


def test_ranks_on_devices(cuda):
    """Both on that of the fixture, and with the values of the host."""
    world = ThreadWorld(2, timeout_s=10.0)
    communicators = world.communicators([cuda, cuda])
    (first, _), (second, reports) = run_world(lambda comm: train(comm, Async(1), [5, 3]), world, communicators)
    assert same(first, second) and reports[-1][0] == 6
    together = run(lambda comm: train(comm, EveryK(1), [4, 4]), 2)
    world = ThreadWorld(2, timeout_s=10.0)
    communicators = world.communicators([cuda, cuda])
    (first, _), _ = run_world(lambda comm: train(comm, Async(0), [4, 4]), world, communicators)
    for value, expected in zip(first, together[0][0]):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------------- in virtual time


def simulated(policy, steps):
    """Ranks that make 3, 2 and 1 steps a second, and messages that take a quarter of one: the trace."""

    def body(comm):
        model = make_model()
        averager = ParameterAverager(model, comm, policy)
        began_s, times = comm.clock.now_s(), []
        for _ in range(steps[comm.rank]):
            with minigrad.no_grad():
                model[0].weight += 0.1 * (comm.rank + 1)
            comm.clock.compute(1)
            averager.step(1)
            times.append(comm.clock.now_s() - began_s)
        averager.finish()
        return times, values(model)

    link = Link(0.25, 1e15)
    return simulate.run(body, Cluster.of_speeds([3, 2, 1], per_sample_s=1.0, link=link), timeout_s=10.0)


def test_within_the_bound_the_fastest_rank_is_not_held_back():
    """It makes 12 rounds in the 4 seconds in which the slowest makes 4, and has heard of 3 of these by then."""
    trace = simulated(Async(9), [12, 8, 4])
    for rank, (times, model) in enumerate(trace.results):
        assert times == pytest.approx([(i + 1) / (3 - rank) for i in range(len(times))])
        assert same(model, trace.results[0][1])
    again = simulated(Async(9), [12, 8, 4])
    assert again.ranks == trace.ranks and all(same(a[1], b[1]) for a, b in zip(again.results, trace.results))
    assert [d["number"] for d in trace.ranks[0].decisions] == list(range(1, 14))
    assert simulated(EveryK(1), [4, 4, 4]).results[0][0][-1] > 4.0  # where twelve steps took as long


def test_beyond_the_bound_it_waits_for_the_message_that_it_lacks():
    """A rank sends to others in their order, so the slowest's message is at rank 1 half a second after it was sent."""
    times = [rank[0] for rank in simulated(Async(1), [4, 4, 4]).results]
    assert times[0] == pytest.approx([1 / 3, 1.25, 2.25, 3.25])
    assert times[1] == pytest.approx([0.5, 1.5, 2.5, 3.5])
    assert times[2] == pytest.approx([1.0, 2.0, 3.0, 4.0])
