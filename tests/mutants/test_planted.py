"""Planted bugs: each applies, changes the program, and a tool that its hint names finds it; nothing else is found."""

import functools
import importlib

import pytest

from minigrad.distributed.ddp.combine import weight_of
from minigrad.errors import ArgumentError, RankFailedError
from minigrad.testing.mutants import (
    KINDS,
    MUTANTS,
    PROGRAMS,
    TOOLS,
    Edit,
    findings,
    in_child,
    observe,
    parted,
    planted,
    right_runs,
)
from minigrad.testing.mutants.edit import _target

SAMPLE = [number for number in MUTANTS if number % 20 == 7]
COMBINE = "distributed.ddp.combine"
ONE = Edit(COMBINE, "samples / total if", "1.0 if")


@functools.cache
def right(name):
    return right_runs(PROGRAMS[name])


def found(number):
    """What is found of a bug, in a process of its own; of the right runs here."""
    mutant = MUTANTS[number]
    seen = right(mutant.program)
    return in_child(mutant.edit, lambda: findings(PROGRAMS[mutant.program], seen), 60.0)


# ------------------------------------------------------------------------------------------------------ the list


def compared(function):
    """What of a function's code makes it do what it does."""
    code = function.__code__
    return code.co_code, code.co_consts, code.co_names


def test_they_are_numbered_and_told_apart():
    assert list(MUTANTS) == list(range(1, len(MUTANTS) + 1)) and len(MUTANTS) >= 80
    assert len({mutant.name for mutant in MUTANTS.values()}) == len(MUTANTS)
    assert {mutant.level for mutant in MUTANTS.values()} == {1, 2, 3}
    assert {mutant.kind for mutant in MUTANTS.values()} == set(KINDS)
    for mutant in MUTANTS.values():
        assert mutant.program in PROGRAMS and mutant.tools and set(mutant.tools) <= set(TOOLS), mutant
        assert all(tool in mutant.hint for tool in mutant.tools) and KINDS[mutant.kind] in mutant.hint


def test_each_applies_and_changes_the_program():
    for mutant in MUTANTS.values():
        place = mutant.place  # refuses a text that does not stand there once
        source = place.file.read_text()
        assert mutant.edit.old.strip().splitlines()[0].strip() in source.splitlines()[place.line - 1]
        assert place.first_line <= place.line <= place.last_line
        function = _target(importlib.import_module(f"minigrad.{mutant.edit.module}"), place)
        before = compared(function)
        with planted(mutant):
            assert compared(function) != before, mutant.name
        assert compared(function) == before


# ------------------------------------------------------------------------------------------------- what finds them


@pytest.mark.parametrize("number", SAMPLE)
def test_a_tool_of_its_hint_finds_it(number):
    assert set(MUTANTS[number].tools) & found(number).keys()


@pytest.mark.course
@pytest.mark.parametrize("number", sorted(set(MUTANTS) - set(SAMPLE)))
def test_a_tool_of_its_hint_finds_each(number):
    assert set(MUTANTS[number].tools) & found(number).keys()


def check_right(name, seed, world_size):
    """The right program, run once more, is not said to be wrong, beside itself or by itself."""
    program = PROGRAMS[name]
    seen = right_runs(program, seed=seed, world_size=world_size)
    assert findings(program, seen, seed=seed, world_size=world_size) == {}
    assert not seen[0].error or program.refuses, seen[0].error
    assert list(parted(seen[0])) == []
    assert seen[1] is None or not any(rank.twin for rank in seen[1].ranks)
    if program.refuses:
        assert any(said != "nothing was refused" for rank in seen[0].ranks for said in rank.said)


@pytest.mark.parametrize("name, seed", [("unequal", 1), ("halves", 2), ("joined", 1), ("careless: all fail", 0)])
def test_the_right_program_is_not_said_to_be_wrong(name, seed):
    check_right(name, seed, None)


@pytest.mark.course
@pytest.mark.parametrize("world_size, seed", [(2, 0), (4, 1), (None, 2)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_right_program_is_said_to_be_wrong(name, world_size, seed):
    check_right(name, seed, world_size)


# -------------------------------------------------------------------------------------------------- how it is done


def test_a_bug_is_in_force_inside_and_nowhere_else():
    assert weight_of(1.0, 4.0) == 0.25
    with planted(ONE):
        assert weight_of(1.0, 4.0) == 1.0
        with planted(Edit(COMBINE, "if total else 0.0", "if total else 7.0")):
            assert weight_of(1.0, 0.0) == 7.0 and weight_of(1.0, 4.0) == 0.25  # the innermost one alone
        assert weight_of(1.0, 4.0) == 1.0
    assert weight_of(1.0, 4.0) == 0.25
    with pytest.raises(ZeroDivisionError), planted(ONE):
        raise ZeroDivisionError
    assert weight_of(1.0, 4.0) == 0.25


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (Edit(COMBINE, "no such text", ""), "once in distributed.ddp.combine, got 0 of it"),
        (Edit(COMBINE, "samples", ""), r"got \d+ of it: the source has changed"),
        (Edit(COMBINE, "from __future__ import annotations", ""), "in a function of distributed.ddp.combine, got line"),
        (Edit("distributed.nothing", "a", "b"), "a module below minigrad, got 'distributed.nothing'"),
        (Edit(COMBINE, "def weight_of(", "def other_of("), "to be left, got none"),
    ],
)
def test_what_can_not_be_planted_is_refused(edit, words):
    with pytest.raises(ArgumentError, match=words), planted(edit):
        pass


def test_decorated_and_nested_functions_are_found():
    for module, old in [
        ("distributed.ddp.reducer", "before, self.syncing = self.syncing, False"),  # a context manager
        ("distributed.ddp.stats", "return self.exposed_s + self.hidden_s"),  # a property
        ("distributed.ddp.buckets", "raw = json.loads(text)"),  # a static method
        ("nn.clip", 'return _clip("clip_grad_norm_", ['),  # under a decorator of ours
    ]:
        with planted(Edit(module, old, old)):
            pass


def leaves():
    raise SystemExit


def waits():
    import time

    time.sleep(60.0)


def test_a_child_has_the_bug_and_gives_back_what_comes_of_it():
    assert in_child(ONE, lambda: weight_of(1.0, 4.0)) == 1.0
    assert in_child(None, lambda: weight_of(1.0, 4.0)) == 0.25 == weight_of(1.0, 4.0)
    with pytest.raises(ZeroDivisionError, match="division"):
        in_child(None, lambda: 1 / 0)
    with pytest.raises(RankFailedError, match="within 0.2 s, got none"):
        in_child(None, waits, 0.2)
    with pytest.raises(RankFailedError, match="can be pickled, got"):
        in_child(None, lambda: lambda: None)
    with pytest.raises(SystemExit):
        in_child(None, leaves)


def test_a_seed_gives_other_numbers_and_the_same_ones_again():
    losses = [[rank.losses for rank in observe(PROGRAMS["sums"], seed=seed).ranks] for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
