"""Messages, groups and calls to a root on a virtual cluster: their costs, in numbers that can be had by hand."""

import numpy as np
import pytest

from minigrad import Tensor, manual_seed, nn
from minigrad.distributed import DDP, simulate
from minigrad.distributed.simulate import Cluster, Link
from minigrad.errors import ArgumentError, RankFailedError, ShapeError
from minigrad.testing import RingAllReduce

ALPHA, ELEMENT_S = 0.5, 1.0
LINK = Link(ALPHA, 8.0)  # a float64 takes a second
TIMEOUT_S = 10.0


def cluster(world_size, link=LINK):
    """So many equal ranks, which take a second for a sample."""
    return Cluster.of_speeds([1] * world_size, per_sample_s=1.0, link=link)


def ran(fn, world_size, *args, link=LINK):
    """What fn returned on each rank."""
    return simulate.run(fn, cluster(world_size, link), *args, timeout_s=TIMEOUT_S).results


# ------------------------------------------------------------------------------------------------------------- costs


def test_costs_of_calls_to_a_root_and_of_parts_that_turn_around():
    ring, tree = Link(2.0, 4.0), Link(2.0, 4.0, topology="tree")
    assert ring.cost_s("reduce", 100, 5) == tree.cost_s("reduce", 100, 5) == pytest.approx(3 * (2.0 + 25.0))
    for kind in ("gather", "scatter"):
        assert ring.cost_s(kind, 100, 5) == pytest.approx(4 * (2.0 + 20 / 4.0))
        assert tree.cost_s(kind, 100, 5) == pytest.approx(3 * 2.0 + 4 / 5 * 25.0)
    assert ring.cost_s("all_to_all", 100, 5) == pytest.approx(4 * (2.0 + 20 / 4.0))
    assert tree.cost_s("all_to_all", 100, 4) == pytest.approx(2 * 2.0 + 2 * 50 / 4.0)  # log2 p (alpha + beta n / 2)
    assert tree.cost_s("all_to_all", 100, 5) == pytest.approx(3 * 2.0 + (2 + 2 + 1) * 20 / 4.0)  # ways 1 to 4
    for kind in ("reduce", "gather", "scatter", "all_to_all"):
        assert ring.cost_s(kind, 100, 1) == 0.0


def test_costs_in_a_hierarchy():
    inner = Link(0.1, 100.0)
    link = Link(2.0, 4.0, "hierarchical", ranks_per_node=4, inner=inner)
    assert link.cost_s("reduce", 100, 8) == pytest.approx(2 * (0.1 + 1.0) + 2.0 + 25.0)
    assert link.cost_s("gather", 80, 8) == pytest.approx(3 * (0.1 + 10 / 100.0) + 2.0 + 40 / 4.0)
    assert link.cost_s("scatter", 80, 8) == link.cost_s("gather", 80, 8)
    assert link.cost_s("all_to_all", 80, 8) == pytest.approx(2 * 3 * (0.1 + 80 / 100.0) + 2.0 + 160 / 4.0)
    assert link.cost_s("all_to_all", 80, 4) == pytest.approx(3 * (0.1 + 20 / 100.0))
    assert link.message_s(100, 0, 3) == pytest.approx(0.1 + 1.0) and link.message_s(100, 3, 4) == 2.0 + 25.0


def test_a_group_in_a_hierarchy_has_the_nodes_of_its_ranks():
    inner = Link(0.1, 100.0)
    link = Link(2.0, 4.0, "hierarchical", ranks_per_node=2, inner=inner)
    assert link.cost_s("broadcast", 100, 2, ranks=(2, 3)) == pytest.approx(0.1 + 1.0)
    assert link.cost_s("broadcast", 100, 2, ranks=(1, 2)) == pytest.approx(2.0 + 25.0)
    assert link.cost_s("broadcast", 100, 4, ranks=(0, 1, 2, 5)) == pytest.approx(0.1 + 1.0 + 2 * (2.0 + 25.0))


