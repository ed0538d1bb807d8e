"""Lesson 19: our solution against the library's own order of sums, for any sizes; the script of its page."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad.course.lesson19_bits import picture, solution
from minigrad.distributed import collectives, run
from tests.course import elsewhere


@settings(max_examples=20)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2**32))
def test_the_sum_is_the_librarys_tree(shards_log2, ranks_log2, seed):
    shards = [np.random.default_rng([seed, v]).standard_normal(5) for v in range(2**shards_log2)]
    world_size = 2 ** min(shards_log2, ranks_log2, 2)
    each = len(shards) // world_size
    totals = run(lambda comm: solution.sum_in_one_order(comm, shards[comm.rank * each :][:each]), world_size)
    right = collectives.pairwise([part.copy() for part in shards], lambda into, other: np.add(into, other, out=into))
    assert all(total.tobytes() == right.tobytes() for total in totals)


@settings(max_examples=20)
@given(st.integers(0, 60), st.integers(1, 3), st.integers(0, 3), st.integers(0, 5))
def test_the_shards_of_all_ranks_are_the_epoch(length, size, shards_log2, epoch):
    shards = 2**shards_log2
    whole = list(solution.portable_batches(length, size * shards, shards, 0, 1, 7, epoch))
    taken = [i for step in whole for _, indices, _ in step for i in indices.tolist()]
    assert len(taken) == len(set(taken)) == length // (size * shards) * size * shards
    apart = [list(solution.portable_batches(length, size * shards, shards, r, shards, 7, epoch)) for r in range(shards)]
    assert [i for step in zip(*apart) for part in step for i in part[0][1].tolist()] == taken


def test_equal_bits_have_one_colour_in_the_picture():
    drawn = re.findall(r'<rect x="([^"]+)".* fill="([^"]+)".*/>\n<text [^>]*>([^<]+)</text>', picture())
    colours = {(x, text): {fill for at, fill, said in drawn if (at, said) == (x, text)} for x, _, text in drawn}
    assert len(drawn) == 2 + 16 and {len(found) for found in colours.values()} == {1}


@pytest.mark.course
def test_the_script_of_the_page_ends_in_one_checksum(tmp_path):
    found = elsewhere.outcomes(elsewhere.script_of(19, tmp_path, "bits.py"), r": ([0-9a-f]{8})")
    assert [len(sums) for sums in found] == [1, 2, 2] and len(set(sum(found, []))) == 1
