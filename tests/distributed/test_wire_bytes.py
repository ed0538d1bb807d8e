"""What a call moves over a rank's link: the closed forms, against what the executable schedules send."""

from fractions import Fraction

import numpy as np
import pytest

from minigrad.distributed import Recording, ReduceOp, Wrapper, run
from minigrad.distributed.algorithms import Op, Scheduled, ring, tree
from minigrad.distributed.comm.wire_bytes import wire_bytes
from minigrad.distributed.comm.wrappers import KINDS
from minigrad.errors import ArgumentError

TIMEOUT_S = 5.0
WORLDS = range(1, 10)
SIZES = (0, 1, 2, 5, 7, 8, 12, 64, 1000)


def sent(rounds, world_size, size):
    """Elements that each rank sends in some of the rounds of a schedule."""
    elements = [0] * world_size
    for transfer in (one for transfers in rounds for one in transfers):
        elements[transfer.source] += transfer.chunk.count(size)
    return elements


@pytest.mark.parametrize("world_size", WORLDS)
def test_of_a_ring_and_of_its_halves(world_size):
    """Exact over all ranks, and to an element a round on each; nothing is left over where the ranks divide."""
    rounds = ring(world_size).rounds
    half = len(rounds) // 2
    assert {each.op for transfers in rounds[:half] for each in transfers} <= {Op.COMBINE}
    for size in SIZES:
        forms = {
            "all_reduce": (rounds, size),
            "reduce_scatter": (rounds[:half], size),
            "all_gather": (rounds[half:], Fraction(size, world_size)),
        }
        for kind, (of, handed_in) in forms.items():
            found = sent(of, world_size, size)
            wanted = wire_bytes(kind, 1, world_size) * handed_in
            assert sum(found) == wanted * world_size, kind
            assert all(abs(elements - wanted) < max(1, len(of)) for elements in found), kind
            if size % world_size == 0:
                assert set(found) == {wanted}, kind


@pytest.mark.parametrize("world_size", WORLDS)
def test_of_a_reduce_and_a_broadcast(world_size):
    """Those of a tree go over as many links as those along a ring: each rank but one sends, or takes, the whole."""
    rounds = tree(world_size).rounds
    half = len(rounds) // 2
    for kind, of in (("reduce", rounds[:half]), ("broadcast", rounds[half:])):
        assert sum(sent(of, world_size, 24)) == wire_bytes(kind, 24, world_size) * world_size


class Apart(Wrapper):
    """A communicator whose rooted calls and all_to_all are messages between two ranks each."""

    def gather(self, output, source, root=0):
        self._exchange({root: source}, {root: range(self.world_size)}, output)

    def scatter(self, output, source, root=0):
        parts = {} if source is None else dict(enumerate(source.reshape(self.world_size, -1)))
        self._exchange(parts, {rank: [root] for rank in range(self.world_size)}, output)

    def all_to_all(self, output, source):
        everybody, parts = range(self.world_size), source.reshape(self.world_size, -1)
        self._exchange(dict(enumerate(parts)), dict.fromkeys(everybody, everybody), output)

    def _exchange(self, parts, sources, output):
        """Send each its part; take what comes from each of this rank's sources."""
        works = [self.send(part.copy(), rank) for rank, part in parts.items() if rank != self.rank]
        mine = sources.get(self.rank, ())
        for place, source in enumerate(mine):
            row = output.reshape(len(mine), -1)[place]
            if source == self.rank:
                row[...] = parts[source]
            else:
                self.recv(row, source).wait()
        for work in works:
            work.wait()


def test_of_rooted_calls_and_of_an_all_to_all():
    """As many bytes over all ranks as their messages, and the same elements arrive."""

    def calls(comm):
        rank, size = comm.rank, comm.world_size
        gathered = np.empty(3 * size) if rank == 1 else None
        comm.gather(gathered, np.arange(3.0) + rank, 1)
        part, turned = np.empty(2), np.empty(2 * size)
        comm.scatter(part, np.arange(2.0 * size) if rank == 1 else None, 1)
        comm.all_to_all(turned, np.arange(2.0 * size) + 100 * rank)
        return [None if each is None else each.tolist() for each in (gathered, part, turned)]

    class Waiting(Recording):
        def _work(self, *call):
            super()._work(*call).wait()

    def body(comm):
        whole, parts = Waiting(comm), Recording(comm)
        assert calls(whole) == calls(Apart(parts))
        return whole.wire_bytes, parts.wire_bytes

    for world_size in (2, 3):
        found = run(body, world_size, timeout_s=TIMEOUT_S)
        assert sum(whole for whole, _ in found) == sum(parts for _, parts in found) > 0


def test_a_ring_of_messages_moves_what_the_closed_form_says():
    """On real ranks: each message counts once, where it is sent."""

    def body(comm):
        whole, messages = Recording(comm), Recording(comm)
        whole.all_reduce(np.ones(12, np.float32)).wait()
        Scheduled(messages, ring).all_reduce(np.ones(12, np.float32), ReduceOp.SUM).wait()
        return whole.wire_bytes, messages.wire_bytes, messages.bytes_of("recv")

    assert run(body, 4, timeout_s=TIMEOUT_S) == [(72, 72, 72)] * 4


def test_a_schedule_that_sends_more_is_told_apart():
    """Else these tests would hold for any number."""
    assert max(tree(4).sent_elements(12)) > wire_bytes("all_reduce", 12, 4)


def test_every_kind_of_call_has_one():
    assert all(wire_bytes(kind, 8, 1) == (8 if kind == "send" else 0) for kind in KINDS)
    assert [kind for kind in KINDS if not wire_bytes(kind, 8, 2)] == ["barrier", "split", "recv"]
    assert wire_bytes("all_gather_object", 5, 3) == 10
    for args, words in (
        (("all_reduc", 8, 2), "wire_bytes: expected kind"),
        (("all_reduce", -1, 2), "wire_bytes: expected nbytes"),
        (("all_reduce", 8, 0), "wire_bytes: expected world_size"),
    ):
        with pytest.raises(ArgumentError, match=words):
            wire_bytes(*args)
