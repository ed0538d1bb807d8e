"""The same line of `Trainer.start` on each way to run: it learns the digits on all of them."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from minigrad import Device
from minigrad.distributed.average import EASGD, DiLoCo, EveryK
from minigrad.distributed.comm.nccl import communicator
from minigrad.distributed.simulate import Cluster
from minigrad.optim import GradScaler
from minigrad.optim.schedule import StepDecay
from tests.distributed.fake_nccl import FakeNccl
from tests.distributed.worlds import ROOT, mpirun, run_ranks
from tests.strict_cupy.device import current_id
from tests.train import runs
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
    assert accuracy >= TARGET and len(losses) == 12


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
    assert accuracy >= TARGET and len(losses) == 12


COMMON = {
    "several batches a step": {"policy": EveryK(2), "accumulate": 2, "max_grad_norm": 0.5},
    "half precision": {"autocast": "bfloat16", "scaler": GradScaler(8.0), "schedule": StepDecay(4, gamma=0.5)},
    "by shares": {"shares": (0.7, 0.3), "check_replicas_every": 3, "ddp_options": {"bucket_cap_mb": 1}},
    "parameters": {"average": "parameters", "average_options": {"optimizer_state": "average"}},
    "an outer optimizer": {"average": "parameters", "policy": EveryK(3), "outer": DiLoCo(0.7)},
    "a center": {"average": "parameters", "policy": EveryK(2), "outer": EASGD(0.5), "lr_scale": 0.5},
}


def common(**place):
    """What each of the common combinations comes to, in bits."""
    return {name: runs.train(**{"make_model": runs.make_plain, **options}, **place) for name, options in COMMON.items()}


def test_common_combinations_have_the_same_bits_on_each_way_to_run():
    expected = common(ranks=2)
    assert common(cluster=Cluster.of_speeds([2, 1])) == expected
    for kind in ("shm", "nccl"):
        assert run_ranks(kind, lambda comm: common(comm=comm), 2) == [expected] * 2


@pytest.mark.parametrize("average", ["gradients", "parameters"])
def test_a_rank_that_fails_on_a_device_ends_the_others(average, strict_cupy, monkeypatch):
    """Within the timeout, and with its own error."""
    fake = FakeNccl(current_device=current_id, timeout_s=10.0)
    monkeypatch.setattr(communicator, "load_nccl", lambda: fake)

    def train_fn(model, batch):
        if batch[0].device == Device("cuda:1"):
            raise OSError("a broken card")
        return runs.train_fn(model, batch)

    began_s = time.monotonic()
    options = {"make_model": runs.make_plain, "train_fn": train_fn, "average": average}
    with pytest.raises(OSError, match="a broken card"):
        runs.start(devices=["cuda:0", "cuda:1"], **options).join()
    assert time.monotonic() - began_s < 8.0
    fake.check_all_given_back()


@pytest.mark.parametrize("average", ["gradients", "parameters"])
def test_the_host_seldom_waits_for_a_device(average, strict_cupy, monkeypatch):
    """In every 16th step at most: what ranks tell each other in a step may wait."""
    fake = FakeNccl(current_device=current_id, timeout_s=10.0)
    monkeypatch.setattr(communicator, "load_nccl", lambda: fake)

    def waits(steps):
        before = strict_cupy.syncs.count
        data = runs.dataset(8 * steps)
        options = {"average": average, "dataset": data, "epochs": 1}
        runs.start(devices=["cuda:0", "cuda:1"], make_model=runs.make_plain, **options).join()
        return strict_cupy.syncs.count - before

    most = 2 * 2 * 4 if average == "gradients" else 0  # of two ranks, twice each, in 64 steps more
    assert most / 4 <= waits(96) - waits(32) <= most


def test_a_device_without_any_sample_is_like_the_others(strict_cupy, monkeypatch):
    """It scales no loss, and still has the scale of the others, in each pass.

    So the run has the bits of one on a single device. Ranks on the host come to the same up to rounding alone: kernels
    compute tanh and other functions by themselves, and NumPy's last bit may be another.
    """
    fake = FakeNccl(current_device=current_id, timeout_s=10.0)
    monkeypatch.setattr(communicator, "load_nccl", lambda: fake)
    options = {"dataset": runs.dataset(1), "make_model": runs.make_plain, "scaler": GradScaler(8.0)}
    found = runs.train(devices=["cuda:0", "cuda:1"], **options)
    assert found == runs.train(devices=["cuda:0"], **options)
    on_host = runs.train(ranks=2, **options)
    assert found.keys() == on_host.keys()
    for name, weights in found.items():
        values, expected = np.frombuffer(weights, np.float32), np.frombuffer(on_host[name], np.float32)
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6, err_msg=name)
