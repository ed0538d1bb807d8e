"""Examples on several ranks, with `--device cuda` on the stand-ins: a GPU each, as the launcher starts them."""

import importlib.util
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from minigrad import Tensor, distributed, ops
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
        monkeypatch.setattr(module, "digits", some_digits, raising=False)
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


@pytest.mark.parametrize("world_size", [1, 2])
def test_char_gpt(world_size, example, launched, monkeypatch, capsys):
    options = ["--width", "8", "--heads", "1", "--steps", "2", "--length", "6", "--stride", "4", "--target", "9"]
    options += ["--dropout", "0"]  # the noise is each rank's own
    module = example("08_char_gpt", "--smoke", "--dtype", "float64", *options)
    monkeypatch.setattr(module, "text", lambda: some_text(module.Text))
    for name, value in {"CONTEXT": 8, "GLOBAL_BATCH": 4, "COMPARED_STEPS": 3}.items():
        monkeypatch.setattr(module, name, value)
    module.main()
    expected = capsys.readouterr().out
    sys.argv += ["--device", "cuda" if world_size > 1 else "cuda:1"]
    assert launched(module.main, world_size) == [0] * world_size
    printed = capsys.readouterr().out
    assert f"{world_size} rank(s), float64" in printed and "replicas: bit-equal" in printed
    losses = [float(value_of(text, "the network ")) for text in (printed, expected)]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
    assert float(value_of(printed, "after 3 step(s): ")) < 1e-11


@pytest.mark.parametrize("world_size", [1, 2])
def test_each_held_out_character_counts_once(world_size, example, monkeypatch):
    """On any ranks, without dropout; and a seed writes its text."""
    module = example("08_char_gpt")
    monkeypatch.setattr(module, "CONTEXT", 8)
    monkeypatch.setattr(module, "GLOBAL_BATCH", 2)
    options = Namespace(seed=1, width=8, layers=1, heads=2, dtype="float64", steps=1)
    book = some_text(module.Text)

    def body(comm):
        training = module.Training(comm, book, options, dropout=0.9)
        model, document = training.ddp.module.eval(), book.held_out["other"]
        assert model.head.weight is model.embedding.weight
        scores = [model(Tensor(document[None, max(0, i - 8) : i]))[0, -1] for i in range(1, 9)]
        scores += [model(Tensor(document[None, start : start + 8]))[0, i] for start in (2, 4, 6) for i in (6, 7)]
        cut = module.F.cross_entropy(ops.stack(scores), Tensor(document[1:])).item()
        training.ddp.train()
        assert training.loss_on(book.held_out, stride=2) == pytest.approx(cut, abs=1e-12)
        assert len(training.write(book, "Th", 3, top_k=99)) == 3
        return [training.write(book, "Th", 12, 5) for _ in range(2)]

    for written in distributed.run(body, world_size):
        assert written[0] == written[1] and len(written[0]) == 12 and written[0].startswith("Th")


def some_text(kind):
    """Two topics whose last sequences are not full, and one that is held out."""
    train = {"short": np.arange(12) % 7, "long": np.arange(50) % 11}
    return kind(train, {"other": np.arange(15) % 11}, "Th e abcdfg", 77, "0" * 64, {})


def test_tables_of_counts_by_hand(example):
    """After 0 the training part has 1 twice and 0 once, after 1 it has 0 twice."""
    module = example("08_char_gpt")
    train = [np.array([0, 1, 0, 1, 0, 0])]
    # before a 1 there is one other character, before a 0 there are two: of discount 1/3, as once / (once + 2 * twice)
    zero, one = (2 - 1 / 3 + 1 / 3 * 2 / 2) / 3, (1 - 1 / 3 + 1 / 3 * 2 / 2) / 3
    after_zero = [(1 - 0.2 + 0.2 * 2 * zero) / 3, (2 - 0.2 + 0.2 * 2 * one) / 3]
    after_one = [(2 - 0.2 + 0.2 * zero) / 2, (0 + 0.2 * one) / 2]
    assert sum(after_zero) == pytest.approx(1) and sum(after_one) == pytest.approx(1)
    loss = -np.log([after_zero[1], after_one[1], after_one[0]]).mean()  # of 1, 1 and 0 after the first character
    assert module.count_tables(train, [np.array([0, 1, 1, 0])], 2, 1) == pytest.approx([loss])


def test_where_a_table_has_not_been_it_asks_the_shorter_one(example):
    """Nothing followed a 2, so that a 0 is as likely there as anywhere: (2 - 1/3 + 1/3 * 2 / 4) / 3."""
    module = example("08_char_gpt")
    losses = module.count_tables([np.array([0, 1, 0, 1, 0, 0])], [np.array([2, 0])], 4, 3)
    assert losses == pytest.approx([-np.log((2 - 1 / 3 + 1 / 3 * 2 / 4) / 3)] * 3)


def test_gan(example, launched, capsys):
    module = example("09_gan", "--epochs", "1")
    module.main()
    expected = capsys.readouterr().out
    sys.argv += ["--device", "cuda"]
    launched(module.main, 2)
    printed = capsys.readouterr().out
    assert "replicas: bit-equal" in printed
    losses = [[float(x) for x in text.splitlines()[2].split()[1:3]] for text in (printed, expected)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


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
