"""The tables of examples/conformance/README.md: a row for each check, words for what fails, and true today."""

import re

import pytest

from minigrad.testing.conformance import CHECKS
from tests.examples.test_scripts import ROOT, run_script

README = ROOT / "examples" / "conformance" / "README.md"
TEXT = README.read_text()
WORDS = ["passed", "failed", "hangs", "dies", "not judged", "not offered"]
PEERS = ["CS336 naive", "CS336 overlapped", "MyTorch before", "MyTorch", "picotron naive", "picotron bucketed"]
HELD = """unequal_batches accumulation backwards_add_up norm_of_clipping training unused_parameter_is_an_error
    tied_parameter dtypes_in_turn float16_sum_in_range replicas_start_alike other_names_are_refused buffers_agree
    state_is_that_of_the_model state_has_the_buffers joining""".split()


def rows(first):
    """The cells of a table, without its head."""
    lines = TEXT[TEXT.index(f"| {first} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def columns():
    """{system: {check: word}}"""
    head, *body = rows("Check")
    return {name: {row[0]: row[index] for row in body} for index, name in enumerate(head) if index}


def test_each_check_has_a_row_and_each_system_a_column():
    assert [row[0] for row in rows("Check")[1:]] == [check.__name__.removeprefix("check_") for check in CHECKS]
    assert list(columns()) == ["minigrad", "PyTorch", *PEERS] == [row[0] for row in rows("System")[1:]]
    assert {word for column in columns().values() for word in column.values()} <= set(WORDS)
    assert f"has {len(CHECKS)} checks" in TEXT


def test_each_system_is_counted_with_its_version_and_day():
    for name, version, day, *counts in rows("System")[1:]:
        said = list(columns()[name].values())
        assert version and re.fullmatch(r"20\d\d-\d\d-\d\d", day)
        assert [int(count) for count in counts] == [said.count(word) for word in WORDS]
    assert set(columns()["minigrad"].values()) == {"passed"}


@pytest.mark.parametrize("words, heading", [(WORDS[1:4], "What happens to a user"), (WORDS[5:], "What is not offered")])
def test_what_does_not_pass_is_told_in_words(words, heading):
    (section,) = [part for part in TEXT.split("\n## ") if part.startswith(heading)]
    named = set(re.findall(r"`(\w+)`", section))
    assert {name for column in columns().values() for name, word in column.items() if word in words} <= named


def test_a_part_of_the_table_holds_today_and_a_wrong_cell_is_told(tmp_path):
    wrong = tmp_path / "README.md"
    wrong.write_text(TEXT.replace("| `tied_parameter` | passed |", "| `tied_parameter` | hangs |"))
    chosen = ["--readme", str(wrong), "--checks", *HELD, "--systems", "minigrad", *PEERS]
    printed = run_script("conformance/table.py", "--hold", *chosen, exit_code=1)
    told = [line for line in printed.splitlines() if "in README.md, now" in line]
    assert told == ["tied_parameter, minigrad: hangs in README.md, now passed"]


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_part_of_the_column_of_pytorch_holds_today():
    names = ["accumulation", "unused_parameter_is_an_error", "loss_scale_that_differs", "joined_ranks_count_no_more"]
    assert run_script("conformance/table.py", "--hold", "--systems", "PyTorch", "--checks", *names)
