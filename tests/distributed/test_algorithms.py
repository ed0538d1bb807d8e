"""All-reduces as schedules: their sums, rounds, bytes and price, against closed forms and against `collectives`."""

import functools
import itertools
import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from minigrad.distributed import ReduceOp, collectives, run
from minigrad.distributed.algorithms import (
    WHOLE,
    Chunk,
    Op,
    CollectiveSchedule,
    Scheduled,
    Transfer,
    all_pairs,
    draw,
    halving_doubling,
    hierarchical,
    play,
    ring,
    tree,
)
from minigrad.distributed.simulate import Cluster, Link, cost
from minigrad.errors import ArgumentError, CollectiveMismatchError, CollectiveTimeoutError, DtypeError, ShapeError

WORLDS = range(1, 10)
FLAT = {"ring": ring, "tree": tree, "halving_doubling": halving_doubling, "all_pairs": all_pairs}
NODES = ((2, "ring", "ring"), (3, "tree", "ring"), (4, "halving_doubling", "all_pairs"))
MAKERS = {
    **FLAT,
    **{
        f"{each}-{inner}-{outer}": functools.partial(hierarchical, ranks_per_node=each, inner=inner, outer=outer)
        for each, inner, outer in NODES
    },
}
SIZES = (0, 1, 2, 3, 5, 7, 8, 9, 12, 17, 64, 100, 513, 1000)
UNIFORM = Link(latency_s=3e-5, bandwidth_bytes_s=1.7e8, efficiency=0.8)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_sums(name, world_size):
    """Whole numbers exactly, so each rank's part counts once; floats to rounding, or to the bit where promised."""
    schedule, rng = MAKERS[name](world_size), np.random.default_rng(world_size)
    for size in SIZES:
        whole = [rng.integers(-(2**40), 2**40, size) for _ in range(world_size)]
        wanted = sum(whole)
        play(schedule, whole)
        assert all(np.array_equal(array, wanted) for array in whole)
        floats = [rng.standard_normal(size) for _ in range(world_size)]
        exact = [array.copy() for array in floats]
        collectives.all_reduce(exact)
        play(schedule, floats)
        assert len({array.tobytes() for array in floats}) == 1
        scale = max(1.0, float(np.abs(exact[0]).max(initial=0.0)))
        np.testing.assert_allclose(floats[0], exact[0], rtol=0, atol=1e-12 * scale)
        if schedule.is_in_order:
            assert floats[0].tobytes() == exact[0].tobytes()


def test_which_of_them_have_the_order_of_all_communicators():
    assert all(tree(size).is_in_order for size in range(1, 34))
    assert all(halving_doubling(1 << power).is_in_order for power in range(6))
    assert not any(ring(size).is_in_order for size in range(3, 10))
    assert not halving_doubling(5).is_in_order


def test_an_order_that_is_not_promised_has_other_bits():
    """Else the promise would say nothing."""
    rng = np.random.default_rng(0)
    floats = [rng.standard_normal(1000) for _ in range(5)]
    exact = [array.copy() for array in floats]
    collectives.all_reduce(exact)
    play(ring(5), floats)
    assert floats[0].tobytes() != exact[0].tobytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.int32])
@pytest.mark.parametrize("op", list(ReduceOp))
def test_every_reduction_is_that_of_collectives_where_the_order_is(dtype, op):
    rng = np.random.default_rng(0)
    arrays = [(rng.standard_normal((3, 7)) * 4).astype(dtype) for _ in range(4)]
    exact = [array.copy() for array in arrays]
    if op is ReduceOp.AVG and np.dtype(dtype).kind == "i":
        with pytest.raises(DtypeError, match="play: expected a float dtype for AVG, got int32"):
            play(tree(4), arrays, op)
        return
    collectives.all_reduce(exact, op)
    play(tree(4), arrays, op)
    assert all(array.tobytes() == exact[0].tobytes() for array in arrays)


# ------------------------------------------------------------------------------------------------- rounds and bytes


