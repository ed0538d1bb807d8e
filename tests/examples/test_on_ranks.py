"""Examples on several ranks, with `--device cuda` on the stand-ins: a GPU each, as the launcher starts them."""

import importlib.util
import sys
from pathlib import Path

import pytest

from minigrad import distributed
from minigrad.data import ArrayDataset, digits
from tests.distributed.launched import launcher
from tests.examples.test_scripts import value_of

FOLDER = Path(__file__).parents[2] / "examples"
SAMPLES = {"train": 120, "test": 30}


def some_digits(split="train", **options):
    """The first of them: what is tested is where they are computed on, not what is learnt of them."""
    return ArrayDataset(*(array[: SAMPLES[split]] for array in digits(split, **options).arrays))


@pytest.fixture
def example(monkeypatch):
    """Loads an example as a module, which trains on few digits, and sets its command line."""

    def load(name, *options):
        spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(module, "digits", some_digits)
        monkeypatch.setattr(sys, "argv", [name, *options])
        return module

    return load


@pytest.fixture
def launched(strict_cupy, monkeypatch):
    """launched(main, world_size): what main() returns, or raises, on ranks with a GPU each."""
    yield from launcher(monkeypatch)


@pytest.mark.parametrize("world_size", [1, 2])
def test_digits(world_size, example, launched, capsys):
    module = example("01_digits", "--smoke", "--dtype", "float64")
    module.main()
    expected = capsys.readouterr().out
    sys.argv += ["--device", "cuda" if world_size > 1 else "cuda:1"]
    codes = launched(module.main, world_size)
    printed = capsys.readouterr().out
    assert f"{world_size} rank(s), float64" in printed and "replicas: bit-equal" in printed
    losses = [float(value_of(text, "first epoch's loss: ")) for text in (printed, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9) and len(set(codes)) == 1
    assert float(value_of(printed, "after 20 steps: ")) < 1e-11


def test_graph(example, launched, capsys):
    module = example("03_graph", "--smoke")
    module.main()
    expected = capsys.readouterr().out
    sys.argv += ["--device", "cuda"]
    launched(module.main, 2)
    printed = capsys.readouterr().out
    for epoch in ("epoch 1: loss ", "epoch 2: loss "):
        assert value_of(printed, epoch) == value_of(expected, epoch)
    assert "frozen part unchanged: True; same after a checkpoint: True" in printed


def test_balance(example, launched, capsys):
    module = example("04_balance", "--steps", "15", "--device", "cuda")
    assert launched(module.main, 2) == [0, 0]
    printed = capsys.readouterr().out
    assert "2 rank(s), 15 steps" in printed and "step   10: shards" in printed


def test_el_che(example, launched, capsys):
    module = example("05_el_che", "--smoke", "--device", "cuda")
    assert launched(module.main, 2) == [0, 0]
    assert "2 rank(s): replicas bit-equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, told",
    [
        (["03_graph", "--smoke"], "same after a checkpoint: True"),
        (["04_balance", "--steps", "15"], "2 rank(s), 15 steps"),
        (["05_el_che", "--smoke"], "2 rank(s): replicas bit-equal"),
    ],
)
def test_ranks_on_the_cpu(options, told, example, capsys):
    """As threads; a launcher's processes differ in nothing that an example sees."""
    module = example(*options)
    assert len(set(distributed.run(lambda comm: module.main(), 2))) == 1
    assert capsys.readouterr().out.count(told) == 1


def test_threads_have_no_gpu_of_their_own(example, capsys):
    module = example("01_digits", "--ranks", "2", "--device", "cuda")
    with pytest.raises(SystemExit):
        module.main()
    assert "start a process for each GPU" in capsys.readouterr().err
