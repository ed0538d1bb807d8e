"""Bugs planted into the real kernels are seen by the suite, in at least one of the orders of the threads."""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from minigrad.backend.kernels import kernel_names, using_kernels
from tests.kernels.conftest import ORDERS, aligned_copy
from tests.kernels.cuda_on_cpu import HostKernels
from tests.kernels.cuda_on_cpu.loader import cpu_module
from tests.kernels.mutants import MUTANTS, reduced_source

pytestmark = pytest.mark.timeout(600)  # whichever is first compiles for all
SHAPES = {0: (32, 70), 1: (96, 3), 7: (256, 2), 11: (64, 3)}  # with more blocks than threads, too


@pytest.fixture(scope="module")
def compiled():
    """Compiles what all tests here run, as many at once as there are processors."""
    sources = [(file, reduced_source(file)) for file in kernel_names()]
    sources += [(mutant.file, mutant.source()) for mutant in MUTANTS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: cpu_module(*source), sources))


def run_under(source_of, test, order):
    """Run a test of the suite with other texts of the kernel files."""
    loader = HostKernels(order, *SHAPES[order], compile=lambda file, _: cpu_module(file, source_of(file)))
    with using_kernels(loader), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test(aligned_copy)


def test_there_are_enough_of_them():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20
    assert {mutant.file for mutant in MUTANTS} == set(kernel_names())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "_"))
def test_a_bug_is_seen(mutant, compiled):
    changed = mutant.source()
    seen = []
    for order in ORDERS:
        try:
            run_under(lambda file: changed if file == mutant.file else reduced_source(file), mutant.test, order)
        except (AssertionError, RuntimeError) as error:
            seen.append(error)
            break
    assert seen, f"nothing saw {mutant.name} in {mutant.file}.cu"


@pytest.mark.parametrize("order", ORDERS)
def test_without_a_bug_the_same_tests_pass(compiled, order):
    for mutant in MUTANTS:
        run_under(reduced_source, mutant.test, order)
