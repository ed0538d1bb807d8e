"""Break the combination of gradients in one place: a second's worth of tests notices, wherever it is."""

import pytest

from tests.distributed.mutants import MUTANTS, origin_of, who_notices


def test_without_mutant_all_pass():
    assert who_notices() == ""


@pytest.mark.parametrize("broken", MUTANTS)
def test_a_mutant_is_noticed(broken):
    (module, test), old, new = MUTANTS[broken]
    assert origin_of(module).read_text().count(old) == 1, f"the source has changed: {old!r} is not in {module} once"
    assert who_notices((module, old, new), test), broken
