"""Every script in examples/ runs, offline and in seconds, and says by its exit code whether it reached its target."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minigrad.distributed import Timeline, explain_ranks
from minigrad.testing.conformance import CHECKS
from tests.distributed.trace_rules import broken_rules

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
SCRIPTS = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@functools.cache
def run_script(name, *options, exit_code=0):
    """What a script prints, warnings being errors in it; the same run is not made twice."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_runs(name):
    assert run_script(name, "--smoke")


def digits(ranks=1, dtype="float32"):
    """What the first example prints; on one rank and in float32 by default, as `test_runs` runs it."""
    options = {1: (), 2: ("--ranks", "2")}[ranks] + {"float32": (), "float64": ("--dtype", "float64")}[dtype]
    return run_script("01_digits.py", "--smoke", *options)


@pytest.mark.parametrize(
    "name, options, told",
    [
        ("01_digits.py", "--ranks 0", "expected --ranks and --epochs of at least 1"),
        ("01_digits.py", "--epochs 0", "expected --ranks and --epochs of at least 1"),
        ("01_digits.py", "--ranks 7", "expected --ranks to divide 60, got 7"),
        ("08_char_gpt.py", "--top-k 0", "expected --top-k of at least 1, got 0"),  # used after the training
        ("08_char_gpt.py", "--stride 65", "expected --stride of at most 64, got 65"),
        ("08_char_gpt.py", "--heads 3", "expected --width to be a multiple of twice --heads, got 128 and 3"),
        ("10_policies.py", "--steps 50", "expected --steps as a multiple of 48, got 50"),
        ("12_timeline.py", "--late-ms -1", "expected --late-ms >= 0 and 3 <= --steps <= 20, got -1.0 and 16"),
        ("09_gan.py", "--ranks 7", "expected --ranks to divide 60, got 7"),
        ("09_gan.py", "--png gone/a.png", "expected --png in a folder that is there, got gone/a.png"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_trained(name, options, told):
    command = [sys.executable, str(ROOT / "examples" / name), *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


def test_digits_on_two_ranks():
    assert "replicas: bit-equal" in digits(2, "float64")


def value_of(printed, label):
    """What stands behind a label in what a script printed."""
    return next(line.split(label)[1].split()[0] for line in printed.splitlines() if label in line)


def test_digits_of_one_rank_and_two_have_one_loss():
    """Float32 within 1e-3, float64 within 1e-9 of each other, relative."""
    for dtype, tolerance in (("float32", 1e-3), ("float64", 1e-9)):
        one, two = (float(value_of(digits(ranks, dtype), "first epoch's loss: ")) for ranks in (1, 2))
        assert abs(one - two) <= tolerance * abs(one)


def test_digits_have_the_same_bits_however_the_ranks_are_started():
    """As threads, as processes of the launcher, and under mpirun; one BLAS thread a rank."""
    script = [str(ROOT / "examples" / "01_digits.py"), "--smoke"]
    bin_ = Path(sys.executable).parent
    ways = [
        [sys.executable, "-m", "minigrad.distributed.launch", "-n", "2", *script],
        [str(bin_ / "mpirun"), "-n", "2", sys.executable, "-m", "mpi4py", *script],
    ]
    found = {value_of(digits(2), "bit-equal, parameters ")}
    for command in ways:
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found.add(value_of(done.stdout, "bit-equal, parameters "))
    assert len(found) == 1


def test_a_gan_on_two_ranks_has_the_losses_of_one():
    """Noise by the place in the global batch, batch norm over all ranks: the same but for rounding, which grows."""
    one, two = (run_script("09_gan.py", "--smoke", *options) for options in ((), ("--ranks", "2")))
    assert "replicas: bit-equal" in two
    first = [[float(x) for x in text.splitlines()[2].split()[1:3]] for text in (one, two)]
    assert first[0] == pytest.approx(first[1], abs=2e-3)


def test_ddp_by_hand_on_three_ranks():
    """No power of two, so dividing the sum is no longer adding up what was divided."""
    assert run_script("02_ddp_by_hand.py", "--ranks", "3").count("the bits of DDP") == 4


def test_digits_below_the_target():
    assert "(target 0.97)" in run_script("01_digits.py", "--epochs", "1", exit_code=1)


def test_char_gpt_on_two_ranks():
    """With the bits of each other, and the parameters of one rank but for rounding."""
    options = ["--ranks", "2", "--dtype", "float64", "--steps", "5", "--target", "9"]
    printed = run_script("08_char_gpt.py", "--smoke", *options)
    assert "replicas: bit-equal" in printed and float(value_of(printed, "after 10 step(s): ")) < 1e-10


def test_char_gpt_below_its_target():
    assert "(target 0.5)" in run_script("08_char_gpt.py", "--smoke", "--steps", "1", "--target", "0.5", exit_code=1)


def test_graph_writes_its_picture(tmp_path):
    picture = tmp_path / "graph.dot"
    assert "(target 0.965)" in run_script("03_graph.py", "--epochs", "1", "--dot", str(picture), exit_code=1)
    assert picture.read_text().startswith('digraph "digits" {') and "fillcolor" in picture.read_text()


def test_balance_is_drawn_where_matplotlib_is(tmp_path):
    picture = tmp_path / "balance.png"
    printed = run_script("04_balance.py", "--smoke", "--plot", str(picture))
    assert picture.exists() or "no plot: matplotlib is not installed" in printed


def test_balance_below_its_target():
    assert "targets: 95%" in run_script("04_balance.py", "--smoke", "--jitter", "0.5", exit_code=1)


def test_el_che_below_its_target():
    assert "(target 10%)" in run_script("05_el_che.py", "--smoke", "--bandwidth", "1e4", exit_code=1)


def test_too_few_inputs_miss_a_fault():
    assert "MISSED" in run_script("06_test_your_balancer.py", "--examples", "1", exit_code=1)


def test_conformance_tells_of_a_naive_wrapper(tmp_path):
    table = tmp_path / "naive.json"
    assert f"minigrad passes {len(CHECKS)} of {len(CHECKS)}," in run_script("07_conformance.py", "--json", str(table))
    verdicts = {row["name"]: row["verdict"] for row in json.loads(table.read_text())}
    assert verdicts["unequal_batches"] == "fails" and verdicts["joining"] == "does not have it"
    assert verdicts["training"] == "passes"


def test_who_was_late_is_told_and_written(tmp_path):
    """32 samples take 23.2 ms on rank 0, and 40 ms more on rank 1; of 64, 17 should be its, that is 33.6 ms, and 47 the
    other one's, 34.1 ms. What is left is the wire.
    """
    printed = run_script("12_timeline.py", "--cluster", "--steps", "4", "--out", str(tmp_path / "new"))
    assert "Rank 1 was late in backward: by 40.0 ms in each of 4 steps." in printed
    assert "shards of (47, 17): a median step of 34.4 ms was foretold, 34.4 ms it was; it had been 63.7 ms" in printed
    trace = json.loads((tmp_path / "new" / "run.perfetto.json").read_text())
    assert broken_rules(trace) == [] and {event["pid"] for event in trace["traceEvents"]} == {0, 1}
    assert len(explain_ranks(Timeline.from_json((tmp_path / "new" / "run.json").read_text())).late) == 1
    assert (tmp_path / "new" / "run.html").read_text().startswith("<!")
    assert "Nobody was late" in run_script("12_timeline.py", "--cluster", "--smoke", "--late-ms", "0")


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_conformance_tells_of_pytorch():
    names = ["unequal_batches", "evaluation_on_one_rank", "training", "tokens"]
    printed = run_script("conformance/torch_ddp.py", *names)
    assert "4 checks: 1 passes, 2 fails, 1 does not have it" in printed
