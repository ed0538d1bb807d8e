"""The scripts of the pages, run as the pages say: alone, by the launcher, under mpirun, with ours as adapters.py."""

import re
import subprocess
import sys

from minigrad.course import catalogue
from tests.distributed.worlds import ROOT, mpirun


def script_of(number, folder, name):
    """Write the script of a page, which is its block of Python without prompts, and our solution beside it."""
    blocks = re.findall(r"^```python\n(.*?)^```", catalogue.text_of(number, "page.md"), re.MULTILINE | re.DOTALL)
    (script,) = [block for block in blocks if ">>>" not in block]
    (folder / "adapters.py").write_text(catalogue.text_of(number, "solution.py"))
    (folder / name).write_text(script)
    return folder / name


def outcomes(script, pattern):
    """What of its output fits a pattern, in order: alone, by the launcher on two ranks, and under mpirun on two.

    mpirun may put the end of a line behind the beginning of another rank's.
    """
    ways = [
        subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=60),
        launched(script),
        mpirun(2, "-m", "mpi4py", str(script)),
    ]
    assert [done.returncode for done in ways] == [0, 0, 0], "".join(done.stderr for done in ways)
    return [sorted(re.findall(pattern, done.stdout)) for done in ways]


def launched(script, *arguments):
    """What the launcher did with two ranks of a script."""
    command = [sys.executable, "-m", "minigrad.distributed.launch", "-n", "2", str(script), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
