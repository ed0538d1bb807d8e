"""Wrong solutions of lesson 18."""

import time
from collections import Counter

import numpy as np

from minigrad.course.lesson18_hangs import solution
from tests.course.wrong import Wrong


def last_calls(ranks):
    """Looks at the last call of each."""
    last = {each["rank"]: each["calls"][-1][1] if each["calls"] else "" for each in ranks}
    usual = Counter(last.values()).most_common(1)[0][0]
    odd = tuple(sorted(rank for rank, what in last.items() if what != usual))
    return ("extra", odd) if odd else ("", ())


def by_places(ranks):
    """Aligns the lists by their places, not by numbers."""
    moved = [{**each, "calls": [(i, *call[1:]) for i, call in enumerate(each["calls"])]} for each in ranks]
    return solution.diagnose_hang(moved)


def whoever_is_gone(ranks):
    for kind in ("raised", "died", "left"):
        gone = tuple(sorted(each["rank"] for each in ranks if each["gone"] == kind))
        if gone:
            return kind, gone
    return solution.diagnose_hang(ranks)


def without_lines(ranks):
    moved = [{**each, "calls": [(number, what, "") for number, what, _ in each["calls"]]} for each in ranks]
    return solution.diagnose_hang(moved)


def another_line_another_call(ranks):
    moved = [{**each, "calls": [(n, f"{what} at {line}", line) for n, what, line in each["calls"]]} for each in ranks]
    return solution.diagnose_hang(moved)


def died_before_raised(ranks):
    other = {"raised": "died", "died": "raised"}
    kind, accused = solution.diagnose_hang([{**each, "gone": other.get(each["gone"], each["gone"])} for each in ranks])
    return other.get(kind, kind), accused


def who_is_behind(ranks):
    """Accuses those that have made fewer calls than others, whatever they made."""
    made = {each["rank"]: each["calls"][-1][0] if each["calls"] else -1 for each in ranks}
    behind = tuple(sorted(rank for rank, number in made.items() if number < max(made.values())))
    return ("late", behind) if behind else solution.diagnose_hang(ranks)


def _taken(comm, signs, timeout_s, pause):
    until_s = comm.clock.now_s() + timeout_s
    while comm.clock.now_s() < until_s and not all(sign.done() for sign in signs.values()):
        pause(timeout_s / 100)


def by_waiting(comm, timeout_s, pause=time.sleep):
    if comm.rank:
        comm.send(np.zeros(1), 0).wait()
        return []
    for rank in range(1, comm.world_size):
        comm.recv(np.empty(1), rank).wait()
    return []


def a_deadline_for_each(comm, timeout_s, pause=time.sleep):
    if comm.rank:
        return solution.find_missing(comm, timeout_s, pause)
    here = np.ones(comm.world_size, np.int64)
    for rank in range(1, comm.world_size):
        sign = comm.recv(np.empty(1), rank)
        _taken(comm, {rank: sign}, timeout_s, pause)
        here[rank] = sign.done()
    for rank in np.flatnonzero(here[1:]) + 1:
        comm.send(here, int(rank))
    return np.flatnonzero(here == 0).tolist()


def told_to_nobody(comm, timeout_s, pause=time.sleep):
    if comm.rank:
        comm.send(np.zeros(1), 0)
        return []
    signs = {rank: comm.recv(np.empty(1), rank) for rank in range(1, comm.world_size)}
    _taken(comm, signs, timeout_s, pause)
    return [rank for rank, sign in signs.items() if not sign.done()]


def impatient(comm, timeout_s, pause=time.sleep):
    if comm.rank == 0:
        return solution.find_missing(comm, timeout_s, pause)
    here = np.ones(comm.world_size, np.int64)
    comm.send(np.zeros(1), 0)
    answer = comm.recv(here, 0)
    _taken(comm, {0: answer}, timeout_s, pause)
    return np.flatnonzero(here == 0).tolist() if answer.done() else [0]


def without_end(comm, timeout_s, pause=time.sleep):
    if comm.rank == 0:
        return solution.find_missing(comm, timeout_s, pause)
    here = np.ones(comm.world_size, np.int64)
    comm.send(np.zeros(1), 0)
    answer = comm.recv(here, 0)
    while not answer.done():
        pause(timeout_s / 100)
    return np.flatnonzero(here == 0).tolist()


def without_a_pause(comm, timeout_s, pause=time.sleep):
    if comm.rank:
        comm.send(np.zeros(1), 0)
        return []
    signs = [comm.recv(np.empty(1), rank) for rank in range(1, comm.world_size)]
    while not all(sign.done() for sign in signs):
        pass
    return []


WRONG = {
    "diagnose_hang": [
        Wrong(last_calls, "expected ('late', (1,))"),
        Wrong(by_places, "a rank whose list begins after the call that others made before"),
        Wrong(whoever_is_gone, "a right run"),
        Wrong(without_lines, "which line is their call of"),
        Wrong(another_line_another_call, "also where lines differ"),
        Wrong(died_before_raised, "a rank that died and one that raised, which counts"),
        Wrong(who_is_behind, "Late is who lacks the call and is neither gone"),
    ],
    "find_missing": [
        Wrong(by_waiting, "leave wait() and collectives alone"),
        Wrong(a_deadline_for_each, "one deadline for all ranks"),
        Wrong(told_to_nobody, "has to be told to the others"),
        Wrong(impatient, "before rank 0 could have answered"),
        Wrong(without_a_pause, "waits without a pause"),
        Wrong(without_end, "no deadline?"),
    ],
}
