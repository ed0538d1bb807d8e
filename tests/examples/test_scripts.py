"""Every script in examples/ runs, offline and in seconds, and says by its exit code whether it reached its target."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def run_script(name, *options, exit_code=0):
    """What a script prints, warnings being errors in it."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_runs(name):
    assert run_script(name, "--smoke")


def test_digits_on_two_ranks():
    printed = run_script("01_digits.py", "--smoke", "--ranks", "2", "--dtype", "float64")
    assert "replicas: bit-equal" in printed


def test_digits_below_the_target():
    assert "(target 0.97)" in run_script("01_digits.py", "--epochs", "1", exit_code=1)


def test_graph_writes_its_picture(tmp_path):
    picture = tmp_path / "graph.dot"
    assert "(target 0.965)" in run_script("03_graph.py", "--epochs", "1", "--dot", str(picture), exit_code=1)
    assert picture.read_text().startswith('digraph "digits" {') and "fillcolor" in picture.read_text()
