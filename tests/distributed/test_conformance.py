"""minigrad passes its own conformance checks, on threads and on processes; what runs and tells of them is right."""

import contextlib
import os
import threading
import time
import unittest

import pytest

import minigrad.distributed
from minigrad.errors import ArgumentError
from minigrad.testing.conformance import CHECKS, MinigradAdapter, Processes, Report, Row, means, report
from minigrad.testing.conformance.outcome import outcomes
from tests.distributed.naive import alone
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 10.0


def on(kind):
    """Ranks of a kind, as an adapter wants them."""

    def start(body, world_size, *args):
        return run_ranks(kind, lambda comm: body(comm, *args), world_size, TIMEOUT_S)

    return start


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_conformance(kind, check):
    check(MinigradAdapter(on(kind)))


def test_every_check_tells_its_fault():
    assert len(CHECKS) >= 50 and len({check.__name__ for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.__doc__ and check.__name__.startswith("check_")


# -------------------------------------------------------------------------------------------- what becomes of ranks


def world():
    """A rank of minigrad, from the environment."""
    return contextlib.closing(minigrad.distributed.init(timeout_s=TIMEOUT_S))


def ends(place, adapter, how):
    """Each rank ends in another way, after a step."""
    yield place.rank
    if how[place.rank] == "raised":
        raise LookupError("no such thing")
    if how[place.rank] == "out of time":
        threading.Event().wait()
    if how[place.rank] == "died":
        os._exit(3)
    return how[place.rank]


def test_processes_tell_what_became_of_each_rank():
    run = Processes(alone, timeout_s=30.0, preload=[__name__, "pytest"])
    for _ in range(2):  # the first starts the fork server
        began = time.monotonic()
        assert [one.value for one in outcomes(MinigradAdapter(run), ends, 4, ["value"] * 4)] == ["value"] * 4
    run.timeout_s = 1.0 + 4.0 * (time.monotonic() - began)  # what this machine needs now, and more
    kinds = ["value", "raised", "out of time", "died"]
    found = outcomes(MinigradAdapter(run), ends, 4, kinds)
    assert [one.kind for one in found] == kinds and [one.steps for one in found] == [(0,), (1,), (2,), (3,)]
    assert (found[1].error, found[1].message) == ("LookupError", "no such thing")
    assert found[1].frame.startswith("test_conformance.py:") and found[1].frame.endswith(" in ends")
    assert found[3].message.startswith("exit code 3")


def test_a_wrapper_in_processes():
    means.check_unequal_batches(MinigradAdapter(Processes(world, preload=[__name__, "pytest"])))


def run_badly(error=None):
    """A runner that starts no rank."""

    def start(body, world_size, *args):
        if error is not None:
            raise error

    return start


@pytest.mark.parametrize(
    "error, kind", [(None, "died"), (TimeoutError("late"), "out of time"), (ValueError("no ports"), "raised")]
)
def test_ranks_that_never_began(error, kind):
    assert [one.kind for one in outcomes(MinigradAdapter(run_badly(error)), ends, 2, [])] == [kind] * 2


# --------------------------------------------------------------------------------------------------------- verdicts


def test_what_an_adapter_does_not_have_is_skipped():
    adapter = MinigradAdapter(run_badly(NotImplementedError("no ranks")))
    result = unittest.TestResult()
    unittest.FunctionTestCase(lambda: means.check_training(adapter)).run(result)
    assert result.wasSuccessful() and "no ranks" in result.skipped[0][1]


def test_a_report_is_a_table_and_can_be_read_back():
    checks = [means.check_training, means.check_one_rank]
    found = report(MinigradAdapter(run_badly(ValueError("no ports"))), checks)
    assert found.names("fails") == ["training", "one_rank"] and found.names("passes") == []
    assert found.rows[1].cause == "A world of one rank is refused, or is a special case of other values."
    assert Report.from_json(found.to_json()) == found
    text = str(Report((Row("training", "passes", "A cause.", ""), Row("tokens", "fails", "Another.", "3,\n not 4"))))
    expected = "2 checks: 1 passes, 1 fails\n\ntraining  passes\n    A cause.\n\n"
    assert text == expected + "tokens    fails\n    Another.\n    > 3, not 4"
    with pytest.raises(ArgumentError, match="names: expected one of passes, .*, got 'skipped'"):
        found.names("skipped")
