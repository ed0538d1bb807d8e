"""Cases for minigrad/ops/inplace.py and assign.py, and lerp, scatter and index_add, which have much in common.

Each changes a non-leaf in place, so that the tape has to follow; `memory` cases change memory under no_grad.
"""

import numpy as np

import minigrad
from tests.cases.case import Case, normal, uniform


def _both(op, label, inputs, call, **options):
    return Case(op, label, inputs, call, lambda t, *tensors: call(*tensors), **options)


def _changed(op, label, inputs, change):
    """The change of something computed, which is used before and after."""

    def call(x, *others):
        y = x * 2
        before = y.sum()
        changed = change(y, *others)
        assert changed is y or changed is None
        return y * 3 + before

    return _both(op, label, inputs, call)


def _memory(op, inputs, change):
    """The change of a part of a tensor, seen through the whole."""

    def call(no_grad, x, *others):
        with no_grad():
            whole = x.clone()
            change(whole[1:], *others)
            return whole

    return Case(
        op,
        "memory",
        inputs,
        lambda *tensors: call(minigrad.no_grad, *tensors),
        lambda t, *tensors: call(t.no_grad, *tensors),
        differentiable=False,
    )


def _operator(symbol):
    """A function that does `x symbol= y`, and gives x."""
    space = {}
    exec(f"def change(x, y):\n    x {symbol}= y\n    return x", space)
    return space["change"]


def _itself(op, symbol, value):
    return _changed(op, "itself", normal((3, 2)), lambda x: _operator(symbol)(x, value(x)))


def _set(index):
    def change(x, value):
        x[index] = value

    return change


def _rows(x, y):
    """A plain tensor whose rows are assigned one by one."""
    rows = (x.detach() * 0).reshape(1, 3).repeat(3, 1)
    for i in range(2):
        rows[i] = y * 2 + rows[i - 1]
    return rows * x


def _indexed(shape, low, high, index_shape, *shapes):
    """A normal tensor, integers from [low, high) that differ along the first axis, and more normal ones."""

    def draw(rng):
        columns = np.prod(index_shape[1:], dtype=int)
        order = np.stack([rng.permutation(np.arange(low, high)) for _ in range(columns)], axis=1)
        index = order[: index_shape[0]].reshape(index_shape)
        return [np.asarray(rng.standard_normal(shape)), index, *normal(*shapes)(rng)]

    return draw


def _repeated(shape, high, count, source_shape):
    """A normal tensor, as many integers from [0, high), which may repeat, and a normal source."""
    return lambda rng: [rng.standard_normal(shape), rng.integers(0, high, count), rng.standard_normal(source_shape)]


def _masked(mask_shape, *shapes):
    return lambda rng: [np.asarray(rng.random(mask_shape) < 0.5), *normal(*shapes)(rng)]


def _integers(symbol, dtype):
    op = {"&": "bitwise_and", "|": "bitwise_or", "^": "bitwise_xor"}[symbol]

    def call(x, y):
        x = x.clone()
        return _operator(symbol)(x, y)

    def draw(rng):
        return [rng.integers(0, 2, shape).astype(dtype) for shape in ((2, 4), 4)]

    return _both(f"{op}_", dtype, draw, call, differentiable=False)


_OPERATORS = {
    "add_": "+",
    "sub_": "-",
    "mul_": "*",
    "div_": "/",
    "remainder_": "%",
    "pow_": "**",
}
_POSITIVE = uniform(0.5, 2.0, (3, 4), (4,))


def _operators():
    cases = []
    for op, symbol in _OPERATORS.items():
        change = _operator(symbol)
        cases += [
            _changed(op, "operator", _POSITIVE, change),
            _changed(op, "number", uniform(0.5, 2.0, (3, 4)), lambda x, change=change: change(x, 1.5)),
            _changed(op, "scalars", uniform(0.5, 2.0, (), ()), change),
            _memory(op, uniform(0.5, 2.0, (3, 4), (2, 1)), change),
        ]
    return cases


