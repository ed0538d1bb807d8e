"""What a ParameterAverager compares over the ranks, what it refuses, and how it is resumed."""

import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, CadenceConfig, ParameterAverager, SoloCommunicator, run, simulate
from minigrad.distributed.average import Cadence, EASGD, EveryK, LevelGuard, Mean, StreamingDiLoCo, Sync
from minigrad.distributed.simulate import Cluster, Link
from minigrad.errors import (
    ArgumentError,
    CollectiveMismatchError,
    ReplicaMismatchError,
    StateDictError,
    UnreducedGradientError,
)
from tests.average.trained import batch, loss_of, make_model, single, values_of

TIMEOUT_S = 10.0


def training(comm, policy, outer=Mean(), **options):
    """All that a rank trains with."""
    model = make_model()
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    averager = ParameterAverager(model, comm, policy, outer, optimizer=optimizer, **options)
    return {"model": model, "optimizer": optimizer, "averager": averager}


def go(comm, parts, steps):
    for step in steps:
        x, y = batch(comm.rank, step)
        parts["optimizer"].zero_grad()
        loss_of(parts["model"], x, y).backward()
        if parts["averager"].options.average == "gradients":
            parts["averager"].step(len(x))
        parts["optimizer"].step()
        if parts["averager"].options.average == "parameters":
            parts["averager"].step(len(x))
    return values_of(parts["model"])


@pytest.mark.parametrize("stop", [3, 5, 7, 8])
@pytest.mark.parametrize(
    "policy, outer, options",
    [
        (EveryK(4), StreamingDiLoCo(0.7, fragments=2, delay=1, alpha=0.25), {"optimizer_state": "average"}),
        (EveryK(3), EASGD(0.3), {}),
        (EveryK(3), Mean(), {"average": "gradients"}),
    ],
)
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(tmp_path, policy, outer, options, stop):
    """Between two combinations, with a fragment on its way, by the file of a saved run; where ranks differ."""

    def whole(comm):
        return go(comm, training(comm, policy, outer, **options), range(12))

    def first(comm):
        parts = training(comm, policy, outer, **options)
        go(comm, parts, range(stop))
        minigrad.save(parts, tmp_path / "run")

    def rest(comm):
        parts = training(comm, policy, outer, **options)
        minigrad.load(tmp_path / "run", into=parts)
        return go(comm, parts, range(stop, 12))

    expected = run(whole, 2, timeout_s=TIMEOUT_S)
    run(first, 2, timeout_s=TIMEOUT_S)
    for found, wanted in zip(run(rest, 2, timeout_s=TIMEOUT_S), expected):
        assert (found == wanted).all()


def test_ranks_that_resume_from_different_states_are_told_in_the_next_combination():
    def body(comm):
        parts = training(comm, EveryK(2), EASGD(0.3))
        state = parts["averager"].state_dict()
        go(comm, parts, range(2))
        if comm.rank == 1:
            parts["averager"].load_state_dict(state)
        go(comm, parts, range(2))

    with pytest.raises(CollectiveMismatchError, match="state [0-9a-f]{8}, combination 1"):
        run(body, 2, timeout_s=TIMEOUT_S)


def test_ranks_that_resume_with_other_means_on_their_way_are_told_in_the_next_combination():
    """Where nothing else is on its way or kept that differs: of `Mean` there is no other state."""

    def body(comm):
        parts = training(comm, EveryK(3), Mean(delay=1))
        go(comm, parts, range(2))
        state = parts["averager"].state_dict()
        state["fragments"][0]["away"]["mean"][0].data[...] += comm.rank
        parts["averager"].load_state_dict(state)
        go(comm, parts, range(2, 6))

    with pytest.raises(CollectiveMismatchError, match="state [0-9a-f]{8}, combination 2"):
        run(body, 2, timeout_s=TIMEOUT_S)


def test_after_the_end_of_the_data_a_period_begins_with_its_first_fragment():
    def body(comm):
        parts = training(comm, EveryK(4), StreamingDiLoCo(0.7, fragments=2))
        go(comm, parts, range(2))
        parts["averager"].finish()
        reports = [parts["averager"].step(3) for _ in range(4)]
        return [report and (report.fragment, report.reason) for report in reports]

    assert run(body, 2, timeout_s=TIMEOUT_S) == [[None, (0, "step 2 of 4"), None, (1, "step 4 of 4")]] * 2


def test_a_state_of_something_else_is_refused_and_changes_nothing():
    averager = training(SoloCommunicator(), EveryK(2), EASGD(0.3))["averager"]
    state = averager.state_dict()
    others = {
        "with k 2, got 3": training(SoloCommunicator(), EveryK(3), EASGD(0.3))["averager"].state_dict(),
        "with outer EASGD": training(SoloCommunicator(), EveryK(2))["averager"].state_dict(),
        "expected what its state_dict": {"number": 1},
        "expected an outer state of": {**state, "fragments": [{"outer": [{}], "away": None}]},
        "a state of 1 fragments, got 0": {**state, "fragments": []},
    }
    for words, other in others.items():
        with pytest.raises(StateDictError, match=words):
            averager.load_state_dict(other)
    averager.load_state_dict(state)


