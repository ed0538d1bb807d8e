"""One table of cases for all operations: each is gradchecked, and compared with values recorded from PyTorch.

A file for each family of `minigrad/ops`; `CASES` gathers them. A test fails when an operation of `ops.__all__` has
no case here.
"""

from __future__ import annotations

from tests.cases import (
    activation,
    arithmetic,
    arrange,
    calls,
    compare,
    convert,
    convolve,
    corners,
    counting,
    diagonal,
    distance,
    einsum,
    elementwise,
    functions,
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
    products,
    reduce,
    running,
    scatter,
    shape,
    sorting,
)

FAMILIES = {
    "activation": activation.CASES,
    "arithmetic": arithmetic.CASES,
    "arrange": arrange.CASES,
    "calls": calls.CASES,
    "compare": compare.CASES,
    "convert": convert.CASES,
    "convolve": convolve.CASES,
    "corners": corners.CASES,
    "counting": counting.CASES,
    "diagonal": diagonal.CASES,
    "distance": distance.CASES,
    "einsum": einsum.CASES,
    "elementwise": elementwise.CASES,
    "functions": functions.CASES,
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
    "products": products.CASES,
    "reduce": reduce.CASES,
    "running": running.CASES,
    "scatter": scatter.CASES,
    "shape": shape.CASES,
    "sorting": sorting.CASES,
}
CASES = [case for cases in FAMILIES.values() for case in cases]
