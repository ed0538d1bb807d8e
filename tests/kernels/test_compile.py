"""Every kernel, and each thing that common.cuh offers, compiles for each architecture. NVRTC needs no GPU."""

import hashlib
from pathlib import Path

import pytest
from cuda.pathfinder import find_nvidia_header_directory
from cupy.cuda import nvrtc

from minigrad.backend import kernels
from minigrad.backend.kernels import OPTIONS, kernel_names, kernel_source
from tests.kernels.cuda_on_cpu.compiler import cache_folder

OTHERS = [pytest.param(architecture, marks=pytest.mark.thorough) for architecture in ("80", "90", "120")]
ARCHITECTURES = ["75", *OTHERS]  # by default the one that offers least
REDUCTIONS = Path(__file__).with_name("reductions.cu")


def compile_for(architecture, name, source):
    """The machine code and the compiler's log, with the options that CuPy gives to a RawModule."""
    options = (*OPTIONS, "-ftz=true", "--device-as-default-execution-space")
    headers = f"-I{find_nvidia_header_directory('cudart')}"
    program = nvrtc.createProgram(source, name, (), ())
    try:
        nvrtc.compileProgram(program, (f"-arch=sm_{architecture}", *options, headers))
        return nvrtc.getCUBIN(program), nvrtc.getProgramLog(program).strip("\0 \n")
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    finally:
        nvrtc.destroyProgram(program)


@pytest.fixture
def reductions(tmp_path, monkeypatch):
    """The source of reductions.cu, read as if it lay beside the real header."""
    for path in (REDUCTIONS, kernels.kernel_dir() / "common.cuh"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(kernels, "kernel_dir", lambda: tmp_path)
    return kernel_source("reductions")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_shared_header_compiles_without_a_warning(reductions, architecture):
    code, log = compile_for(architecture, "reductions.cu", reductions)
    assert log == ""
    assert b"sum_bf16" in code and b"min_f32" in code


@pytest.mark.parametrize("name", kernel_names())
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_without_a_warning(architecture, name):
    """Unless the same text went through before."""
    source = kernel_source(name)
    parts = [source, architecture, repr(OPTIONS), repr(nvrtc.getVersion())]
    passed = cache_folder() / f"nvrtc-{name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}"
    if not passed.exists():
        code, log = compile_for(architecture, f"{name}.cu", source)
        assert code and log == "", name
        passed.touch()


def test_a_message_names_the_file_and_the_line(reductions):
    with pytest.raises(pytest.fail.Exception, match=r"common\.cuh\(\d+\): error"):
        compile_for("80", "reductions.cu", reductions.replace("return x + y;", "return x + nothing;"))
