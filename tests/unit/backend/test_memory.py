"""Keeping freed memory."""

import ctypes
import subprocess
import sys

import pytest

from minigrad.backend.memory import keep_freed_memory


def test_keeps_where_the_c_library_is_glibc():
    """In a process of its own: it can't be undone."""
    code = "from minigrad.backend.memory import keep_freed_memory; print(keep_freed_memory())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == str(hasattr(ctypes.CDLL(None), "mallopt"))


@pytest.mark.parametrize("error", [OSError, TypeError])
def test_elsewhere_it_says_that_it_can_not(error, monkeypatch):
    def refuse(name):
        raise error(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert keep_freed_memory() is False
