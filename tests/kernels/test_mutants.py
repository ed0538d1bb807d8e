"""Bugs planted into the real kernels are seen by the suite, in at least one of the orders of the threads."""

import functools
import warnings

import numpy as np
import pytest

from minigrad.backend.fused import rows
from minigrad.backend.kernels import kernel_names, using_kernels
from minigrad.errors import KernelError
from tests.kernels.conftest import ORDERS, aligned_copy
from tests.kernels.cuda_on_cpu import HostKernels
from tests.kernels.cuda_on_cpu.loader import cpu_module
from tests.kernels.mutants import MUTANTS, reduced_source

pytestmark = pytest.mark.timeout(600)  # the first that needs a file compiles it
SHAPES = {0: (32, 70), 1: (96, 3), 7: (256, 2), 11: (64, 3)}  # with more blocks than threads, too


def sample():
    """One bug in six, with one of each file, and the others where they are asked for: each compiles for a second."""
    first = {mutant.file: mutant for mutant in reversed(MUTANTS)}.values()
    return [
        mutant if mutant in first or i % 6 == 3 else pytest.param(mutant, marks=pytest.mark.thorough)
        for i, mutant in enumerate(MUTANTS)
    ]


def run_under(module_of, test, order):
    """Run a test of the suite with other modules of the kernel files; the kernels that were launched."""
    rows._arrivals.cache_clear()  # which a bug may have left as it should not be
    loader = HostKernels(order, *SHAPES[order], compile=lambda file, _: module_of(file))
    with using_kernels(loader), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test(aligned_copy)
    return set(loader.launches)


def without_a_bug(file):
    """The kernels of a file for float32."""
    return cpu_module(file, reduced_source(file))


@functools.cache
def launched(test):
    """The kernels that a test launches."""
    return run_under(without_a_bug, test, ORDERS[0])


def with_a_bug(mutant):
    """Those kernels of its file that the mutant's test launches: to compile all would take most of the time."""
    names = [name for name in without_a_bug(mutant.file).names if name in launched(mutant.test)]
    assert names, f"{mutant.name}: {mutant.file}.cu has no kernel that its test launches"
    return cpu_module(mutant.file, mutant.source(), names)


def test_there_are_enough_of_them():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20
    assert {mutant.file for mutant in MUTANTS} == set(kernel_names())
    assert all(mutant.source() != reduced_source(mutant.file) for mutant in MUTANTS)


@pytest.mark.parametrize("mutant", sample(), ids=lambda mutant: mutant.name.replace(" ", "_"))
def test_a_bug_is_seen(mutant):
    changed = with_a_bug(mutant)
    seen = []
    for order in ORDERS:
        try:
            run_under(lambda file: changed if file == mutant.file else without_a_bug(file), mutant.test, order)
        except (AssertionError, RuntimeError) as error:
            assert not isinstance(error, KernelError), error
            seen.append(error)
            break
    assert seen, f"nothing saw {mutant.name} in {mutant.file}.cu"


@pytest.mark.parametrize("order", ORDERS)
def test_without_a_bug_the_same_tests_pass(order):
    for test in dict.fromkeys(mutant.test for mutant in MUTANTS):
        run_under(without_a_bug, test, order)
