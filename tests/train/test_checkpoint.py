"""Checkpoints in a folder: which are there, what is loaded, and that no end of a writer takes the last one away."""

import gc
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, run
from minigrad.errors import (
    ArgumentError, CollectiveMismatchError, RankFailedError, ReplicaMismatchError, StateDictError
)
from minigrad.nn.bundle import KEY
from minigrad.train import Checkpoint
from minigrad.train.keeping import name_of
from tests.disk import Disk, Killed
from tests.distributed.resumed import exact
from tests.distributed.worlds import run_ranks
from tests.train import checkpointed

TIMEOUT_S = 10.0


class Counter:
    """An object with a state."""

    def __init__(self, count=0):
        self.count = count

    def state_dict(self):
        return {"count": self.count, "rows": minigrad.full((3,), float(self.count))}

    def load_state_dict(self, state):
        assert state["rows"].tolist() == [state["count"]] * 3
        self.count = state["count"]


def saved(folder, *numbers, **options):
    """A checkpoint object that has written these."""
    checkpoint = Checkpoint(folder, **options)
    for number in numbers:
        checkpoint.save({"counter": Counter(number)}, number)
    return checkpoint


def loaded(folder, **options):
    """The number that is the last, and what is loaded; None where nothing is."""
    fresh, checkpoint = Counter(), Checkpoint(folder, **options)
    found = checkpoint.load_latest({"counter": fresh})
    assert (found is None) == (checkpoint.number is None) and fresh.count == (checkpoint.number or 0)
    return checkpoint.number


def there(folder, unit="epoch"):
    """What is in a folder: the numbers of checkpoints, and the names of all else."""
    names = sorted(os.listdir(folder))
    numbers = [number for number in range(200) if name_of(unit, number) in names]
    return numbers, [name for name in names if name not in {name_of(unit, number) for number in numbers}]


def cut(folder, number, length=100):
    path = folder / name_of("epoch", number)
    path.write_bytes(path.read_bytes()[:length])


# ------------------------------------------------------------------------------------------------- which are there


def test_the_last_few_are_kept_and_each_is_a_file_of_save(tmp_path):
    folder = tmp_path / "a" / "run"
    with Checkpoint(folder, every=5, keep=2) as checkpoint:
        assert checkpoint.latest() is None and checkpoint.load_latest() is None and not folder.exists()
        for number in range(1, 23):
            path = checkpoint.save_if_due({"counter": Counter(number), "best": 0.5}, number)
            assert (path is not None) == checkpoint.is_due(number) is False or number % 5 == 0
    assert there(folder) == ([15, 20], [])
    assert checkpoint.latest() == folder / name_of("epoch", 20) and checkpoint.number == 20
    found = minigrad.load(checkpoint.latest())
    assert found["counter"]["count"] == 20 and found["best"] == 0.5
    assert loaded(folder) == 20
    fresh = Checkpoint(folder)
    assert fresh.load_latest()["counter"]["count"] == 20 and fresh.number == 20  # without objects, their states


def test_all_are_kept_where_none_is_to_go_and_none_is_due_without_every(tmp_path):
    checkpoint = saved(tmp_path, *range(1, 6), every=None, keep=None, on="step")
    assert there(tmp_path, "step") == ([1, 2, 3, 4, 5], []) and not checkpoint.is_due(10**9)
    assert saved(tmp_path / "zero", 0, 7, every=5).is_due(10)


def test_a_run_goes_on_in_its_folder(tmp_path):
    saved(tmp_path, 2, 4, 6)
    (tmp_path / "notes.txt").touch()
    checkpoint = Checkpoint(tmp_path)
    checkpoint.load_latest({"counter": Counter()})
    checkpoint.save({"counter": Counter(7)}, 7)
    assert there(tmp_path) == ([6, 7], ["notes.txt"]) and loaded(tmp_path) == 7


