"""Lifelines: letters, deaths and communicators of the living, for ranks that are threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minigrad.distributed.living.assembly import Assembly
from minigrad.distributed.living.lifeline import OUTSIDE, Death, Letter, Lifeline
from minigrad.distributed.living.office import Office
from minigrad.errors import (
    ArgumentError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DistributedError,
    DtypeError,
    RankFailedError,
)

WAIT_S = 10.0


def run_living(office: Office, body: Callable[[Lifeline], Any]) -> list[Any]:
    """body(lifeline) in a thread for each rank: what it returned, or raised."""
    outcomes: list[Any] = [None] * office.world_size

    def run(rank: int) -> None:
        try:
            with office.rank(rank) as lifeline:
                outcomes[rank] = body(lifeline)
        except BaseException as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(office.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return outcomes


def total(comm: Any, value: float) -> float:
    array = np.array([value])
    comm.all_reduce(array).wait()
    return float(array[0])


def test_letters_come_in_order_and_are_the_receivers_own():
    office = Office(2)
    first, second = office.lifelines
    data = {"counts": [1, 2]}
    first.post(1, data)
    first.post(1, b"\x00raw")
    data["counts"].append(3)
    second.post(1, 5)
    office.outside.post(1, None)
    assert [second.take(0.0) for _ in range(4)] == [
        Letter(0, {"counts": [1, 2]}),
        Letter(0, b"\x00raw"),
        Letter(1, 5),
        Letter(OUTSIDE, None),
    ]
    assert second.take(0.01) is None
    second.post(OUTSIDE, "here")
    assert office.outside.take(0.0) == Letter(1, "here")


def test_a_death_comes_after_what_the_rank_had_posted_and_what_it_is_sent_is_dropped():
    office, error = Office(3), ValueError("boom")

    def body(lifeline: Lifeline) -> Any:
        if lifeline.rank == 0:
            lifeline.post(1, "last words")
            raise error
        heard = [lifeline.take(WAIT_S) for _ in range(2 if lifeline.rank == 1 else 1)]
        lifeline.post(0, "nobody hears")
        return heard, lifeline.living, lifeline.dead

    outcomes = run_living(office, body)
    death = Death(0, "it raised ValueError: boom", error)
    assert outcomes[0] is error
    assert outcomes[1] == ([Letter(0, "last words"), death], [1, 2], {0: death.error})
    assert outcomes[2] == ([death], [1, 2], {0: death.error})
    assert office.outside.take(0.0) == death
    with pytest.raises(RankFailedError, match="rank 0: take: expected a rank that takes part, but it raised Value"):
        office.lifelines[0].take(0.0)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_who_lives_goes_on_with_a_communicator_of_its_own(victim):
    def body(lifeline: Lifeline) -> Any:
        comm = lifeline.regroup(range(3), 0)
        assert total(comm, lifeline.rank + 1.0) == 6.0
        if lifeline.rank == victim:
            raise RuntimeError("boom")
        with pytest.raises(RankFailedError, match=f"rank {victim} is dead: it raised RuntimeError: boom"):
            total(comm, 1.0)
        assert isinstance(lifeline.take(WAIT_S), Death)
        comm = lifeline.regroup(lifeline.living, 1)
        return comm.rank, comm.world_size, comm.global_ranks, total(comm, lifeline.rank + 1.0)

    outcomes = run_living(Office(3, timeout_s=WAIT_S), body)
    living = tuple(rank for rank in range(3) if rank != victim)
    assert [outcomes[rank] for rank in living] == [(i, 2, living, 6.0 - (victim + 1)) for i in range(2)]


def test_a_rank_that_dies_while_the_others_begin_ends_their_wait():
    def body(lifeline: Lifeline) -> Any:
        if lifeline.rank == 1:
            time.sleep(0.05)
            raise RuntimeError("boom")
        with pytest.raises(RankFailedError, match=r"regroup 4 among ranks \[0, 1, 2\]: .* rank 1 is dead: it raised"):
            lifeline.regroup(range(3), 4)
        return total(lifeline.regroup([0, 2], 5), 1.0)

    started = time.monotonic()
    outcomes = run_living(Office(3), body)
    assert outcomes[0] == outcomes[2] == 2.0 and time.monotonic() - started < 5.0


def test_a_rank_that_does_not_come_is_named_and_who_gave_up_is_not_waited_for():
    slow, late = Office(2, timeout_s=0.2), Office(2, timeout_s=WAIT_S)
    with pytest.raises(CollectiveTimeoutError, match=r"rank 0: regroup 0 .* 0.2 s, got nothing from ranks \[1\]"):
        slow.lifelines[0].regroup([0, 1], 0)
    with pytest.raises(RankFailedError, match="rank 1: regroup 0 .* but rank 0 gave it up: rank 0: regroup 0"):
        slow.lifelines[1].regroup([0, 1], 0)
    late.lifelines[1].close()
    with pytest.raises(RankFailedError, match="rank 0: regroup 0 .* but rank 1 has closed its lifeline"):
        late.lifelines[0].regroup([0, 1], 0)
    assert late.lifelines[0].take(0.0) is None  # which is no death


def test_ranks_that_were_told_different_things_all_hear_of_it():
    def body(lifeline: Lifeline) -> Any:
        lifeline.regroup([0, 1] if lifeline.rank == 0 else [0, 1, 2], 0)

    outcomes = run_living(Office(3, timeout_s=WAIT_S), body)
    assert isinstance(outcomes[0], CollectiveMismatchError) and "[0, 1, 2] on rank 1" in str(outcomes[0])
    assert {type(outcome) for outcome in outcomes[1:]} <= {CollectiveMismatchError, RankFailedError}


def test_waits_can_be_broken_off_by_another_thread_of_the_rank():
    office = Office(2, timeout_s=WAIT_S)
    first = office.lifelines[0]
    threading.Timer(0.05, first.break_off, (0, "asked to go back")).start()
    with pytest.raises(RankFailedError, match="asked to go back"):
        first.regroup([0, 1], 0)
    with pytest.raises(RankFailedError, match="rank 0 gave it up"):
        office.lifelines[1].regroup([0, 1], 0)

    def body(lifeline: Lifeline) -> Any:
        comm = lifeline.regroup([0, 1], 1)
        if lifeline.rank == 0:
            threading.Timer(0.05, lifeline.break_off, (1, "asked to go back")).start()
            with pytest.raises(RankFailedError, match="asked to go back"):
                total(comm, 1.0)
            lifeline.post(1, "went back")
        else:
            lifeline.take(WAIT_S)
        return total(lifeline.regroup([0, 1], 2), 1.0)

    assert run_living(office, body) == [2.0, 2.0]


def test_a_dropped_rank_counts_as_dead_everywhere():
    office = Office(2, timeout_s=WAIT_S)

    def body(lifeline: Lifeline) -> Any:
        comm = lifeline.regroup([0, 1], 0)
        if lifeline.rank == 1:
            total(comm, 1.0)
        office.outside.drop(1, "it was silent for 3 s")
        return lifeline.take(WAIT_S)

    outcomes = run_living(office, body)
    assert outcomes[0] == Death(1, "it was dropped: it was silent for 3 s")
    assert isinstance(outcomes[1], RankFailedError) and "it was silent for 3 s" in str(outcomes[1])
    assert office.outside.living == [0]


def test_a_communicator_that_one_rank_could_not_begin_no_rank_has(monkeypatch):
    begin = Office._begin

    def begin_but_for_one(office: Office, group: Any, assembly: Any) -> Any:
        comm = begin(office, group, assembly)
        if group.rank == 1:
            raise DistributedError("no room")
        return comm

    monkeypatch.setattr(Office, "_begin", begin_but_for_one)

    def body(lifeline: Lifeline) -> Any:
        with pytest.raises(DistributedError, match="no room" if lifeline.rank == 1 else "rank 1 gave it up: no room"):
            lifeline.regroup(range(3), 0)

    assert run_living(Office(3, timeout_s=WAIT_S), body) == [None] * 3


def test_a_death_in_the_last_moment_of_beginning_fails_what_has_begun(monkeypatch):
    office, exchange = Office(2, timeout_s=WAIT_S), Assembly.exchange

    def last(assembly: Assembly, data: bytes) -> list[bytes]:
        came = exchange(assembly, data)
        if assembly._step == 3:  # met, began, and knew that all had
            office.end(1, "it was silent")
        return came

    monkeypatch.setattr(Assembly, "exchange", last)

    def body(lifeline: Lifeline) -> Any:
        comm = lifeline.regroup([0, 1], 0)
        with pytest.raises(RankFailedError, match="rank 1 is dead: it was silent"):
            comm.barrier()

    assert run_living(office, body)[0] is None


def test_a_rank_that_is_ended_finds_its_communicator_failed():
    office = Office(2)
    comm = office.lifelines[1].regroup([1], 0)
    office.end(1, "it was silent")
    with pytest.raises(RankFailedError, match="rank 1 is dead: it was silent"):
        comm.barrier()


def test_who_hears_of_a_death_waits_for_that_rank_no_more():
    """Whether or not the communicator would notice it."""

    def body(lifeline: Lifeline) -> Any:
        comm = lifeline.regroup([0, 1], 0)
        if lifeline.rank == 0:
            lifeline.hear_death(1, "somebody saw it")
        with pytest.raises(RankFailedError, match="rank 1 is dead: somebody saw it"):
            comm.barrier()

    assert run_living(Office(2, timeout_s=WAIT_S), body) == [None, None]


def test_what_is_refused():
    first = Office(2, timeout_s=0.1).lifelines[0]
    for call, kind, words in [
        (lambda: first.post(2, 1), ArgumentError, r"post: expected rank to be an integer in \[-1, 2\)"),
        (lambda: first.post(1, {1: 2}), DtypeError, "JSON"),
        (lambda: first.take(-1.0), ArgumentError, "timeout_s"),
        (lambda: first.drop("a", ""), ArgumentError, "drop: expected rank"),
        (lambda: first.regroup([1], 0), ArgumentError, "ascending order with rank 0 among them"),
        (lambda: first.regroup([1, 0], 0), ArgumentError, "ascending order"),
        (lambda: first.regroup([0, 2], 0), ArgumentError, "each of living"),
        (lambda: Office(0), ArgumentError, "world_size"),
    ]:
        with pytest.raises(kind, match=words):
            call()
    first.regroup([0], 3)
    with pytest.raises(ArgumentError, match=">= 4"):
        first.regroup([0], 3)
    first.close()
    first.close()
    for call in (lambda: first.post(1, 1), lambda: first.take(0.0), lambda: first.regroup([0], 9)):
        with pytest.raises(RankFailedError, match="it has closed its lifeline"):
            call()
