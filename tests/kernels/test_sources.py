"""Finding the CUDA sources, and putting headers in place."""

import re
from pathlib import Path

import pytest

from minigrad.backend import kernels
from minigrad.backend.kernels import kernel_dir, kernel_names, kernel_source
from minigrad.errors import KernelError
from tests.kernels.cuda_on_cpu.loader import cpu_module


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of sources that takes the place of the real one."""
    monkeypatch.setattr(kernels, "kernel_dir", lambda: tmp_path)
    return tmp_path


def test_the_real_folder_has_the_shared_header():
    assert (kernel_dir() / "common.cuh").is_file()
    assert kernel_names() == sorted(path.stem for path in kernel_dir().glob("*.cu"))


def test_every_kernel_can_be_read():
    assert [name for name in kernel_names() if '#include "' in kernel_source(name)] == []


def test_no_two_files_have_a_kernel_of_one_name():
    """A profiler shows names alone."""
    names = [name for file in kernel_names() for name in cpu_module(file, kernel_source(file)).names]
    assert len(names) > 20 and len(set(names)) == len(names)


@pytest.mark.parametrize("runner", ["kernels/test_fused.py", "gpu/test_kernels.py"])
def test_the_whole_suite_is_run(runner):
    tests = Path(__file__).parents[1]
    suite = {path.stem for path in (tests / "kernel_suite").glob("*.py")} - {"__init__", "values"}
    assert set(re.findall(r"from tests\.kernel_suite\.(\w+) import", (tests / runner).read_text())) == suite


def test_a_header_is_put_in_place_once(folder):
    (folder / "a.cuh").write_text("#pragma once\nint a;\n")
    (folder / "b.cuh").write_text('#include "a.cuh"\nint b;')
    (folder / "k.cu").write_text('// top\n#include "a.cuh"\n  #  include "b.cuh"  // why\n#include <math.h>\nint k;\n')
    assert kernel_source("k") == (
        '#line 1 "k.cu"\n// top\n'
        '#line 1 "a.cuh"\n#pragma once\nint a;\n\n#line 3 "k.cu"\n'
        '#line 1 "b.cuh"\n\nint b;\n#line 4 "k.cu"\n'
        "#include <math.h>\nint k;\n"
    )


def test_a_header_that_includes_itself_ends(folder):
    (folder / "k.cu").write_text('#include "k.cu"\nint k;\n')
    assert kernel_source("k") == '#line 1 "k.cu"\n\nint k;\n'


def test_a_changed_header_changes_the_text(folder):
    (folder / "a.cuh").write_text("int a;\n")
    (folder / "k.cu").write_text('#include "a.cuh"\n')
    before = kernel_source("k")
    (folder / "a.cuh").write_text("long a;\n")
    assert kernel_source("k") != before


def test_a_missing_kernel_is_named_beside_those_present(folder):
    (folder / "k.cu").write_text("")
    with pytest.raises(KernelError, match=r"expected kernels/j\.cu for the kernel 'j', got no such file: .* are k"):
        kernel_source("j")


def test_a_missing_header_is_named_with_the_line_that_wants_it(folder):
    (folder / "k.cu").write_text('\n#include "gone.cuh"\n')
    with pytest.raises(KernelError, match=r"expected kernels/gone\.cuh for k\.cu, line 2"):
        kernel_source("k")


def test_a_missing_folder_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "minigrad" / "backend" / "kernels.py"))
    with pytest.raises(KernelError, match="expected the CUDA sources inside .* or beside it, got neither"):
        kernel_dir()