def test_a_run_can_go_back_to_its_own_last_one(tmp_path):
    checkpoint, counter = saved(tmp_path, 2, 4, background=True), Counter(9)
    assert checkpoint.load_latest({"counter": counter})["counter"] is counter and counter.count == 4
    checkpoint.save({"counter": Counter(5)}, 5)
    checkpoint.close()
    checkpoint.close()
    assert there(tmp_path) == ([4, 5], [])
    with pytest.raises(ArgumentError, match="Checkpoint.save: expected to be called before close"):
        checkpoint.save({"counter": Counter(6)}, 6)


# ---------------------------------------------------------------------------------------------- what is not whole


def test_one_that_was_cut_is_passed_over_by_name_and_goes_when_a_new_one_is_there(tmp_path):
    saved(tmp_path, 2, 4, 6, keep=3)
    cut(tmp_path, 4)
    cut(tmp_path, 6, 0)
    fresh, checkpoint = Counter(), Checkpoint(tmp_path, keep=3)
    with pytest.warns(UserWarning, match="passed over .*epoch-000000000[46]") as told:
        checkpoint.load_latest({"counter": fresh})
    assert len(told) == 2 and fresh.count == checkpoint.number == 2
    assert there(tmp_path) == ([2, 4, 6], [])
    checkpoint.save({"counter": Counter(3)}, 3)
    assert there(tmp_path) == ([2, 3], [])


@pytest.mark.parametrize("length", range(0, 900, 64))
def test_wherever_the_newest_was_cut_the_one_before_is_loaded(tmp_path, length):
    saved(tmp_path, 1, 2)
    size = (tmp_path / name_of("epoch", 2)).stat().st_size
    cut(tmp_path, 2, min(length, size - 1))
    with pytest.warns(UserWarning, match="passed over"):
        assert loaded(tmp_path) == 1


def test_where_none_is_whole_it_is_an_error_that_names_them(tmp_path):
    saved(tmp_path, 1, 2)
    cut(tmp_path, 1)
    cut(tmp_path, 2)
    for call in (lambda: loaded(tmp_path), Checkpoint(tmp_path).latest):
        with pytest.raises(StateDictError, match="that is whole, got .*epoch-0000000002.*epoch-0000000001"):
            call()


def rewritten(path, **facts):
    """The file with other facts in it."""
    said = json.loads(nn.load_metadata(path)[KEY])
    nn.save_file(nn.load_file(path), path, {KEY: json.dumps({**said, **facts})})


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_two_runs_that_write_the_same_numbers_at_a_time_are_not_silent(tmp_path, goes_on, background):
    """Both have looked before either has written; the first one finds the file of the second in its place."""
    saved(tmp_path, *[1] * goes_on)
    first, second = Checkpoint(tmp_path, background=background), Checkpoint(tmp_path)
    for each in (first, second):
        each.load_latest({"counter": Counter()})
    first.save({"counter": Counter(2)}, 2)
    first._writer.wait()
    os.unlink(first._folder.path(2))
    second.save({"counter": Counter(2)}, 2)
    with pytest.raises(ArgumentError, match="0002.safetensors as it was written here, got that of another run"):
        first.save({"counter": Counter(3)}, 3) if goes_on else first.close()
    second.close()


def test_another_run_another_unit_and_a_newer_version_are_refused(tmp_path):
    first, second = saved(tmp_path / "a", 3), saved(tmp_path / "b", 5)
    with pytest.raises(ArgumentError, match=r"a folder without checkpoints, got .*0003.safetensors: call load_latest"):
        saved(tmp_path / "a", 4)
    shutil.copy(second.latest(), tmp_path / "a")
    with pytest.raises(ArgumentError, match=r"0003.safetensors to be the last, got epoch-0000000005.*another run"):
        first.save({"counter": Counter(6)}, 6)
    with pytest.raises(ArgumentError, match=r"expected checkpoints of run \w{16}, got .*5.safetensors of run \w{16}"):
        first.load_latest()
    with pytest.raises(ArgumentError, match="expected checkpoints on='step' in .*, got epoch-0000000005.safetensors"):
        Checkpoint(tmp_path / "a", on="step").load_latest()
    minigrad.save({"counter": Counter(7)}, tmp_path / "a" / name_of("epoch", 7))
    with pytest.raises(ArgumentError, match="epoch 7 as a Checkpoint has written it, got .*minigrad.save wrote by its"):
        loaded(tmp_path / "a")
    rewritten(second.latest(), version=2)
    for call in (lambda: loaded(tmp_path / "b"), second.latest):
        with pytest.raises(StateDictError, match="expected a file of version 1 or older, got .* of version 2"):
            call()
    os.rename(tmp_path / "b" / name_of("epoch", 5), tmp_path / "b" / name_of("epoch", 6))
    rewritten(tmp_path / "b" / name_of("epoch", 6), version=1)
    with pytest.raises(ArgumentError, match="expected epoch 6 as a Checkpoint has written it, got .*'epoch': 5"):
        loaded(tmp_path / "b")


