"""README's "Read it in this order": a step of two ranks enters what is read there, and next to nothing else."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, run

PACKAGE = Path(minigrad.__file__).parent
README = (PACKAGE.parent / "README.md").read_text()
MOST_LINES, MOST_SIDE_ROOMS, SIDE_ROOM_LINES = 2900, 4, 120
TIMEOUT_S = 10.0


def section():
    """The text under the heading."""
    found = re.search(r"^## Read it in this order\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def path():
    """file -> lines, as the table says."""
    return {name: int(lines) for name, lines in re.findall(r"^\| `([\w/.]+)` \| (\d+) \|", section(), re.MULTILINE)}


def side_rooms():
    """file -> lines, as the text beside the table says."""
    return {name: int(lines) for name, lines in re.findall(r"`([\w/.]+)` \((\d+)\)", section())}


def lines_of(name):
    """How many lines a file of the package has."""
    return len((PACKAGE / name).read_text().splitlines())


def entered():
    """The files of the package that one step of two ranks enters: forward, backward, optimizer."""

    def body(comm):
        minigrad.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1, bias=False))
        ddp = DDP(model, comm, bucket_cap_bytes=64)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        x = minigrad.Tensor(np.ones((3 + comm.rank, 4), np.float32))
        files = set()

        def step():
            optimizer.zero_grad()
            ddp(x).square().mean().backward()
            optimizer.step()

        def seen(frame, event, argument):
            if event == "call":
                files.add(frame.f_code.co_filename)

        step()  # the first makes what is made once
        before = sys.getprofile()
        sys.setprofile(seen)
        try:
            step()
        finally:
            sys.setprofile(before)
        assert len(ddp.plan.buckets) == 3
        return files

    found = set().union(*run(body, 2, timeout_s=TIMEOUT_S))
    return {Path(file).relative_to(PACKAGE).as_posix() for file in found if Path(file).is_relative_to(PACKAGE)}


def test_a_step_enters_the_path_and_few_side_rooms():
    found = {name for name in entered() if name.startswith("distributed/")}
    assert found - set(path()) == set(side_rooms())
    assert len(side_rooms()) <= MOST_SIDE_ROOMS
    assert {name: lines_of(name) for name in side_rooms() if lines_of(name) >= SIDE_ROOM_LINES} == {}
    assert {"nn/flat.py", "autograd/tape.py"} <= set(path()) & entered()


def test_the_path_is_short():
    assert sum(map(lines_of, path())) < MOST_LINES
    assert f"{sum(path().values()):,} lines" in section()


@pytest.mark.parametrize("table", [path, side_rooms])
def test_the_lines_in_the_readme_are_those_of_the_files(table):
    """To the ten: who changes a file by more says so there."""
    wrong = {name: lines_of(name) for name, said in table().items() if abs(lines_of(name) - said) > 10}
    assert wrong == {}
