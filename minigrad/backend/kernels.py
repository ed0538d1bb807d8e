"""The CUDA sources: where they are, and the text of one with its own headers in place.

They lie in `kernels/` of a checkout, and an installation puts them into the package as `minigrad.kernels`. A header
is copied into the text rather than found by an include path: CuPy keys its cache of compiled kernels by the text
alone, and would not notice that a header has changed. `#line` keeps the compiler's messages true to the files.
"""

from __future__ import annotations

import re
from pathlib import Path

from minigrad.errors import KernelError

_INCLUDE = re.compile(r'[ \t]*#[ \t]*include[ \t]*"([^"]+)"')


def kernel_dir() -> Path:
    """The folder of the CUDA sources: inside the installed package, or beside it in a checkout.

    Raises:
        KernelError: it is in neither place.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / "common.cuh").is_file():
            return folder
    raise KernelError(f"kernels: expected the CUDA sources inside {package} or beside it, got neither: install again")


def kernel_names() -> list[str]:
    """The names of the kernel files, without `.cu`, sorted."""
    return sorted(path.stem for path in kernel_dir().glob("*.cu"))


def kernel_source(name: str) -> str:
    """The text of `kernels/<name>.cu`, each header of ours in place of the first line that includes it.

    Raises:
        KernelError: the file, or a header that it includes, does not exist.
    """
    return "".join(_expand(f"{name}.cu", f"the kernel {name!r}", set()))


def _expand(file: str, wanted_by: str, seen: set[str]) -> list[str]:
    """The lines of a file, with the headers not seen before in place."""
    seen.add(file)
    lines = [f'#line 1 "{file}"\n']
    for number, line in enumerate(_read(file, wanted_by).splitlines(keepends=True), start=1):
        include = _INCLUDE.match(line)
        if include is None:
            lines.append(line)
        elif include[1] in seen:
            lines.append("\n")
        else:
            lines += [*_expand(include[1], f"{file}, line {number}", seen), f'\n#line {number + 1} "{file}"\n']
    return lines


def _read(file: str, wanted_by: str) -> str:
    try:
        return (kernel_dir() / file).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        present = ", ".join(kernel_names()) or "none"
        raise KernelError(
            f"kernel_source: expected kernels/{file} for {wanted_by}, got no such file: the kernels are {present}"
        ) from error