def test_what_does_not_fit_is_no_checkpoint_to_pass_over(tmp_path):
    saved(tmp_path, 1, 2)
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(StateDictError, match="got Module at .*, where .*0002.safetensors has Counter"):
        checkpoint.load_latest({"counter": nn.Linear(1, 1)})
    assert checkpoint.number is None


# ---------------------------------------------------------------------------------------------------- cut anywhere


def writes(folder, disk, background):
    """Go on from what is there with two checkpoints; who did, the last number that was said to be written, an error."""
    done, checkpoint = 2 if folder.exists() else 0, Checkpoint(folder, background=background)
    with disk.watching():
        try:
            checkpoint.load_latest({"counter": Counter()})
            for number in (3, 4):
                checkpoint.save({"counter": Counter(number)}, number)
                checkpoint.join()
                done = number
        except (OSError, Killed) as error:
            return checkpoint, done, error
    return checkpoint, done, None


@pytest.fixture(params=["new", "old"])
def folder(request, tmp_path):
    """One that is to be made, and one with two checkpoints and what a killed writer has left."""
    if request.param == "old":
        saved(tmp_path / "run", 1, 2)
        (tmp_path / "run" / f".{name_of('epoch', 2)}.{'0' * 16}").write_bytes(b"half of")
    return tmp_path / "run"


# of a head and two tensors: who else writes here; leftovers; the file; its name; which are there; the one too many
ONE = ["listdir", "listdir", "open", "flock", *["write"] * 3, "fsync", "replace", "open", "fsync", "listdir", "unlink"]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("how", ["kill_at", "fail_at"])
def test_cut_at_any_operation_the_newest_whole_one_loads(tmp_path, folder, how, background):
    whole, copy = Disk(), tmp_path / "copy"
    for place in [None, *range(99)]:
        if place is not None and place >= len(whole.calls):
            break
        shutil.rmtree(copy, ignore_errors=True)
        if folder.exists():
            shutil.copytree(folder, copy)
        disk = whole if place is None else Disk(**{how: place})
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            checkpoint, done, error = writes(copy, disk, background)
        if place is None:
            assert (done, error, told) == (4, None, []) and len(whole.calls) > 20
        elif how == "kill_at":
            assert isinstance(error, Killed) and not told
            checkpoint = Checkpoint(copy)
        elif error is None:  # nothing that matters: a leftover that stays, one that is too many for a while
            assert done == 4 and whole.calls[place] in ("unlink", "flock", "open")
            assert all("expected to remove an old one" in str(each.message) for each in told)
        else:
            assert isinstance(error, OSError)
        if checkpoint.number is None:
            checkpoint.load_latest({"counter": Counter()})
        assert (loaded(copy) or 0) in (done, max(done, 2) + 1)
        checkpoint.save({"counter": Counter(5)}, 5)  # who has heard of an error goes on, and so does a new process
        checkpoint.close()
        assert loaded(copy) == 5 and len(there(copy)[0]) <= 2 and there(copy)[1] == []


