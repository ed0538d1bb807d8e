"""Cases for minigrad/ops/shape.py."""

from tests.cases.case import Case, normal


def _case(op, label, shape, ours, theirs=None):
    """One tensor of a shape through the same call in both libraries, unless theirs is given."""
    return Case(op, label, normal(shape), ours, theirs or (lambda t, x: ours(x)))


CASES = [
    _case("reshape", "plain", (2, 6), lambda x: x.reshape(3, 4)),
    _case("reshape", "tuple", (2, 6), lambda x: x.reshape((4, -1))),
    _case("reshape", "scalar", (), lambda x: x.reshape(1, 1)),
    _case("reshape", "to_scalar", (1, 1), lambda x: x.reshape(())),
    _case("reshape", "empty", (0, 3), lambda x: x.reshape(3, 0)),
    _case("reshape", "copy", (2, 3, 4), lambda x: x.transpose(0, 2).reshape(4, -1) * 2),
    _case("view", "plain", (2, 6), lambda x: x.view(3, -1)),
    _case("flatten", "all", (2, 3, 4), lambda x: x.flatten()),
    _case("flatten", "from_one", (2, 3, 4), lambda x: x.flatten(1)),
    _case("flatten", "negative", (2, 3, 4), lambda x: x.flatten(-3, -2)),
    _case("flatten", "scalar", (), lambda x: x.flatten()),
    _case("flatten", "empty", (0, 3, 4), lambda x: x.flatten(1)),
    _case("unflatten", "plain", (2, 6), lambda x: x.unflatten(1, (2, 3))),
    _case("unflatten", "guess", (6, 2), lambda x: x.unflatten(-2, (3, -1))),
    _case("squeeze", "all", (1, 3, 1), lambda x: x.squeeze()),
    _case("squeeze", "one", (1, 3, 1), lambda x: x.squeeze(-1)),
    _case("squeeze", "some", (1, 3, 1), lambda x: x.squeeze((0, 1))),
    _case("squeeze", "none", (2, 3), lambda x: x.squeeze(0)),
    _case("squeeze", "scalar", (), lambda x: x.squeeze(0)),
    _case("unsqueeze", "front", (2, 3), lambda x: x.unsqueeze(0)),
    _case("unsqueeze", "last", (2, 3), lambda x: x.unsqueeze(-1)),
    _case("unsqueeze", "scalar", (), lambda x: x.unsqueeze(0)),
    _case("permute", "plain", (2, 3, 4), lambda x: x.permute(2, 0, 1)),
    _case("permute", "tuple", (2, 3, 4), lambda x: x.permute((1, -1, 0)) * 2),
    _case("permute", "scalar", (), lambda x: x.permute(())),
    _case("transpose", "plain", (2, 3, 4), lambda x: x.transpose(0, -1)),
    _case("transpose", "same", (2, 3), lambda x: x.transpose(1, 1)),
    _case("transpose", "empty", (2, 0, 4), lambda x: x.transpose(0, 1)),
    _case("swapaxes", "plain", (2, 3, 4), lambda x: x.swapaxes(1, 2)),
    _case("t", "matrix", (2, 3), lambda x: x.t()),
    _case("t", "property", (2, 3), lambda x: x.T * 2),
    _case("t", "vector", (3,), lambda x: x.t()),
    _case("matrix_transpose", "property", (2, 3, 4), lambda x: x.mT),
    _case("flip", "one", (2, 3), lambda x: x.flip(0)),
    _case("flip", "both", (2, 3), lambda x: x.flip(0, -1)),
    _case("flip", "empty", (0, 3), lambda x: x.flip((0,))),
    _case("roll", "one", (2, 3), lambda x: x.roll(1, 1)),
    _case("roll", "both", (4, 3), lambda x: x.roll((1, -2), (0, -1))),
    _case("roll", "flat", (2, 3), lambda x: x.roll(2)),
    _case("expand", "row", (1, 3), lambda x: x.expand(4, -1)),
    _case("expand", "front", (3, 1), lambda x: x.expand(2, 3, 4)),
    _case("expand", "scalar", (), lambda x: x.expand(2, 3)),
    _case("expand", "empty", (1, 3), lambda x: x.expand(0, 3)),
    Case("expand_as", "plain", normal((3, 1), (2, 3, 4)), lambda x, y: x.expand_as(y), lambda t, x, y: x.expand_as(y)),
    _case("broadcast_to", "plain", (3, 1), lambda x: x.broadcast_to((2, 3, 4))),
    _case("tile", "plain", (2, 3), lambda x: x.tile(2, 1)),
    _case("tile", "fewer", (2, 3), lambda x: x.tile((2,))),
    _case("tile", "more", (2,), lambda x: x.tile(3, 2)),
    _case("repeat", "plain", (2, 3), lambda x: x.repeat(2, 3)),
    _case("repeat", "more", (2, 1), lambda x: x.repeat(4, 1, 3)),
    _case("repeat", "zero", (2, 3), lambda x: x.repeat(0, 2)),
    _case("reshape", "chain", (2, 3, 4), lambda x: (x.flatten(1) + x.permute(0, 2, 1).reshape(2, 12)) * x.view(2, 12)),
]
