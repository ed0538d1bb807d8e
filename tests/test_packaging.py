"""minigrad works, and finds its CUDA sources, from a wheel, an editable install, an sdist and a bare checkout.

Everything is built from a copy, offline, with the setuptools of the environment that runs the tests.
"""

import configparser
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = ["minigrad", "kernels", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"]
SITE = sysconfig.get_path("purelib")
OFFLINE = ["--no-index", "--no-build-isolation", "--no-deps", "--disable-pip-version-check", "--quiet"]
CORE = ["ml_dtypes", "numpy", "safetensors", "threadpoolctl", "tqdm"]

# prints where minigrad and its kernels are, then each source file with its length
REPORT = """
import minigrad
from minigrad.backend.kernels import kernel_dir
print(minigrad.__file__, kernel_dir(), sep="\\n")
print(*sorted(f"{path.name} {len(path.read_text())}" for path in kernel_dir().glob("*.cu*")), sep="\\n")
"""


def sources():
    return sorted(f"{path.name} {len(path.read_text())}" for path in (ROOT / "kernels").glob("*.cu*"))


def call(*command, cwd, path=()):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON"))}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def report(cwd, path, python=sys.executable):
    """Where a fresh interpreter finds minigrad and its kernels, and which sources it sees."""
    package, kernels, *files = call(python, "-c", REPORT, cwd=cwd, path=path).splitlines()
    assert files == sources()
    return Path(package).parent, Path(kernels)


def setup_cfg():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    return settings


def names(requirements):
    """The package names of lines such as `numpy>=2.1; python_version < "3.11"`, as an index writes them."""
    lines = (line.strip() for line in requirements.splitlines())
    found = (re.match(r"[\w.-]+", line) for line in lines if line and not line.startswith("#"))
    return {match.group().lower().replace("_", "-") for match in found}


def test_the_constraints_name_a_version_of_all_that_the_tests_need():
    text = (ROOT / "tests" / "constraints.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r'[\w.-]+==[\w.]+(; python_version [^;]+)?', line)] == []
    settings = setup_cfg()
    extras = settings["options.extras_require"]
    needed = names(settings["options"]["install_requires"]) | names(extras["test"]) | names(extras["examples"])
    assert needed - names(text) == set()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what a distribution is made from."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", *OFFLINE, "-w", folder, checkout, cwd=folder)
    return next(folder.glob("*.whl"))


def unpack(wheel, folder):
    """Install a wheel into a folder; ours has no scripts and no build step, so this is all that pip does."""
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_found_from_a_wheel(wheel, tmp_path):
    site = unpack(wheel, tmp_path / "site")
    assert report(tmp_path, [site]) == (site / "minigrad", site / "minigrad" / "kernels")


def test_found_from_a_wheel_that_an_sdist_made(checkout, tmp_path):
    call(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, checkout, cwd=tmp_path)
    [sdist] = tmp_path.glob("*.tar.gz")
    call(sys.executable, "-m", "pip", "wheel", *OFFLINE, "-w", tmp_path, sdist, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    site = unpack(wheel, tmp_path / "site")
    assert report(tmp_path, [site]) == (site / "minigrad", site / "minigrad" / "kernels")


def test_found_from_an_editable_install(checkout, tmp_path):
    environment = tmp_path / "environment"
    call(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    [site] = environment.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(SITE)  # the other packages come from here, behind what is installed there
    python = environment / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", *OFFLINE, "-e", checkout, cwd=tmp_path)
    assert report(tmp_path, [], python) == (checkout / "minigrad", checkout / "kernels")


def test_found_from_a_bare_checkout(checkout, tmp_path):
    assert report(tmp_path, [checkout]) == (checkout / "minigrad", checkout / "kernels")


def test_a_wheel_holds_every_module_and_every_kernel(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "minigrad").rglob("*.py")}
    kernels = {f"minigrad/kernels/{path.name}" for path in (ROOT / "kernels").glob("*.[cp]*")}
    page = {f"minigrad/distributed/inspect/page/page.{ending}" for ending in ("css", "js")}
    course = {path.relative_to(ROOT).as_posix() for path in (ROOT / "minigrad" / "course").rglob("*.md")}
    assert held == modules | kernels | page | course | {"minigrad/py.typed"}


def test_a_wheel_carries_its_licence_and_needs_five_packages(wheel):
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        assert any(name.endswith("/LICENSE") for name in archive.namelist())
        fields = Parser().parsestr(archive.read(metadata).decode())
    needed = [line for line in fields.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(line.split(">")[0].replace("-", "_") for line in needed) == CORE


def test_setup_cfg_names_every_package():
    listed = setup_cfg()["options"]["packages"].split()
    present = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "minigrad").rglob("*.py")}
    assert listed == sorted(present | {"minigrad.kernels"})
