"""The report of ranks that can't go on together names the kind of fault, the rank, the line, and what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from minigrad.distributed import HangReport
from minigrad.distributed.inspect.__main__ import main
from minigrad.distributed.inspect.hangs import read_hang
from minigrad.errors import RankFailedError
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


def test_a_folder_that_no_rank_has_written_to(tmp_path, capsys):
    assert main(["hang", str(tmp_path)]) == 2
    assert "expected files rank-*.json of a run in" in capsys.readouterr().err
