"""Cases for minigrad/ops/noise.py: the noise is drawn again in each call, so it is a fixed factor."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal


def _rng():
    return np.random.Generator(np.random.Philox(3))


def _factor(shape, p):
    """The factor of each element, by the documented rule: 16-bit words, the lower part of which is dropped."""
    count, threshold = int(np.prod(shape)), round(p * 2**16)
    words = _rng().integers(0, 2**64, -(-count // 4), dtype=np.uint64).view(np.uint16)[:count]
    return np.where(words < threshold, 0.0, 2**16 / (2**16 - threshold)).reshape(shape)


def _case(op, label, shape, mask_shape, p):
    return Case(
        op,
        label,
        normal(shape),
        lambda x: getattr(ops, op)(x, p, rng=_rng()),
        lambda t, x: x * t.tensor(_factor(mask_shape, p)).to(x.dtype),
    )


CASES = [
    _case("dropout", "matrix", (5, 7), (5, 7), 0.4),
    _case("dropout", "scalar", (), (), 0.4),
    _case("dropout", "empty", (0, 3), (0, 3), 0.4),
    _case("dropout2d", "images", (3, 5, 2, 2), (3, 5, 1, 1), 0.4),
] + [
    Case(
        op,
        label,
        normal((3, 4, 2, 2)),
        lambda x, op=op, p=p, training=training: getattr(ops, op)(x * 1, p, training),
        lambda t, x, op=op, p=p, training=training: getattr(t.nn.functional, op)(x * 1, p, training),
    )
    for op in ("dropout", "dropout2d")
    for label, p, training in (("none", 0.0, True), ("all", 1.0, True), ("off", 0.5, False))
]
