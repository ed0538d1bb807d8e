"""How thread ranks end: by sys.exit, too, which must hide nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from minigrad.distributed import run
from minigrad.errors import RankFailedError

ROOT = Path(__file__).parents[2]


def leaves(rank, status, then=None):
    """What that rank leaves by, while the others go on to something else."""

    def body(comm):
        if comm.rank == rank:
            sys.exit(status)
        return then(comm) if then is not None else comm.rank

    return body


@pytest.mark.parametrize("status", [0, None])
def test_an_exit_without_a_failure_is_a_return(status):
    assert run(leaves(1, status), 3) == [0, None, 2]
    assert run(lambda comm: sys.exit(status), 2) == [None, None]


@pytest.mark.parametrize("status", [0, None])
def test_who_waits_for_a_rank_that_has_left_is_told(status):
    with pytest.raises(RankFailedError, match=r"rank 0: call 0: barrier: .* rank 1 has returned"):
        run(leaves(1, status, lambda comm: comm.barrier()), 2, timeout_s=20.0)


def test_the_errors_of_other_ranks_are_not_lost():
    def fails(comm):
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        run(leaves(1, 0, fails), 2)


@pytest.mark.parametrize("status", [3, "no data", True])
def test_another_status_is_a_failure_of_that_rank(status):
    with pytest.raises(RankFailedError, match=rf"rank 1: run: expected .* got sys.exit\({status!r}\)"):
        run(leaves(1, status, lambda comm: comm.barrier()), 2, timeout_s=20.0)


def test_the_status_of_the_script_tells():
    code = "import sys; from minigrad.distributed import run; run(lambda comm: sys.exit(comm.rank), 2); print('on')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0 and "on" not in done.stdout
    assert "rank 1: run: expected the function to return or to raise, got sys.exit(1)" in done.stderr
