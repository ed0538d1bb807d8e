"""The figures of the table in the course's README: those of lesson 8, and with PyTorch all."""

import subprocess
import sys
from pathlib import Path

import pytest

import minigrad.course
from minigrad.course.lesson08_overlap.checks import CAP_BYTES, WORKLOAD, places
from minigrad.distributed import DDP
from minigrad.testing import grade
from tests.grading import wrappers

ROOT = Path(__file__).parents[2]
README = Path(minigrad.course.__file__).parent / "README.md"


def in_buckets(module, comm):
    """minigrad's wrapper with the buckets of the lesson."""
    return DDP(module, comm, bucket_cap_bytes=CAP_BYTES)


@pytest.mark.course
@pytest.mark.parametrize("place", places())
def test_the_table_of_the_course(place):
    cluster = places()[place].cluster
    exposed = [
        grade(wrapper, cluster, checks=(), workload=WORKLOAD).figures["exposed_fraction"]
        for wrapper in (wrappers.Naive, in_buckets)
    ]
    told = " | ".join(f"{100 * part:.1f} %" for part in (exposed[0].value, exposed[1].value, exposed[1].best))
    (row,) = [line for line in README.read_text().splitlines() if line.startswith(f"| 8 | exposed, {place} | ")]
    assert row.endswith(f" | {told} |")


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_the_script_prints_the_table_of_the_course():
    """All rows, but for the head, which has PyTorch's version."""
    script = ROOT / "examples" / "conformance" / "torch_graded.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=ROOT)
    printed = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert done.returncode == 0 and len(printed) == 10, done.stdout + done.stderr
    assert printed[1:] == [line for line in README.read_text().splitlines() if line.startswith("| ")][1:]
