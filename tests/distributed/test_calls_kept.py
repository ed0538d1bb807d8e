"""The last calls of a rank, with the lines of the user's code that made them."""

import threading
from pathlib import Path

import numpy as np

import minigrad
from minigrad import nn
from minigrad.distributed import DDP, run
from minigrad.distributed.comm.calls import KEPT_CALLS, in_words

FILE = __file__
TIMEOUT_S = 10.0


def lines_of(comm):
    """Of the calls of a rank, the latest first."""
    return [(made.what.split("(")[0], made.line) for made in in_words(comm.calls)]


def here(text, function):
    """The place of the line of this file that has this comment."""
    lines = Path(FILE).read_text().splitlines()
    [number] = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return f"{FILE}:{number} in {function}"


def test_calls_have_the_line_that_made_them():
    def body(comm):
        array = np.ones(3)
        comm.all_reduce(array).wait()  # one
        if comm.rank == 0:
            comm.send(array, 1).wait()  # two
        else:
            comm.recv(array, 0).wait()  # three
        comm.all_gather_object("x")  # four
        return lines_of(comm)

    for rank, lines in enumerate(run(body, 2, timeout_s=TIMEOUT_S)):
        sent = ("send", here("two", "body")) if rank == 0 else ("recv", here("three", "body"))
        first = ("all_reduce", here("one", "body"))
        assert lines == [("all_gather_object", here("four", "body")), sent, first]


def test_the_calls_of_a_step_have_the_line_of_its_backward():
    def body(comm):
        ddp = DDP(nn.Linear(3, 1), comm)
        loss = ddp(minigrad.ones(2, 3)).sum()
        loss.backward()  # backward
        return lines_of(comm)

    for lines in run(body, 2, timeout_s=TIMEOUT_S):
        assert lines[:2] == [("all_reduce", here("backward", "body"))] * 2  # the samples, and a bucket


def test_so_many_are_kept():
    def body(comm):
        for _ in range(KEPT_CALLS + 3):
            comm.barrier()
        return in_words(comm.calls)

    for calls in run(body, 2, timeout_s=TIMEOUT_S):
        assert [made.seq for made in calls] == list(range(KEPT_CALLS + 2, 2, -1))


def test_a_call_that_only_our_code_has_made_has_no_line():
    """Not that of `threading`, where a rank of Trainer.start begins."""
    made = []

    def body(comm):
        thread = threading.Thread(target=comm.barrier)  # nothing of the user's is below it
        thread.start()
        thread.join()
        comm.barrier()
        made.append([bool(call.line) for call in comm.made()])

    run(body, 2)
    assert made == [[False, True]] * 2
