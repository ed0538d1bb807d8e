"""Cases for rms_norm of minigrad/ops/layer_norms.py; those of layer_norm are in norms.py."""

from minigrad import ops
from tests.cases.case import Case, normal


def _rms_norm(label, shape, normalized, weighted=True, **options):
    return Case(
        "rms_norm",
        label,
        normal(shape, *[normalized] * weighted),
        lambda x, *weight: ops.rms_norm(x, normalized, *weight, **options),
        lambda t, x, *weight: t.nn.functional.rms_norm(x, normalized, *weight, **options),
    )


CASES = [
    _rms_norm("last", (3, 4, 5), (5,)),
    _rms_norm("two", (3, 4, 5), (4, 5), eps=0.5),
    _rms_norm("plain", (4, 3), (3,), weighted=False),
    _rms_norm("one_element", (3, 1), (1,), eps=0.5),
    _rms_norm("empty", (0, 5), (5,)),
]
