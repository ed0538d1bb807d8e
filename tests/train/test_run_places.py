"""The same line of `Trainer.start` on each way to run: it learns the digits on all of them."""

import os
import subprocess
import sys

import pytest

from minigrad.distributed.comm.nccl import communicator
from minigrad.distributed.simulate import Cluster
from tests.distributed.fake_nccl import FakeNccl
from tests.distributed.worlds import ROOT, mpirun
from tests.strict_cupy.device import current_id
from tests.train.digits_run import train

TARGET = 0.97
SCRIPT = str(ROOT / "tests" / "train" / "digits_run.py")


@pytest.fixture(scope="module")
def threads():
    """What two threads come to."""
    return train(ranks=2, timeout_s=10.0)


def printed(text):
    """Of each rank: accuracy and last loss."""
    return [tuple(map(float, line.split()[-2:])) for line in text.splitlines() if line]


def test_threads(threads):
    accuracy, losses = threads
    assert accuracy >= TARGET and len(losses) == 16


def test_simulation(threads):
    assert train(cluster=Cluster.of_speeds([2, 1]), timeout_s=10.0) == threads


def test_launcher(threads):
    """Every rank is told the same, to the bit."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MINIGRAD_TIMEOUT_S": "20"}
    command = [sys.executable, "-m", "minigrad.distributed.launch", "-n", "2", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    told = [(float(f"{threads[0]:.6f}"), threads[1][-1])] * 2
    assert printed(done.stdout) == told


def test_mpirun(threads):
    done = mpirun(2, "-m", "mpi4py", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == [(float(f"{threads[0]:.6f}"), threads[1][-1])] * 2


def test_two_devices(strict_cupy, monkeypatch):
    fake = FakeNccl(current_device=current_id, timeout_s=10.0)
    monkeypatch.setattr(communicator, "load_nccl", lambda: fake)
    accuracy, losses = train(devices=["cuda:0", "cuda:1"], timeout_s=10.0)
    fake.check_all_given_back()
    assert accuracy >= TARGET and len(losses) == 16
