"""The committed table of PyTorch's samples: complete, readable, and with nothing in it that no choice explains."""

from pathlib import Path

import pytest

from minigrad import nn, ops, optim
from tests.parity.samples import table
from tests.parity.samples.choices import CHOICES

ROOT = Path(__file__).parents[3]
AGAIN = "run `python -m tests.parity.samples`, where PyTorch is installed"


@pytest.fixture(scope="module")
def committed():
    return table.load()


def test_every_operation_has_been_put_to_the_samples(committed):
    names = {table.base_name(name) for row in committed["operations"].values() for name in row["names"]}
    assert sorted(set(ops.__all__) - names - set(committed["unsampled"])) == [], AGAIN


def test_every_module_and_optimizer_has_been_put_to_the_samples(committed):
    assert sorted(name for name in committed["absent modules"] if hasattr(nn, name)) == [], AGAIN
    assert sorted(name for name in committed["absent optimizers"] if hasattr(optim, name)) == [], AGAIN


def test_nothing_differs_but_by_choice(committed):
    rows = {name: row for part in table.PARTS for name, row in committed[part].items()}
    assert {name: row["unexplained"] for name, row in rows.items() if row["unexplained"]} == {}
    assert [name for name, row in rows.items() if row["samples"] != row["agree"] + sum(row["choices"].values())] == []


def test_every_choice_is_documented_and_used(committed):
    used = {key for part in table.PARTS for key in table.totals(committed[part], "choices")}
    assert used == CHOICES.keys()
    for key, choice in CHOICES.items():
        assert choice.written in " ".join((ROOT / choice.file).read_text().split()), key


def test_the_page_shows_the_table(committed):
    assert table.PAGE.read_text() == table.page(committed)
