"""A run that is killed in mid-epoch and resumed ends in the bits of one that nobody has stopped."""

import os
import subprocess
import sys

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.backend.ranks import set_ranks_here
from minigrad.distributed import DDP, run
from minigrad.errors import (
    ArgumentError, AutogradError, CollectiveMismatchError, RankFailedError, ReplicaMismatchError, StateDictError
)
from tests.distributed import resumed
from tests.distributed.resumed import exact

TIMEOUT_S = 10.0


def stop(rank):
    raise resumed.Killed


@pytest.fixture(scope="module", params=[1, 2])
def unstopped(request, tmp_path_factory):
    """The number of ranks, and what is left of a run of so many."""
    path = tmp_path_factory.mktemp("unstopped") / "run"
    return request.param, run(resumed.train, request.param, path, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("when", ["after one batch", "at the end of an epoch", "in the second epoch"])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(tmp_path, unstopped, when):
    world_size, expected = unstopped
    batches = 7 if world_size == 1 else 4  # of an epoch
    killed_at = {"after one batch": 1, "at the end of an epoch": batches, "in the second epoch": batches + 2}[when]
    with pytest.raises(resumed.Killed):
        run(resumed.train, world_size, tmp_path / "run", killed_at, stop, timeout_s=TIMEOUT_S)
    minigrad.manual_seed(99)
    found = run(resumed.train, world_size, tmp_path / "run", None, None, True, timeout_s=TIMEOUT_S)
    for mine, whole in zip(found, expected):
        assert mine[0] == whole[0] == 2 * batches and len(mine[1]) == 2 * batches - killed_at
        assert mine[1] == whole[1][killed_at:] and mine[2:] == whole[2:]


def launched(*arguments):
    """A script on two processes: what it printed, and its errors."""
    command = [sys.executable, "-m", "minigrad.distributed.launch", "-n", "2", "-m", "tests.distributed.resumed"]
    environment = {**os.environ, "MINIGRAD_TIMEOUT_S": "20"}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=50, env=environment)


def test_so_has_one_whose_process_was_killed(tmp_path):
    """On shared memory, which adds up as threads do."""
    expected = run(resumed.train, 2, tmp_path / "threads", timeout_s=TIMEOUT_S)
    killed = launched(tmp_path / "run", "killed")
    assert "rank 1 failed first: it was ended by SIGKILL" in killed.stderr and "ended" not in killed.stdout
    whole = launched(tmp_path / "run", "resumed")
    assert sorted(whole.stdout.split("\n")[:2]) == [f"[{r}] ended {resumed.number_of(*expected[r])}" for r in (0, 1)]


# ------------------------------------------------------------------------------------------------- what ranks differ in


class Remembered:
    """What differs by rank, in size too."""

    def __init__(self, rank):
        self.held = {"rank": rank, "rows": [minigrad.full((n,), float(rank)) for n in range(2 * rank + 1)]}

    def state_dict(self):
        return self.held

    def load_state_dict(self, state):
        self.held = state


def test_what_differs_by_rank_is_kept_for_each(tmp_path):
    """Running statistics that nobody synchronises, a loader's noise, an object's state, plain values; the rest once."""

    def body(comm):
        def made(rank):
            model = nn.Sequential(nn.Linear(3, 64), nn.BatchNorm1d(64))
            return {"model": DDP(model, comm, broadcast_buffers="none"), "own": Remembered(rank)}

        mine, fresh = made(comm.rank), made(7)
        mine["model"](minigrad.randn(5, 3)).sum().backward()
        minigrad.save({**mine, "best": comm.rank}, tmp_path / "run")
        expected, streams = resumed.exact(mine["model"].state_dict()), minigrad.get_rng_state()
        minigrad.randn(5)
        rest = minigrad.load(tmp_path / "run", into=fresh)
        assert rest["best"] == comm.rank and minigrad.get_rng_state() == streams
        assert resumed.exact(fresh["model"].state_dict()) == expected
        assert repr(fresh["own"].held) == repr(Remembered(comm.rank).held)
        return expected

    first, *_, last = run(body, 3, timeout_s=TIMEOUT_S)
    assert first["1.running_mean"] != last["1.running_mean"]
    names = set(nn.load_file(tmp_path / "run"))
    assert "rank 2: model.1.running_mean" in names and "rank 1: own.rows.2" in names
    assert not any(name.startswith("rank") and "weight" in name for name in names)
    assert minigrad.load(tmp_path / "run")["best"] == 0  # without ranks, that of rank 0
    saved = minigrad.load(tmp_path / "run", every_rank=True)
    assert [each["best"] for each in saved] == [0, 1, 2] and exact(saved[2]["model"]) == last
    with pytest.raises(ArgumentError, match="load: expected into, or every_rank=True, got both"):
        minigrad.load(tmp_path / "run", into={"own": Remembered(0)}, every_rank=True)


