"""Break the combination of gradients in one place: a second's worth of tests notices, wherever it is."""

import pytest

from tests.distributed.mutants import MUTANTS, TESTS, who_notices


def test_without_mutant_all_pass():
    assert who_notices() == ""


@pytest.mark.parametrize("broken", MUTANTS)
def test_a_mutant_is_noticed(broken):
    test, edit = MUTANTS[broken]
    assert who_notices(edit, test), broken


def test_no_test_is_left_without_its_mutant():
    assert set(TESTS) <= set(MUTANTS)
