"""Keeping freed memory."""

import ctypes
import os
import subprocess
import sys

import pytest

from minigrad.backend.memory import can_keep_freed_memory, environment_that_keeps_memory, keep_freed_memory


def test_keeps_where_the_c_library_is_glibc():
    """In a process of its own: it can't be undone."""
    code = "from minigrad.backend.memory import keep_freed_memory; print(keep_freed_memory())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == str(hasattr(ctypes.CDLL(None), "mallopt"))


FREES = """
import numpy, re
def held():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
array = numpy.ones(8_000_000)
before = held()
del array
print(before - held() < 8_000_000)
"""


@pytest.mark.skipif(not can_keep_freed_memory(), reason="only glibc keeps freed memory")
@pytest.mark.parametrize("keeps", [False, True])
def test_an_environment_makes_a_process_keep_what_it_frees(keeps):
    environment = {**os.environ, **(environment_that_keeps_memory() if keeps else {})}
    found = subprocess.run([sys.executable, "-c", FREES], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == str(keeps)


@pytest.mark.parametrize("error", [OSError, TypeError])
def test_elsewhere_it_says_that_it_can_not(error, monkeypatch):
    def refuse(name):
        raise error(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert keep_freed_memory() is False and can_keep_freed_memory() is False
