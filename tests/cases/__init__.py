"""One table of cases for all operations: each is gradchecked, and compared with values recorded from PyTorch.

A file for each family of `minigrad/ops`; `CASES` gathers them. A test fails when an operation of `ops.__all__` has
no case here.
"""

from __future__ import annotations

from tests.cases import arithmetic, convert, index, join, linalg, mask, shape

FAMILIES = {
    "arithmetic": arithmetic.CASES,
    "convert": convert.CASES,
    "index": index.CASES,
    "join": join.CASES,
    "linalg": linalg.CASES,
    "mask": mask.CASES,
    "shape": shape.CASES,
}
CASES = [case for cases in FAMILIES.values() for case in cases]