@pytest.mark.parametrize(
    "differ, words",
    [
        (lambda comm: training(comm, EveryK(2 + comm.rank)), "k is 2 on rank 0 and 3 on rank 1"),
        (lambda comm: training(comm, Sync(), EASGD(0.1 + 0.1 * comm.rank)), "outer is EASGD.* on rank 0 and EASGD"),
        (lambda comm: ParameterAverager(nn.Linear(1, 1 + comm.rank), comm), "entry 0 is parameter 'weight' .*1, 1"),
        (
            lambda comm: ParameterAverager(single(comm.rank), comm, init_sync=False),
            "expected equal replicas .* different bits in parameter weight",
        ),
    ],
)
def test_what_differs_between_ranks_is_told_on_all(differ, words):
    def body(comm):
        with pytest.raises(ReplicaMismatchError, match=words):
            differ(comm)

    run(body, 2, timeout_s=TIMEOUT_S)


def test_ranks_begin_with_the_values_of_rank_0():
    def body(comm):
        model = nn.Sequential(single(comm.rank + 1.0), nn.BatchNorm1d(1))
        model[1].running_mean.fill_(comm.rank + 2.0)
        ParameterAverager(model, comm)
        return model[0].weight.item(), model[1].running_mean.item()

    assert run(body, 2, timeout_s=TIMEOUT_S) == [(1.0, 2.0)] * 2


def test_a_rank_that_makes_another_call_is_told_so():
    def body(comm):
        if comm.rank == 0:
            ParameterAverager(single(0.0), comm)
        else:
            comm.barrier()

    with pytest.raises(CollectiveMismatchError, match="ParameterAverager takes a module"):
        run(body, 2, timeout_s=TIMEOUT_S)


def test_a_missing_gradient_is_named_and_the_other_ranks_hear_of_it():
    def body(comm):
        model = make_model()
        averager = ParameterAverager(model, comm, average="gradients")
        if comm.rank == 0:
            loss_of(model, *batch(0, 0)).backward()
        averager.step(3)

    with pytest.raises(UnreducedGradientError, match="rank 1: .* got none of 0.weight, 0.bias, 2.weight, 2.bias"):
        run(body, 2, timeout_s=TIMEOUT_S)


def test_a_wrapper_is_taken_for_its_module_and_its_ranks():
    """Inside no_sync: post-local SGD begins so."""

    def body(comm):
        ddp = DDP(make_model(), comm)
        averager = ParameterAverager(ddp, policy=EveryK(2))
        optimizer = optim.SGD(ddp.parameters(), lr=0.05)
        with ddp.no_sync():
            for step in range(4):
                optimizer.zero_grad()
                x, y = batch(comm.rank, step)
                loss_of(ddp, x, y).backward()
                optimizer.step()
                averager.step(len(x))
        assert averager.module is ddp.module and averager.comm is comm
        return values_of(ddp.module)

    first, second = run(body, 2, timeout_s=TIMEOUT_S)
    assert (first == second).all()


# ----------------------------------------------------------------------------------------------------------- a cadence


def cadenced(comm, guard=None, steps=60, average="parameters"):
    """The counts at the end, and this rank's steps in each round."""
    model = make_model()
    averager = ParameterAverager(model, comm, Cadence(CadenceConfig(2)), average=average, guard=guard)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    rounds, since = [], 0
    while len(rounds) < steps:
        x, y = batch(0, since)
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        since += 1
        if average == "gradients":
            report = averager.step(len(x))
        optimizer.step()
        if average == "parameters":
            report = averager.step(len(x))
        if report:
            rounds.append(since)
            since = 0
    counts = averager._state.el_che.batch_counts
    return counts, rounds, averager.reason, values_of(model)


@pytest.mark.parametrize("average", ["parameters", "gradients"])
def test_under_a_cadence_each_rank_makes_the_steps_that_it_has_time_for(average):
    cluster = Cluster.of_speeds([3, 1], link=Link(1e-3, 1e6))
    results = simulate.run(lambda comm: cadenced(comm, average=average), cluster).results
    counts = results[0][0]
    assert counts == results[1][0] and counts[0] == 3 * counts[1] and counts[1] > 2
    assert [result[1][-1] for result in results] == list(counts)
    assert (results[0][3] == results[1][3]).all() and "overhead" in results[0][2]


def test_a_guard_holds_the_cadence():
    """It finds the ranks apart from the first combination on."""
    cluster = Cluster.of_speeds([3, 1], link=Link(1e-3, 1e6))
    counts, _, reason, _ = simulate.run(lambda comm: cadenced(comm, LevelGuard(0.0)), cluster).results[0]
    assert counts == (6, 2) and reason.startswith("hold: rank ")


def test_ranks_under_a_cadence_end_together():
    def body(comm):
        averager = ParameterAverager(single(0.0), comm, Cadence(CadenceConfig.fixed(2)))
        for _ in range((3, 9)[comm.rank]):
            averager.step(1)
        return averager.finish().samples

    assert len(set(run(body, 2, timeout_s=TIMEOUT_S))) == 1


def test_an_optimizer_whose_steps_differ_is_not_averaged():
    """Adam's correction of its bias is one for all ranks: see `average_moments`."""

    def body(comm):
        model = make_model()
        optimizer = optim.Adam(model.parameters())
        averager = ParameterAverager(model, comm, optimizer=optimizer, optimizer_state="average")
        for step in range(1 + comm.rank):
            loss_of(model, *batch(0, step)).backward()
            optimizer.step()
        with pytest.raises(ReplicaMismatchError, match="the steps of 2.bias is 1 on rank 0 and 2 on rank 1"):
            averager.step(3)

    run(body, 2, timeout_s=TIMEOUT_S)


def test_an_optimizer_of_another_model_is_refused():
    with pytest.raises(ArgumentError, match="expected an optimizer of the module's parameters, got SGD of others"):
        ParameterAverager(make_model(), SoloCommunicator(), optimizer=optim.SGD(make_model().parameters(), lr=0.1))
