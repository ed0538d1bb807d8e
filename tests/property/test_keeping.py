"""Names of checkpoints, and which are due, loaded and removed, for any numbers."""

import re

from hypothesis import given
from hypothesis import strategies as st

from minigrad.train.keeping import END, UNITS, is_due, name_of, named, newest_whole, numbers_in, removable

units = st.sampled_from(UNITS)
numbers = st.integers(0, END - 1)
some = st.sets(st.integers(0, 40), max_size=12)


@given(unit=units, values=st.lists(numbers, max_size=8))
def test_names_sort_as_numbers_do_and_say_which_they_are(unit, values):
    names = [name_of(unit, value) for value in values]
    assert sorted(names) == [name_of(unit, value) for value in sorted(values)]
    assert [named(name) for name in names] == [(unit, value) for value in values]
    other = [name_of(each, 3) for each in UNITS if each != unit]
    assert numbers_in(unit, [*names, *other, "notes.txt"]) == sorted(values)


@given(text=st.text(max_size=30) | st.from_regex(r"\.?(step|epoch)-[0-9]{8,12}\.safetensors.?"))
def test_no_other_name_is_one(text):
    found = named(text)
    assert (found is not None) == bool(re.fullmatch(r"(step|epoch)-[0-9]{10}\.safetensors", text, re.ASCII))
    assert found is None or name_of(*found) == text


@given(every=st.integers(1, 9), jumps=st.lists(st.integers(1, 12), max_size=30))
def test_one_is_due_in_each_stretch_of_every_that_is_reached(every, jumps):
    number = last = 0
    saved = []
    for jump in jumps:
        number += jump
        if is_due(number, last, every):
            saved.append(last := number)
        assert number - last < every + (last % every) and not is_due(number, number, every)
    assert [n // every for n in saved] == sorted({sum(jumps[: i + 1]) // every for i in range(len(jumps))} - {0})
    if set(jumps) <= {1}:
        assert saved == [*range(every, number + 1, every)]


def test_never_is_never_due():
    assert not any(is_due(number, 0, None) for number in range(50))


@given(there=some, whole=some)
def test_the_newest_whole_one_is_loaded(there, whole):
    found, broken = newest_whole(there, whole.__contains__)
    assert found == max(there & whole, default=None)
    assert broken == sorted((n for n in there if found is None or n > found), reverse=True) and not whole & {*broken}


@given(there=some, new=st.integers(0, 40), keep=st.none() | st.integers(1, 5), data=st.data())
def test_what_is_removed_is_broken_or_older_than_the_last(there, new, keep, data):
    broken = data.draw(st.sets(st.sampled_from(sorted(there)))) if there else set()
    gone = {*removable(there, new, keep, broken)}
    left = (there | {new}) - gone
    assert new in left and gone <= there and broken - {new} <= gone and not (broken - {new}) & left
    sound = (there - broken) | {new}
    if keep is None:
        assert left == sound
    else:
        assert left == {new, *sorted(sound)[-keep:]}
        assert len(left) == min(keep, len(sound)) or new < min(sorted(sound)[-keep:])
        assert all(old < min(left - {new}, default=99) for old in gone - broken)
