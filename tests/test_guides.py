"""CONTRIBUTING.md and README.md name files, tests and modules that are there."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("minigrad/", "tests/", "kernels/", "examples/", ".ci/")
MADE = ("tests/benchmarks/results",)  # by a run


def quoted(guide):
    """What stands between backticks in a text, outside its blocks of code."""
    text = re.sub(r"^```.*?^```", "", (ROOT / guide).read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text)


def functions_of(path):
    """The names of the functions of a file."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def missing(name):
    """Whether something that a guide names is not there; what is no file, test or module of ours can't be."""
    if "::" in name:
        path, test = name.split("::")
        return not (ROOT / path).is_file() or test not in functions_of(ROOT / path)
    if name.startswith(FOLDERS) or re.fullmatch(r"[\w/]+(/|\.(py|md|cfg|toml|cu|cuh|txt))", name):
        inside = [ROOT, ROOT / "minigrad", ROOT / "minigrad" / "distributed"]  # as one reads it
        return not any((folder / name).exists() for folder in inside) and name not in MADE
    if re.fullmatch(r"minigrad(\.\w+)+", name):
        return not can_import(name)
    return False


def can_import(name):
    """Whether a dotted name is a module, or something in one."""
    try:
        importlib.import_module(name)
    except ImportError:
        module, _, inner = name.rpartition(".")
        return hasattr(importlib.import_module(module), inner)
    return True


@pytest.mark.parametrize("guide", ["CONTRIBUTING.md", "README.md"])
def test_what_a_guide_names_is_there(guide):
    names = quoted(guide)
    assert len(names) > 20
    assert [name for name in names if missing(name)] == []


def test_what_would_be_missed():
    gone = ["tests/gone.py", "tests/test_guides.py::test_gone", "ops/gone.py", "minigrad.nn.gone", "kernels/gone.cu"]
    assert [name for name in gone if not missing(name)] == []
    there = ["tests/test_guides.py::test_what_would_be_missed", "minigrad.nn.Linear", "ops/arithmetic.py", "lr=0.1"]
    assert [name for name in there if missing(name)] == []
