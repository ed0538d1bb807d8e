"""The report of ranks that can't go on together names the kind of fault, the rank, the line, and what to do."""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigrad.distributed import HangReport, SoloCommunicator
from minigrad.distributed.comm import dumps, traces
from minigrad.distributed.comm.calls import Made
from minigrad.distributed.comm.dumps import boot_id, stack_path, start_time
from minigrad.distributed.comm.shm import sightings as shm_sightings
from minigrad.distributed.comm.shm.board import LINES
from minigrad.distributed.comm.shm.sightings import Places
from minigrad.distributed.comm.sightings import Sighting
from minigrad.distributed.inspect.__main__ import main
from minigrad.distributed.inspect.hangs import read_hang
from minigrad.errors import ArgumentError, DistributedError, RankFailedError
from tests.distributed import hanging
from tests.distributed.hanging import KINDS, TIMEOUT_S, line
from tests.distributed.worlds import ROOT, mpirun, run_ranks


def check(scenario, folder):
    """The report that rank 0 got of a scenario is right."""
    return check_report(scenario, HangReport.from_json(Path(folder, "0.json").read_text()))


def check_report(scenario, report):
    """It names the kind, the rank, the line and what to do."""
    kind, ranks, at, what, remedy = report.diagnosis
    assert (kind, ranks, at) == (KINDS[scenario], (1,), line(scenario, "here")), str(report)
    assert "rank 1" in what + remedy and remedy in str(report)
    if "# missing" in Path(hanging.__file__).read_text().split(f"def {scenario.__name__}(")[1].split("\ndef ")[0]:
        assert line(scenario, "missing") in what + remedy, str(report)
    return report


def run(kind, scenario, folder):
    """Run a scenario on two ranks."""
    try:
        run_ranks(kind, lambda comm: hanging.tell(scenario, comm, folder), 2, timeout_s=TIMEOUT_S)
    except ZeroDivisionError:
        assert scenario is hanging.raised
    except RankFailedError:
        assert scenario is hanging.died


LINES_TELL = hanging.another_order, hanging.another_group
IN_THREADS = [scenario for scenario in KINDS if scenario not in (hanging.died, hanging.held_in_c)]

ON_GPUS = [scenario for scenario in IN_THREADS if scenario not in LINES_TELL]


@pytest.mark.parametrize("scenario", IN_THREADS, ids=lambda s: s.__name__)
def test_threads(scenario, tmp_path):
    run("threads", scenario, tmp_path)
    check(scenario, tmp_path)


@pytest.mark.parametrize("scenario", KINDS, ids=lambda s: s.__name__)
def test_processes_of_one_host(scenario, tmp_path):
    run("shm", scenario, tmp_path)
    check(scenario, tmp_path)


def test_a_rank_that_left_for_the_error_is_seen_as_it_was_before(tmp_path, monkeypatch):
    """Rank 0 looks at what rank 1 has made when that process has ended already, of what rank 0 told."""

    look = shm_sightings._report

    def when_it_is_gone(comm, error):
        deadline = time.monotonic() + 20.0
        while comm.board.told is not None and not comm.board.gone() and time.monotonic() < deadline:
            time.sleep(0.01)
        return look(comm, error)

    monkeypatch.setattr(shm_sightings, "_report", when_it_is_gone)
    run("shm", hanging.another_group, tmp_path)
    check(hanging.another_group, tmp_path)


@pytest.fixture(scope="module")
def of_mpi(tmp_path_factory):
    """A folder of each scenario, all of which one mpirun runs."""
    folder = tmp_path_factory.mktemp("mpi")
    names = [scenario.__name__ for scenario in UNDER_MPI]
    done = mpirun(2, "-m", "mpi4py", "-m", "tests.distributed.hanging", str(folder), *names)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


UNDER_MPI = [scenario for scenario in KINDS if scenario is not hanging.died]


@pytest.mark.parametrize("scenario", UNDER_MPI, ids=lambda s: s.__name__)
def test_processes_under_mpirun(scenario, of_mpi):
    check(scenario, of_mpi / scenario.__name__)