def test_ranks_need_not_save_the_same_objects(tmp_path):
    def body(comm):
        mine = {"model": wrapped(comm)[0], **({"log": Remembered(5)} if comm.rank else {})}
        minigrad.save(mine, tmp_path / "run")
        assert minigrad.load(tmp_path / "run", into=mine).keys() == mine.keys()

    run(body, 2, timeout_s=TIMEOUT_S)


def test_half_precision_and_empty_tensors_travel(tmp_path):
    def body(comm):
        values = [minigrad.full((2, 2), comm.rank, dtype=d) for d in ("bfloat16", "float16", "int64", "bool")]
        values += [minigrad.zeros(2 + comm.rank, 3 - comm.rank), minigrad.zeros(3 - comm.rank, 2 + comm.rank).T]
        values += [minigrad.zeros(1, dtype="int32" if comm.rank else "float32")]  # of the same bytes
        own = Remembered(0)
        own.held = {"values": [*values, minigrad.zeros(comm.rank, 0), minigrad.tensor(float(comm.rank))]}
        before = repr(own.held)
        minigrad.save({"own": own}, tmp_path / "run")
        own.held = {}
        minigrad.load(tmp_path / "run", into={"own": own})
        assert repr(own.held) == before

    run(body, 2, timeout_s=TIMEOUT_S)


# ------------------------------------------------------------------------------------------------------ what is refused


def wrapped(comm):
    model = nn.Linear(3, 1)
    return DDP(model, comm), optim.SGD(model.parameters(), lr=0.1)


def backward(ddp):
    ddp(minigrad.randn(4, 3)).sum().backward()


def rank_0_alone(comm, path):
    ddp, _ = wrapped(comm)
    if comm.rank == 0:
        minigrad.save({"model": ddp}, path)
    backward(ddp)


def rank_0_and_nothing_else(comm, path):
    ddp, _ = wrapped(comm)
    if comm.rank == 0:
        minigrad.save({"model": ddp}, path)


def not_combined(comm, path):
    ddp, _ = wrapped(comm)
    with ddp.no_sync():
        backward(ddp)
    minigrad.save({"model": ddp}, path)


def joined(comm, path):
    ddp, _ = wrapped(comm)
    with ddp.join():
        for _ in range(1 + comm.rank):
            backward(ddp)
            minigrad.save({"model": ddp}, path)


def unlike_objects(comm, path):
    ddp, optimizer = wrapped(comm)
    minigrad.save({"model": ddp, "more": optimizer if comm.rank else object()}, path)


def path_of_each(comm, path):
    minigrad.save({"model": wrapped(comm)[0]}, f"{path}-{comm.rank}")


def no_folder(comm, path):
    minigrad.save({"model": wrapped(comm)[0]}, path / "none" / "run")


EVERY = "minigrad.save of a training state, which every rank calls"
REFUSED = [
    (rank_0_alone, CollectiveMismatchError, f"{EVERY}[^:]* on rank 0"),
    (rank_0_and_nothing_else, RankFailedError, f"{EVERY}.*: expected all 2 ranks, got ranks .0.: rank 1 has returned"),
    (not_combined, AutogradError, "got one of module.weight that waits for the other ranks, as under no_sync"),
    (joined, CollectiveMismatchError, f"{EVERY}[^:]* on rank 1"),
    (unlike_objects, Exception, "got object in obj..more..|rank 0, got DtypeError"),
    (path_of_each, ReplicaMismatchError, "one path on all ranks, got .*run-0 on rank 0 and .*run-1 on rank 1"),
    (no_folder, FileNotFoundError, "none"),
]


@pytest.mark.parametrize("body, kind, words", REFUSED, ids=[row[0].__name__ for row in REFUSED])
def test_what_can_not_be_saved_is_refused_on_all_ranks(tmp_path, body, kind, words):
    with pytest.raises(kind, match=words):
        run(body, 2, tmp_path / "run", timeout_s=TIMEOUT_S)


def test_training_goes_on_after_a_file_that_could_not_be_written(tmp_path):
    def body(comm):
        ddp, optimizer = wrapped(comm)
        with pytest.raises(FileNotFoundError if comm.rank == 0 else RankFailedError, match="none"):
            minigrad.save({"model": ddp}, tmp_path / "none" / "run")
        backward(ddp)
        minigrad.save({"model": ddp}, tmp_path / "run")

    run(body, 2, timeout_s=TIMEOUT_S)


