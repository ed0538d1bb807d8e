"""What the calls of ranks say of why they can't go on: cases written down by hand."""

import pytest

from minigrad.distributed import HangReport
from minigrad.distributed.comm.calls import Made
from minigrad.distributed.comm.diagnosis import diagnose, first_difference
from minigrad.distributed.comm.sightings import Sighting, listed

A, B, C = (f"all_reduce(SUM) of {n} float32" for n in (3, 5, 7))
BUCKET = "all_reduce(SUM DDP 1 of Mlp, plan 9f{}) of 3 float32"


def rank(number, *calls, **more):
    """A rank that has made calls, each with its line, from number 0 on."""
    made = [Made(seq, what, f"a.py:{at} in f" if at else "") for seq, (what, at) in enumerate(calls)]
    return Sighting(number, tuple(made), **more)


STEP = [(A, 1), (B, 2), ("barrier", 3)] * 2
CASES = {
    "left out": ([rank(0, *STEP, (A, 1)), rank(1, *STEP, (B, 2))], "a call left out", (1,), "a.py:2 in f"),
    "left out by rank 0": ([rank(0, *STEP, (B, 2)), rank(1, *STEP, (A, 1))], "a call left out", (0,), "a.py:2 in f"),
    "left out by one of three": (
        [rank(0, (A, 1), (C, 2)), rank(1, (A, 1), ("barrier", 3)), rank(2, (A, 1), (C, 2))],
        "a call left out", (1,), "a.py:3 in f",
    ),
    "left out, the others are ahead": (
        [rank(0, (A, 1), (C, 2)), rank(1, (C, 2))], "a call left out", (1,), "a.py:2 in f",
    ),
    "too many": ([rank(0, *STEP, (A, 1)), rank(1, *STEP, (C, 9))], "one call too many", (1,), "a.py:9 in f"),
    "too many on rank 0": ([rank(0, *STEP, (C, 9)), rank(1, *STEP, (A, 1))], "one call too many", (0,), "a.py:9 in f"),
    "too many, which is ahead": (
        [rank(0, (A, 4)), rank(1, (C, 2), (A, 4))], "one call too many", (1,), "a.py:2 in f",
    ),
    "order in a loop": ([rank(0, (A, 1), (B, 1), (A, 1)), rank(1, (A, 1), (B, 1), (B, 1))], "another order", (1,),
                        "a.py:1 in f"),
    "order, both ahead": ([rank(0, (A, 1), (B, 2)), rank(1, (B, 3), (A, 4))], "another order", (1,), "a.py:3 in f"),
    "order of buckets": (
        [rank(0, (BUCKET.format(" bucket 0"), 1)),
         rank(1, (BUCKET.format(" bucket 1"), 1), (BUCKET.format(" bucket 0"), 1))],
        "another order", (1,), "a.py:1 in f",
    ),
    "shape": ([rank(0, (A, 1)), rank(1, (B, 1))], "another array", (1,), "a.py:1 in f"),
    "root": ([rank(0, ("broadcast(root 0) of 3 int64", 1)), rank(1, ("broadcast(root 1) of 3 int64", 2))],
             "another array", (1,), "a.py:2 in f"),
    "plan": ([rank(0, (BUCKET.format("a"), 1)), rank(1, (BUCKET.format("b"), 1))], "another plan", (1,), "a.py:1 in f"),
    "group": ([rank(0, (A, 1)), rank(1, elsewhere="call 0 of group [1, 2]: barrier at b.py:7 in g")],
              "another wrapper or group", (1,), "b.py:7 in g"),
    "left": ([rank(0, (A, 1), (B, 2)), rank(1, (A, 1), gone="has returned")], "left early", (1,), "a.py:1 in f"),
    "died": ([rank(0, (A, 1), (B, 2)), rank(1, (A, 1), gone="is gone (process 7 died)")], "died", (1,), "a.py:1 in f"),
    "died while others have left": (
        [rank(0, (A, 1), (B, 2)), rank(1, (A, 1), gone="is gone (process 7 died)"), rank(2, (A, 1), gone="closed it")],
        "died", (1,), "a.py:1 in f",
    ),
    "gave up": ([rank(0, (A, 1)), rank(1, ("give_up(its backward raised ValueError: x)", 5))], "raised", (1,),
                "a.py:5 in f"),
    "raised": ([rank(0, (A, 1)), rank(1, raised="ValueError: x at b.py:2 in g")], "raised", (1,), "b.py:2 in g"),
    "late": ([rank(0, (A, 1)), rank(1, at="b.py:4 in h"), rank(2, (A, 1))], "late", (1,), "b.py:4 in h"),
    "late, unseen": ([rank(0, (A, 1), (B, 2)), rank(1, (A, 1), unseen="is on another host")], "late", (1,),
                     "a.py:1 in f"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_case(name):
    seen, kind, ranks, at = CASES[name]
    found = diagnose(seen)
    assert found[:3] == (kind, ranks, at), found
    assert found.remedy and listed(ranks) in found.what + found.remedy


def test_a_message_that_has_no_other_end():
    error = "rank 0: recv(from 1, tag 3) of 3 float64: expected rank 1 to send it within 1 s, got nothing: rank 1 ..."
    found = diagnose([rank(0, (A, 1)), rank(1, (A, 1), at="b.py:4 in h")], error)
    assert found[:3] == ("late", (1,), "b.py:4 in h") and "call send" in found.remedy


def test_lists_of_which_the_oldest_calls_are_forgotten():
    """A rank that is far ahead has forgotten more: they are compared where both remember."""
    ahead = Sighting(0, tuple(Made(seq, A) for seq in range(36, 100)))
    behind = Sighting(1, tuple(Made(seq, A) for seq in range(0, 40)))
    assert first_difference([ahead, behind]) == 40
    assert first_difference([ahead, ahead]) == -1


@pytest.mark.parametrize(
    "text, at, condition",
    [
        ("def f():\n    if comm.rank == 0:\n        x = 1\n        call()\n", 4, "if comm.rank == 0:"),
        ("def f():\n    if rank:\n        pass\n    else:\n        call()\n", 5, "if rank:"),
        ("def f():\n    if rank:\n        pass\n    call()\n", 4, ""),
        ("if rank:\n    def f():\n        call()\n", 3, ""),
        ("if step:\n    for x in y:\n        if get_rank():  # logs\n\n            call()\n", 5, "if get_rank():"),
    ],
)
def test_an_if_on_the_rank_is_named(text, at, condition, tmp_path):
    (tmp_path / "a.py").write_text(text)
    one = Made(0, "barrier", f"{tmp_path}/a.py:{at} in f")
    found = diagnose([Sighting(0, (Made(0, A, "b.py:1 in g"),)), Sighting(1, (one,))])
    assert (f"`{condition}`" in found.remedy) == bool(condition)
    assert (found.kind == "one call too many") == bool(condition)


def test_the_report_marks_the_first_difference_and_is_read_back():
    report = HangReport((rank(0, *STEP, (A, 1)), rank(1, *STEP, (B, 2)), rank(2, *STEP, (A, 1))), "why")
    lines = report.table(before=1, after=1)
    assert [line.split() for line in lines] == [
        ["call", "ranks", "0,", "2", "|", "rank", "1"],
        ["5", "barrier", "|", "barrier"],
        ["a.py:3", "in", "f", "|", "a.py:3", "in", "f"],
        [">", "6", *A.split(), "|", *B.split()],
        ["a.py:1", "in", "f", "|", "a.py:2", "in", "f"],
    ]
    assert HangReport.from_json(report.to_json()) == report
    assert str(report).startswith("hang (a call left out): rank 1 ")


def test_many_ranks_share_columns():
    report = HangReport(tuple(rank(number, *STEP, (A if number != 7 else B, 1)) for number in range(64)))
    assert report.table()[0].split() == ["call", "ranks", "0-6,", "8-63", "|", "rank", "7"]
