"""The figures of lesson 8 in the course's README, but for PyTorch's, which need PyTorch."""

from pathlib import Path

import pytest

import minigrad.course
from minigrad.course.lesson08_overlap.checks import CAP_BYTES, WORKLOAD, places
from minigrad.distributed import DDP
from minigrad.testing import grade
from tests.grading import wrappers

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
