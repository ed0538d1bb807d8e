"""Ranks over NCCL that wait for nobody in a pass: what they send, and how they find out that they have parted."""

import copy
import threading
from collections import Counter, deque
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

import minigrad
from minigrad import Device, nn, optim
from minigrad.distributed import DDP
from minigrad.distributed.comm.failure import Failure
from minigrad.distributed.comm.nccl import control, star
from minigrad.distributed.comm.nccl.communicator import NcclCommunicator
from minigrad.distributed.comm.nccl.meetings import Meetings
from minigrad.distributed.comm.nccl.messages import Kind, unbundled, unpacked
from minigrad.distributed.comm.nccl.trail import Comparison, Trail
from minigrad.distributed.comm.nccl.launches import Launches
from minigrad.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DistributedError,
    RankFailedError,
    ReplicaMismatchError,
)
from tests.distributed.test_nccl import cut
from tests.distributed.worlds import run_nccl

SECOND = Device("cuda:1")
TIMEOUT_S = 8.0


class Rank:
    """What one rank trains with, on its GPU."""

    def __init__(self, comm, make=optim.Adam, **options):
        minigrad.manual_seed(3)
        self.comm, self.x = comm, minigrad.ones(2, 3, device=comm.device) * (comm.rank + 1.0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).to(comm.device)
        self.ddp = DDP(model, comm, **options)
        self.optimizer = make(self.ddp.parameters(), lr=0.25)

    def step(self):
        self.ddp(self.x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


# ------------------------------------------------------------------------------------- what a pass sends and waits for


class Counted:
    """Messages by kind, and waits of ranks for something that is not there yet; not those of the threads that talk."""

    def __init__(self, monkeypatch, cupy):
        self.sent, self.waits, self._cupy = Counter(), Counter(), cupy
        self.conditions = []  # of the ranks' controls; the stand-in for NCCL has others
        write, wait_for, complete = star.write, threading.Condition.wait_for, Launches.complete

        def counted_write(link, message):
            self.sent[next(unbundled(unpacked(message))).kind] += 1
            write(link, message)

        def counted_wait(condition, predicate, timeout=None):
            is_rank = threading.current_thread().name.startswith("rank")
            if is_rank and condition in self.conditions and not predicate():
                self.waits["rank"] += 1
            return wait_for(condition, predicate, timeout)

        def counted_complete(launches, entry, host):
            self.waits["device"] += host
            complete(launches, entry, host)

        monkeypatch.setattr(star, "write", counted_write)
        monkeypatch.setattr(threading.Condition, "wait_for", counted_wait)
        monkeypatch.setattr(Launches, "complete", counted_complete)

    def clear(self):
        self._cupy.syncs.count = 0
        self.sent.clear()
        self.waits.clear()

    def result(self):
        """Messages but for how far each rank is, which goes out in each tick; and waits."""
        messages = {kind.name: count for kind, count in self.sent.items() if kind is not Kind.STATE}
        waits = {name: count for name, count in self.waits.items() if count}
        if self._cupy.syncs.count:
            waits["reads"] = self._cupy.syncs.count
        return messages, waits


def counts_of(world_size, counted, work, prepare=Rank, around=nullcontext):
    """What all ranks send and wait for in a piece of work, which they have done twice before."""
    here = threading.Barrier(world_size)

    def body(comm):
        threading.current_thread().name = f"rank {comm.rank}"
        counted.conditions.append(comm.failure.changed)
        prepared = prepare(comm)
        with around(prepared):
            for _ in range(2):
                work(prepared)
            here.wait(TIMEOUT_S)
            if comm.rank == 0:
                counted.clear()
            here.wait(TIMEOUT_S)
            work(prepared)
            here.wait(TIMEOUT_S)
            result = counted.result()
            here.wait(TIMEOUT_S)
        return result

    [first, *others] = run_nccl(body, world_size, device=SECOND, timeout_s=TIMEOUT_S)
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_a_pass_waits_for_nobody_and_sends_nothing(strict_cupy, monkeypatch, world_size):
    assert counts_of(world_size, Counted(monkeypatch, strict_cupy), Rank.step) == ({}, {})


@pytest.mark.parametrize("joined, unused", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("world_size", [2, 4])
def test_who_has_to_know_the_counts_waits_for_them_and_for_nothing_else(
    strict_cupy, monkeypatch, world_size, joined, unused
):
    """They are read once, and the marks with them."""
    counted = Counted(monkeypatch, strict_cupy)
    around = (lambda rank: rank.ddp.join()) if joined else nullcontext
    found = counts_of(
        world_size, counted, Rank.step, lambda comm: Rank(comm, find_unused_parameters=unused), around
    )
    assert found == ({}, {"device": world_size, "reads": world_size})


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_a_gathering_goes_to_rank_0_and_back(strict_cupy, monkeypatch, world_size):
    def work(comm):
        comm.all_gather_object("x")
        comm.barrier()

    messages, _ = counts_of(world_size, Counted(monkeypatch, strict_cupy), work, prepare=lambda comm: comm)
    assert messages == {"ITEM": 2 * 2 * (world_size - 1)}


# ------------------------------------------------------------------------------- what is found, and when: without time


class Wires:
    """One rank's `Star` in a test: what is sent lies in a queue until the world delivers it."""

    has_left = is_cut = False

    def __init__(self, rank, world):
        self.rank, self.world_size, self._world = rank, world.size, world

    def start(self, tick_s, hear, lose, turn):
        self.hear, self.turn = hear, turn

    def post(self, message, to=None):
        everybody = [to] if to is not None else [r for r in range(self.world_size) if r] if self.rank == 0 else [0]
        self._world.posted.extend((self.rank, r, message) for r in everybody)

    def broadcast(self, message, source=None):
        self.post(message)

    def tell(self, message):
        self.post(message)
        return True

    def wake(self):
        pass


class World:
    """Ranks whose clock ticks when a test says so."""

    def __init__(self, size):
        self.size, self.posted = size, deque()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(control, "Star", lambda wires: wires)
            self.ranks = [
                control.Control(Wires(r, self), Failure(), deque(), 0.0, lambda: None) for r in range(size)
            ]
        for rank in self.ranks:
            rank.start(lambda: None)

    def tick(self):
        """Each rank tells where it is, and all is delivered."""
        for _ in range(50):
            for rank in self.ranks:
                rank.star.turn()
            if not self.posted:
                return
            while self.posted:
                source, to, message = self.posted.popleft()
                for each in unbundled(message):
                    self.ranks[to].star.hear(each, source)
        raise AssertionError("they talk for ever")

    @property
    def failures(self):
        return {str(rank.world.failure.error) for rank in self.ranks if rank.world.failure.error is not None}


@pytest.mark.parametrize("ahead", [[0, 0, 0], [5, 0, 9], [0, 7, 0], [0, 0, 40]])
@pytest.mark.parametrize("calls", [1, 33, 400])
def test_another_call_is_found_within_two_ticks_and_named(ahead, calls):
    """However far ranks are apart; the second tick is that of ranks that come after the first one."""
    world = World(3)
    for r, rank in enumerate(world.ranks):
        for n in range(calls + ahead[r]):
            rank.trail.add(f"call {n}: of rank 2" if r == 2 and n == calls - 1 else f"call {n}: of all")
    world.tick()
    for r, rank in enumerate(world.ranks):
        for n in range(calls + ahead[r], calls + 40):
            rank.trail.add(f"call {n}: of all")
    world.tick()
    n = calls - 1
    expected = f"expected all ranks to make one call, got call {n}: of all on rank 0 and call {n}: of rank 2 on rank 2"
    assert world.failures == {expected}


@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_do_the_same_are_never_told_apart(seed):
    draw, world, at = np.random.default_rng(seed), World(4), [0] * 4
    for _ in range(60):
        for r, rank in enumerate(world.ranks):
            for _ in range(int(draw.integers(0, 60))):
                rank.trail.add(f"call {at[r]}", mark=None if at[r] % 3 else float(at[r]))
                at[r] += 1
        world.tick()
    assert not world.failures and world.ranks[0]._partings._comparison.apart == -1


def test_a_rank_far_behind_is_compared_where_it_catches_up():
    """Longer than anything that is remembered."""
    world = World(2)
    for n in range(5000):
        world.ranks[0].trail.add(n)
    world.tick()
    for n in range(5000):
        world.ranks[1].trail.add(n if n != 10 else "else")
        if n % 100 == 0:
            world.tick()
    world.tick()
    [message] = world.failures
    assert "expected all ranks to make one call, got " in message and "on rank 1" in message


def test_marks_that_differ_let_all_ranks_meet_in_one_pass():
    """Wherever they are; a rank that is behind gets there, and one that is ahead has not passed it."""
    world, met = World(3), [[] for _ in range(3)]

    def end_pass(rank, number, mark=1.0):
        meets = world.ranks[rank].meetings.meets("wrapper", news=False)
        world.ranks[rank].trail.add("pass", mark, met=meets)
        met[rank] += [number] * meets

    for rank, passes in enumerate((4, 7, 2)):
        for number in range(passes):
            end_pass(rank, number, 2.0 if rank == 2 and number == 1 else 1.0)
    world.tick()
    for rank, passes in enumerate((4, 7, 2)):
        for number in range(passes, 12):
            end_pass(rank, number)
    world.tick()
    assert met == [[7]] * 3 and not world.failures


# ---------------------------------------------------------------------------------------------------- with everything


def swapped(comm):
    """Two all-reduces of one size, on rank 1 in another order: NCCL mixes them up in silence."""
    arrays = [minigrad.ones(4, device=comm.device).data for _ in range(2)]
    for i in (1, 0) if comm.rank == 1 else (0, 1):
        comm.all_reduce(arrays[i], layout=f"bucket {i}").wait()


def is_named(error):
    return all(f"all_reduce(SUM bucket {i}) of 4 float32 on rank {i}" in str(error) for i in (0, 1))


def test_another_order_is_raised_in_calls_that_wait_for_nobody(strict_cupy):
    def body(comm):
        comm.barrier()
        swapped(comm)
        array = minigrad.zeros(1, device=comm.device).data
        with pytest.raises(CollectiveMismatchError) as caught:
            while True:
                comm.all_reduce(array).wait()
        return is_named(caught.value) or str(caught.value)

    assert run_nccl(body, 3, device=SECOND, timeout_s=TIMEOUT_S) == [True] * 3


BEFORE = {
    "a barrier": lambda comm, ddp, path: comm.barrier(),
    "data of all": lambda comm, ddp, path: comm.all_gather_object(comm.rank),
    "another plan": lambda comm, ddp, path: DDP(nn.Linear(2, 1, device=comm.device), comm),
    "a checkpoint": lambda comm, ddp, path: nn.save_file(ddp.module.state_dict(), path / f"{comm.rank}.safetensors"),
    "the end": lambda comm, ddp, path: comm.close(),
}


@pytest.mark.parametrize("what", BEFORE)
def test_another_order_is_raised_before(strict_cupy, tmp_path, what):
    def body(comm):
        ddp = Rank(comm).ddp
        try:
            swapped(comm)
            BEFORE[what](comm, ddp, tmp_path)
        except CollectiveMismatchError as error:
            return is_named(error)
        finally:
            with suppress(CollectiveMismatchError):  # where it was not raised before, as it should have been
                comm.close()

    assert run_nccl(body, 2, device=SECOND, timeout_s=TIMEOUT_S) == [True, True]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("debug", [False, True])
def test_ranks_in_step_are_never_refused(strict_cupy, tmp_path, debug):
    def body(comm):
        rank = Rank(comm)
        for step in range(4):
            rank.step()
            if step == comm.rank:
                nn.save_file(rank.ddp.state_dict(), tmp_path / f"{comm.rank}")
        comm.barrier()
        comm.close()
        return rank.ddp.state_dict()["0.weight"].tolist()  # nobody is left to compare with

    results = run_nccl(body, 3, device=SECOND, timeout_s=TIMEOUT_S, debug=debug)
    assert results == [results[0]] * 3 and len(list(tmp_path.iterdir())) == 3


def test_one_rank_saves_while_the_others_go_on_and_is_refused_where_they_have_parted(strict_cupy, tmp_path):
    """Nobody else calls anything for it. Once the error was raised, what there is can be kept."""

    def body(comm):
        rank = Rank(comm)
        rank.step()
        if comm.rank == 1:
            nn.save_file(rank.ddp.state_dict(), tmp_path / "good")
        rank.step()
        with pytest.raises(CollectiveMismatchError):
            swapped(comm)
            if comm.rank == 1:
                nn.save_file(rank.ddp.state_dict(), tmp_path / "bad")
            comm.close()
        if comm.rank == 1:
            nn.save_file(rank.ddp.state_dict(), tmp_path / "what was left")

    run_nccl(body, 2, device=SECOND, timeout_s=TIMEOUT_S)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "what was left"]


def test_a_checkpoint_waits_for_ranks_that_are_behind_no_longer_than_a_call(strict_cupy):
    late = threading.Event()

    def body(comm):
        ddp = Rank(comm).ddp
        if comm.rank == 1:
            late.wait(TIMEOUT_S)
            return True
        comm._next(("all_reduce", ""))  # a call that rank 1 does not make
        with pytest.raises(CollectiveTimeoutError, match="state_dict: expected all 2 ranks within 1 s, got ranks"):
            ddp.state_dict()
        late.set()
        return True

    assert run_nccl(body, 2, device=SECOND, timeout_s=1.0) == [True, True]


def test_who_waits_hears_that_it_is_alone():
    """Rank 0 has left, and its process ends while rank 1 waits for what it says about rank 2."""
    heard = threading.Event()

    def body(comm):
        comm.barrier()
        if comm.rank == 0:
            comm.close()
            while not comm._progress.awaited:
                heard.wait(0.01)
            cut(comm)
        elif comm.rank == 1:
            comm._next(("all_reduce", ""))  # a call that nobody else makes
            comm.check_same("state_dict")
            heard.set()
        return comm.rank == 2 and heard.wait(TIMEOUT_S / 2) or comm.rank < 2

    assert run_nccl(body, 3, timeout_s=2 * TIMEOUT_S) == [True] * 3


@pytest.mark.parametrize("ends", [True, False])
def test_rank_0_answers_and_tells_who_died_when_it_has_left(ends):
    """It has not waited for rank 1, which comes, or dies, when rank 2 asks for it."""
    heard = threading.Event()

    def body(comm):
        comm.barrier()
        if comm.rank == 2:
            comm._next(("all_reduce", ""))
            comm._progress._tell_at_s = 0.0
            with pytest.raises(RankFailedError, match="rank 1 is gone") if ends else nullcontext():
                comm.check_same("state_dict")
            heard.set()
            return True
        if comm.rank == 0:
            comm._next(("all_reduce", ""))
            comm.close()
            return heard.wait(TIMEOUT_S)
        with comm.failure.changed:
            comm.failure.changed.wait_for(lambda: comm._world.peers[0].left_after is not None, TIMEOUT_S)
        cut(comm) if ends else comm._next(("all_reduce", ""))
        return heard.wait(TIMEOUT_S)

    assert run_nccl(body, 3, timeout_s=2 * TIMEOUT_S) == [True] * 3


def test_nobody_waits_for_a_meeting_when_all_others_have_left():
    def body(comm):
        comm.barrier()
        if comm.rank == 0:
            comm.close()
            return []
        with comm.failure.changed:
            comm.failure.changed.wait_for(lambda: comm._world.is_alone, TIMEOUT_S)
        return comm.end_pass("a wrapper", 1.0, news=True)

    assert run_nccl(body, 2, timeout_s=TIMEOUT_S) == [[], []]


def test_who_aborts_can_save_what_it_has(strict_cupy):
    def hook(state, bucket, comm):
        if comm.rank == 1:
            raise ValueError("no")
        return comm.all_reduce(bucket.buffer())

    def body(comm):
        rank = Rank(comm)
        rank.ddp.register_comm_hook(None, hook)
        with pytest.raises(ValueError if comm.rank == 1 else DistributedError, match="no"):
            rank.step()
        return len(rank.ddp.state_dict()) > 0

    assert run_nccl(body, 2, device=SECOND, timeout_s=TIMEOUT_S) == [True, True]


# ------------------------------------------------------------------------------------------- state beside the model


def change_rate(rank):
    rank.optimizer.param_groups[0]["lr"] = 0.125


def test_a_state_that_parts_is_named_in_a_pass_soon_and_in_no_checkpoint(strict_cupy, tmp_path):
    def body(comm):
        rank = Rank(comm)
        rank.step()
        if comm.rank == 1:
            change_rate(rank)
        with pytest.raises(ReplicaMismatchError, match="Adam: lr is 0.25 on rank 0 and 0.125 on rank 1"):
            rank.step()
            if comm.rank == 0:
                with pytest.raises(ReplicaMismatchError, match="state_dict: .* between ranks 0 and 1: the next pass"):
                    nn.save_file(rank.ddp.state_dict(), tmp_path / "bad")
                rank.ddp.state_dict()  # it was said
            while True:
                rank.step()
        if comm.rank == 1:
            rank.optimizer.param_groups[0]["lr"] = 0.25
        rank.optimizer.zero_grad()
        for _ in range(3):
            rank.step()  # nothing is broken by that
        return True

    assert run_nccl(body, 2, device=SECOND, timeout_s=TIMEOUT_S) == [True, True]
    assert not list(tmp_path.iterdir())


def test_what_is_made_or_set_is_compared_in_the_same_pass(strict_cupy):
    def body(comm):
        rank = Rank(comm, lambda params, lr: optim.Adam(params, lr=lr * (1 + comm.rank)))
        with pytest.raises(ReplicaMismatchError, match="Adam: lr is 0.25 on rank 0 and 0.5 on rank 1"):
            rank.step()
        return True

    assert run_nccl(body, 2, device=SECOND, timeout_s=TIMEOUT_S) == [True, True]


def test_a_state_that_is_alike_is_taken_however_it_came_about_over_nccl(strict_cupy):
    def body(comm):
        rank = Rank(comm)
        for step in range(100):
            rank.step()
            if comm.rank == 1 and step == 5:
                rank.optimizer.load_state_dict(copy.deepcopy(rank.optimizer.state_dict()))
        comm.barrier()
        rank.step()
        return rank.ddp.state_dict()["0.weight"].cpu().numpy().tolist()

    first, second = run_nccl(body, 2, device=SECOND, timeout_s=TIMEOUT_S)
    assert first == second


def test_two_wrappers_take_turns_and_the_one_that_parted_is_named(strict_cupy):
    def body(comm):
        pair = [Rank(comm), Rank(comm)]
        for rank in pair * 2:
            rank.step()
        if comm.rank == 1:
            change_rate(pair[1])
        with pytest.raises(ReplicaMismatchError, match="DDP 2 of Sequential: .*Adam: lr is 0.25 on rank 0 and 0.125"):
            while True:
                for rank in pair:
                    rank.step()
        return True

    assert run_nccl(body, 2, device=SECOND, timeout_s=TIMEOUT_S) == [True, True]


# ------------------------------------------------------------------------------------------------ what is taken out


def each_item_on_its_own(send):
    def broadcast(self, message, source=None):
        for each in unbundled(message):
            send(self, each, source)

    return broadcast


def given(test, *arguments):
    """A test that takes strict_cupy and this beside it."""
    return lambda cupy, monkeypatch, path: test(cupy, *(path if each is Path else each for each in arguments))


found_in_time = given(lambda cupy: test_another_call_is_found_within_two_ticks_and_named([5, 0, 9], 33))
meet = given(lambda cupy: test_marks_that_differ_let_all_ranks_meet_in_one_pass())
TAKEN_OUT = {
    "that a pass waits for nobody": (
        Meetings,
        "meets",
        lambda meets: lambda self, who, news: meets(self, who, news) or True,
        lambda cupy, monkeypatch, path: test_a_pass_waits_for_nobody_and_sends_nothing(cupy, monkeypatch, 2),
    ),
    "that the counts tell the marks": (
        NcclCommunicator,
        "end_pass",
        lambda end_pass: lambda self, layout, mark, news: end_pass(self, layout, mark or 1.0, True),
        lambda cupy, monkeypatch, path: test_who_has_to_know_the_counts_waits_for_them_and_for_nothing_else(
            cupy, monkeypatch, 2, True, False
        ),
    ),
    "the one reply": (
        star.Star,
        "broadcast",
        each_item_on_its_own,
        lambda cupy, monkeypatch, path: test_a_gathering_goes_to_rank_0_and_back(cupy, monkeypatch, 4),
    ),
    "the comparison": (Comparison, "look", lambda look: lambda self: None, found_in_time),
    "what is told": (Comparison, "hear", lambda hear: lambda self, rank, point: None, found_in_time),
    "marks": (Trail, "add", lambda add: lambda self, what, mark=None, met=False: add(self, what, None, met), meet),
    "where all meet": (Meetings, "_settle", lambda settle: lambda self, number: settle(self, 4), meet),
    "the comparison before a checkpoint": (
        NcclCommunicator,
        "check_same",
        lambda check: lambda self, who: None,
        given(test_another_order_is_raised_before, Path, "a checkpoint"),
    ),
    "the comparison before the end": (
        control.Control,
        "check_same",
        lambda check: lambda self, who, limit_s: None,
        given(test_another_order_is_raised_before, Path, "the end"),
    ),
    "the comparison in a barrier": (
        control.Control,
        "agree",
        lambda agree: lambda self, text, data=b"": [part for _, part in self.gather("", data)],
        given(test_another_order_is_raised_before, Path, "a barrier"),
    ),
}


@pytest.mark.parametrize("what", TAKEN_OUT)
def test_it_is_noticed_where_it_is_taken_out(strict_cupy, monkeypatch, tmp_path, what):
    monkeypatch.setattr(control, "_TICK_S", TIMEOUT_S)  # else the tick may be what finds it
    monkeypatch.setattr(control, "_LOOKS", 1)
    owner, name, broken, notices = TAKEN_OUT[what]
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    with pytest.raises((AssertionError, DistributedError, pytest.fail.Exception)):
        notices(strict_cupy, monkeypatch, tmp_path)