@pytest.mark.parametrize("topology", ["ring", "tree"])
def test_a_cluster_charges_what_the_link_says(topology):
    link = Link(0.5, 8.0, topology=topology)

    def body(comm):
        root, times = comm.rank == 1, []
        part, whole = np.full(2, float(comm.rank)), np.zeros(6)
        for call in (
            lambda: comm.reduce(part.copy(), 1),
            lambda: comm.gather(whole if root else None, part, 1),
            lambda: comm.scatter(part, whole if root else None, 1),
            lambda: comm.all_to_all(whole, np.arange(6.0)),
        ):
            began_s = comm.clock.now_s()
            call().wait()
            times.append(comm.clock.now_s() - began_s)
        return times, part.tolist()

    kinds = {"reduce": 16, "gather": 48, "scatter": 48, "all_to_all": 48}
    expected = [link.cost_s(kind, nbytes, 3) for kind, nbytes in kinds.items()]
    for rank, (times, part) in enumerate(ran(body, 3, link=link)):
        assert times == pytest.approx(expected) and part == [rank, rank]


# ---------------------------------------------------------------------------------------------------------- messages


def test_who_sends_goes_on_and_who_takes_waits():
    def body(comm):
        if comm.rank == 0:
            comm.clock.advance(2.0)
            work = comm.send(np.ones(3), 1)
            work.wait()
            return comm.clock.now_s(), work.span
        array = np.zeros(3)
        comm.clock.compute(1)
        work = comm.recv(array, 0)
        assert work.span is None
        work.wait()
        work.wait()
        return comm.clock.now_s(), work.span, array.tolist()

    trace = simulate.run(body, cluster(2), timeout_s=TIMEOUT_S)
    assert trace.results == [(2.0, (2.0, 5.5)), (5.5, (2.0, 5.5), [1.0] * 3)]
    [step] = trace.ranks[1].steps
    assert (step.compute_s, step.idle_s, step.exposed_s, step.hidden_s) == (1.0, 1.0, 3.5, 0.0)


def test_messages_of_one_rank_go_one_after_the_other_and_those_of_two_do_not():
    def body(comm):
        if comm.rank < 2:
            works = [comm.send(np.ones(1), to, tag=7) for to in (2, 3, 2)]
        else:
            works = [comm.recv(np.ones(1), source, tag=7) for source in (0, 1, 0, 1)[: 4 if comm.rank == 2 else 2]]
        for work in works:
            work.wait()
        return [work.span[1] for work in works]

    assert ran(body, 4) == [[1.5, 3.0, 4.5], [1.5, 3.0, 4.5], [1.5, 1.5, 4.5, 4.5], [3.0, 3.0]]


def test_a_message_travels_while_its_taker_computes():
    def body(comm):
        if comm.rank == 0:
            comm.send(np.ones(2), 1).wait()
            return 0.0
        comm.clock.advance(0.5)
        work = comm.recv(np.ones(2), 0)
        comm.clock.advance(1.0)
        early = work.done()
        comm.clock.advance(2.0)
        assert not early and work.done()
        work.wait()
        return comm.clock.now_s()

    trace = simulate.run(body, cluster(2), timeout_s=TIMEOUT_S)
    assert trace.results[1] == 3.5
    assert sum(step.hidden_s for step in trace.ranks[1].steps) == 2.5


def test_time_passes_for_a_taker_that_does_nothing_but_ask():
    def body(comm):
        if comm.rank == 0:
            work = comm.send(np.ones(2), 1)
            assert work.done() and comm.clock.now_s() == 0.0
            return 0.0
        work = comm.recv(np.ones(2), 0)
        while not work.done():
            pass
        return comm.clock.now_s()

    assert ran(body, 2) == [0.0, 2.5]


def test_a_message_within_a_node_goes_over_the_inner_link():
    def body(comm):
        if comm.rank == 0:
            for other in (1, 2):
                comm.send(Tensor(np.ones(1)), other).wait()
        elif comm.rank < 3:
            comm.recv(Tensor(np.ones(1)), 0).wait()
        return comm.clock.now_s()

    link = Link(10.0, 1.0, "hierarchical", ranks_per_node=2, inner=LINK)
    assert ran(body, 4, link=link) == [0.0, 1.5, 19.5, 0.0]


