"""The record of the idioms is what the installed PyTorch does: python -m pytest -m torch tests/parity."""

import pytest

from tests.parity.idioms import GROUPS, store
from tests.parity.idioms.value import difference


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.parametrize("group", GROUPS, ids=[group.name for group in GROUPS])
def test_recorded_as_torch_does_it(group):
    from tests.parity.idioms.theirs import play_theirs

    wrong = {}
    for name, found in play_theirs(group).items():
        found = {"raises": type(found).__name__} if isinstance(found, Exception) else found
        wrong[name] = difference(found, store.load()[name][1])
    assert {name: reason for name, reason in wrong.items() if reason} == {}
