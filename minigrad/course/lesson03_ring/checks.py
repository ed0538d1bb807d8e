"""Checks of lesson 3: sums, bits, messages and rounds, counted on the wire of a simulation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.course.lesson import Student, WrongError, expect
from minigrad.course.lesson03_ring import solution
from minigrad.distributed import Communicator, Wrapper, simulate
from minigrad.distributed.comm.protocol import Work
from minigrad.distributed.comm.work import WorkAround
from minigrad.errors import CollectiveTimeoutError, RankFailedError

AllReduce = Callable[[Array, Communicator], Any]
TIMEOUT_S = 2.0
ROUNDS = simulate.Link(latency_s=1.0)  # a message takes a second, whatever it carries: seconds are rounds
ALPHA_S, BETA_S = 1e-3, 1e-6
WORLDS = range(1, 9)


class _Watched(Wrapper):
    """Sees to it that what is sent is left alone until it was taken."""

    def __init__(self, comm: Communicator, what: str) -> None:
        super().__init__(comm)
        self._what, self._sent, self._asked = what, list[_Sent](), list[_Sent]()

    def send(self, array: Array, dst: int, tag: int = 0) -> Work:
        """Keep what is sent, to compare."""
        told = f"{self._what}: rank {self.rank} sent {array.size} elements to rank {dst}"
        work = _Sent(self.inner.send(array, dst, tag), array, told)
        self._sent.append(work)
        return work

    def recv(self, array: Array, src: int, tag: int = 0) -> Work:
        """Note what is asked for."""
        told = f"{self._what}: rank {self.rank} asked rank {src} for {array.size} elements"
        work = _Sent(self.inner.recv(array, src, tag), array[:0], told)
        self._asked.append(work)
        return work

    def check_taken(self) -> None:
        """Require that this rank waited for each message.

        Raises:
            WrongError: it did not.
        """
        for work in self._asked:
            expect(work.is_over, f"{work.told} and did not wait for them: call wait() on what recv returns")
        for work in self._sent:
            work.check()
            expect(
                work.is_over,
                f"{work.told} and returned without waiting until they were taken: the caller may change the array, and "
                "the other rank may read it later. Call wait() on what send returns",
            )


class _Sent(WorkAround):
    """A message under way, beside a copy of it."""

    def __init__(self, work: Work, array: Array, told: str) -> None:
        super().__init__(work)
        self._array, self._copy, self.told, self.is_over = array, array.copy(), told, False

    def check(self) -> None:
        """Raise WrongError where the array was changed before it was known to be taken."""
        if not self.is_over:
            expect(
                self._array.tobytes() == self._copy.tobytes(),
                f"{self.told}, and changed them before it knew that they were taken: the other rank may get the old "
                "elements or the new ones, another time other ones. Call wait() on what send returns, after recv",
            )

    def done(self) -> bool:
        """Whether it was taken."""
        self.check()
        self.is_over = super().done()
        return self.is_over

    def wait(self, host: bool = False) -> None:
        """Wait until it was taken."""
        self.check()
        super().wait(host)
        self.is_over = True


@dataclass(frozen=True)
class Ran:
    """An all-reduce on a virtual cluster.

    Attributes:
        what: The call, in words.
        before, after: The array of each rank.
        seconds: When the last rank was through.
        messages: How many each rank sent.
        sent: Elements that each rank sent.
        ends: (from, to) of all messages, and how many.
        largest: Elements of the largest message.
    """

    what: str
    before: list[Array]
    after: list[Array]
    seconds: float
    messages: Counter[int]
    sent: Counter[int]
    ends: Counter[tuple[int, int]]
    largest: int


def ran(all_reduce: AllReduce, world_size: int, length: int, link: simulate.Link = ROUNDS, dtype: str = "f8") -> Ran:
    """Run one: of whole numbers in float64, whose sums are exact in any order; else of normal ones.

    Raises:
        WrongError: a rank waits for ever, or called a collective.
    """
    name = getattr(all_reduce, "__name__", "all_reduce")
    what = f"{name} of {length} elements on {world_size} rank{'s' if world_size > 1 else ''}"
    rng = np.random.default_rng(length)
    before = [rng.integers(-99, 100, length) if dtype == "f8" else rng.normal(size=length) for _ in range(world_size)]
    before = [array.astype(dtype) for array in before]

    def body(comm: Communicator) -> tuple[Array, float]:
        array = before[comm.rank].copy()
        watched = _Watched(comm, what)
        all_reduce(array, watched)
        watched.check_taken()
        return array, comm.clock.now_s()

    cluster = simulate.Cluster((simulate.RankCost(),) * world_size, link)
    try:
        trace = simulate.run(body, cluster, timeout_s=TIMEOUT_S)
    except CollectiveTimeoutError as error:
        raise WrongError(
            f"{what}: the ranks wait for each other for ever. Did each wait for what it sent to be taken before it "
            f"asked for what comes? Send, then recv, then wait for both. {error}"
        ) from error
    except RankFailedError as error:
        raise WrongError(
            f"{what}: a rank returned while another one still sends to it, or waits for it. Does each wait for what it "
            "asks for, by wait() on what recv returns, and take as many messages as are sent to it?"
        ) from error
    called = {str(span.fields["collective"]) for span in trace.timeline.spans if span.kind == "wire"} - {"recv"}
    expect(not called, f"{what}: expected messages by send and recv alone, got the collective {', '.join(called)}")
    sends = [event for event in trace.timeline.events if event.is_message]
    elements = [event.fields["nbytes"] // before[0].itemsize for event in sends]
    sent: Counter[int] = Counter()
    for event, count in zip(sends, elements):
        sent[event.rank] += count
    return Ran(
        what,
        before,
        [array for array, _ in trace.results],
        max(now_s for _, now_s in trace.results),
        Counter(event.rank for event in sends),
        sent,
        Counter((event.rank, event.fields["peer"]) for event in sends),
        max(elements, default=0),
    )


def expect_sum(one: Ran) -> None:
    """Require the exact sum on every rank."""
    total = np.sum(one.before, axis=0)
    for rank, (before, after) in enumerate(zip(one.before, one.after)):
        if np.array_equal(after, total):
            continue
        at, whole = int(np.flatnonzero(after != total)[0]), len(total) // len(one.before) * len(one.before)
        why = ""
        if np.array_equal(after, before):
            why = ": the array was left as it was. Change it in place; a slice is a view, a sum is a new array"
        elif np.array_equal(after, total / len(one.before)):
            why = ": this is the mean"
        elif at >= whole > 0:
            why = f": what is before element {whole} is right. Chunks of length // W elements leave out the rest"
        elif len(one.before) & (len(one.before) - 1):
            why = f": {len(one.before)} is no power of two. Does each rank's array come into the sum once?"
        raise WrongError(
            f"{one.what}: expected {total[at]:g} in element {at} on rank {rank}, the sum of "
            f"{[float(array[at]) for array in one.before]}, got {after[at]:g}{why}"
        )


def expect_same_bits(all_reduce: AllReduce, world_size: int) -> Ran:
    """Require the same bits on all ranks, of numbers whose sum depends on its order, and their sum."""
    one = ran(all_reduce, world_size, 97, dtype="f4")
    for rank, array in enumerate(one.after):
        if array.tobytes() != one.after[0].tobytes():
            at = int(np.flatnonzero(array != one.after[0])[0])
            raise WrongError(
                f"{one.what}: expected the same bits on all ranks, got {float(one.after[0][at])!r} on rank 0 and "
                f"{float(array[at])!r} on rank {rank} in element {at}: the ranks add up in different orders, and "
                "(a + b) + c is not a + (b + c) in floating point. Replicas that step by them drift apart"
            )
    expect(
        np.allclose(one.after[0], np.sum(one.before, axis=0), atol=1e-4),
        f"{one.what}: expected the sum of float32 as of float64, got another: are sums right for whole numbers only?",
    )
    return one


def lengths(world_size: int) -> Iterator[int]:
    """Sizes of an array: none, fewer than ranks, whole and broken chunks."""
    some = {world_size - 1} if world_size in (6, 7) else {0, 1, world_size - 1, world_size + 1}
    yield from sorted(some | {5 * world_size}, reverse=True)


def check_ring_all_reduce(student: Student) -> str:
    """Sums, one neighbour, bytes and rounds, and the time by the formula."""
    all_reduce, cases = student.ring_all_reduce, 0
    for world_size in WORLDS:
        most = 2 * (world_size - 1)
        for length in lengths(world_size):
            one = ran(all_reduce, world_size, length)
            expect_sum(one)
            _expect_ring(one, world_size, length, most)
            cases += 1
        _expect_ring(expect_same_bits(all_reduce, world_size), world_size, 97, most)
    link = simulate.Link(ALPHA_S, 1 / BETA_S)
    for world_size in (2, 5, 8):
        one = ran(all_reduce, world_size, 100 * world_size, link)
        expected_s = 2 * (world_size - 1) * (ALPHA_S + BETA_S * 800)
        expect(
            math.isclose(one.seconds, expected_s, rel_tol=1e-9),
            f"{one.what}, with {ALPHA_S} s a message and {BETA_S} s a byte: expected 2 (W - 1)(alpha + beta·n / W) = "
            f"{expected_s:.6f} s, got {one.seconds:.6f} s",
        )
    return f"{cases} sums on 1 to 8 ranks; 2 (W - 1) rounds, 2 (W - 1) / W of the bytes: 1.75 of an array on 8 ranks"


def _expect_ring(one: Ran, world_size: int, length: int, most: int) -> None:
    chunk = -(-length // world_size)
    for rank in range(world_size):
        others = sorted({to for by, to in one.ends if by == rank})
        expect(
            len(others) <= 1,
            f"{one.what}: expected rank {rank} to send to one neighbour only, got messages to ranks {others}: a ring "
            "has one cable to the next rank",
        )
        expect(
            one.sent[rank] <= most * chunk,
            f"{one.what}: expected rank {rank} to send at most 2 (W - 1) chunks of ceil(length / W) = {chunk} "
            f"elements, {most * chunk} in all, got {one.sent[rank]} in {one.messages[rank]} messages, the largest of "
            f"{one.largest}: pass on a chunk at a time, not the whole array, in the array's dtype, "
            f"{one.before[0].dtype}",
        )
        expect(
            one.messages[rank] <= most,
            f"{one.what}: expected rank {rank} to send at most 2 (W - 1) = {most} messages, got {one.messages[rank]}",
        )
    expect(
        one.seconds <= most,
        f"{one.what}: expected 2 (W - 1) = {most} rounds, got {one.seconds:g}: a rank waits for what comes before it "
        "sends what it has, so that the message goes round while all others wait",
    )


def check_doubling_all_reduce(student: Student) -> str:
    """Sums and rounds."""
    all_reduce, cases, rounds = student.doubling_all_reduce, 0, []
    for world_size in WORLDS:
        most = 2 * math.ceil(math.log2(world_size))
        for length in lengths(world_size):
            one = ran(all_reduce, world_size, length)
            expect_sum(one)
            cases += 1
        expect_same_bits(all_reduce, world_size)
        expect(
            one.seconds <= most,
            f"{one.what}: expected at most 2 ceil(log2 W) = {most} rounds, got {one.seconds:g}: in each round every "
            "rank should send one message, and as many ranks again should be in each sum",
        )
        rounds.append(f"{one.seconds:g}")
    return f"{cases} sums on 1 to 8 ranks, in {', '.join(rounds)} rounds"


def measured_crossing(world_size: int, link: simulate.Link) -> float:
    """Where our ring and our doubling take as long, in bytes: times are linear in the size, so two of each tell."""
    sizes = [100 * world_size, 200 * world_size]
    lines = []
    for all_reduce in (solution.ring_all_reduce, solution.doubling_all_reduce):
        first_s, second_s = (ran(all_reduce, world_size, size, link).seconds for size in sizes)
        slope = (second_s - first_s) / (8 * (sizes[1] - sizes[0]))
        lines.append((first_s - slope * 8 * sizes[0], slope))
    (ring_s, ring_slope), (doubling_s, doubling_slope) = lines
    steeper = doubling_slope - ring_slope
    return (ring_s - doubling_s) / steeper if steeper > 1e-9 * ring_slope else math.inf


def check_crossing_bytes(student: Student) -> str:
    """The size at which they cross, against both of them run on the virtual clock."""
    found = []
    for world_size in (2, 3, 4, 6, 8):
        for alpha_s, beta_s in ((1e-3, 1e-6), (2e-5, 1e-10))[world_size < 8 :]:
            call = f"crossing_bytes({world_size}, {alpha_s:g}, {1 / beta_s:g})"
            got = student.crossing_bytes(world_size, alpha_s, 1 / beta_s)
            expect(isinstance(got, (int, float)), f"{call}: expected a number of bytes, got {got!r:.100}")
            wanted = measured_crossing(world_size, simulate.Link(alpha_s, 1 / beta_s))
            expect(
                got == wanted or math.isclose(got, wanted, rel_tol=1e-6),
                f"{call}: expected {wanted:.6g} bytes, where both took as long on the virtual clock, got {got:.6g}"
                f"{_why_not(world_size, got, wanted)}",
            )
        found.append(f"{wanted:.4g} bytes on {world_size} ranks")
    return f"measured at 20 us and 10 GB/s: {', '.join(found)}"


def _why_not(world_size: int, got: float, wanted: float) -> str:
    if math.isinf(wanted):
        return ": two ranks send 2·n/2 bytes round the ring and n bytes by doubling, and the ring has one latency more"
    if world_size & (world_size - 1):
        return f": {world_size} is no power of two, so that two more rounds carry the whole array"
    return ": set 2 (W - 1)(alpha + beta·n / W) equal to log2(W)·(alpha + beta·n), and solve for n"
