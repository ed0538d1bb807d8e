"""Every example in a docstring runs, and prints what it says."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import minigrad

MODULES = ["minigrad"] + [module.name for module in pkgutil.walk_packages(minigrad.__path__, "minigrad.")]
# what every example may use without importing it
NAMES = {"minigrad": minigrad, "np": np}
NAMES |= {
    module.name: importlib.import_module(f"minigrad.{module.name}")
    for module in pkgutil.iter_modules(minigrad.__path__)
    if module.ispkg
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def is_of_a_lesson(name):
    """Whether a module has the tasks of a lesson."""
    return name.startswith("minigrad.course.lesson") and name.endswith(".task")


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    """They see NAMES, what the package of their module exports, and the names of the module itself.

    Those of a lesson's tasks, which are not written, see our solutions.
    """
    module = importlib.import_module(name)
    written = importlib.import_module(name.removesuffix("task") + "solution") if is_of_a_lesson(name) else module
    package = importlib.import_module(name.rpartition(".")[0] or name)
    exported = {entry: getattr(package, entry) for entry in getattr(package, "__all__", ())}
    minigrad.manual_seed(0)
    failed, _ = doctest.testmod(module, globs={**NAMES, **exported, **vars(written)}, optionflags=FLAGS, verbose=False)
    assert failed == 0
