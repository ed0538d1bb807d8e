"""Checks of lesson 18: runs that went wrong on threads, and drawn ones; a barrier in turns, on a clock of its own."""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.course.lesson import Student, WrongError, expect
from minigrad.distributed import Communicator, Front, HangReport, run
from minigrad.distributed.comm.sightings import Sighting
from minigrad.errors import DistributedError

Call = tuple[int, str, str]
KINDS = ("late", "raised", "left", "left out", "extra", "order", "array")
DRAWN, TIMEOUT_S, PATIENCE_S = 300, 2.0, 10.0

# ---------------------------------------------------------------------------------------------------- recorded runs


TRAIN = """\
def train(comm, fault, wait_for_others):
    loss, weights, bias = np.ones(1), np.ones(6), np.ones(3)
    for step in range(3):
        odd = fault if comm.rank == 1 and step == 2 else ""
        if odd in ("late", "raised", "left", "left out", "extra"):
            wait_for_others()
        if odd == "late":
            comm.abort("somebody looks")
        if odd == "raised":
            raise ZeroDivisionError("boom")
        if odd == "left":
            return comm.close()
        if odd == "extra":
            comm.broadcast(weights).wait()
        if odd != "left out":
            comm.all_reduce(loss).wait()
        if odd in ("order", "array"):
            wait_for_others()
        gradients = {"order": [bias, weights], "array": [np.ones(5), bias]}.get(odd, [weights, bias])
        for gradient in gradients:
            comm.all_reduce(gradient).wait()
        comm.barrier()
"""  # lines of minigrad's own files are no user's: three steps on three ranks, of which rank 1 does the last one wrong


def _training() -> Callable[..., None]:
    """The function of that text, of a file of its own."""
    names: dict[str, Any] = {"np": np}
    exec(compile(TRAIN, "lesson18.py", "exec"), names)
    return names["train"]  # type: ignore[no-any-return]


def recorded(fault: str) -> tuple[list[dict[str, Any]], HangReport | None]:
    """What is known of the ranks of such a run afterwards, and minigrad's own report of it."""
    comms: dict[int, Front] = {}
    gone, reports = dict.fromkeys(range(3), ""), list[HangReport]()

    def body(comm: Communicator) -> None:
        assert isinstance(comm, Front)
        comms[comm.rank] = comm

        def wait_for_others() -> None:
            deadline = time.monotonic() + PATIENCE_S
            while len(comms) < 3 or any(each.seq <= comm.seq for rank, each in comms.items() if rank != 1):
                assert time.monotonic() < deadline
                time.sleep(0.0005)

        try:
            _training()(comm, fault, wait_for_others)
            gone[comm.rank] = "left"
        except Exception as error:
            gone[comm.rank] = "raised"
            if isinstance(error, DistributedError) and comm.rank == 0:
                reports.extend([error.report] if isinstance(error.report, HangReport) else [])
            raise

    try:
        run(body, 3, timeout_s=PATIENCE_S)
    except (DistributedError, ZeroDivisionError):
        pass
    if fault == "late":  # whoever looked has ended the run by an abort: not what is told of it
        gone = dict.fromkeys(range(3), "")
        reports[:] = [HangReport(tuple(Sighting(rank, tuple(comms[rank].made())) for rank in sorted(comms)))]
    calls = {rank: [(made.seq, made.what, _short(made.line)) for made in comms[rank].made()] for rank in comms}
    ranks = [{"rank": rank, "calls": calls[rank], "gone": gone[rank]} for rank in sorted(calls)]
    return ranks, reports[0] if reports else None


def _short(line: str) -> str:
    return line.split(" in ")[0]


# ------------------------------------------------------------------------------------------------------- drawn ones


