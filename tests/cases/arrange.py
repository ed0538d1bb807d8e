"""Cases for minigrad/ops/arrange.py."""

import numpy as np

import minigrad
from minigrad import ops
from tests.cases.case import Case, normal

_MESHES = {"one": ((3,),), "two": ((3,), (2,)), "three": ((3,), (2,), (4,)), "scalar": ((3,), ()),
           "empty": ((0,), (2,))}
_STACKS = {"scalars": ((), ()), "vectors": ((3,), (3,)), "matrices": ((2, 3), (2, 3)), "images": ((2, 3, 4), (2, 3, 4))}
_SPLITS = {"even": ((6, 2), 3, 0), "uneven": ((2, 7), 3, 1), "many": ((2,), 4, 0), "at": ((7, 2), (1, 5), 0),
           "beyond": ((2, 4), [-1, 9, 2], -1)}
_WINDOWS = {"apart": ((6, 2), (0, 2, 2)), "over": ((2, 7), (1, 3, 2)), "dense": ((5,), (-1, 3, 1)),
            "whole": ((3,), (0, 3, 5)), "middle": ((2, 5, 3), (1, 2, 1))}
_MOVES = {"one": (0, 2), "back": (-1, 0), "two": ((0, 1), (-1, 0)), "none": ((), ())}


def _both(op, label, inputs, call, **options):
    return Case(op, label, inputs, call, lambda t, *tensors: call(*tensors), **options)


def _meshed(space, indexing, *vectors):
    """All grids, each by its own factor."""
    grids = space.meshgrid(*vectors, indexing=indexing)
    return space.stack([grid * (i + 2) for i, grid in enumerate(grids)])


def _repeated(shape, *counts):
    return lambda rng: [np.asarray(rng.standard_normal(shape)), np.asarray(counts)]


def _parts(x, sections, dim):
    """The parts of a tensor put together again in another order, and what is empty among them as it is."""
    parts = x.tensor_split(sections, dim)
    return parts[::-1], [part.shape[dim] for part in parts]


CASES = [
    *(
        _both("unfold", label, normal(shape), lambda x, a=arguments: x.unfold(*a) * 2)
        for label, (shape, arguments) in _WINDOWS.items()
    ),
    _both("unfold", "patches", normal((1, 2, 4, 4)), lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).sum((-1, -2))),
    *(
        Case(op, label, normal(shape), lambda x, op=op: getattr(ops, op)(x) * 2,
             lambda t, x, op=op: getattr(t, op)(x) * 2)
        for op in ("atleast_1d", "atleast_2d", "atleast_3d")
        for label, shape in {"scalar": (), "vector": (3,), "matrix": (2, 3), "images": (2, 3, 4)}.items()
    ),
    _both("fliplr", "matrix", normal((2, 3)), lambda x: x.fliplr() * 2),
    _both("flipud", "vector", normal((3,)), lambda x: x.flipud() * 2),
    Case("atleast_2d", "several", normal((3,), (2, 3)), lambda *x: ops.cat(ops.atleast_2d(*x)),
         lambda t, *x: t.cat(t.atleast_2d(*x))),
    Case("broadcast_tensors", "two", normal((3, 1), (4,)), lambda *x: ops.stack(ops.broadcast_tensors(*x)),
         lambda t, *x: t.stack(t.broadcast_tensors(*x))),
    *(
        Case("meshgrid", f"{label}-{indexing}", normal(*shapes),
             lambda *x, i=indexing: _meshed(minigrad, i, *x), lambda t, *x, i=indexing: _meshed(t, i, *x))
        for label, shapes in _MESHES.items()
        for indexing in ("ij", "xy")
    ),
    *(
        Case(op, label, normal(*shapes), lambda *x, op=op: getattr(ops, op)(x), lambda t, *x, op=op: getattr(t, op)(x))
        for op in ("vstack", "hstack", "dstack")
        for label, shapes in _STACKS.items()
    ),
    Case("hstack", "wider", normal((2, 1), (2, 3)), lambda *x: ops.hstack(x), lambda t, *x: t.hstack(x)),
    *(
        Case("tensor_split", label, normal(shape),
             lambda x, s=sections, d=dim: ops.cat(_parts(x, s, d)[0], d) * float(sum(_parts(x, s, d)[1])),
             lambda t, x, s=sections, d=dim: t.cat(_parts(x, s, d)[0], d) * float(sum(_parts(x, s, d)[1])))
        for label, (shape, sections, dim) in _SPLITS.items()
    ),
    *(
        _both("movedim", label, normal((2, 3, 4)), lambda x, s=source, d=destination: x.movedim(s, d) * 2)
        for label, (source, destination) in _MOVES.items()
    ),
    _both("repeat_interleave", "rows", normal((2, 3)), lambda x: x.repeat_interleave(2, 0)),
    _both("repeat_interleave", "columns", normal((2, 3)), lambda x: x.repeat_interleave(3, dim=-1)),
    _both("repeat_interleave", "flat", normal((2, 3)), lambda x: x.repeat_interleave(2)),
    _both("repeat_interleave", "none", normal((2, 3)), lambda x: x.repeat_interleave(0, 1)),
    _both("repeat_interleave", "scalar", normal(()), lambda x: x.repeat_interleave(2)),
    _both("repeat_interleave", "tensor", _repeated((2, 3), 2, 0, 1), lambda x, n: x.repeat_interleave(n, dim=1)),
    _both("repeat_interleave", "tensor_flat", _repeated((2,), 1, 3), lambda x, n: x.repeat_interleave(n)),
    _both("repeat_interleave", "tensor_one", _repeated((2, 3), 2), lambda x, n: x.repeat_interleave(n, 0)),
]
