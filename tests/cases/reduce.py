"""Cases for minigrad/ops/reduce.py and minigrad/ops/extremum.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal, uniform

_ANY_AXES = {
    "all": ((3, 4), None),
    "scalar": ((), None),
    "scalar_axis": ((), 0),
    "vector": ((5,), 0),
    "first": ((3, 4), 0),
    "last": ((3, 4), -1),
    "middle": ((2, 3, 4), 1),
    "leading": ((2, 3, 4), (0, 1)),
    "trailing": ((2, 3, 4), (-1, 1)),
    "outer": ((2, 3, 4), (0, -1)),
    "no_rows": ((0, 3), 1),
}
_ONE_AXIS = {label: (shape, dim) for label, (shape, dim) in _ANY_AXES.items() if not isinstance(dim, tuple)}
_MOMENT_AXES = {label: axes for label, axes in _ANY_AXES.items() if not label.startswith(("scalar", "no"))}
_NORMS = {"two": 2, "one": 1, "inf": float("inf"), "minus_inf": -float("inf"), "three": 3, "one_and_a_half": 1.5,
          "half": 0.5, "zero": 0}


def _reductions(op, axes, inputs=normal, ours=None, theirs=None, label="", **options):
    """Cases of one reduction, each without and with keepdim (which PyTorch takes only beside an axis)."""
    ours = ours or getattr(ops, op)
    theirs = theirs or (lambda t, *a, **k: getattr(t, op)(*a, **k))
    cases = []
    for name, (shape, dim) in axes.items():
        for keepdim in (False,) if dim is None else (False, True):
            arguments = {} if dim is None else {"dim": dim, "keepdim": keepdim}
            cases.append(
                Case(
                    op,
                    "-".join(part for part in (label, name, "keepdim" if keepdim else "") if part),
                    inputs(shape),
                    lambda x, a=arguments: ours(x, **a),
                    lambda t, x, a=arguments: theirs(t, x, **a),
                    **options,
                )
            )
    return cases


def _ties(shape):
    """Few different values, so that the largest occurs more than once."""
    return lambda rng: [np.asarray(rng.integers(0, 2, shape).astype(float))]


def _bools(shape):
    return lambda rng: [np.asarray(rng.integers(0, 2, shape).astype(bool))]


def _with_zeros(count):
    def draw(rng):
        x = rng.uniform(0.5, 2.0, (3, 4))
        x.flat[:count] = 0.0
        return [x]

    return draw


def _sums():
    cases = []
    for op in ("sum", "mean"):
        cases += _reductions(op, _ANY_AXES)
    cases += _reductions("logsumexp", {label: axes for label, axes in _ANY_AXES.items() if axes[1] is not None})
    cases += _reductions("prod", _ONE_AXIS)
    for zeros in (1, 2):
        cases.append(Case("prod", f"{zeros}_zeros", _with_zeros(zeros), ops.prod, lambda t, x: t.prod(x)))
        cases.append(
            Case("prod", f"{zeros}_zeros-axis", _with_zeros(zeros), lambda x: ops.prod(x, 1), lambda t, x: t.prod(x, 1))
        )
    cases += [
        Case("cumsum", label, normal(shape), lambda x, d=dim: ops.cumsum(x, d), lambda t, x, d=dim: t.cumsum(x, d))
        for label, (shape, dim) in _ONE_AXIS.items()
        if dim is not None
    ]
    integers = {"int": lambda rng: [rng.integers(-5, 5, (3, 4))], "bool": _bools((3, 4))}
    for label, inputs in integers.items():
        for op in ("sum", "prod"):
            cases.append(
                Case(op, label, inputs, getattr(ops, op), lambda t, x, op=op: getattr(t, op)(x), differentiable=False)
            )
        cases.append(
            Case("cumsum", label, inputs, lambda x: ops.cumsum(x, 1), lambda t, x: t.cumsum(x, 1), differentiable=False)
        )
    return cases + [
        Case("sum", "nothing", normal((0, 3)), lambda x: ops.sum(x, 0), lambda t, x: t.sum(x, 0)),
        Case("sum", "empty_dim", normal((2, 3)), lambda x: ops.sum(x, ()), lambda t, x: t.sum(x, ())),
        Case("sum", "transposed", normal((3, 4, 2)), lambda x: ops.sum(x, 0), lambda t, x: t.sum(x, 0)),
        Case("mean", "nothing", normal((0, 3)), lambda x: ops.mean(x, 0), lambda t, x: t.mean(x, 0),
             differentiable=False),
        Case("prod", "nothing", normal((0, 3)), lambda x: ops.prod(x, 0), lambda t, x: t.prod(x, 0)),
        Case("logsumexp", "nothing", normal((3, 0)), lambda x: ops.logsumexp(x, 1), lambda t, x: t.logsumexp(x, 1),
             differentiable=False),
        Case("logsumexp", "large", uniform(-1e4, 1e4, (3, 4)), lambda x: ops.logsumexp(x, 1),
             lambda t, x: t.logsumexp(x, 1)),
        Case("logsumexp", "infinite", lambda rng: [np.array([[-np.inf] * 2, [-np.inf, 1.0], [np.inf, 1.0]])],
             lambda x: ops.logsumexp(x, 1), lambda t, x: t.logsumexp(x, 1), differentiable=False),
    ]


def _moments():
    cases = []
    for op in ("var", "std"):
        cases += _reductions(op, _MOMENT_AXES)
        for label, options in {"biased": {"unbiased": False}, "correction": {"correction": 0.5}}.items():
            cases.append(
                Case(
                    op,
                    label,
                    normal((3, 4)),
                    lambda x, op=op, o=options: getattr(ops, op)(x, 1, **o),
                    lambda t, x, op=op, o=options: getattr(t, op)(x, 1, **o),
                )
            )
        cases.append(
            Case(op, "offset", lambda rng: [1e6 + rng.standard_normal((3, 4))], getattr(ops, op),
                 lambda t, x, op=op: getattr(t, op)(x), differentiable=False)
        )
    return cases


def _norms():
    cases = _reductions("norm", _ANY_AXES)
    for label, p in _NORMS.items():
        cases += _reductions(
            "norm",
            {"axis": ((3, 4), 1), "all": ((3, 4), None)},
            ours=lambda x, p=p, **k: ops.norm(x, p, **k),
            theirs=lambda t, x, p=p, **k: x.norm(p, **k),
            label=label,
            differentiable=p != 0,
        )
    return cases


def _extrema():
    cases = []
    for op in ("amax", "amin"):
        cases += _reductions(op, _ANY_AXES | {"no_rows": ((0, 3), 1)})
        cases += _reductions(op, {"axis": ((3, 5), 1), "axes": ((2, 3, 4), (0, 2))}, _ties, label="ties",
                             differentiable=False)
    for op in ("max", "min"):
        axes = {label: axes for label, axes in _ONE_AXIS.items() if axes[1] is not None}
        for part, differentiable in {"values": True, "indices": False}.items():
            cases += _reductions(
                op,
                axes,
                ours=lambda x, op=op, part=part, **k: getattr(getattr(ops, op)(x, **k), part),
                theirs=lambda t, x, op=op, part=part, **k: getattr(getattr(t, op)(x, **k), part),
                label=part,
                differentiable=differentiable,
            )
        cases.append(Case(op, "all", normal((3, 4)), getattr(ops, op), lambda t, x, op=op: getattr(t, op)(x)))
        cases.append(Case(op, "one", normal(()), getattr(ops, op), lambda t, x, op=op: getattr(t, op)(x)))
    for op in ("argmax", "argmin"):
        cases += _reductions(op, _ONE_AXIS, differentiable=False)
    return cases


def _truths():
    cases = []
    for op in ("any", "all"):
        cases += _reductions(op, _ANY_AXES, _bools, differentiable=False)
        cases += _reductions(op, {"axis": ((3, 4), 1)}, _ties, label="float", differentiable=False)
        cases.append(
            Case(op, "nothing", _bools((2, 0)), lambda x, op=op: getattr(ops, op)(x, 1),
                 lambda t, x, op=op: getattr(t, op)(x, 1), differentiable=False)
        )
    return cases


CASES = _sums() + _moments() + _norms() + _extrema() + _truths()
