"""Who owns which matrix: all of them once, evenly, the same on every rank, within the caps."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad.distributed.sharded.owners import owners_of
from minigrad.errors import ArgumentError

SIZES = st.lists(st.integers(0, 50), max_size=12)
WORLDS = st.integers(1, 6)
FEWER = settings(max_examples=25)


def loads(sizes, owners, world_size):
    """Elements that each rank owns."""
    owned = [0] * world_size
    for size, owner in zip(sizes, owners, strict=True):
        owned[owner] += size
    return owned


@FEWER
@given(SIZES, WORLDS)
def test_each_has_one_owner_and_the_loads_are_even(sizes, world_size):
    owners = owners_of(sizes, world_size)
    owned = loads(sizes, owners, world_size)
    assert all(0 <= owner < world_size for owner in owners) and sum(owned) == sum(sizes)
    assert max(owned) * world_size <= sum(sizes) + (world_size - 1) * max(sizes, default=0)
    assert owners_of(tuple(sizes), world_size, [None] * world_size) == owners


@FEWER
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 3))
def test_no_assignment_is_much_better(sizes, world_size):
    every = itertools.product(range(world_size), repeat=len(sizes))
    best = min(max(loads(sizes, owners, world_size)) for owners in every)
    found = max(loads(sizes, owners_of(sizes, world_size), world_size))
    assert 3 * world_size * found <= (4 * world_size - 1) * best


@FEWER
@given(st.permutations([13, 11, 7, 5, 3, 2]), WORLDS)
def test_the_order_of_different_arrays_does_not_matter(sizes, world_size):
    by_size = dict(zip(sizes, owners_of(sizes, world_size)))
    assert by_size == dict(zip([2, 3, 5, 7, 11, 13], owners_of([2, 3, 5, 7, 11, 13], world_size)))


@FEWER
@given(SIZES, st.lists(st.none() | st.integers(0, 150), min_size=1, max_size=4))
def test_caps_hold_or_it_is_an_error(sizes, caps):
    try:
        owned = loads(sizes, owners_of(sizes, len(caps), caps), len(caps))
    except ArgumentError as error:
        assert None not in caps and sum(caps) < sum(sizes) + len(caps) * max(sizes)
        assert "expected caps with room for an array of" in str(error)
    else:
        assert all(cap is None or has <= cap for has, cap in zip(owned, caps))


def test_by_hand():
    assert owners_of([4, 4, 4, 4], 2) == (0, 1, 0, 1)  # ties: in order, to the lower rank
    assert owners_of([1, 2, 3, 4, 5], 2) == (0, 0, 1, 1, 0) and owners_of([], 3) == ()
    assert owners_of([5, 5], 2, caps=[4, None]) == (1, 1)
    assert owners_of([0, 0], 2, caps=[0, 0]) == (0, 0)


def test_wrong_arguments():
    for args, words in (
        (([3, 3, 3], 2, [5, 5]), r"room for an array of 3 elements on one rank, got \[2, 2\] left of \[5, 5\]: raise"),
        (([-1], 2), "owners_of: expected each size to be"),
        (([1.5], 2), "owners_of: expected each size to be"),
        ((3, 2), "owners_of: expected .*sizes"),
        (([1], 0), "owners_of: expected world_size to be"),
        (([1], 2, [3]), "owners_of: expected a cap for each of 2 ranks"),
        (([1], 1, [-3]), "owners_of: expected each cap to be"),
    ):
        with pytest.raises(ArgumentError, match=words):
            owners_of(*args)
