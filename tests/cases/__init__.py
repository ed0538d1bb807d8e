"""One table of cases for all operations: each is gradchecked, and compared with values recorded from PyTorch.

A file for each family of `minigrad/ops`; `CASES` gathers them. A test fails when an operation of `ops.__all__` has
no case here.
"""

from __future__ import annotations

from tests.cases import activation, arithmetic, compare, convert, elementwise, index, join, linalg, mask, reduce, shape

FAMILIES = {
    "activation": activation.CASES,
    "arithmetic": arithmetic.CASES,
    "compare": compare.CASES,
    "convert": convert.CASES,
    "elementwise": elementwise.CASES,
    "index": index.CASES,
    "join": join.CASES,
    "linalg": linalg.CASES,
    "mask": mask.CASES,
    "reduce": reduce.CASES,
    "shape": shape.CASES,
}
CASES = [case for cases in FAMILIES.values() for case in cases]
