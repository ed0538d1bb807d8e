"""Cases for minigrad/ops/join.py."""

from minigrad import ops
from tests.cases.case import Case, normal

CASES = [
    Case("cat", "rows", normal((2, 3), (1, 3)), lambda *x: ops.cat(x), lambda t, *x: t.cat(x)),
    Case("cat", "columns", normal((2, 3), (2, 1)), lambda *x: ops.cat(x, -1), lambda t, *x: t.cat(x, -1)),
    Case("cat", "empty", normal((0, 3), (2, 3)), lambda *x: ops.cat(x), lambda t, *x: t.cat(x)),
    Case("cat", "twice", normal((2, 3)), lambda x: ops.cat([x, x * x, x], 1), lambda t, x: t.cat([x, x * x, x], 1)),
    Case("stack", "front", normal((2, 3), (2, 3)), lambda *x: ops.stack(x), lambda t, *x: t.stack(x)),
    Case("stack", "last", normal((2, 3), (2, 3)), lambda *x: ops.stack(x, -1), lambda t, *x: t.stack(x, -1)),
    Case("stack", "scalars", normal((), ()), lambda *x: ops.stack(x), lambda t, *x: t.stack(x)),
    Case("narrow", "plain", normal((5, 3)), lambda x: x.narrow(0, 1, 3), lambda t, x: x.narrow(0, 1, 3)),
    Case("narrow", "empty", normal((5, 3)), lambda x: x.narrow(1, 3, 0), lambda t, x: x.narrow(1, 3, 0)),
    Case("split", "size", normal((5, 3)), lambda x: x.split(2)[2], lambda t, x: x.split(2)[2]),
    Case("split", "lengths", normal((3, 5)), lambda x: x.split([1, 4], -1)[1], lambda t, x: x.split([1, 4], -1)[1]),
    Case("split", "overlap", normal((4, 2)), lambda x: x.split(2)[0] * x.split(2)[1], lambda t, x: x[:2] * x[2:]),
    Case("chunk", "uneven", normal((7, 2)), lambda x: x.chunk(3)[2], lambda t, x: x.chunk(3)[2]),
    Case("chunk", "fewer", normal((5, 2)), lambda x: x.chunk(4)[-1], lambda t, x: x.chunk(4)[-1]),
    Case("unbind", "rows", normal((3, 2)), lambda x: x.unbind()[1], lambda t, x: x.unbind()[1]),
    Case("unbind", "columns", normal((3, 2)), lambda x: x.unbind(-1)[0] * 2, lambda t, x: x.unbind(-1)[0] * 2),
    Case("pad", "last", normal((2, 3)), lambda x: ops.pad(x, (1, 2)), lambda t, x: t.nn.functional.pad(x, (1, 2))),
    Case(
        "pad",
        "both",
        normal((2, 3)),
        lambda x: ops.pad(x, (0, 1, 2, 0), value=1.5),
        lambda t, x: t.nn.functional.pad(x, (0, 1, 2, 0), value=1.5),
    ),
    Case(
        "pad",
        "cut",
        normal((4, 3)),
        lambda x: ops.pad(x, (-1, 2, 1, -2)) * 2,
        lambda t, x: t.nn.functional.pad(x, (-1, 2, 1, -2)) * 2,
    ),
    Case("pad", "empty", normal((0, 3)), lambda x: ops.pad(x, (1, 1)), lambda t, x: t.nn.functional.pad(x, (1, 1))),
]
