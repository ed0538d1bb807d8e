"""What to run first on a machine with a GPU: `python -m tests.gpu.first_run`, in under 8 minutes, by hand.

The suite (`pytest tests -m gpu`), the benchmark beside PyTorch, the probe of a convolution, and the examples. What each
told is written under tests/benchmarks/results, with the card's name and the date; so is what was not run, and why:
a package that is missing, a second GPU that is not there, no time left. It exits with 1 unless all that could run did
well.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import minigrad
from minigrad import available_devices
from minigrad.backend.device import load_cupy

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "benchmarks" / "results"
WHOLE_S = 470.0
TAIL = 40  # lines of what a part that did not do well has printed
VERDICT = re.compile(r"^(tests/\S+\.py::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: \((.*)\))?(?: +\[ *\d+%\])?$")


@dataclass(frozen=True)
class Part:
    """One thing to run.

    Attributes:
        name: What it is.
        command: What the interpreter is given.
        limit_s: How long it may take.
        needs: Packages without which it is not run.
        out: What it writes: a page beside ours.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    needs: tuple[str, ...] = ()
    out: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a part: how it ended in words, whether that is well (None: it could not run), what it printed."""

    part: Part
    ended: str
    well: bool | None
    text: str = ""


def parts(out: Path, name: str) -> list[Part]:
    """What is run, the short ones first: what comes last may find no time left."""
    table, probed = out / f"{name}.md", out / f"{name}-convolution.md"
    examples = ROOT / "examples"
    return [
        Part("the parts of a convolution", ("-m", "tests.gpu.convolution", "--out", str(probed)), 60.0, out=probed),
        *(
            Part(f"example {script}", (str(examples / script), "--smoke", "--device", "cuda"), 60.0, ("sklearn",))
            for script in ("01_digits.py", "03_graph.py")
        ),
        Part("the suite", ("-m", "pytest", *pytest_options()), 300.0, ("pytest", "hypothesis")),
        Part(
            "the benchmark",
            ("-m", "tests.benchmarks.gpu", "--rounds", "5", "--out", str(table)),
            180.0,
            ("torch",),
            table,
        ),
    ]


def pytest_options() -> list[str]:
    """The whole suite; where the plug-in for time limits is missing, without what setup.cfg says about them."""
    options = ["tests", "-m", "gpu", "-v", "--tb=short", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    if importlib.util.find_spec("pytest_timeout") is None:
        lenient = [f"ignore::pytest.{kind}" for kind in ("PytestConfigWarning", "PytestUnknownMarkWarning")]
        options += ["-o", "addopts=-ra", *(word for warning in lenient for word in ("-W", warning))]
    return options


def run(part: Part, left_s: float) -> Outcome:
    """Run a part, at most as long as is left; its process and all that it started are gone afterwards."""
    missing = [package for package in part.needs if importlib.util.find_spec(package) is None]
    if missing:
        return Outcome(part, f"not run: it needs {', '.join(missing)}, which is not installed", None)
    limit_s = min(part.limit_s, left_s)
    if limit_s <= 0.0:
        return Outcome(part, "not run: no time was left", False)
    began_s = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "400", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, *part.command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(0)
        text = log.read()
    took = f"{time.monotonic() - began_s:.0f} s"
    ended = f"NOT FINISHED within {took}" if code is None else f"done in {took}" if code == 0 else f"FAILED in {took}"
    return Outcome(part, ended, code == 0, text)


def verdicts(text: str) -> dict[str, list[str]]:
    """The tests in what `pytest -v` printed, by verdict; those that were left out with the reason."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        match = VERDICT.match(line.rstrip())
        if match:
            found.setdefault(match[2], []).append(match[1] + (f": {match[3]}" if match[3] else ""))
    return found


def section(outcome: Outcome) -> list[str]:
    """What the page says of a part."""
    lines, tests = [f"## {outcome.part.name}: {outcome.ended}", ""], verdicts(outcome.text)
    if tests:
        lines += [", ".join(f"{len(names)} {verdict.lower()}" for verdict, names in sorted(tests.items())) + ".", ""]
        for verdict, title in (("FAILED", "Failed"), ("ERROR", "Errors"), ("SKIPPED", "Not run")):
            if verdict in tests:
                lines += [f"{title}:", "", *(f"- {name}" for name in tests[verdict]), ""]
    if outcome.part.out is not None and outcome.well:
        lines += [f"See {outcome.part.out.name}.", ""]
    elif not outcome.well and outcome.text:
        lines += ["```", *outcome.text.splitlines()[-TAIL:], "```", ""]
    elif not tests and outcome.text:
        lines += ["```", *outcome.text.splitlines()[-12:], "```", ""]
    return lines


def page(title: str, machine: str, outcomes: Sequence[Outcome], waiting: Sequence[Part]) -> str:
    """Everything so far, and what is still to come."""
    not_run = [f"- {one.part.name}: {one.ended}" for one in outcomes if one.ended.startswith("not run")]
    not_run += [f"- {part.name}: not reached" for part in waiting]
    left_out = [name for one in outcomes for name in verdicts(one.text).get("SKIPPED", [])]
    lines = [f"# First run: {title}", "", machine, "", "## What was not run", ""]
    lines += [*not_run, *(f"- {name}" for name in left_out)] or ["Nothing: all of it was."]
    return "\n".join([*lines, "", *(line for one in outcomes for line in section(one))])


def card() -> str:
    """What the first GPU calls itself."""
    name = load_cupy().cuda.runtime.getDeviceProperties(0).get("name", "GPU")
    return name.decode() if isinstance(name, bytes) else str(name)


def described(gpus: int) -> str:
    """The machine and what is installed on it."""
    cupy = load_cupy()
    commit = "unknown"
    if shutil.which("git"):
        asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        commit = asked.stdout.strip() or commit
    second = "" if gpus > 1 else " One GPU: what needs two was not run, it is named below."
    return (
        f"{gpus} GPU(s), CuPy {cupy.__version__}, CUDA {cupy.cuda.runtime.runtimeGetVersion()}, driver "
        f"{cupy.cuda.runtime.driverGetVersion()}, Python {sys.version.split()[0]}, minigrad {minigrad.__version__} at "
        f"commit {commit}.{second}"
    )


def main() -> int:
    """Run all parts, write the page after each of them, and tell what was not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    parser.add_argument("--seconds", type=float, default=WHOLE_S, help="for everything together")
    options = parser.parse_args()
    gpus = len(available_devices()) - 1
    if not gpus:
        print("first_run: expected a GPU, got none: nothing was run, nothing was written", file=sys.stderr)
        return 1
    ends_s = time.monotonic() + options.seconds
    date, title = datetime.date.today().isoformat(), card()
    name = f"{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}-{date}"
    options.out.mkdir(parents=True, exist_ok=True)
    waiting, outcomes = parts(options.out.resolve(), name), list[Outcome]()
    machine, path = described(gpus), options.out / f"{name}-first-run.md"
    while waiting:
        part = waiting.pop(0)
        print(f"{part.name} ...", flush=True)
        outcomes.append(run(part, ends_s - time.monotonic()))
        print(f"    {outcomes[-1].ended}", flush=True)
        path.write_text(page(f"{title}, {date}", machine, outcomes, waiting))
    print(path.read_text(), path, sep="\n")
    return 1 if any(one.well is False for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
