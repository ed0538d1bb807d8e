"""What a PyTorch user types runs, and leaves what it left in PyTorch; see tests/parity/idioms."""

import pytest

from tests.parity.idioms import GROUPS, store
from tests.parity.idioms.listed import OPEN, REFUSED
from tests.parity.idioms.table import verdicts

IDIOMS = [idiom for group in GROUPS for idiom in group.idioms]
NAMES = [idiom.name for idiom in IDIOMS]


@pytest.fixture(scope="module")
def judged():
    return verdicts()


@pytest.mark.parametrize("group", [group.name for group in GROUPS])
def test_agrees_or_is_refused_in_words(judged, group):
    """A refusal counts where `REFUSED` lists it, with words that say what to write instead."""
    failed = {name: verdict.reason for name, verdict in judged[group].items() if verdict.word == "fails"}
    assert {name: reason for name, reason in failed.items() if name not in OPEN} == {}


def test_the_record_is_of_these_idioms():
    assert {idiom.name: idiom.mark for idiom in IDIOMS} == {name: mark for name, (mark, _) in store.load().items()}


def test_each_idiom_has_a_name_of_its_own():
    assert sorted({name for name in NAMES if NAMES.count(name) > 1}) == []


def test_what_is_listed_is_an_idiom():
    assert ({*REFUSED} | OPEN) - {*NAMES} == set()
