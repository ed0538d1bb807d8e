"""The bucket plan: a pure function of sizes and caps."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.distributed.ddp.buckets import BucketPlan, Entry, check_plan, plan_buckets
from minigrad.errors import ArgumentError, ReplicaMismatchError


@st.composite
def entry_lists(draw):
    """Entries of one to three buffers, side by side within each."""
    entries = []
    for buffer in range(draw(st.integers(1, 3))):
        itemsize, at = draw(st.sampled_from([2, 4, 8])), 0
        for size in draw(st.lists(st.integers(0, 300), max_size=12)):
            entries.append(Entry(f"p{len(entries)}", buffer, at, at + size, itemsize, draw(st.booleans())))
            at += size
    return entries


@given(entries=entry_lists(), cap=st.integers(1, 3000), first=st.integers(1, 3000))
def test_each_trainable_element_is_in_exactly_one_bucket(entries, cap, first):
    plan = plan_buckets(entries, cap, first)
    covered = [(b.buffer, i) for b in plan.buckets for i in range(b.start, b.stop)]
    wanted = [(e.buffer, i) for e in entries if e.trainable for i in range(e.start, e.stop)]
    assert covered == wanted
    assert [b.index for b in plan.buckets] == list(range(len(plan.buckets)))
    check_plan(plan, entries)


@given(entries=entry_lists(), cap=st.integers(1, 3000), first=st.integers(1, 3000))
def test_buckets_keep_their_caps_and_are_as_few_as_order_allows(entries, cap, first):
    plan = plan_buckets(entries, cap, first)
    for bucket, following in zip(plan.buckets, [*plan.buckets[1:], None]):
        limit = first if bucket.index == 0 else cap
        assert bucket.nbytes <= limit or len(bucket.entries) == 1
        if following is not None and following.buffer == bucket.buffer and following.start == bucket.stop:
            new = entries[following.entries[0]]
            assert (new.stop - bucket.start) * new.itemsize > limit


@given(entries=entry_lists(), cap=st.integers(1, 3000))
def test_the_plan_survives_a_file_and_is_known_by_its_id(entries, cap):
    plan = plan_buckets(entries, cap, cap)
    assert BucketPlan.from_json(plan.to_json()) == plan
    assert plan_buckets(list(entries), cap, cap).id == plan.id
    assert plan.id in str(plan)


def test_another_cap_or_name_is_another_id():
    entries = [Entry("a", 0, 0, 16, 4), Entry("b", 0, 16, 32, 4)]
    renamed = [dataclasses.replace(entries[0], name="c"), entries[1]]
    ids = {plan_buckets(entries, 64, 64).id, plan_buckets(entries, 128, 128).id, plan_buckets(renamed, 64, 64).id}
    assert len(ids) == 3


def test_a_frozen_parameter_splits_a_bucket():
    entries = [Entry("a", 0, 0, 16, 4), Entry("b", 0, 16, 32, 4, False), Entry("c", 0, 32, 48, 4)]
    assert [b.entries for b in plan_buckets(entries).buckets] == [(0,), (2,)]


def test_the_first_bucket_is_small():
    entries = [Entry(f"p{i}", 0, 16 * i, 16 * i + 16, 4) for i in range(6)]
    assert [len(b.entries) for b in plan_buckets(entries, 192, 64).buckets] == [1, 3, 2]


def test_a_plan_for_other_parameters_is_refused():
    entries = [Entry("a", 0, 0, 16, 4), Entry("b", 0, 16, 32, 4)]
    plan = plan_buckets(entries, 64, 64)
    with pytest.raises(ReplicaMismatchError, match="parameters of this module"):
        check_plan(plan, entries[:1])
    with pytest.raises(ReplicaMismatchError, match="exactly one bucket"):
        check_plan(plan, [entries[0], dataclasses.replace(entries[1], trainable=False)])
    with pytest.raises(ReplicaMismatchError, match="cover its parameters"):
        check_plan(plan, [dataclasses.replace(entries[0], stop=8), entries[1]])
    with pytest.raises(ReplicaMismatchError, match="cover its parameters"):
        check_plan(dataclasses.replace(plan, buckets=plan.buckets[::-1]), entries)  # 1, then 0
    with pytest.raises(ArgumentError, match="id of its content"):
        BucketPlan.from_json(plan.to_json().replace(plan.id, "0" * 16))