def test_a_message_to_nobody_is_refused_as_elsewhere():
    def body(comm):
        with pytest.raises(ArgumentError, match="dst to be an integer"):
            comm.send(np.ones(1), 2)
        if comm.rank == 0:
            with pytest.raises(RankFailedError, match="rank 1 has returned"):
                comm.recv(np.ones(1), 1).wait()

    ran(body, 2)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_ring_all_reduce_takes_what_the_ring_costs(world_size):
    """2(W - 1)(alpha + beta m / W), which is what the link says of an all_reduce."""

    def body(comm, count):
        array = np.arange(float(count)) * (comm.rank + 1)
        RingAllReduce(comm).all_reduce(array).wait()
        return comm.clock.now_s(), array.tolist()

    for parts in (1, 2, 5):
        count = parts * world_size
        seconds = 2 * (world_size - 1) * (ALPHA + ELEMENT_S * parts)
        assert LINK.cost_s("all_reduce", 8 * count, world_size) == pytest.approx(seconds)
        total = (np.arange(float(count)) * sum(range(1, world_size + 1))).tolist()
        assert ran(body, world_size, count) == [(seconds, total)] * world_size


@pytest.mark.parametrize(
    "count, ends_s",
    [
        # parts of 3 and 4 elements: there at 3.5 and 4.5; rank 0 passes 4 on from 4.5, rank 1 its 3 once its link is
        # free, at 4.5 too
        (7, [8.0, 9.0]),
        # parts of 2, 2 and 3: what is sent at step k is there, by rank, at 2.5 2.5 3.5, 7.0 5.0 6.0, 9.5 10.5 8.5,
        # 12.0 13.0 14.0
        (7, [14.0, 12.0, 13.0]),
        # parts of 1, 2, 2 and 2: 1.5 2.5 2.5 2.5, 5.0 4.0 5.0 5.0, 7.5 7.5 6.5 7.5, 10.0 10.0 10.0 9.0,
        # 11.5 12.5 12.5 12.5, 15.0 14.0 15.0 15.0
        (7, [15.0, 15.0, 14.0, 15.0]),
        # parts of 0, 1, 0 and 1: of two neighbours one takes 0.5 and one 1.5, in turns: 1.5 a step, and 0.5 at an end
        (2, [8.0, 9.0, 8.0, 9.0]),
    ],
)
def test_a_ring_all_reduce_of_parts_of_unequal_sizes(count, ends_s):
    def body(comm):
        array = np.full(count, comm.rank + 1.0)
        RingAllReduce(comm).all_reduce(array).wait()
        return comm.clock.now_s(), set(array.tolist())

    world_size = len(ends_s)
    assert ran(body, world_size) == [(end_s, {sum(range(1, world_size + 1))}) for end_s in ends_s]


# ------------------------------------------------------------------------------------------------------------ groups


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_call_that_one_rank_is_refused_takes_no_time_and_no_number(refused):
    def body(comm):
        group, times = comm.split(0), []
        for turn in range(3):
            comm.clock.advance(0.0 if comm.rank == turn else 1.0)
            if comm.rank == refused:
                with pytest.raises(ArgumentError, match="expected root to be an integer"):
                    comm.broadcast(np.zeros(9), 5)
                with pytest.raises(ShapeError):
                    group.all_gather(np.zeros(5), np.zeros(2))
            comm.all_reduce(np.zeros(3)).wait()
            times.append(comm.clock.now_s())
            group.barrier()
        with pytest.raises(ArgumentError, match="color"):
            comm.split(-1 if comm.rank == refused else 0)
        comm.barrier()
        return times, comm.clock.now_s()

    meet_s, sum_s = 2 * ALPHA, 4 * (ALPHA + ELEMENT_S)
    begun_s = [meet_s + turn * (1.0 + sum_s + meet_s) for turn in range(4)]
    expected = [begin_s + 1.0 + sum_s for begin_s in begun_s[:3]], begun_s[3] + meet_s
    assert ran(body, 3) == [expected] * 3


