"""The line of the user's own code that a rank is in."""

import threading

from minigrad.distributed.comm.where import Watcher, user_line, whereabouts


def test_the_line_is_the_users_and_not_that_of_a_library():
    begun, over = threading.Event(), threading.Event()

    def busy():
        begun.set()
        over.wait()

    thread = threading.Thread(target=busy)
    thread.start()
    begun.wait()
    try:
        line = user_line(thread.ident)
    finally:
        over.set()
        thread.join()
    assert line.startswith(f"{__file__}:") and line.endswith(" in busy")
    assert user_line(thread.ident) == ""


def test_what_is_said_of_each_rank():
    lines = {0: "a.py:7 in f", 1: "", 2: "a.py:7 in f", 3: "a.py:3 in g"}
    assert whereabouts(lines, {1: "late", 3: "late"}) == (
        "; rank 1: it did not say in time where it is; rank 3: at a.py:3 in g; rank 0, 2: waiting at a.py:7 in f"
    )


def test_a_watcher_ends_with_its_owner():
    class Owner:
        pass

    lines, answered = [], threading.Event()

    def answer(line):
        lines.append(line())
        answered.set()

    owner = Owner()
    watcher = Watcher(owner, answer)
    assert answered.wait(10.0) and lines[0].endswith(" in test_a_watcher_ends_with_its_owner")
    del owner
    watcher.thread.join(10.0)
    assert not watcher.thread.is_alive()