def test_gradients_that_were_used_or_dropped_are_no_hindrance(tmp_path):
    def body(comm):
        ddp, optimizer = wrapped(comm)
        with ddp.no_sync():
            backward(ddp)
        backward(ddp)
        optimizer.step()
        minigrad.save({"model": ddp}, tmp_path / "run")
        with ddp.no_sync():
            backward(ddp)
        optimizer.zero_grad()
        minigrad.save({"model": ddp}, tmp_path / "run")

    run(body, 2, timeout_s=TIMEOUT_S)


def test_another_number_of_ranks_is_an_error_that_says_so(tmp_path):
    def save(comm):
        minigrad.save({"model": wrapped(comm)[0]}, tmp_path / "run")

    def load(comm):
        minigrad.load(tmp_path / "run", into={"model": wrapped(comm)[0]})

    run(save, 2, timeout_s=TIMEOUT_S)
    with pytest.raises(StateDictError, match=r"of 3 rank\(s\), got .*, which 2 rank\(s\) have saved: start as many"):
        run(load, 3, timeout_s=TIMEOUT_S)
    model = nn.Linear(3, 1)
    model.load_state_dict(minigrad.load(tmp_path / "run")["model"])  # what the message says to do


@pytest.mark.parametrize("how", ["absent", "another", "unfit"])
def test_where_one_rank_can_not_load_nobody_has_changed_anything(tmp_path, how):
    def body(comm):
        ddp, optimizer = wrapped(comm)
        run_ = {"model": ddp, "optimizer": optimizer}
        for name in ("one", "two"):
            minigrad.save(run_, tmp_path / name)
        path = tmp_path / ("one" if comm.rank == 0 else "two" if how == "another" else "none")
        if how == "unfit":
            path = tmp_path / "one"
            run_["model"] = nn.Linear(4, 1) if comm.rank else ddp
        with minigrad.no_grad():
            ddp.module.weight += 1
        before = repr(ddp.state_dict()), minigrad.get_rng_state()
        kinds = {"absent": FileNotFoundError, "another": ReplicaMismatchError, "unfit": StateDictError}
        with pytest.raises((kinds[how], RankFailedError), match="another one on rank 1" if how == "another" else "."):
            minigrad.load(path, into=run_)
        assert (repr(ddp.state_dict()), minigrad.get_rng_state()) == before
        backward(ddp)  # the ranks are still together

    run(body, 2, timeout_s=TIMEOUT_S)


def test_a_wrapper_inside_a_module_goes_on_at_its_pass(tmp_path):
    """Where buffers are agreed upon in every third pass, as in a GAN whose two wrappers are one object."""

    def body(comm, resumed):
        set_ranks_here(None)
        minigrad.manual_seed(0)
        nets = nn.ModuleDict({"norm": DDP(nn.BatchNorm1d(3), comm, buffer_cadence=3)})
        if resumed:
            minigrad.load(tmp_path / "run", into={"nets": nets})
        for step in range(2 if resumed else 0, 4):
            x = minigrad.tensor(np.random.default_rng([step, comm.rank]).standard_normal((4, 3)))
            nets["norm"](x.float()).sum().backward()
            if step == 1:
                minigrad.save({"nets": nets}, tmp_path / "run")
        return exact(nets.state_dict())

    assert run(body, 2, False, timeout_s=TIMEOUT_S) == run(body, 2, True, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("wraps", [(True, False), (False, True)])
def test_modes_are_those_of_what_is_wrapped(tmp_path, wraps):
    def body(comm, wraps, loads):
        model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        if not loads:
            model.eval()[0].bias.requires_grad = False
        whole = DDP(model, comm) if wraps else model
        run_ = {"model": whole}
        minigrad.load(tmp_path / "run", into=run_) if loads else minigrad.save(run_, tmp_path / "run")
        assert loads is False or not any(module.training for module in whole.modules())
        assert [name for name, x in model.named_parameters() if not x.requires_grad] == ["0.bias"]

    for wrap, loads in zip(wraps, (False, True)):
        run(body, 1, wrap, loads, timeout_s=TIMEOUT_S)


def test_a_communicator_made_by_hand_is_that_of_what_it_trains(tmp_path):
    """Where no init() and no run() has told the context of its ranks."""
    def body(comm):
        set_ranks_here(None)
        minigrad.save({"model": wrapped(comm)[0]}, tmp_path / "run")

    run(body, 2, timeout_s=TIMEOUT_S)
    with pytest.raises(StateDictError, match=r"which 2 rank\(s\)"):
        minigrad.load(tmp_path / "run", into={"model": nn.Linear(3, 1)})
