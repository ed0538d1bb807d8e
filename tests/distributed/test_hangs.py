"""The report of ranks that can't go on together names the kind of fault, the rank, the line, and what to do."""

from pathlib import Path

import pytest

from minigrad.distributed import HangReport
from minigrad.errors import RankFailedError
from tests.distributed import hanging
from tests.distributed.hanging import KINDS, TIMEOUT_S, line
from tests.distributed.worlds import mpirun, run_ranks


def check(scenario, folder):
    """The report that rank 0 got of a scenario is right."""
    report = HangReport.from_json(Path(folder, "0.json").read_text())
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


IN_THREADS = [scenario for scenario in KINDS if scenario not in (hanging.died, hanging.held_in_c)]


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
