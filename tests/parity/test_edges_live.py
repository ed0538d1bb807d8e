"""The cases of elementwise families with numbers at the edges, against PyTorch: python -m pytest -m torch."""

import warnings

import numpy as np
import pytest

from tests.cases import FAMILIES
from tests.parity.compare import is_float, run_ours

ELEMENTWISE = ["activation", "arithmetic", "compare", "elementwise", "index", "join", "mask", "pooling", "shape"]
SUMS = {"avg_pool2d", "adaptive_avg_pool2d"}  # in another order
EXTREMA = {"amax", "amin", "argmax", "argmin", "max", "min"}
CASES = [case for family in ELEMENTWISE for case in FAMILIES[family] if case.op not in SUMS]
CASES += [case for case in FAMILIES["reduce"] if case.op in EXTREMA]
TOLERANCE = {np.float32: 1e-4, np.float64: 1e-10}
# Where we do something else, and why. A gradient may also be a number where PyTorch's is NaN.
OTHERWISE = {
    "nan": "celu elu hardsigmoid hardswish hardtanh relu6 selu softshrink",  # PyTorch's scalars and vectors differ
    "infinity": "gelu",  # as do those of gelu(infinity)
    "largest": "gelu hardswish square",  # where PyTorch's overflow on the way
}


def pools(dtype):
    info = np.finfo(dtype)
    return {
        "nan": [np.nan],
        "infinity": [np.inf, -np.inf],
        "zeros": [0.0, -0.0],
        "tiny": [info.smallest_subnormal, -info.tiny, 1e-300, -1e-300],
        "largest": [info.max, -info.max],
        "equal": [1.0],
    }


def at_the_edge(case, dtype, pool):
    """The case with half of the float inputs from a pool."""
    rng = np.random.default_rng(0)
    for value in case.draw():
        if is_float(value):
            value = np.where(rng.random(value.shape) < 0.5, rng.choice(pool, value.shape), value).astype(dtype)
        yield value


@pytest.mark.torch
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_same_as_torch(case, dtype):
    from tests.parity.theirs import run_theirs

    for name, pool in pools(dtype).items():
        if case.op in OTHERWISE.get(name, "").split():
            continue
        inputs = list(at_the_edge(case, dtype, pool))
        theirs = run_theirs(case, dtype, inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = run_ours(case, inputs, theirs.get("cotangent"))
        for part, found in ours.items():
            wanted = theirs[part]
            if part != "output":
                wanted = np.where(np.isnan(wanted), found, wanted)
            np.testing.assert_allclose(found, wanted, TOLERANCE[dtype], np.finfo(dtype).tiny, err_msg=f"{name}: {part}")
