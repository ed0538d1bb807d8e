"""Two GPUs, of one process and of two; and what one card can show of it.

Where there is one, the tests of two are skipped by name: nothing of them was tested. Their bodies are those of
tests/device_suite/pairs.py and of `rank.py`, which run on the stand-ins without any GPU.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minigrad import Device, available_devices
from minigrad.distributed import NcclDevices
from tests.device_suite.pairs import *  # noqa: F401, F403

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
LAUNCHER = ["-m", "minigrad.distributed.launch", "-n", "2", "-m"]
NAMES = re.compile(r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_.*|MINIGRAD_.*|NCCL_HOSTID)")
TIMEOUT_S = 60


@pytest.fixture
def pair(request, cuda):
    """The first GPU and the last, which is current."""
    gpus = len(available_devices()) - 1
    if gpus < 2:
        pytest.skip(f"{request.node.name}: needs two GPUs, found {gpus}")
    return Device("cuda:0"), cuda


@pytest.fixture
def nccl_devices(pair):
    """NCCL over them."""
    devices = NcclDevices(pair)
    yield devices
    devices.close()


def python(command, **variables):
    """What a Python process, of no rank but what the variables say, has printed, and its exit status."""
    base = {name: value for name, value in os.environ.items() if not NAMES.fullmatch(name)}
    environment = {**base, "PYTHONPATH": str(ROOT), "MINIGRAD_TIMEOUT_S": str(TIMEOUT_S), **variables}
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200.0,
        check=False,
    )
    return done.stdout, done.returncode


def told(printed):
    """What each rank told, in order of rank."""
    found = [json.loads(text) for text in re.findall(r"^(?:\[\d+\] )?(\{.*\})$", printed, re.MULTILINE)]
    return sorted(found, key=lambda one: one["rank"])


def one_card():
    """What CUDA_VISIBLE_DEVICES has to be so that a process sees one GPU, the last of ours."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[-1] if visible else str(len(available_devices()) - 2)


# ------------------------------------------------------------------------------------------------- processes, two GPUs


def test_two_processes_train_on_a_gpu_each(pair):
    printed, status = python([*LAUNCHER, "tests.gpu.rank"])
    assert status == 0, printed
    ranks = told(printed)
    assert [one["device"] for one in ranks] == ["cuda:0", "cuda:1"], printed
    assert ranks[0]["hash"] == ranks[1]["hash"] and max(one["off"] for one in ranks) <= 1e-10


def test_the_digits_are_learnt_on_two_gpus(pair):
    pytest.importorskip("sklearn")
    script = str(ROOT / "examples" / "01_digits.py")
    printed, status = python([*LAUNCHER[:-1], script, "--smoke", "--device", "cuda"])
    assert status == 0 and "replicas: bit-equal" in printed, printed


# ---------------------------------------------------------------------------------------------------------- one card


def test_the_one_gpu_that_a_process_sees_is_its_own_whatever_its_local_rank():
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    printed, status = python(["-m", "tests.gpu.rank"], CUDA_VISIBLE_DEVICES=one_card(), **place)
    assert status == 0, printed
    (rank,) = told(printed)
    assert rank["device"] == "cuda:0" and rank["off"] <= 1e-10


def test_two_ranks_on_one_gpu_are_refused_and_both_named():
    printed, status = python([*LAUNCHER, "tests.gpu.rank"], CUDA_VISIBLE_DEVICES=one_card())
    assert status == 1 and not told(printed), printed
    assert "DeviceError" in printed and "on ranks 0 and 1: start one rank for each GPU" in printed, printed