CASES = [
    *_operators(),
    _memory("floor_divide_", uniform(0.5, 2.0, (3, 4), (4,)), _operator("//")),
    _both("matmul_", "operator", normal((3, 4), (4, 4)), lambda x, y: _operator("@")(x * 2, y) * 3),
    *(_integers(symbol, dtype) for symbol in "&|^" for dtype in ("bool", "int64")),
    _changed("add_", "alpha", normal((3, 4), (4,)), lambda x, y: x.add_(y, alpha=-0.5)),
    _changed("sub_", "alpha", normal((3, 4), (4,)), lambda x, y: x.sub_(y, alpha=2)),
    _changed("mul_", "method", normal((3, 4), (4,)), lambda x, y: x.mul_(y)),
    _changed("div_", "method", _POSITIVE, lambda x, y: x.div_(y)),
    _itself("add_", "+", lambda x: x),
    _itself("sub_", "-", lambda x: x.sum(0)),
    _itself("mul_", "*", lambda x: x.clone()),
    _both("add_", "sum", normal((3,), (3,)), lambda x, y: _operator("+")(x.sum() * 0, (x * y).sum()) * x),
    _both("add_", "plain", normal((2, 3)), lambda x: _operator("+")(x.detach() * 0, x * x) * x),
    _both(
        "mul_",
        "chain",
        normal((3,), (3,)),
        lambda x, y: _operator("*")(_operator("-")(_operator("*")(x * 1, y), y), x) + y,
    ),
    _changed("setitem", "row", normal((3, 4), (4,)), _set(1)),
    _changed("setitem", "element", normal((3, 4), ()), _set((1, -1))),
    _changed("setitem", "broadcast", normal((5, 4), (1, 4)), _set(slice(None, None, 2))),
    _changed("setitem", "lead", normal((3, 4), (1, 1, 4)), _set(0)),
    _changed("setitem", "all", normal((3, 4), ()), _set(...)),
    _changed("setitem", "new_axis", normal((3, 4), (3, 1, 2)), _set((slice(None), None, slice(2)))),
    _changed("setitem", "number", normal((3, 4)), lambda x: _set((..., 1))(x, 2.5)),
    _changed("setitem", "list", normal((3, 4), (2, 4)), _set([2, 0])),
    _changed("setitem", "empty", normal((3, 4), (0, 4)), _set(slice(2, 2))),
    _changed("setitem", "tensor", _indexed((5, 3), -5, 0, (4,), (4, 3)), lambda x, i, v: _set(i)(x, v)),
    _changed("setitem", "tensors", _indexed((5, 4), 0, 4, (3,), (3,)), lambda x, i, v: _set((i + 1, i))(x, v)),
    _changed(
        "setitem",
        "mask",
        lambda rng: [rng.standard_normal((2, 3)), np.asarray([[1, 0, 1], [0, 0, 0]], bool), rng.standard_normal(2)],
        lambda x, m, v: _set(m)(x, v),
    ),
    _both("setitem", "plain", normal((3,), (3,)), _rows),
    _memory("setitem", normal((3, 4), (4,)), _set(1)),
    _changed("copy_", "same", normal((3, 4), (3, 4)), lambda x, y: x.copy_(y)),
    _changed("copy_", "broadcast", normal((3, 4), (3, 1)), lambda x, y: x.copy_(y)),
    _memory("copy_", normal((3, 4), (4,)), lambda x, y: x.copy_(y)),
    _changed("fill_", "number", normal((3, 4)), lambda x: x.fill_(1.5)),
    _changed("fill_", "tensor", normal((3, 4), ()), lambda x, y: x.fill_(y)),
    _memory("fill_", normal((3, 4)), lambda x: x.fill_(2)),
    _changed("zero_", "all", normal((3, 4)), lambda x: x.zero_()),
    _memory("zero_", normal((3, 4)), lambda x: x.zero_()),
    _both("normal_", "gradient", normal((3, 4)), lambda x: (x * 2).normal_(3.0, 0.5) * 0 + x),
    _both("uniform_", "gradient", normal((3, 4)), lambda x: (x * 2).uniform_(-1.0, 1.0) * 0 + x),
    _changed("clamp_", "both", normal((3, 4)), lambda x: x.clamp_(-0.7, 0.9)),
    _changed("clamp_", "max", normal((3, 4)), lambda x: x.clamp_(max=0.1)),
    _memory("clamp_", normal((3, 4)), lambda x: x.clamp_(min=0)),
    _both("lerp", "number", normal((3, 4), (4,)), lambda x, y: x.lerp(y, 0.3)),
    _both("lerp", "beyond", normal((3, 4), (3, 4)), lambda x, y: x.lerp(y, 1.25)),
    _both("lerp", "end", lambda rng: [np.asarray([1e16, 3.0]), np.asarray([1.0, 0.1])], lambda x, y: x.lerp(y, 1.0)),
    _both("lerp", "tensor", normal((3, 4), (4,), (3, 1)), lambda x, y, w: x.lerp(y, w)),
    _both("lerp", "scalars", normal((), (), ()), lambda x, y, w: x.lerp(y, w)),
    _changed("lerp_", "number", normal((3, 4), (4,)), lambda x, y: x.lerp_(y, 0.7)),
    _changed("lerp_", "tensor", normal((3, 4), (3, 4), (4,)), lambda x, y, w: x.lerp_(y, w)),
    _memory("lerp_", normal((3, 4), (2, 4)), lambda x, y: x.lerp_(y, 0.1)),
    _both("masked_fill_", "number", _masked((4,), (3, 4)), lambda m, x: (x * 2).masked_fill_(m, -1.5) * 3),
    _both("masked_fill_", "tensor", _masked((3, 4), (3, 4), ()), lambda m, x, v: (x * 2).masked_fill_(m, v) * 3),
    _both("scatter", "rows", _indexed((3, 4), 0, 3, (2, 4), (2, 4)), lambda x, i, s: x.scatter(0, i, s)),
    _both("scatter", "columns", _indexed((4, 3), 0, 3, (2, 4), (4, 2)), lambda x, i, s: x.scatter(-1, i.T, s)),
    _both("scatter", "part", _indexed((3, 4), 0, 3, (3, 2), (3, 2)), lambda x, i, s: x.scatter(0, i, s)),
    _both("scatter", "number", _indexed((3, 4), 0, 3, (2, 4)), lambda x, i: x.scatter(0, i, 1.5)),
    _both("scatter", "empty", _indexed((3, 4), 0, 3, (0, 4), (0, 4)), lambda x, i, s: x.scatter(0, i, s)),
    _changed("scatter_", "rows", _indexed((3, 4), 0, 3, (2, 4), (2, 4)), lambda x, i, s: x.scatter_(0, i, s)),
    _memory("scatter_", _indexed((4, 4), 0, 3, (2, 4)), lambda x, i: x.scatter_(0, i, -1)),
    _both("index_add", "rows", _repeated((3, 4), 3, 5, (5, 4)), lambda x, i, s: x.index_add(0, i, s)),
    _both("index_add", "middle", _repeated((2, 3, 4), 3, 5, (2, 5, 4)), lambda x, i, s: x.index_add(1, i, s, alpha=-2)),
    _both("index_add", "vector", _repeated((3,), 3, 5, (5,)), lambda x, i, s: x.index_add(-1, i, s)),
    _both("index_add", "empty", _repeated((3, 4), 3, 0, (0, 4)), lambda x, i, s: x.index_add(0, i, s)),
    _changed("index_add_", "rows", _repeated((3, 4), 3, 5, (5, 4)), lambda x, i, s: x.index_add_(0, i, s, alpha=0.5)),
    _memory("index_add_", _repeated((4, 4), 3, 5, (5, 4)), lambda x, i, s: x.index_add_(0, i, s)),
]
