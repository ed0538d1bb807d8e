"""Lesson 4: its communicators train as minigrad's threads do, its seat is minigrad's, its script runs in three ways."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad.backend.thread import new_thread
from minigrad.course import catalogue
from minigrad.course.lesson04_machines import solution
from minigrad.distributed import ReduceOp, collectives
from minigrad.distributed.bootstrap import detect
from minigrad.errors import ArgumentError
from tests.course import elsewhere

NAMES = ["SLURM_STEP_ID", *sum(solution.LAUNCHERS, ())]


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["0", "1", "2", "4", "x"])))
def test_the_seat_is_that_of_the_library(environ):
    """But for a step of one task, which is no world there, and local ranks, which it compares with their number."""
    try:
        seat = detect(environ)
    except ArgumentError:
        return
    if seat.source != "alone" or "SLURM_STEP_ID" not in environ:
        assert solution.read_seat(environ) == (seat.rank, seat.world_size, seat.local_rank)


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("op", list(ReduceOp))
def test_its_sums_are_those_of_the_library_when_ranks_run_ahead(world_size, op):
    """Many calls without a wait between them: a rank may be a call ahead of another."""
    comms = solution.get_thread_communicators(world_size, 20.0)
    arrays = [[np.random.default_rng([n, r]).standard_normal(3) for r in range(world_size)] for n in range(30)]
    right = [[array.copy() for array in of_call] for of_call in arrays]

    def body(comm):
        for of_call in arrays:
            comm.all_reduce(of_call[comm.rank], op)

    threads = [new_thread(body, comm) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    for of_call, expected in zip(arrays, right):
        collectives.all_reduce(expected, op)
        assert [array.tobytes() for array in of_call] == [array.tobytes() for array in expected]
    assert len(comms[0].board.calls) == 1  # what is over is forgotten


@pytest.mark.course
def test_the_script_of_the_page_runs_in_three_ways(tmp_path):
    script = elsewhere.script_of(4, tmp_path, "whoami.py")
    said = elsewhere.outcomes(script, r"rank \d of 2: the sum is \d+")
    assert said == [["rank 0 of 2: the sum is 11", "rank 1 of 2: the sum is 11"]] * 3
    page = catalogue.text_of(4, "page.md").split("```text")[1].split("```")[0]
    for _ in range(5):  # on a busy machine rank 0 may be ended before it has said anything
        killed = elsewhere.launched(script, "kill")
        assert killed.returncode != 0 and "rank 1 failed first: it was ended by SIGKILL" in killed.stderr
        if "RankFailedError: rank 0: call 2: barrier" in killed.stderr:
            break
    assert [line.rstrip() for line in page.splitlines()[2:-1] if line.rstrip() not in killed.stderr] == []
