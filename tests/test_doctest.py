"""Every example in a docstring runs, and prints what it says."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import minigrad

MODULES = ["minigrad"] + [module.name for module in pkgutil.walk_packages(minigrad.__path__, "minigrad.")]
# what an example may use without importing it, besides the names of its own module
NAMES = {"minigrad": minigrad, "np": np}
NAMES |= {
    module.name: importlib.import_module(f"minigrad.{module.name}")
    for module in pkgutil.iter_modules(minigrad.__path__)
    if module.ispkg
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    module = importlib.import_module(name)
    minigrad.manual_seed(0)
    failed, _ = doctest.testmod(module, extraglobs=NAMES, optionflags=FLAGS, verbose=False)
    assert failed == 0