def drawn(rng: random.Random) -> tuple[list[dict[str, Any]], str, tuple[int, ...]]:
    """Ranks that went wrong, or did not, with the kind and the ranks to accuse."""
    world_size, steps = rng.randint(3, 8), rng.randint(2, 5)
    sizes = rng.sample(range(1, 99), 5)
    program = [(f"all_reduce(SUM) of {size} float32", f"train.py:{10 + i // 2}") for i, size in enumerate(sizes)]
    program.append(("barrier", "train.py:20"))
    base = program * steps
    kind = rng.choice([*KINDS, "died", ""])
    odd = tuple(sorted(rng.sample(range(world_size), rng.randint(1, (world_size - 1) // 2))))
    within = {"order": (0, 2), "left out": (1, 3, 4, 5)}.get(kind, tuple(range(len(program))))
    number = len(program) * rng.randint(1, steps - 1) + rng.choice(within)
    ranks = []
    for rank in rng.sample(range(world_size), world_size):
        made, gone = list(base), rng.choice(["", "left"]) if not kind else ""
        if kind:
            made = base[: number + 1 + rng.choice([0, 0, 1, 2])]
            gone = rng.choice(["", "raised"]) if kind not in ("late",) else ""
        if kind and rank in odd:
            made, gone = _wrong(kind, base, number, rng), kind if kind in ("raised", "died", "left") else ""
        first = rng.randint(0, number - len(program))
        calls = [(n, *call) for n, call in enumerate(made)][first:]
        ranks.append({"rank": rank, "calls": calls, "gone": gone})
    return ranks, kind, odd if kind else ()


def _wrong(kind: str, base: list[tuple[str, str]], number: int, rng: random.Random) -> list[tuple[str, str]]:
    """The calls of an odd rank."""
    before, here, after = base[:number], base[number], base[number + 1 :]
    if kind == "left out":
        return before + (after or base)[:1]
    if kind == "extra":
        what = ("broadcast(root 0) of 7 float32", base[(number + 1) % len(base)][0])[number % 2]  # one for all of them
        return [*before, (what, "train.py:99"), *[here][: rng.randint(0, 1)]]
    if kind == "order":
        return [*before, after[0], here][: number + rng.randint(1, 2)]
    if kind == "array":
        return [*before, ("all_reduce(SUM) of 100 float32", here[1])]
    return before


def by_hand() -> list[tuple[str, list[dict[str, Any]], str, tuple[int, ...]]]:
    """What the drawn ones leave out: in words, the ranks, and the kind and the ranks to accuse."""
    loss, other_line = ("all_reduce(SUM) of 1 float32", "train.py:10"), ("all_reduce(SUM) of 1 float32", "train.py:30")
    barrier, odd = ("barrier", "train.py:20"), ("broadcast(root 0) of 7 float32", "train.py:99")

    def rank(number: int, *calls: tuple[str, str], gone: str = "", first: int = 0) -> dict[str, Any]:
        return {"rank": number, "calls": [(first + i, *call) for i, call in enumerate(calls)], "gone": gone}

    both, twice = [rank(0, loss, barrier), rank(1, loss, barrier)], (loss, barrier, loss, barrier)
    died, raised = rank(2, loss, gone="died"), rank(3, loss, gone="raised")
    return [
        ("a rank that has made no call", [*both, rank(2)], "late", (2,)),
        ("one call that a rank makes at another line", [*both, rank(2, other_line, barrier)], "", ()),
        ("a rank with another call, and one that raised since", [*both, rank(2, loss, odd), raised], "extra", (2,)),
        ("a rank that died and one that raised, which counts", [*both, died, raised], "raised", (3,)),
        (
            "a rank whose list begins after the call that others made before",
            [rank(0, *twice), rank(1, barrier, first=2), rank(2, *twice)],
            "left out",
            (1,),
        ),
    ]


# ---------------------------------------------------------------------------------------------------- the diagnosis


def check_diagnose_hang(student: Student) -> str:
    """The kind and the ranks of real runs, then of some by hand and of drawn ones; of right ones nobody."""
    for fault in ("", *KINDS):
        words = f"recorded on three threads, {f'rank 1 is {fault!r}' if fault else 'a right run'}"
        _expect_diagnosis(student, recorded(fault)[0], fault, (1,) if fault else (), words)
    for words, ranks, kind, accused in by_hand():
        _expect_diagnosis(student, ranks, kind, accused, words)
    rng = random.Random(18)
    right = 0
    for number in range(DRAWN):
        ranks, kind, accused = drawn(rng)
        right += not kind
        _expect_diagnosis(student, ranks, kind, accused, f"drawn, number {number}")
    wrong = DRAWN - right
    return f"{len(KINDS)} kinds recorded on threads, {wrong} drawn ones are named; nobody in {right + 1} right runs"


def _expect_diagnosis(
    student: Student, ranks: list[dict[str, Any]], kind: str, accused: tuple[int, ...], words: str
) -> None:
    got: Any = student.diagnose_hang(copy.deepcopy(ranks))
    expect(
        _is_pair(got) and got[0] == kind and tuple(got[1]) == accused,
        f"diagnose_hang ({words}): expected {(kind, accused)}, got {got!r}. {_why(got, kind, accused)}\n"
        f"{_table(ranks)}",
    )


def _is_pair(got: Any) -> bool:
    return isinstance(got, tuple) and len(got) == 2 and isinstance(got[1], (tuple, list))


def _why(got: Any, kind: str, accused: tuple[int, ...]) -> str:
    """Which mistake that is, most likely."""
    if not _is_pair(got):
        return "It returns a pair: the kind, and a tuple of ranks"
    if not kind:
        return "All have made the same calls: nobody is accused, also where lines differ, or lists are of other lengths"
    if not got[0]:
        return "They can't go on: align the calls by their numbers, not by their places in the lists"
    if got[0] == "late":
        return "Late is who lacks the call and is neither gone nor there with another one"
    if tuple(got[1]) != accused and got[0] in ("raised", "died", "left"):
        return "Ranks also raise, or leave, because of what others did: who has made the call is not the cause"
    if tuple(got[1]) != accused:
        return "Look at the first number at which they are not one call, and accuse the rarer call, or who lacks it"
    return "The ranks are right; which line is their call of, and was it made before, there, by anyone?"


def _table(ranks: Sequence[Mapping[str, Any]]) -> str:
    """The last four calls of each rank."""
    lines = []
    for each in sorted(ranks, key=lambda each: int(each["rank"])):
        calls = "; ".join(f"{number} {what} {line}" for number, what, line in each["calls"][-4:])
        lines.append(f"  rank {each['rank']}{' (' + each['gone'] + ')' if each['gone'] else ''}: .. {calls}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------ the barrier


class OneAtATime:
    """A clock for ranks that run one at a time: the next is always the one whose time is lowest."""

    def __init__(self, world_size: int) -> None:
        self.times_s = dict.fromkeys(range(world_size), 0.0)
        self.live = set(range(world_size))
        self.stuck = False
        self.changed = threading.Condition()

    def pause(self, rank: int, seconds: float) -> None:
        """Let time pass on a rank, and return when it is its turn."""
        with self.changed:
            self.times_s[rank] += max(float(seconds), 1e-6)
            self.changed.notify_all()
            seen = dict(self.times_s)
            while not self.changed.wait_for(lambda: self._is_next(rank), TIMEOUT_S):
                if seen != self.times_s:  # on a busy machine it takes long, but somebody gets on
                    seen = dict(self.times_s)
                    continue
                self.stuck = True
                self.changed.notify_all()
                raise WrongError("find_missing: a rank waits without a pause, so that no other one gets on: use done()")

    def _is_next(self, rank: int) -> bool:
        return min((self.times_s[each], each) for each in self.live)[1] == rank

    def end(self, rank: int) -> None:
        """A rank is over; it stays until all are, since one that leaves fails those that write to it."""
        with self.changed:
            self.live.discard(rank)
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.live or self.stuck, PATIENCE_S)


class PausedClock:
    """The clock of one of these ranks."""

    def __init__(self, turns: OneAtATime, rank: int) -> None:
        self.turns, self.rank, self.asked = turns, rank, 0

    def now_s(self) -> float:
        """Its time."""
        self.asked += 1
        expect(self.asked < 10_000, "find_missing: asks for the time again and again: call pause between two looks")
        return self.turns.times_s[self.rank]

    def compute(self, samples: float) -> None:
        """Takes no time."""

    def progress(self, fraction: float) -> None:
        """Takes no time."""

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.turns.pause(self.rank, seconds)


NEVER = 50.0
ARRIVALS: dict[str, tuple[tuple[float, ...], list[int]]] = {  # when each rank calls, and who is missing
    "all at once": ((0.0, 0.0, 0.0, 0.0), []),
    "one after the other": ((0.0, 0.3, 0.9, 0.5), []),
    "rank 2 does not come": ((0.0, 0.1, NEVER, 0.2), [2]),
    "ranks 1, 2 and 3 do not come": ((0.0, NEVER, NEVER, NEVER), [1, 2, 3]),
    "rank 3 comes too late": ((0.0, 0.2, 0.1, 1.5), [3]),
    "rank 0 does not come": ((NEVER, 0.0, 0.4, 0.1), [0]),
    "rank 0 comes last": ((0.9, 0.0, 0.3, 0.1), []),
    "rank 0 comes late, rank 2 not at all": ((0.9, 0.0, NEVER, 0.1), [2]),
    "alone": ((0.0,), []),
}


def check_find_missing(student: Student) -> str:
    """Who is missing, for ranks that come at different times, on a clock that only pauses move."""
    longest = 0.0
    for words, (arrivals, missing) in ARRIVALS.items():
        for rank, (got, took_s) in enumerate(_barrier(student, arrivals)):
            if arrivals[rank] == NEVER or rank in missing:
                continue
            who = f"find_missing (timeout_s=1, {words}: called at {arrivals} s): rank {rank}"
            right = isinstance(got, list) and got == missing
            expect(right, f"{who}: expected {missing}, got {got!r}{_why_not(got, missing, rank)}")
            most_s = 2.1 if rank else 1.05
            expect(took_s <= most_s, f"{who}: expected an answer within {most_s} s, got one after {took_s:.2f} s: one "
                   "deadline for all ranks, not one for each")
            last_s = max(arrivals) - arrivals[rank]
            expect(missing or took_s <= last_s + 0.1, f"{who}: expected it to go on when all are here, {last_s:.2f} s "
                   f"after its call, got {took_s:.2f} s")
            longest = max(longest, took_s)
    return f"{len(ARRIVALS)} ways of coming, or not: the same ranks named by all, after at most {longest:.2f} timeouts"


def _why_not(got: Any, missing: list[int], rank: int) -> str:
    if not isinstance(got, list):
        return ": a list of ranks"
    if rank and got == [0]:
        return ": it gave up rank 0 before rank 0 could have answered"
    if rank and missing:
        return ": what rank 0 has seen has to be told to the others"
    return ""


def _barrier(student: Student, arrivals: Sequence[float]) -> list[tuple[Any, float]]:
    """What each rank gets, and after how many seconds."""
    turns = OneAtATime(len(arrivals))

    def body(comm: Communicator) -> tuple[Any, float]:
        rank = comm.rank
        comm.clock = PausedClock(turns, rank)
        try:
            turns.pause(rank, arrivals[rank])
            began_s = turns.times_s[rank]
            if arrivals[rank] == NEVER:
                return None, 0.0
            got = student.find_missing(comm, 1.0, lambda seconds: _pause(turns, rank, seconds, began_s))
            return got, turns.times_s[rank] - began_s
        finally:
            turns.end(rank)

    try:
        return run(body, len(arrivals), timeout_s=0.5)
    except DistributedError as error:
        raise WrongError(
            f"find_missing (called at {tuple(arrivals)} s): expected no wait but in pause(), got "
            f"{type(error).__name__}: {error}: ask done(), and leave wait() and collectives alone: they wait for the "
            "communicator's own timeout"
        ) from error


def _pause(turns: OneAtATime, rank: int, seconds: float, began_s: float) -> None:
    turns.pause(rank, seconds)
    late = turns.times_s[rank] - began_s > 5.0
    expect(not late, f"find_missing: expected rank {rank} to return within 2.1 s, got none after 5: no deadline?")
