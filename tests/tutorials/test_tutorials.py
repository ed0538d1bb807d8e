"""The tutorials on two ranks of each kind: what one device does where they are right, and by how much where not."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minigrad
import minigrad.distributed as dist
from minigrad import nn, optim
from minigrad.distributed.comm.rendezvous import free_port
from tests.distributed.worlds import mpirun
from tests.tutorials import ranks

SCRIPT = ranks.__file__
FOLDER = Path(SCRIPT).parent
KINDS = ["threads", "shm", "mpi", pytest.param("torch", marks=pytest.mark.torch)]


def in_pytorch(path):
    """The same files with PyTorch imported: what they leave on two of its processes."""
    package = path.parent / "tests" / "tutorials"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    for file in FOLDER.glob("*.py"):
        (package / file.name).write_text(re.sub("(?m)^import minigrad", "import torch", file.read_text()))
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, str(package / "ranks.py"), str(path)], env={**environment, "RANK": str(rank)}
        )
        for rank in range(2)
    ]
    assert [process.wait(60.0) for process in started] == [0, 0]
    return [json.loads(Path(f"{path}.{rank}").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """left(kind): what all tutorials leave on each of two ranks, which are started once."""

    @functools.cache
    def start(kind):
        path = tmp_path_factory.mktemp(kind) / "found"
        if kind == "threads":
            return dist.run(lambda comm: (dist.init_process_group("gloo"), ranks.everything())[1], 2, timeout_s=20.0)
        if kind == "torch":
            return in_pytorch(path)
        if kind == "mpi":
            done = mpirun(2, SCRIPT, str(path))
        else:
            command = [sys.executable, "-m", "minigrad.distributed.launch", "-n", "2", SCRIPT, str(path)]
            environment = {**os.environ, "PYTHONPATH": str(Path(minigrad.__file__).parents[1])}
            done = subprocess.run(command, capture_output=True, text=True, timeout=50.0, env=environment)
        assert done.returncode == 0, done.stderr
        return [json.loads(Path(f"{path}.{rank}").read_text()) for rank in range(2)]

    return start


OPTIMIZERS = {
    "by_parameter": lambda params: optim.SGD(params, lr=0.1),
    "by_hook": lambda params: optim.Adam(params, lr=0.1),
    "by_bucket": lambda params: optim.SGD(params, lr=0.1),
}


@functools.cache
def on_one_device(name):
    """The parameters that a plain loop leaves, with all rows."""
    model = ranks.start(ranks.TUTORIALS[name].Net())
    optimizer = OPTIMIZERS[name](model.parameters())
    for x, y in ranks.batches(0, 1):
        optimizer.zero_grad()
        output = model(x)
        (nn.functional.nll_loss if name == "by_parameter" else nn.functional.cross_entropy)(output, y).backward()
        optimizer.step()
    return [param.detach().reshape(-1).tolist() for param in model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ranks.TUTORIALS)
def test_ranks_with_equal_parts_are_one_device(left, kind, name):
    for found in left(kind):
        for param, expected in zip(found[name], on_one_device(name), strict=True):
            np.testing.assert_allclose(param, expected, rtol=0, atol=1e-6 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["by_parameter", "by_hook"])
def test_without_weights_a_mean_of_means_is_not_the_mean(left, kind, name):
    """A step from 0 lands on the mean. Rank 0 has the value 3, rank 1 has 0, 0 and 1: it is 1; taught is 5/3."""
    right, taught = (3 + 0 + 0 + 1) / 4, (3 / 1 + (0 + 0 + 1) / 3) / 2
    assert taught - right == pytest.approx(2 / 3)
    assert [found[f"{name}, uneven"] for found in left(kind)] == pytest.approx([taught, taught], abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_sending_the_last_micro_batch_alone_leaves_the_others_where_they_are(left, kind):
    """Rank 0 has 3, then 1; rank 1 has 5, then 7: the mean is 4; what is taught is 1/2 off, to either side."""
    right, last = (3 + 1 + 5 + 7) / 4, (1 + 7) / 2
    taught = [(first + last) / 2 for first in (3, 5)]
    assert [value - right for value in taught] == [-0.5, 0.5]
    assert [found["by_bucket, accumulated"] for found in left(kind)] == pytest.approx([right, right], abs=1e-6)
    assert [found["by_bucket, last"] for found in left(kind)] == pytest.approx(taught, abs=1e-6)
