"""One table of cases for all operations: each is gradchecked, and compared with values recorded from PyTorch.

A file for each family of `minigrad/ops`; `CASES` gathers them. A test fails when an operation of `ops.__all__` has
no case here.
"""

from __future__ import annotations

from tests.cases import (
    activation,
    arithmetic,
    compare,
    convert,
    convolve,
    corners,
    distance,
    elementwise,
    index,
    inplace,
    join,
    likelihood,
    linalg,
    losses,
    mask,
    noise,
    norms,
    pooling,
    reduce,
    shape,
    sorting,
)

FAMILIES = {
    "activation": activation.CASES,
    "arithmetic": arithmetic.CASES,
    "compare": compare.CASES,
    "convert": convert.CASES,
    "convolve": convolve.CASES,
    "corners": corners.CASES,
    "distance": distance.CASES,
    "elementwise": elementwise.CASES,
    "index": index.CASES,
    "inplace": inplace.CASES,
    "join": join.CASES,
    "likelihood": likelihood.CASES,
    "linalg": linalg.CASES,
    "losses": losses.CASES,
    "mask": mask.CASES,
    "noise": noise.CASES,
    "norms": norms.CASES,
    "pooling": pooling.CASES,
    "reduce": reduce.CASES,
    "shape": shape.CASES,
    "sorting": sorting.CASES,
}
CASES = [case for cases in FAMILIES.values() for case in cases]