@pytest.mark.parametrize("world_size", [*range(1, 20), 31, 32, 33])
def test_rounds_and_elements(world_size):
    """Closed forms; elements where the number of ranks divides them."""
    p, size = world_size, 8 * math.lcm(world_size, 32)
    floor = p.bit_length() - 1
    power, ceiling = 1 << floor, (p - 1).bit_length()
    assert len(ring(p).rounds) == 2 * (p - 1)
    assert len(tree(p).rounds) == 2 * ceiling
    assert len(halving_doubling(p).rounds) == 2 * floor + 2 * (p > power)
    assert len(all_pairs(p).rounds) == 2 * (p > 1)
    least = [2 * (p - 1) * size // p] * p
    assert ring(p).sent_elements(size) == all_pairs(p).sent_elements(size) == least
    if p == power:
        assert halving_doubling(p).sent_elements(size) == least
    assert sum(tree(p).sent_elements(size)) == 2 * (p - 1) * size


def test_parts_cover_an_array_and_differ_by_one_element_at_most():
    """Of every size; and a part of some is the parts of more that begin and end where it does."""
    for of, size in itertools.product(range(1, 10), range(1001)):
        parts = [Chunk(i, i + 1, of).slice(size) for i in range(of)]
        assert parts[0].start == 0 and parts[-1].stop == size
        assert all(one.stop == other.start for one, other in zip(parts, parts[1:]))
        counts = [part.stop - part.start for part in parts]
        assert max(counts) - min(counts) <= 1 and counts[-1] == Chunk(of - 1, of, of).count(size)
        assert Chunk(3 * (of - 1), 3 * of, 3 * of).slice(size) == parts[-1]


@pytest.mark.parametrize("world_size", [1, 2, 5, 6, 9, 16, 23])
def test_rounds_of_a_hierarchy(world_size):
    """Within the largest node, between nodes, and down a tree of the largest node, where there are several."""
    flat = {"ring": lambda p: 2 * (p - 1), "tree": lambda p: 2 * (p - 1).bit_length()}
    for each, inner, outer in itertools.product((1, 2, 3, 8), flat, flat):
        largest, nodes = min(each, world_size), -(-world_size // each)
        down = (largest - 1).bit_length() if nodes > 1 else 0
        found = len(hierarchical(world_size, each, inner, outer).rounds)
        assert found == flat[inner](largest) + flat[outer](nodes) + down


# -------------------------------------------------------------------------------------------------------- the price


def clustered(world_size, link):
    return Cluster.of_speeds([1.0] * world_size, link=link)


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("name", FLAT)
def test_price_is_that_of_a_link(world_size, name):
    """all_pairs has a ring's."""
    topology = "ring" if name == "all_pairs" else name
    schedule, link = FLAT[name](world_size), replace(UNIFORM, topology=topology)
    pieces = 1 << world_size.bit_length() - 1 if name == "halving_doubling" else world_size
    for each in (1, 3, 250):
        size = pieces * each
        wanted = link.cost_s("all_reduce", 4 * size, world_size)
        assert cost(schedule, clustered(world_size, link), size) == pytest.approx(wanted, rel=1e-12, abs=1e-300)
    for size in (1, 5, 17, 999):
        exact = link.cost_s("all_reduce", 4 * size, world_size)
        found = cost(schedule, clustered(world_size, link), size)
        beyond_s = sum(max(1, len(transfers) // world_size) for transfers in schedule.rounds) * link._bytes_s(4)
        assert exact * (1 - 1e-12) <= found <= exact + beyond_s * (1 + 1e-12)


@pytest.mark.parametrize("inner, each", list(itertools.product(("ring", "tree", "halving_doubling"), (1, 2, 3, 4))))
def test_price_of_a_hierarchy_is_that_of_what_is_executed(inner, each):
    near = Link(1e-6, 9e9, inner)
    for world_size in WORLDS:
        link = Link(2e-5, 1.1e8, "hierarchical", each, near)
        schedule, size = hierarchical(world_size, each, inner), 12 * 5 * 7
        wanted = link.cost_s("all_reduce", 4 * size, world_size)
        found = cost(schedule, clustered(world_size, link), size)
        if all(size % parts == 0 for parts in (each, -(-world_size // each))):
            assert found == pytest.approx(wanted, rel=1e-12, abs=1e-300)
        assert wanted * (1 - 1e-12) <= found <= wanted + len(schedule.rounds) * 4 / 1.1e8


def test_price_by_hand():
    """Rank 2's link to rank 0 is slow: the ring waits for it in every round, the tree in one of its four."""
    link, slow = Link(1.0, 4.0), Link(10.0, 4.0)
    assert cost(ring(3), clustered(3, link), 3) == 4 * (1.0 + 1.0)
    assert cost(ring(3), clustered(3, link), 3, links={(2, 0): slow}) == 4 * 11.0
    assert cost(tree(3), clustered(3, link), 1, links={(2, 0): slow}) == 2.0 + 11.0 + 2.0 + 2.0
    assert cost(ring(3), clustered(3, replace(link, ramp_s=5.0)), 3) == 8.0 + 5.0
    assert cost(ring(1), clustered(1, replace(link, ramp_s=5.0)), 3) == 0.0


def test_ranks_wait_for_what_they_need_only():
    """A slow link between two ranks of one node holds up that node, and the other only when they meet."""
    schedule = hierarchical(4, 2)
    link, slow = Link(1.0), Link(5.0)
    assert cost(schedule, clustered(4, link), 4) == 2 + 2 + 1
    assert cost(schedule, clustered(4, link), 4, links={(3, 2): slow}) == 10 + 2 + 1
    assert cost(schedule, clustered(4, link), 4, links={(2, 3): slow}) == 10 + 2 + 5


# --------------------------------------------------------------------------------------------------------- on ranks


@pytest.mark.parametrize("name", MAKERS)
def test_on_ranks_it_has_the_bits_of_the_play(name):
    def body(comm):
        array = np.random.default_rng(comm.rank).standard_normal((5, 5)).astype(np.float32)
        Scheduled(comm, MAKERS[name]).all_reduce(array).wait()
        return array.tobytes()

    for world_size in (1, 2, 5):
        arrays = [np.random.default_rng(rank).standard_normal((5, 5)).astype(np.float32) for rank in range(world_size)]
        play(MAKERS[name](world_size), arrays)
        assert run(body, world_size, timeout_s=10) == [array.tobytes() for array in arrays]


# ---------------------------------------------------------------------------------------------------------- drawing


def test_drawn_by_hand():
    assert draw(tree(3)).splitlines() == [
        "tree, 3 ranks, 1 parts",
        "at first",
        *("  rank 0  0", "  rank 1  1", "  rank 2  2"),
        "round 1: 1 > 0 part 0",
        *("  rank 0  0-1", "  rank 1  1", "  rank 2  2"),
        "round 2: 2 > 0 part 0",
        *("  rank 0  0-2", "  rank 1  1", "  rank 2  2"),
        "round 3: 0 > 2 part 0",
        *("  rank 0  0-2", "  rank 1  1", "  rank 2  0-2"),
        "round 4: 0 > 1 part 0",
        *("  rank 0  0-2", "  rank 1  0-2", "  rank 2  0-2"),
    ]


# --------------------------------------------------------------------------------------------------------- refused

ADD, PUT = Op.COMBINE, Op.REPLACE


@pytest.mark.parametrize(
    "rounds, words",
    [
        ((), "expected on rank 0, in part 0 of 1, the array of each of 2 ranks once, got 0"),
        (((Transfer(0, 1, WHOLE, ADD), Transfer(1, 0, WHOLE, PUT)),), "on rank 0"),
        (((Transfer(0, 1, WHOLE, ADD), Transfer(1, 0, WHOLE, ADD)),) * 2, "each of 2 ranks once, got 0,0,1,1"),
        (((Transfer(0, 1, Chunk(0, 1, 2), ADD), Transfer(1, 0, WHOLE, ADD)),), "on rank 1, in part 1 of 2"),
        (((Transfer(0, 2, WHOLE, ADD),),), "in round 0 a transfer between two ranks below 2, got one from 0 to 2"),
        (((Transfer(1, 1, WHOLE, ADD),),), "got one from 1 to 1"),
        (((Transfer(1, 0, Chunk(1, 3, 2), ADD),),), "in round 0 a chunk and an Op"),
        (((Transfer(1, 0, WHOLE, "add"),),), "in round 0 a chunk and an Op"),
        ((((1, 0, WHOLE, ADD),),), "expected a Transfer in round 0"),
        (((Transfer(1.0, 0, WHOLE, ADD),),), "got one from 1.0 to 0"),
        (((Transfer("1", 0, WHOLE, ADD),),), "got one from '1' to 0"),
        (((Transfer(True, 0, WHOLE, ADD),),), "got one from True to 0"),
        (((Transfer(1, 0, (0, 1, 1), ADD),),), "in round 0 a chunk and an Op"),
        (((Transfer(1, 0, None, ADD),),), "in round 0 a chunk and an Op"),
        (((Transfer(1, 0, Chunk(0, 0.5, 1), ADD),),), "in round 0 a chunk and an Op"),
        (((Transfer(1, 0, Chunk(0, 0, 0), ADD),),), "in round 0 a chunk and an Op"),
        (((Transfer(1, 0, Chunk(0, 1, 10**9), ADD),),), "chunks of at most 65536 parts in all, got 1000000000"),
        (None, "rounds to be a list or a tuple, got None"),
        ((3,), "each round to be a list or a tuple, got 3"),
    ],
)
def test_what_is_no_all_reduce_is_refused(rounds, words):
    with pytest.raises(ArgumentError, match="^CollectiveSchedule 'mine': expected") as caught:
        CollectiveSchedule("mine", 2, rounds)
    assert words in str(caught.value)


def test_one_message_less_or_twice_is_refused():
    """Each of the transfers of each schedule is needed, and needed once."""
    for make in FLAT.values():
        good = make(4)
        for number, transfers in enumerate(good.rounds):
            for left_out in range(len(transfers)):
                others = transfers[:left_out] + transfers[left_out + 1 :]
                with pytest.raises(ArgumentError):
                    replace(good, rounds=(*good.rounds[:number], others, *good.rounds[number + 1 :]))
                if transfers[left_out].op is ADD:
                    twice = (*transfers, transfers[left_out])
                    with pytest.raises(ArgumentError):
                        replace(good, rounds=(*good.rounds[:number], twice, *good.rounds[number + 1 :]))


def test_wrong_arguments():
    arrays = [np.zeros(3), np.zeros(3)]
    for call, error, words in (
        (lambda: play(ring(3), arrays), ArgumentError, "play: expected a schedule for 2 ranks, got one for 3"),
        (lambda: play("ring", arrays), ArgumentError, "play: expected a CollectiveSchedule, got 'ring'"),
        (lambda: play(ring(2), [np.zeros(3), np.zeros(4)]), ShapeError, "play: expected arrays of one shape"),
        (lambda: hierarchical(4, 0), ArgumentError, "hierarchical: expected ranks_per_node"),
        (lambda: hierarchical(4, 2, "star"), ArgumentError, "hierarchical: expected inner"),
        (lambda: ring(0), ArgumentError, "ring: expected world_size"),
        (lambda: cost(ring(2), clustered(3, UNIFORM), 4), ArgumentError, "cost: expected a schedule for 3 ranks"),
        (lambda: cost(ring(2), UNIFORM, 4), ArgumentError, "cost: expected a Cluster"),
        (lambda: cost(ring(2), clustered(2, UNIFORM), -1), ArgumentError, "cost: expected size"),
        (lambda: cost(ring(2), clustered(2, UNIFORM), 4, links={(0, 2): UNIFORM}), ArgumentError, "expected links as"),
        (lambda: cost(ring(2), clustered(2, UNIFORM), 4, links=[UNIFORM]), ArgumentError, "expected links as a dict"),
        (lambda: CollectiveSchedule(3, 1, ()), ArgumentError, "CollectiveSchedule: expected name as text, got 3"),
        (lambda: ring(2).sent_elements(2.5), ArgumentError, "sent_elements: expected size to be an integer >= 0"),
        (lambda: play(ring(2), 3), ArgumentError, "play: expected arrays to be a list or a tuple, got 3"),
        (lambda: play(ring(2), []), ArgumentError, "play: expected a schedule for 0 ranks, got one for 2"),
        (lambda: play(ring(2), [[1.0], [2.0]]), DtypeError, "rank 0: play: expected a tensor or an array, got list"),
        (lambda: play(ring(2), [np.array(["a"])] * 2), DtypeError, "rank 0: play: expected an array of numbers"),
        (lambda: play(ring(2), [np.zeros(4)[::2]] * 2), ShapeError, "rank 0: play: expected a C-contiguous array"),
        (lambda: play(ring(2), [np.broadcast_to(1.0, 1)] * 2), ArgumentError, "expected an array to overwrite"),
        (lambda: play(ring(2), arrays, "sum"), ArgumentError, "rank 0: play: expected a ReduceOp, got 'sum'"),
    ):
        with pytest.raises(error) as caught:
            call()
        assert words in str(caught.value)


@pytest.mark.parametrize(
    "schedule, words",
    [
        (ring(3), "Scheduled: expected a schedule for 2 ranks, got one for 3"),
        (None, "Scheduled: expected a CollectiveSchedule, got None"),
        (lambda world_size: 3, "Scheduled: expected a CollectiveSchedule, got 3"),
        (hierarchical, "Scheduled: expected a function of the number of ranks alone, got <function hierarchical"),
    ],
)
def test_what_no_communicator_can_run(schedule, words):
    with pytest.raises(ArgumentError) as caught:
        run(lambda comm: Scheduled(comm, schedule), 2, timeout_s=10)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "given, error, words",
    [
        (lambda rank: {"array": np.zeros(2 + rank)}, CollectiveMismatchError, "one dtype and size at both ends"),
        (lambda rank: {"array": np.zeros(2, [np.float32, np.float64][rank])}, CollectiveMismatchError, "float32"),
        (lambda rank: {"array": np.zeros(2), "op": list(ReduceOp)[rank]}, CollectiveTimeoutError, "before no rank can"),
        (lambda rank: {"array": np.zeros(2), "layout": "ab"[rank]}, CollectiveTimeoutError, "before no rank can go on"),
        (lambda rank: {"array": np.zeros(2, int), "op": ReduceOp.AVG}, DtypeError, "expected a float dtype for AVG"),
        (lambda rank: {"array": np.zeros(2), "op": "sum"}, ArgumentError, "expected a ReduceOp, got 'sum'"),
    ],
)
def test_ranks_that_call_for_different_things_are_told(given, error, words):
    with pytest.raises(error) as caught:
        run(lambda comm: Scheduled(comm, ring).all_reduce(**given(comm.rank)).wait(), 2, schedule=0)
    assert words in str(caught.value)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN])
@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64])
def test_whole_numbers_and_truths_on_ranks_are_those_of_collectives(dtype, op):
    def body(comm):
        array = given[comm.rank].copy()
        work = Scheduled(comm, halving_doubling).all_reduce(array, op)
        assert work.done()
        return array

    rng = np.random.default_rng(0)
    given = [(rng.integers(-100, 100, 7) * rng.integers(0, 2, 7)).astype(dtype) for _ in range(3)]
    exact = [array.copy() for array in given]
    collectives.all_reduce(exact, op)
    assert all(np.array_equal(found, exact[0]) for found in run(body, 3, timeout_s=10))
