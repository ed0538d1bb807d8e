"""What is seen of ranks that are processes of one host: their board, and the stacks that they write when asked to."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import CodeType
from typing import Any

from minigrad.distributed.comm.calls import INSIDE, Made, Remembering, line_of
from minigrad.distributed.comm.dumps import lines_of, stacks_of
from minigrad.distributed.comm.hangs import HangReport
from minigrad.distributed.comm.headers import numbered
from minigrad.distributed.comm.shm.board import LINES, Board, made_by, note_line, offer_of, pending_of
from minigrad.distributed.comm.shm.groups import below, top
from minigrad.distributed.comm.sightings import Sighting
from minigrad.distributed.comm.where import Watcher, users
from minigrad.errors import DistributedError


class Places:
    """The lines of the user's code at which this rank makes its calls, by number, as its board has them.

    Attributes:
        known: Of each instruction, by the id of its code and where it is there: the number, and the code, which has to
            live on.
    """

    inside = INSIDE

    def __init__(self, board: Board) -> None:
        self._board = board
        self.known: dict[tuple[int, int], tuple[int, CodeType]] = {}

    def note(self, code: CodeType, at: int) -> int:
        """The number of another one; 0 where there is no room any more."""
        number = len(self.known) + 1
        if number >= LINES:
            return 0
        self.known[id(code), at] = number, code
        note_line(self._board, number, line_of(code, at))
        return number


class RememberingShm(Remembering):
    """What a `ShmCommunicator` remembers of its calls: what its board says.

    Attributes:
        board: It.
    """

    board: Board

    def last_calls(self) -> Sequence[str]:
        """The last calls that this rank made, chunk by chunk, the latest first."""
        return list(self.board.last_calls(self.board.rank))

    def made(self) -> list[Made]:
        """The same but for messages, the earliest first, with the lines of the user's code that made them."""
        return made_by(self.board, self.board.rank)


def look_after(comm: Any) -> Watcher:
    """Let the errors of a ShmCommunicator have a report, and a thread say where its rank is."""
    found = weakref.ref(comm)
    comm.failure.look = lambda error: _report(found(), error)
    return Watcher(comm, comm.board.answer)


def _report(comm: Any, error: DistributedError) -> HangReport | None:
    if comm is None:
        return None
    board = comm.board
    gone = board.gone() if board.told is None else board.were_gone
    calls = [tuple(made_by(board, rank)) for rank in range(board.world_size)]
    most = max(made[-1].seq if made else -1 for made in calls)
    seen = []
    for rank, made in enumerate(calls):
        stack: tuple[str, ...] = ()
        unseen = elsewhere = ""
        if rank not in gone and (made[-1].seq if made else -1) < most:
            elsewhere = _elsewhere(comm, rank)
            if board.told is not None:  # it is this rank that was tired of waiting
                stack = board.told.get(rank, ()) or lines_of(*_stacks_of(board, rank))
                unseen = "" if stack else "did not say in time where it is"
        seen.append(Sighting(rank, made, gone.get(rank, ""), "", users(stack), stack, elsewhere, unseen))
    return HangReport(tuple(seen), str(error))


def _stacks_of(board: Board, rank: int) -> tuple[str, int]:
    """What a process writes that can't say where it is, held in C say; and which of its threads is the rank's."""
    offered, thread = offer_of(board, rank)
    return stacks_of(offered), thread


def _elsewhere(comm: Any, rank: int) -> str:
    """A call of another communicator, of this rank too, that a rank has made, and others have not."""
    name = comm.global_ranks[rank]
    for other in below(top(comm)):
        if other is not comm and name in other.global_ranks:
            made = pending_of(other.board, other.global_ranks.index(name))
            if made is not None:
                return f"{numbered(made.seq, made.group)}: {made.what} at {made.line}"
    return ""
