"""Cases for minigrad/ops/inverse.py, and the norms of minigrad/linalg.py."""

import numpy as np

from minigrad import linalg, ops
from tests.cases.case import Case, normal


def _matrices(*shapes):
    """Matrices far from singular, then plain numbers."""
    first, *others = shapes
    return lambda rng: [rng.standard_normal(first) * 0.3 + np.eye(first[-1]), *normal(*others)(rng)]


_SOLVED = {"columns": ((3, 3), (3, 2)), "vector": ((3, 3), (3,)), "batch": ((2, 3, 3), (2, 3, 1)),
           "vectors": ((2, 3, 3), (2, 3)), "wider": ((3, 3), (2, 3, 2)), "shared": ((2, 1, 3, 3), (4, 3, 2))}
_NORMS = {"all": {}, "rows": {"dim": 1}, "one": {"ord": 1, "dim": 0, "keepdim": True}, "fro": {"ord": "fro"},
          "axes": {"dim": (0, 1)}}

CASES = [
    *(
        Case(op, label, _matrices(shape), getattr(ops, op), lambda t, x, op=op: getattr(t, op)(x))
        for op in ("det", "inverse")
        for label, shape in {"one": (1, 1), "matrix": (3, 3), "batch": (2, 3, 3), "none": (0, 2, 2)}.items()
    ),
    *(
        Case("solve", label, _matrices(*shapes), linalg.solve, lambda t, x, b: t.linalg.solve(x, b))
        for label, shapes in _SOLVED.items()
    ),
    *(
        Case("norm", f"linalg_{label}", normal((3, 4)), lambda x, a=arguments: linalg.norm(x, **a),
             lambda t, x, a=arguments: t.linalg.norm(x, **a))
        for label, arguments in _NORMS.items()
    ),
    Case("norm", "linalg_vector", normal((4,)), lambda x: linalg.norm(x, 3), lambda t, x: t.linalg.norm(x, 3)),
    Case("norm", "linalg_vectors", normal((3, 4)), lambda x: linalg.vector_norm(x, 3),
         lambda t, x: t.linalg.vector_norm(x, 3)),
]
