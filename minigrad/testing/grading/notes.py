"""What a rank was seen to do, told apart from any clock; and what time it took, computed from that alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from minigrad.autograd.tape import Reached
from minigrad.distributed.comm.wire_bytes import wire_bytes
from minigrad.distributed.comm.wrappers import COLLECTIVES, Call
from minigrad.distributed.simulate.cluster import Cluster
from minigrad.distributed.simulate.links import Link

BESIDE, BESIDE_EACH = 256, 32  # elements that may travel with gradients, and with each: counts, padding
WHOLE = ("all_gather", "all_gather_object", "gather")  # of which each rank hands in a part


class Did(NamedTuple):
    """One thing that a rank did.

    Attributes:
        did: "computed" for so many `seconds`; "called" collective `number` of `kind`, handing in `nbytes`, after so
            many `steps` of computing since the last; "waited" for it; "sent" `nbytes` to rank `number`, with tag
            `steps`; "took" the next message of rank `number` with that tag; or "began" a step.
    """

    did: Literal["computed", "called", "waited", "sent", "took", "began"]
    seconds: float = 0.0
    number: int = 0
    kind: str = ""
    nbytes: int = 0
    steps: int = 0


class RankNotes:
    """The notes of one rank, taken from outside: what it computes is charged, whatever its clock says.

    It hears of backwards, as a clock does. What is left of a backward when a rank calls something outside of one has
    passed before; see `VirtualClock`.

    Attributes:
        did: So far.
        starts: How many of these there were when each step began.
        backwards: That began in this step.
        early: Elements handed in, before this step's backward is over, above those that gradients then had; at most.

    Args:
        beside: Elements that may travel with the gradients of a step.
    """

    def __init__(self, cluster: Cluster, rank: int, beside: int = BESIDE) -> None:
        self._cluster, self._rank, self._beside = cluster, rank, beside
        self.did: list[Did] = []
        self.starts: list[int] = []
        self.backwards = self.early = 0
        self._whole_s = self._left_s = 0.0
        self._nbytes = self._done_bytes = self._complete = 0
        self._handed = self._summed = 0.0
        self._walking = self._is_over = False
        self._step = self._steps = self._calls = 0

    def begin_step(self) -> None:
        """A step begins, and the one before it ends."""
        self.starts.append(len(self.did))
        self.did.append(Did("began"))
        self.backwards = self.early = self._complete = 0
        self._handed, self._is_over, self._summed = 0.0, False, 0.0

    @contextmanager
    def forward(self, samples: float) -> Iterator[None]:
        """Around a forward on so many samples: it passes at once, and its backward is to come."""
        self.settle()
        whole_s = self._cluster.compute_s(self._rank, samples, self._step)
        backward_s = whole_s * self._cluster.backward_fraction
        self._step += 1
        self._steps += 1
        self._computed(whole_s - backward_s)
        yield
        self._whole_s = self._left_s = backward_s

    def begin(self, leaves: Reached) -> None:
        """See `BackwardListener`."""
        self.backwards += 1
        self._walking, self._done_bytes, self._complete = True, 0, 0
        self._nbytes = sum(leaf.data.nbytes for leaf in leaves)

    def leaf(self, leaf: Any) -> None:
        """See `BackwardListener`."""
        self._done_bytes += leaf.data.nbytes
        self._complete += leaf.data.size
        self._pass_to(self._whole_s * (1.0 - self._done_bytes / max(1, self._nbytes)))

    def end(self, error: BaseException | None) -> None:
        """See `BackwardListener`."""
        self._pass_to(0.0)
        self._walking, self._is_over = False, True

    def settle(self) -> None:
        """Outside of a backward, what is left of one has passed."""
        if not self._walking:
            self._pass_to(0.0)

    def _pass_to(self, left_s: float) -> None:
        if self._left_s > left_s:
            self._computed(self._left_s - left_s)
            self._left_s = left_s

    def _computed(self, seconds: float) -> None:
        self.did.append(Did("computed", seconds))

    def called(self, call: Call) -> int:
        """A collective; its number."""
        self.settle()
        nbytes = max(0, call.nbytes)
        self._hand_in(call)
        self.did.append(Did("called", 0.0, self._calls, call.kind, nbytes, self._steps))
        self._calls, self._steps = self._calls + 1, 0
        return self._calls - 1

    def _hand_in(self, call: Call) -> None:
        """Count elements by what an all_reduce of them would hand in; what was summed and is gathered is half of it."""
        count, world_size = max(0, call.count), self._cluster.world_size
        if call.kind in ("all_gather", "gather"):
            again = min(self._summed, count)
            self._summed -= again
            self._handed += again * world_size / 2 + count - again
        elif call.kind == "send":
            self._handed += count / (world_size - 1)
        else:
            self._handed += count if call.kind == "all_reduce" else count / 2
        if call.kind in ("reduce_scatter", "all_to_all"):
            self._summed += count / world_size
        if not self._is_over:
            self.early = max(self.early, int(self._handed) - self._complete - self._beside)

    def waited(self, number: int) -> None:
        """The wait for a collective is over."""
        self.settle()
        self.did.append(Did("waited", 0.0, number))

    def sent(self, call: Call, dst: int, tag: int) -> None:
        """A message to another rank."""
        self.settle()
        self._hand_in(call)
        self.did.append(Did("sent", 0.0, dst, "send", call.nbytes, tag))

    def handed_in(self) -> list[Did]:
        """The calls and messages so far."""
        return [did for did in self.did if did.did in ("called", "sent")]

    def took(self, src: int, tag: int) -> None:
        """The wait for a message is over."""
        self.settle()
        self.did.append(Did("took", 0.0, src, "recv", 0, tag))


def moments_of(notes: Sequence[Sequence[Did]], link: Link) -> list[list[float]]:
    """When each rank had done each of its notes, in virtual time, by the rules of `simulate.wire`.

    Args:
        notes: Of each rank, in its order; all ranks call the same collectives.

    Returns:
        Seconds from the start, as many for each rank as it has notes; fewer where it waits for what never comes.
    """
    network, ranks = _Network(link, len(notes)), range(len(notes))
    moments: list[list[float]] = [[] for _ in ranks]
    moved = True
    while moved:
        moved = False
        for rank in ranks:
            while len(moments[rank]) < len(notes[rank]):
                now_s = moments[rank][-1] if moments[rank] else 0.0
                then_s = network.after(rank, now_s, notes[rank][len(moments[rank])])
                if then_s is None:
                    break
                moments[rank].append(then_s)
                moved = True
    return moments


class _Network:
    def __init__(self, link: Link, world_size: int) -> None:
        self._link, self._world_size = link, world_size
        self._called: dict[int, list[tuple[float, Did]]] = {}
        self._done_s: dict[int, float] = {}
        self._free_s = 0.0
        self._link_free_s = [0.0] * world_size
        self._there_s: dict[tuple[int, int, int], deque[float]] = {}  # of messages: from, to, tag

    def after(self, rank: int, now_s: float, note: Did) -> float | None:
        """When the rank has done what is noted; None where that is not known yet."""
        if note.did == "computed":
            return now_s + note.seconds
        if note.did == "called":
            self._call(now_s, note)
        elif note.did == "waited":
            done_s = self._done_s.get(note.number)
            return None if done_s is None else max(now_s, done_s)
        elif note.did == "sent":
            begin_s = max(now_s, self._link_free_s[rank])
            self._link_free_s[rank] = begin_s + self._message_s(note.nbytes, rank, note.number)
            self._there_s.setdefault((rank, note.number, note.steps), deque()).append(self._link_free_s[rank])
        elif note.did == "took":
            there = self._there_s.get((note.number, rank, note.steps))
            return max(now_s, there.popleft()) if there else None
        return now_s

    def _call(self, now_s: float, note: Did) -> None:
        calls = self._called.setdefault(note.number, [])
        calls.append((now_s, note))
        if len(calls) == self._world_size:
            sizes = [called.nbytes for _, called in calls]
            nbytes = sum(sizes) if note.kind in WHOLE else max(sizes)
            steps = max(called.steps for _, called in calls)
            kind = note.kind if note.kind in COLLECTIVES else "barrier"
            took_s = self._link.cost_s(kind, nbytes, self._world_size, (), steps)
            begin_s = max(self._free_s, max(moment_s for moment_s, _ in calls))
            self._done_s[note.number] = self._free_s = begin_s + took_s

    def _message_s(self, nbytes: int, src: int, dst: int) -> float:
        return self._link.message_s(nbytes, src, dst)


def sent_bytes(note: Did, world_size: int) -> float:
    """Bytes that a rank sends over the network for a call; see `wire_bytes`."""
    return float(wire_bytes(note.kind, note.nbytes, world_size)) if note.did in ("called", "sent") else 0.0
