"""What the calls of ranks say of why they can't go on: cases written down by hand."""

import pytest

from minigrad.distributed import HangReport
from minigrad.distributed.comm.calls import Made
from minigrad.distributed.comm.diagnosis import diagnose, first_difference
from minigrad.distributed.comm.nccl.sightings import _cited
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
    "too many, in a function that one rank calls": (
        [Sighting(0, (Made(0, A, "a.py:1 in f"), Made(1, C, "a.py:9 in g"))), rank(1, (A, 1), (A, 2))],
        "one call too many", (0,), "a.py:9 in g",
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


PAIR = [(A, 1), (A, 2)]


@pytest.mark.parametrize(
    "calls, others, kind, at, number",
    [
        ([*PAIR, *PAIR], [*PAIR, (A, 1), *PAIR, ("barrier", 3)], "one call too many", "a.py:1 in f", 3),
        ([*PAIR, *PAIR, *PAIR], [*PAIR, (A, 1), *PAIR, ("barrier", 3)], "a call left out", "a.py:1 in f", 3),
        ([(A, 1), (A, 1), ("barrier", 3)], [(A, 1), (A, 2), (A, 1)], "one call too many", "a.py:2 in f", 1),
    ],
)
def test_where_equal_calls_went_apart_the_lines_tell(calls, others, kind, at, number):
    """A call that is like its neighbours is missed later, at another line."""
    calls += [("barrier", 3)] * (len(others) - len(calls))
    found = diagnose([rank(0, *calls), rank(1, *others), rank(2, *calls)])
    assert found[:3] == (kind, (1,), at) and f"as call {number}, which call" in found.what, found


def test_ranks_of_different_programs_did_not_go_apart():
    found = diagnose([rank(0, (A, 1), (B, 2), (C, 3)), rank(1, (A, 1), (B, 5), ("barrier", 3))])
    assert "which call" not in found.what


def test_of_as_many_ranks_those_are_right_that_do_what_they_did_before():
    plan = [BUCKET.format(f"{name} bucket 0") for name in "ab"]
    seen = [rank(0, (plan[0], 1)), rank(1, (plan[0], 1), (plan[1], 1)), rank(2, (plan[0], 1), (plan[0], 1))]
    assert diagnose(seen)[:2] == ("another plan", (1,))


def test_a_rank_that_left_after_the_failure_is_not_why():
    error = "call 1: barrier: expected all 3 ranks within 1 s, got ranks [0]: rank 1 last called x, rank 2 last called"
    seen = [rank(0, (A, 1), (B, 2)), rank(1, (A, 1), at="b.py:4 in h"), rank(2, (A, 1), gone="closed its communicator")]
    assert diagnose(seen, error).kind == "late"
    killed = rank(1, (A, 1), gone="is gone (process 7 died)", at="b.py:4 in h")  # by a launcher, say, after rank 0
    assert diagnose([seen[0], killed], error.split(", rank 2")[0])[:3] == ("late", (1,), "b.py:4 in h")
    assert diagnose(seen, "rank 2 closed its communicator and last called x")[:2] == ("left early", (2,))


def test_a_rank_that_waits_in_a_message_is_not_the_one_to_be_mended():
    message = Made(-1, "recv(from 1, tag 3) of 3 float64", "a.py:7 in f")
    waiting = Sighting(0, (Made(0, A, "a.py:1 in f"), message), at="a.py:7 in f")
    assert "let rank 1 call send for the recv(from 1, tag 3)" in diagnose([waiting, rank(1, (A, 1), (B, 2))]).remedy
    error = "call 1: got ranks [1]: rank 0 last called recv(from 1, tag 3) of 3 float64; rank 0: at a.py:7 in f"
    found = diagnose([rank(0, (A, 1)), rank(1, (A, 1), (B, 2))], error)
    assert "let rank 1 call send for the recv(from 1, tag 3) in which rank 0 waits at a.py:7 in f" in found.remedy


def test_a_message_of_another_size():
    error = "got send(to 1, tag 0) of 3 float64 on rank 0 and recv(from 0, tag 0) of 4 float64 on rank 1"
    message = Made(-1, "recv(from 0, tag 0) of 4 float64", "a.py:7 in f")
    error = f"expected one dtype and size at both ends of a message, {error}"
    found = diagnose([rank(0), Sighting(1, (message,))], error)
    assert found[:3] == ("another array", (1,), "a.py:7 in f")


def test_a_rank_for_which_others_wait_in_a_group_is_the_late_one():
    waits = rank(0, (A, 1), elsewhere="call 0 of group [0, 1]: barrier at b.py:7 in g")
    found = diagnose([waits, rank(1, (A, 1), at="b.py:4 in h"), rank(2, (A, 1), (B, 2))])
    assert found[:3] == ("late", (1,), "b.py:4 in h")


def test_what_is_not_known_of_a_rank_is_not_missing():
    """Of a rank on a GPU only what an error cites is as it is now."""
    unseen = Sighting(2, unseen="did not say in time which calls it has made")
    gone = rank(1, (A, 1), gone="closed its communicator")
    found = diagnose([rank(0, (A, 1), (B, 2)), gone, unseen])
    assert found[:2] == ("left early", (1,)) and first_difference([rank(0, (A, 1)), unseen]) == -1
    error = (
        "call 8: all_reduce(SUM DDP 1 of Mlp, plan 1) of 4 float64: expected all 3 ranks, got ranks [0, 2]: rank 1 "
        "closed its communicator"
    )
    assert [_cited(error, each) for each in range(3)] == [
        [Made(8, "all_reduce(SUM DDP 1 of Mlp, plan 1) of 4 float64")], [],
        [Made(8, "all_reduce(SUM DDP 1 of Mlp, plan 1) of 4 float64")],
    ]


def test_two_branches_of_an_if_on_the_rank(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("if rank == 1:\n    one()\nelse:\n    two()\nif rank == 1: three()\nfour()\n")
    one, two, three, four = (Sighting(i, (Made(0, what, f"{path}:{at} in f"),))
                             for i, what, at in ((1, A, 2), (0, "barrier", 4), (1, A, 5), (0, "barrier", 6)))
    found = diagnose([two, one])
    assert found.kind == "another order" and "in all branches of `if rank == 1:`" in found.remedy
    assert "which stands under `if rank == 1:`" in diagnose([four, three]).remedy


def test_a_line_behind_a_loop_was_come_to_too_early(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("for step in steps:\n    all_reduce()\nbarrier()\n")
    step, end = Made(0, A, f"{path}:2 in f"), Made(2, "barrier", f"{path}:3 in f")
    seen = [Sighting(i, (step, step._replace(seq=1), last)) for i, last in ((0, step._replace(seq=2)), (1, end))]
    assert diagnose(seen)[:2] == ("a call left out", (1,))


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