@pytest.mark.parametrize("scenario", ON_GPUS, ids=lambda s: s.__name__)
def test_ranks_on_gpus(scenario, tmp_path):
    """Of another rank its last three calls are known, without lines, and the line where it stays."""
    run("nccl", scenario, tmp_path)
    report = HangReport.from_json(Path(tmp_path, "0.json").read_text())
    assert report.diagnosis[:2] == (KINDS[scenario], (1,)), str(report)
    if scenario is hanging.late:
        assert report.diagnosis.line == line(scenario, "here")


def test_a_group_has_the_report_of_the_world_that_has_failed():
    reports = []

    def in_group(comm):
        group = comm.split(0)
        if comm.rank == 1:
            raise ZeroDivisionError("boom")
        try:
            group.barrier()
        except RankFailedError as error:
            reports.append(error.report)

    with pytest.raises(ZeroDivisionError):
        run_ranks("threads", in_group, 2, timeout_s=TIMEOUT_S)
    assert reports[0].diagnosis[:2] == ("raised", (1,))


# ------------------------------------------------------------------------------------------- what dead ranks have left


def test_a_job_that_mpirun_has_ended_is_explained_by_what_its_ranks_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINIGRAD_HANG_DIR", str(tmp_path / "left"))
    assert mpirun(2, "-m", "tests.distributed.hanging", "init", "died").returncode != 0
    check_report(hanging.died, read_hang(tmp_path / "left"))
    assert main(["hang", str(tmp_path / "left")]) == 0
    assert "hang (died): rank 1 is gone (process" in capsys.readouterr().out


