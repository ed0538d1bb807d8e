"""`stats(all_ranks=True)`: the figures of every rank on each, and who was late in sum."""

import pytest

import minigrad
from minigrad.distributed import Timeline, explain_ranks, simulate
from minigrad.distributed.ddp.stats import Stats, late_in
from minigrad.distributed.simulate import Cluster
from minigrad.errors import ArgumentError
from tests.distributed.test_stats import layers
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 10.0


def two_steps(comm, before_s=0.0):
    """The statistics, of all ranks at once and of this one, with so long something else before each step of rank 1."""
    ddp = layers(comm)
    for _ in range(2):
        if comm.rank == 1 and before_s:
            comm.clock.advance(before_s)
        ddp(minigrad.randn(60, 16)).sum().backward()
    return ddp.stats(all_ranks=True), ddp.stats()


def watched(comm):
    """The same, and how many steps are known of each rank to who asks which was late."""
    timeline = Timeline()
    ddp = layers(comm, timeline=timeline)
    for _ in range(2):
        ddp(minigrad.randn(60, 16)).sum().backward()
    return ddp.stats(all_ranks=True), ddp.stats(), explain_ranks(timeline.gather(comm)).made


@pytest.mark.parametrize("world", ["threads", "shm"])
def test_every_rank_gets_those_of_all(world):
    results = run_ranks(world, watched, 2, timeout_s=TIMEOUT_S)
    for whole, own, made in results:
        assert made == {0: 2, 1: 2}
        assert own.ranks == [] and own.late == () and vars(whole) | {"ranks": []} == vars(own)
        assert whole.ranks == [each for _, each, _ in results]
        assert str(whole).startswith(f"rank 0: {whole.ranks[0]}\nrank 1: {whole.ranks[1]}\n")
    with pytest.raises(ArgumentError, match="all_ranks"):
        layers(minigrad.distributed.SoloCommunicator()).stats(all_ranks=3)


def simulated(speeds, before_s=0.0):
    return simulate.run(two_steps, Cluster.of_speeds(speeds), before_s, timeout_s=TIMEOUT_S).results[0][0]


def test_who_was_late_in_sum():
    """Rank 0 computes for 40 ms a step, rank 1 for 60: in two steps 13.3 ms more of forward, 26.7 of backward."""
    whole = simulated([1.5, 1])
    (late,) = whole.late
    assert (late.rank, late.waited_s, whole.ranks[1].idle_s) == (1, whole.ranks[0].idle_s, 0.0)
    assert (late.forward_s, late.backward_s) == (pytest.approx(0.04 / 3), pytest.approx(0.08 / 3))
    assert late.phase == "backward" and late.outside_s == pytest.approx(0.0, abs=1e-3)
    assert str(whole).endswith(f"\n{late}") and "Rank 1 was late: the others waited 0.0" in str(late)


def test_late_by_what_is_neither_forward_nor_backward():
    (late,) = simulated([1, 1], 0.03).late
    assert (late.forward_s, late.backward_s, late.outside_s) == pytest.approx((0.0, 0.0, 0.06))
    assert (late.rank, late.phase) == (1, "outside")


def test_nobody_was_late_in_sum():
    whole = simulated([1, 1])
    assert whole.late == () and "no rank was seen to wait for another; a GPU" in str(whole).splitlines()[-1]
    little = [Stats(backward_s=1.0, idle_s=idle_s) for idle_s in (0.0, 0.04)]
    turns = [Stats(backward_s=1.0, idle_s=idle_s) for idle_s in (0.5, 0.51)]
    for ranks, words in ((little, "no rank waited for others for 5 %"), (turns, "Ranks waited 0.500 to 0.510 s for")):
        assert Stats(ranks=ranks).late == () and words in str(Stats(ranks=ranks)).splitlines()[-1]


def test_what_the_others_wait_and_take_is_that_of_the_middle_one():
    """Ranks 1 and 2 are late: each is compared with rank 0, and not with the other."""
    ranks = [Stats(forward_s=1.0, backward_s=2.0, idle_s=5.0), *[Stats(forward_s=2.0, backward_s=6.0) for _ in "ab"]]
    assert late_in(ranks) == ((1, 5.0, 1.0, 4.0), (2, 5.0, 1.0, 4.0))
    assert late_in(ranks[:1]) == late_in([]) == () == late_in([ranks[1], ranks[2]])
    assert late_in([ranks[1], Stats(forward_s=8.0, idle_s=0.4)]) == ()  # under 5 % of 8.4 s