def test_groups_have_channels_of_their_own():
    """Rows and columns: those of two groups go on at one time, those of one group one after the other."""

    def body(comm):
        row, column = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
        began_s = comm.clock.now_s()  # both took as long as to meet: a tree of two steps
        works = [row.all_reduce(np.ones(2)), column.all_reduce(np.ones(2)), row.broadcast(np.ones(3))]
        if comm.rank == 3:
            comm.clock.advance(1.0)
        works.append(column.all_reduce(np.ones(2)))
        for work in works:
            work.wait()
        ends_s = [work.span[1] - began_s for work in works]
        return began_s, ends_s, comm.clock is row.clock, comm.clock.now_s() - began_s

    both = 2 * (ALPHA + ELEMENT_S)
    assert ran(body, 4) == [(4 * ALPHA, [both, both, both + ALPHA + 3.0, 2 * both], True, both + ALPHA + 3.0)] * 4


def test_groups_count_for_themselves_and_their_ranks_are_theirs():
    """One group makes more calls than the other; a split of a split; messages within a group and beside it."""

    def body(comm):
        pair = comm.split(comm.rank % 2, -comm.rank)
        for _ in range(comm.rank % 2 * 3):
            pair.barrier()
        again = pair.split(0)
        assert again.global_ranks == pair.global_ranks == (2 + comm.rank % 2, comm.rank % 2)
        array = np.array([float(comm.rank)])
        again.all_reduce(array).wait()
        if pair.rank == 0:
            works = [pair.send(array, 1), comm.send(array + 1, comm.rank - 2)]
        else:
            got = [np.zeros(1), np.zeros(1)]
            works = [comm.recv(got[1], comm.rank + 2), pair.recv(got[0], 0)]
        for work in works:
            work.wait()
        assert pair.rank == 0 or got[1] == got[0] + 1 == array + 1
        comm.barrier()
        return array[0], comm.clock.now_s()

    late_s = 2 * ALPHA + 3 * ALPHA + ALPHA + 2 * (ALPHA + ELEMENT_S / 2) + 2 * (ALPHA + ELEMENT_S) + 2 * ALPHA
    assert ran(body, 4) == [(2.0, late_s), (4.0, late_s)] * 2


def trained_s(comm, samples):
    """The seconds of two steps, and a parameter then."""
    manual_seed(0)
    ddp, began_s = DDP(nn.Linear(3, 1, bias=False), comm), comm.clock.now_s()
    for _ in range(2):
        ddp(Tensor(np.ones((samples, 3), np.float32))).sum().backward()
    return round(comm.clock.now_s() - began_s, 9), ddp.module.weight.grad.tolist()


def test_training_in_a_group_takes_the_time_of_its_ranks_alone():
    together = ran(lambda comm: trained_s(comm.split(comm.rank // 2), comm.rank + 1), 4)
    for first in (0, 2):
        assert together[first : first + 2] == ran(lambda comm, at=first: trained_s(comm, at + comm.rank + 1), 2)
    assert together[2][0] - together[0][0] == pytest.approx(2 * 2.0 / 3)  # two samples more, forward


# ------------------------------------------------------------------------------------------------------------- notes


def busy(comm):
    """Computing, collectives of all and of groups, and messages, two steps of it."""
    group = comm.split(comm.rank % 2)
    for _ in range(2):
        comm.clock.compute(comm.rank + 1)
        group.all_reduce(np.ones(2)).wait()
        comm.clock.compute(1)
        RingAllReduce(comm).all_reduce(np.ones(8)).wait()
        comm.gather(np.ones(12) if comm.rank == 0 else None, np.ones(3)).wait()
    return comm.clock.now_s()


def test_bytes_are_those_that_a_rank_hands_in():
    trace = simulate.run(busy, cluster(4), timeout_s=TIMEOUT_S)
    sent = [16, 6 * 16 + 24] * 2  # an all_reduce; two parts of a ring go around, and what is gathered
    assert [[step.sent_bytes for step in rank.steps] for rank in trace.ranks] == [sent] * 4
    assert trace.sent_bytes() == 4 * sum(sent) and trace.sent_bytes(1, 2) == 4 * 120
    assert [rank.steps[1].samples for rank in trace.ranks] == [1] * 4


def test_one_cluster_gives_one_trace_of_messages_and_groups():
    uneven = Cluster.of_speeds([3, 1, 2, 1], per_sample_s=1.0, link=LINK, jitter_fraction=0.2, seed=3)
    traces = [simulate.run(busy, uneven, timeout_s=TIMEOUT_S) for _ in range(5)]
    assert all((trace.ranks, trace.results) == (traces[0].ranks, traces[0].results) for trace in traces)