def test_killed_for_good_and_no_operation_that_the_tests_do_not_know(tmp_path):
    """By SIGKILL at five moments; what the interpreter tells of files is what is counted here."""
    script = [sys.executable, "-m", "tests.train.killed_writers", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    calls, told, moments = json.loads(done.stdout)
    assert calls == ONE
    assert told == [call for call in calls if call not in ("write", "fsync")]
    for moment, (number, weight, files, after) in moments.items():
        is_there = moment in ("the name not on the disk", "one too many")
        assert number == weight == (3 if is_there else 2), moment
        assert files == 3 and after == [name_of("epoch", number), name_of("epoch", number + 1)]


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_is_told_of_and_the_old_one_stays(tmp_path, background):
    checkpoint = saved(tmp_path, 1, background=background)
    checkpoint.join()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(OSError, match="expected to write .*0002.safetensors, got File too large"):
            checkpoint.save({"counter": Counter(2), "x": minigrad.ones(1000)}, 2)
            checkpoint.save({"counter": Counter(3), "x": minigrad.ones(1000)}, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert there(tmp_path) == ([1], []) and loaded(tmp_path) == 1
    checkpoint.save({"counter": Counter(3)}, 3)
    checkpoint.close()
    assert there(tmp_path) == ([1, 3], [])


# -------------------------------------------------------------------------------------------------- in the background


class Held:
    """Holds writers up until they may go on."""

    def __init__(self, patch, error=None):
        self.may, write = threading.Event(), os.write

        def held(descriptor, part):
            assert self.may.wait(TIMEOUT_S)
            if error is not None:
                raise error
            return write(descriptor, part)

        patch.setattr(os, "write", held)


def test_what_is_written_beside_training_has_the_bits_of_the_call(tmp_path, monkeypatch):
    """Of parameters, one of which two layers share, optimizer, statistics, random streams and plain values."""
    minigrad.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    everything = {"model": model, "optimizer": optimizer, "seen": [1]}

    def step():
        optimizer.zero_grad()
        model(minigrad.randn(8, 4)).square().mean().backward()
        optimizer.step()
        everything["seen"].append(len(everything["seen"]))

    step()
    minigrad.save(everything, tmp_path / "plain")
    expected, streams = exact({n: everything[n].state_dict() for n in ("model", "optimizer")}), minigrad.get_rng_state()
    held = Held(monkeypatch)
    with Checkpoint(tmp_path / "run", background=True) as checkpoint:
        path = checkpoint.save(everything, 1)
        for _ in range(3):
            step()
        assert there(tmp_path / "run")[0] == [] and checkpoint.number == 1
        held.may.set()
        checkpoint.join()
        assert path.exists() and exact(model.state_dict()) != expected["model"]
    found, plain = nn.load_file(path), nn.load_file(tmp_path / "plain")
    assert exact(found) == exact(plain) and found.keys() == plain.keys()
    said, facts = (json.loads(nn.load_metadata(each)[KEY]) for each in (path, tmp_path / "plain"))
    assert said["trees"] == facts["trees"] and path.stat().st_size < (tmp_path / "plain").stat().st_size + 110
    rest = Checkpoint(tmp_path / "run").load_latest({"model": model, "optimizer": optimizer})
    assert exact({"model": model.state_dict(), "optimizer": optimizer.state_dict()}) == expected
    assert minigrad.get_rng_state() == streams and rest["seen"] == [1, 1]


def test_on_a_device_too(tmp_path, monkeypatch, cuda):
    model = nn.Linear(3, 2).to(cuda)
    expected, held = exact(model.state_dict()), Held(monkeypatch)
    with Checkpoint(tmp_path, background=True) as checkpoint:
        checkpoint.save({"model": model}, 1)
        with minigrad.no_grad():
            model.weight += 1
        held.may.set()
    fresh = nn.Linear(3, 2).to(cuda)
    Checkpoint(tmp_path).load_latest({"model": fresh})
    assert exact(fresh.state_dict()) == expected


@pytest.mark.parametrize("call", ["save", "join", "close", "load_latest"])
def test_an_error_beside_training_is_raised_by_the_next_call_once(tmp_path, monkeypatch, call):
    checkpoint = saved(tmp_path, 1, background=True)
    checkpoint.join()
    with monkeypatch.context() as patch:
        Held(patch, OSError(5, "out of order")).may.set()
        checkpoint.save({"counter": Counter(2)}, 2)
        calls = {"save": lambda: checkpoint.save({"counter": Counter(3)}, 3)}
        with pytest.raises(OSError, match="0002.safetensors, got out of order"):
            calls.get(call, getattr(checkpoint, call))()
    checkpoint.join()
    assert loaded(tmp_path) == 1


def test_an_error_that_nobody_asks_for_is_warned_of(tmp_path, monkeypatch):
    Held(monkeypatch, OSError(5, "out of order")).may.set()
    with pytest.warns(RuntimeWarning, match="expected the last one to be written, got OSError.*out of order"):
        with pytest.raises(ZeroDivisionError), Checkpoint(tmp_path, background=True) as checkpoint:
            checkpoint.save({"counter": Counter(1)}, 1)
            1 / 0
    checkpoint = saved(tmp_path, 1, background=True)
    with pytest.warns(RuntimeWarning, match="out of order"):
        checkpoint._writer.wait()
        del checkpoint
        gc.collect()


def test_a_writer_may_be_the_last_who_knows_of_its_checkpoint(tmp_path, monkeypatch):
    held, names = Held(monkeypatch), lambda: {thread.name for thread in threading.enumerate()}
    Checkpoint(tmp_path, background=True).save({"counter": Counter(1)}, 1)
    [writer] = [thread for thread in threading.enumerate() if thread.name == "checkpoint-1"]
    held.may.set()
    writer.join(TIMEOUT_S)
    assert "checkpoint-1" not in names() and loaded(tmp_path) == 1


def test_a_process_that_ends_waits_for_the_writer(tmp_path):
    script = f"""
import os, time
from minigrad import nn
from minigrad.train import Checkpoint
write = os.write
os.write = lambda *args: (time.sleep(0.2), write(*args))[1]
Checkpoint({str(tmp_path)!r}, background=True).save({{"net": nn.Linear(1, 1)}}, 1)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "") and there(tmp_path) == ([1], [])


# ----------------------------------------------------------------------------------------------------- several ranks


def stop(rank):
    raise Killed


@pytest.fixture(scope="module", params=[1, 2])
def unstopped(request, tmp_path_factory):
    """The number of ranks, and what is left of a run of so many, which writes nothing beside training."""
    path = tmp_path_factory.mktemp("unstopped") / "run"
    body = checkpointed.train
    return request.param, run(body, request.param, path, None, None, False, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("killed_at", [1, 5, 7])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path, unstopped, killed_at):
    world_size, expected = unstopped
    with pytest.raises(Killed):
        run(checkpointed.train, world_size, tmp_path / "run", killed_at, stop, timeout_s=TIMEOUT_S)
    minigrad.manual_seed(99)
    found = run(checkpointed.train, world_size, tmp_path / "run", timeout_s=TIMEOUT_S)
    for mine, whole in zip(found, expected):
        assert mine[0] == killed_at // 2 * 2 and mine[1] == whole[1][mine[0]:] and mine[2:] == whole[2:]


def launched(*arguments):
    command = [sys.executable, "-m", "minigrad.distributed.launch", "-n", "2", "-m", "tests.train.checkpointed"]
    environment = {**os.environ, "MINIGRAD_TIMEOUT_S": "20"}
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=50, env=environment)


def test_so_does_one_whose_rank_0_was_killed(tmp_path):
    """On shared memory, which adds up as threads do."""
    expected = run(checkpointed.train, 2, tmp_path / "threads", timeout_s=TIMEOUT_S)
    killed = launched(tmp_path / "run", "killed")
    assert "rank 0 failed first: it was ended by SIGKILL" in killed.stderr and "ended" not in killed.stdout
    resumed = launched(tmp_path / "run", "resumed")
    numbers = [checkpointed.number(*each) for each in expected]
    lines = sorted(resumed.stdout.split("\n")[:2])
    assert lines in ([f"[{r}] ended {first} {numbers[r]}" for r in (0, 1)] for first in (2, 4)), resumed.stderr
    assert there(tmp_path / "run", "step")[1] == []


def wrapped(comm):
    return {"model": DDP(nn.Linear(3, 1), comm)}


def test_an_error_of_the_writer_is_told_to_all_ranks_and_training_goes_on(tmp_path, monkeypatch):
    held = Held(monkeypatch, OSError(5, "out of order"))

    def body(comm):
        everything = wrapped(comm)
        with Checkpoint(tmp_path / "run", background=True) as checkpoint:
            checkpoint.save(everything, 1)
            everything["model"](minigrad.ones(2, 3)).sum().backward()
            held.may.set()
            kind, words = (OSError, "out of") if comm.rank == 0 else (RankFailedError, "on rank 0, got OSError.*out of")
            with pytest.raises(kind, match=words):
                checkpoint.save(everything, 2)
            comm.barrier()
            if comm.rank == 0:
                monkeypatch.undo()
            comm.barrier()
            checkpoint.save(everything, 2)
            checkpoint.join()
            return checkpoint.latest().name, checkpoint.load_latest(everything)["model"] is everything["model"]

    assert run(body, 2, timeout_s=TIMEOUT_S) == [(name_of("epoch", 2), True)] * 2


def test_ranks_that_do_not_fit_together_are_refused(tmp_path):
    def apart(comm):
        Checkpoint(tmp_path / str(comm.rank)).save(wrapped(comm), 1)

    def rank_0_alone(comm):
        everything = wrapped(comm)
        if comm.rank == 0:
            Checkpoint(tmp_path / "alone").save(everything, 1)
        else:
            everything["model"](minigrad.ones(2, 3)).sum().backward()

    def two(comm):
        with Checkpoint(tmp_path / "two") as checkpoint:
            checkpoint.save(wrapped(comm), 1)

    def three(comm):
        everything = wrapped(comm)
        with Checkpoint(tmp_path / "two") as checkpoint:
            with pytest.raises(StateDictError, match=r"of 3 rank\(s\), got .*, which 2 rank\(s\) have saved"):
                checkpoint.load_latest(everything)
            everything["model"].load_state_dict(checkpoint.load_latest(every_rank=True)[1]["model"])
            checkpoint.save(everything, 2)  # the run goes on, on three
        return checkpoint.number, exact(everything["model"].state_dict())

    with pytest.raises(ReplicaMismatchError, match="one path on all ranks, got .*/0/epoch.* on rank 0 and .*/1/epoch"):
        run(apart, 2, timeout_s=TIMEOUT_S)
    with pytest.raises(CollectiveMismatchError, match="minigrad.save of a training state, which every rank calls"):
        run(rank_0_alone, 2, timeout_s=TIMEOUT_S)
    run(two, 2, timeout_s=TIMEOUT_S)
    first, *others = run(three, 3, timeout_s=TIMEOUT_S)
    assert first[0] == 2 and others == [first, first]


def test_one_that_was_cut_is_passed_over_on_all_ranks(tmp_path):
    def body(comm, loads):
        counter = Counter(comm.rank)
        with Checkpoint(tmp_path) as checkpoint:
            for number in (1, 2) if not loads else ():
                counter.count = number + 10 * comm.rank
                checkpoint.save({"counter": counter}, number)
            if loads:
                checkpoint.load_latest({"counter": counter})
                return counter.count, checkpoint.number

    run(body, 2, False, timeout_s=TIMEOUT_S)
    cut(tmp_path, 2)
    with pytest.warns(UserWarning, match="passed over") as told:
        assert run(body, 2, True, timeout_s=TIMEOUT_S) == [(1, 1), (11, 1)]
    assert len(told) == 1


@pytest.mark.parametrize("kind", ["shm", "nccl"])
def test_on_other_transports(tmp_path, kind):
    def body(comm):
        counter = Counter(comm.rank)
        with Checkpoint(tmp_path, keep=1, background=True) as checkpoint:
            for number in (1, 2):
                checkpoint.save({**wrapped(comm), "counter": counter}, number)
                counter.count += 10
        with Checkpoint(tmp_path) as checkpoint:
            rest = checkpoint.load_latest({**wrapped(comm), "counter": counter})
        return checkpoint.number, counter.count, rest["counter"] is counter

    assert run_ranks(kind, body, 2) == [(2, 10, True), (2, 11, True)] and there(tmp_path) == ([2], [])


def test_numbers_that_are_numpys(tmp_path):
    assert saved(tmp_path, np.int64(3)).number == 3
