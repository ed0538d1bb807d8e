"""What a PyTorch user types runs, and leaves what it left in PyTorch; see tests/parity/idioms."""

import pytest

from tests.parity.idioms import GROUPS, store
from tests.parity.idioms.listed import ON_DATA, REFUSED
from tests.parity.idioms.table import PATH, table, verdicts

IDIOMS = [idiom for group in GROUPS for idiom in group.idioms]
NAMES = [idiom.name for idiom in IDIOMS]


@pytest.fixture(scope="module")
def judged():
    return verdicts()


@pytest.mark.parametrize("group", [group.name for group in GROUPS])
def test_agrees_or_is_refused_in_words(judged, group):
    """A refusal counts where `REFUSED` lists it, with words that say what to write instead."""
    failed = {name: verdict.reason for name, verdict in judged[group].items() if verdict.word == "fails"}
    assert {name: reason for name, reason in failed.items() if name not in ON_DATA} == {}


def test_the_record_is_of_these_idioms():
    assert {idiom.name: idiom.mark for idiom in IDIOMS} == {name: mark for name, (mark, _) in store.load().items()}


def test_each_idiom_has_a_name_of_its_own():
    assert sorted({name for name in NAMES if NAMES.count(name) > 1}) == []


def test_the_table_is_up_to_date(judged):
    """Where more agrees than it says: python -m tests.parity.idioms > tests/parity/idioms/TABLE.md."""
    assert PATH.read_text() == table(judged) + "\n"


def test_what_is_listed_does_not_run(judged):
    words = {name: verdict.word for verdicts in judged.values() for name, verdict in verdicts.items()}
    assert {name for name, word in words.items() if word == "refused"} == {*REFUSED}
    assert {name for name, word in words.items() if word == "fails"} == ON_DATA


def test_nearly_all_agree(judged):
    words = [verdict.word for verdicts in judged.values() for verdict in verdicts.values()]
    assert words.count("agrees") >= 0.95 * len(words) >= 0.95 * 300
