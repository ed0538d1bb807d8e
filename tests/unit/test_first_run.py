"""What is run first on a machine with a GPU, without one: its scripts on the stand-ins, and what its page says."""

import datetime
import json
import sys

import pytest

from minigrad import Device
from minigrad.distributed import bootstrap
from minigrad.errors import DeviceError
from tests.distributed.launched import launcher, place
from tests.gpu import convolution, first_run, rank
from tests.gpu.first_run import Part
from tests.strict_cupy import device as stand_in

# -------------------------------------------------------------------------------------------------------------- ranks


@pytest.fixture
def launched(strict_cupy, monkeypatch):
    """launched(main, world_size): what main() returns, or raises, on ranks with a GPU each."""
    yield from launcher(monkeypatch)


def test_a_rank_trains_on_its_gpu(launched):
    first, second = launched(rank.train, 2)
    assert (first["device"], second["device"]) == ("cuda:0", "cuda:1") and first["hash"] == second["hash"]
    assert max(first["off"], second["off"]) <= 1e-10 and json.dumps(first)


@pytest.fixture
def one_visible(monkeypatch):
    """A process that sees one GPU."""
    monkeypatch.setattr(stand_in, "DEVICE_COUNT", 1)
    yield
    stand_in.used.add(1)  # there was no second one to be on


def test_a_rank_that_sees_one_gpu_takes_it(launched, one_visible):
    place.set(bootstrap.Seat(0, 1, 1, 2, "torchrun"))
    try:
        told = rank.train()
    finally:
        place.set(bootstrap.Seat())
    assert told["device"] == "cuda:0" and told["off"] <= 1e-10


def test_two_ranks_that_see_one_gpu_are_refused_and_both_named(launched, one_visible):
    errors = launched(rank.train, 2)
    assert all(isinstance(error, DeviceError) for error in errors), errors
    assert all("on ranks 0 and 1: start one rank for each GPU" in str(error) for error in errors), errors


# -------------------------------------------------------------------------------------------------------------- probe


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_parts_of_a_convolution(kind, cuda):
    device = Device("cpu") if kind == "cpu" else cuda
    lines = convolution.probe(device, convolution.Sizes(4, 2, 8, 3), times=2, calls=2)
    names = [line.split("|")[1].strip() for line in lines[2:]]
    assert names[:4] == ["forward", "forward, weight gradient", "forward, input gradient", "all of it"]
    assert "hence the weight gradient" in names and "Device.current()" in names and len(names) == 16


# -------------------------------------------------------------------------------------------------------------- page

PRINTED = """\
tests/gpu/a.py::test_one[a b] PASSED [ 25%]
tests/gpu/a.py::test_two FAILED [ 50%]
tests/gpu/a.py::test_three SKIPPED (test_three: needs two GPUs, found 1) [ 75%]
tests/gpu/a.py::test_four PASSED [100%]
"""
QUICK = [
    Part("good", ("-c", "print('fine')"), 30.0),
    Part("bad", ("-c", "raise SystemExit('broken')"), 30.0),
    Part("endless", ("-c", "import signal; print('began'); signal.pause()"), 1.0),
    Part("lacking", ("-c", ""), 30.0, ("no_such_package",)),
    Part("tests", ("-c", f"print({PRINTED!r})"), 30.0),
]


def test_what_was_not_run_is_told(strict_cupy, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(first_run, "parts", lambda out, name: list(QUICK))
    monkeypatch.setattr(sys, "argv", ["first_run", "--out", str(tmp_path)])
    assert first_run.main() == 1
    page = (tmp_path / f"stand-in-{datetime.date.today().isoformat()}-first-run.md").read_text()
    assert page in capsys.readouterr().out
    for text in (
        "- lacking: not run: it needs no_such_package, which is not installed",
        "- tests/gpu/a.py::test_three: test_three: needs two GPUs, found 1",
        *("## good: done in", "## bad: FAILED in", "broken", "## endless: NOT FINISHED within 1 s", "began"),
        "1 failed, 2 passed, 1 skipped.\n\nFailed:\n\n- tests/gpu/a.py::test_two\n",
    ):
        assert text in page, text
    monkeypatch.setattr(first_run, "parts", lambda out, name: [QUICK[0], QUICK[3]])
    assert first_run.main() == 0  # what can't run here does not fail
    monkeypatch.setattr(sys, "argv", ["first_run", "--out", str(tmp_path), "--seconds", "0"])
    assert first_run.main() == 1 and "- good: not run: no time was left" in capsys.readouterr().out
    stand_in.used.add(1)


def test_without_a_gpu_nothing_is_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(first_run, "available_devices", lambda: [Device("cpu")])
    monkeypatch.setattr(sys, "argv", ["first_run", "--out", str(tmp_path / "out")])
    assert first_run.main() == 1 and not (tmp_path / "out").exists()
    assert "expected a GPU, got none: nothing was run" in capsys.readouterr().err


def test_the_parts_take_less_than_eight_minutes_and_are_there(tmp_path):
    parts = first_run.parts(tmp_path, "card")
    assert first_run.WHOLE_S < 480.0 and parts[0].limit_s + parts[3].limit_s < first_run.WHOLE_S
    assert [part.out.name for part in parts if part.out] == ["card-convolution.md", "card.md"]
    assert "tests" in parts[3].command and "gpu" in parts[3].command
