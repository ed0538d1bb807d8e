"""The whole course by its command line, with ours as the student: run with -m course."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from minigrad.course import catalogue, marks

pytestmark = [pytest.mark.course, pytest.mark.timeout(1800)]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(catalogue.HERE.parents[1])}


def command(*arguments, cores=None):
    """(exit status, what it printed) of a command line of the course."""
    line = [sys.executable, "-m", "minigrad.course", *map(str, arguments)]
    pinned = ["taskset", "-c", cores] if cores else []
    done = subprocess.run([*pinned, *line], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def marks_of_all(folder, cores=None):
    """Start and check every lesson with ours in adapters.py, and print the seconds of each; the marks."""
    took = {}
    for number in catalogue.numbers():
        status, said = command("start", number, folder, cores=cores)
        assert status == 0, said
        (folder / "adapters.py").write_text(catalogue.text_of(number, "solution.py"))
        began = time.perf_counter()
        status, said = command("check", number, "--dir", folder, cores=cores)
        took[number] = time.perf_counter() - began
        assert status == 0, said
        print(f"lesson {number}: {took[number]:.1f} s\n{said}", end="")
    print(f"all lessons: {sum(took.values()):.0f} s")
    return marks.read(folder)


def test_ours_passes_everything_and_marks_are_alike_on_two_runs_on_one_core_and_two(tmp_path):
    first = marks_of_all(tmp_path / "first")
    assert list(first) == [marks.task_id(*place) for place in sorted(catalogue.tasks().values())]
    assert all(mark.passed and mark.points for mark in first.values())
    assert marks_of_all(tmp_path / "second", cores="0") == first
    status, said = command("score", "--dir", tmp_path / "first")
    points = sum(mark.points for mark in first.values())
    assert status == 0 and f"{points} of {points} points" in said and "another minigrad" not in said


def test_each_lesson_begins_with_stubs_that_are_not_written(tmp_path):
    for number in catalogue.numbers():
        command("start", number, tmp_path)
    for number in catalogue.numbers():
        many = len(catalogue.lesson(number).tasks)
        status, said = command("check", number, "--dir", tmp_path)
        assert status == (1 if many else 0) and len(re.findall("not written yet", said)) == many
    assert {replace(mark, task="", words="", minigrad="") for mark in marks.read(tmp_path).values()} == {marks.Mark("")}
