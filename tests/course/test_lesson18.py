"""Lesson 18: minigrad's own report of the recorded runs names the same rank and kind; the script of the page."""

import random
import re

import pytest

from minigrad.course.lesson18_hangs import checks, solution
from tests.course import elsewhere

NAMES = {
    "left": "left early",
    "left out": "a call left out",
    "extra": "one call too many",
    "order": "another order",
    "array": "another array",
}


@pytest.mark.parametrize("kind", checks.KINDS)
def test_the_librarys_report_says_the_same(kind):
    ranks, report = checks.recorded(kind)
    assert report.diagnosis[:2] == (NAMES.get(kind, kind), (1,))
    assert solution.diagnose_hang(ranks) == (kind, (1,))


def test_who_is_accused_of_another_call_makes_the_same_one():
    """The rarer call is one: where two ranks make two others, the specification does not say who is to blame."""
    rng = random.Random(0)
    for _ in range(300):
        made = [{number: what for number, what, _ in each["calls"]} for each in checks.drawn(rng)[0]]
        start, end = max(min(calls) for calls in made), max(max(calls) for calls in made)
        met = [{calls[number] for calls in made if number in calls} for number in range(start, end + 1)]
        assert len(next((whats for whats in met if len(whats) > 1), "--")) == 2


def test_the_same_is_recorded_every_time():
    for kind in checks.KINDS:
        first, again = (checks.recorded(kind)[0] for _ in range(2))
        assert first == again


@pytest.mark.course
def test_the_script_of_the_page_names_who_is_missing(tmp_path):
    script = elsewhere.script_of(18, tmp_path, "late.py")
    done = elsewhere.launched(script, "1")
    assert done.returncode == 0, done.stderr
    assert re.sub(r"^\[\d\] ", "", done.stdout) == "rank 0 of 2: missing [1]\n"