@pytest.mark.parametrize("scenario", [hanging.raised, hanging.held_in_c], ids=lambda s: s.__name__)
def test_a_job_of_the_launcher_is_explained_by_what_its_ranks_left(scenario, tmp_path, monkeypatch):
    monkeypatch.setenv("MINIGRAD_HANG_DIR", str(tmp_path))
    script = ["-m", "minigrad.distributed.launch", "-n", "2", "-m", "tests.distributed.hanging", "init"]
    done = subprocess.run([sys.executable, *script, scenario.__name__], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    if sys.version_info >= (3, 11) and scenario is hanging.held_in_c:
        assert "hang (late): rank 1 is at " in done.stderr  # under the traceback of rank 0
    check_report(scenario, read_hang(tmp_path))


def test_a_folder_of_ranks_that_ended_at_once(tmp_path):
    (tmp_path / "7.stack").touch()
    with pytest.raises(ArgumentError, match="got none: its ranks had ended before they noted a call"):
        read_hang(tmp_path)


def test_a_folder_that_no_rank_has_written_to(tmp_path, capsys):
    assert main(["hang", str(tmp_path)]) == 2
    assert "expected files rank-*.json of a run in" in capsys.readouterr().err


def leave(folder, rank, born, written, made=2, **more):
    """What a rank of a run leaves that began at a time."""
    calls = tuple(Made(seq, "barrier", "a.py:1 in f") for seq in range(made))
    told = {"world_size": 2, "process": [os.getpid(), start_time(os.getpid())], "boot": boot_id(), "thread": 1}
    told |= {"born": born, "state": "running", "error": "", "sighting": Sighting(rank, calls).plain(), **more}
    path = Path(folder, f"rank-{rank}.json")
    path.write_text(json.dumps(told))
    os.utime(path, (written, written))
    return path


def test_of_two_runs_in_one_folder_the_later_one_is_read(tmp_path):
    for rank in range(3):
        leave(tmp_path, rank, 100.0, 200.0, made=9, world_size=3)
    leave(tmp_path, 0, 300.0, 301.0)
    leave(tmp_path, 1, 300.4, 300.5, made=1)
    report = read_hang(tmp_path)
    assert [len(each.calls) for each in report.seen] == [2, 1] and report.diagnosis[:2] == ("late", (1,))
    (tmp_path / "rank-1.json").unlink()
    leave(tmp_path, 1, 100.0, 200.0)
    assert read_hang(tmp_path).seen[1].unseen.startswith("has left nothing in")


@pytest.mark.parametrize("text", ['{"born": 3', "[1]", "{}", '{"born": 1, "sighting": 3}', b"\xff\xfe"])
def test_a_file_that_is_cut_is_not_read(text, tmp_path, capsys):
    leave(tmp_path, 0, 300.0, 301.0)
    (tmp_path / "rank-1.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "rank-x.json").mkdir()
    assert "has left what can not be read" in read_hang(tmp_path).seen[1].unseen
    (tmp_path / "rank-0.json").unlink()
    assert main(["hang", str(tmp_path)]) == 2 and "only broken ones" in capsys.readouterr().err


def test_a_rank_of_another_host_is_not_taken_for_a_process_of_this_one(tmp_path):
    leave(tmp_path, 0, 300.0, 301.0)
    leave(tmp_path, 1, 300.0, 301.0, made=1, boot=boot_id() + 1, process=[2**30, 5])
    text = 'Thread 0x1 (most recent call first):\n  File "b.py", line 3 in g\n'
    stack_path(tmp_path, 2**30, boot_id()).write_text(text)
    seen = read_hang(tmp_path).seen[1]
    assert "another host" in seen.unseen and not seen.gone and not seen.stack


def test_no_handler_of_somebody_else_is_taken_or_called(tmp_path):
    number, called = signal.SIGRTMIN + 5, []
    with open(tmp_path / "stacks", "wb+", buffering=0) as file:
        faulthandler.register(number, file)
        taken = dumps._is_free(number)
        faulthandler.unregister(number)
        offered = dumps.Offer(os.getpid(), start_time(os.getpid()), number, file.fileno())
        before = signal.signal(number, lambda number, frame: called.append(number))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dumps, "_offer_of", lambda process: offered)
            dumps.keep_offer()
            dumps.keep_offer()
        text = dumps.stacks_of(offered)
        signal.signal(number, before)
    assert not taken and dumps._is_free(number) and not called and text == ""
    assert (tmp_path / "stacks").read_bytes() == dumps._TAKEN


def test_stacks_are_those_of_now_and_of_the_process_that_offers_them(tmp_path):
    number, mine = signal.SIGRTMIN + 6, start_time(os.getpid())
    with open(tmp_path / "stacks", "wb+", buffering=0) as file:
        file.write(b'Thread 0x1 (most recent call first):\n  File "old.py", line 3 in g\n')
        faulthandler.register(number, file)
        other = dumps.stacks_of(dumps.Offer(os.getpid(), mine + 1, number, file.fileno()))
        text = dumps.stacks_of(dumps.Offer(os.getpid(), mine, number, file.fileno()))
        faulthandler.unregister(number)
    assert other == "" and "old.py" not in text and __file__ in text
    twice = "".join(f'Thread 0x7 (most recent call first):\n  File "{name}.py", line 3 in f\n' for name in "ab")
    assert dumps.lines_of(twice, 7) == ("a.py:3 in f",)


def test_a_line_for_which_there_is_no_room_has_no_number():
    places, code = Places(None), hanging.late.__code__
    places.known = {(0, at): (at + 1, code) for at in range(LINES - 1)}
    assert places.note(code, 0) == 0


def test_a_rank_alone_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIGRAD_HANG_DIR", str(tmp_path))
    assert traces.leave_traces(SoloCommunicator()) is None and not list(tmp_path.iterdir())


def test_a_rank_that_has_made_no_call_of_its_group_yet_is_seen(tmp_path):
    def in_group(comm):
        group = comm.split(0)
        if comm.rank == 1:
            hanging.GATE.wait(0.8)
        group.barrier()

    run_of = {}

    def told(comm):
        try:
            in_group(comm)
        except DistributedError as error:
            run_of[comm.rank] = error.report.diagnosis

    run_ranks("threads", told, 2, timeout_s=0.3)
    assert run_of[0][:2] == ("late", (1,)) and run_of[0].line.endswith("in in_group")
