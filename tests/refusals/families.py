"""What the operations that order, count, lay out, multiply and draw refuse."""

import numpy as np

import minigrad
from minigrad import Tensor, linalg, ops
from minigrad.errors import ArgumentError, DtypeError, IndexRangeError, ShapeError
from tests.refusals import each

X = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
N = Tensor(np.array([[0, 1, 1], [1, 0, 0]]))
V, S, E = X[0], Tensor(np.asarray(1.0, np.float32)), Tensor(np.ones((2, 0), np.float32))
ROW, SECOND = Tensor(np.array([0, 1])), Tensor(np.array([[0], [1]]))


def named(name):
    return getattr(ops, name)


ROWS = [
    # arrange
    (lambda: ops.meshgrid(), ArgumentError, "meshgrid: expected at least one tensor, got none"),
    (lambda: ops.meshgrid(V, X), ShapeError, r"meshgrid: expected vectors, got shapes \(3,\), \(2, 3\)"),
    (lambda: ops.meshgrid(V, indexing="yx"), ArgumentError, "meshgrid: expected indexing to be one of 'ij', 'xy'"),
    (lambda: ops.broadcast_tensors(X, ROW), ShapeError, "broadcast_tensors: expected shapes that broadcast"),
    (lambda: minigrad.broadcast_shapes((2, 3), 2), ShapeError, r"broadcast_shapes: expected .* \(2, 3\) and \(2,\)"),
    *each((lambda name: named(name)("a"), DtypeError, "^%s: expected a tensor, an array or a number, got str"),
          *["atleast_1d", "atleast_2d", "atleast_3d"]),
    (lambda: X.unfold(0, 3, 1), ShapeError, r"unfold: expected an axis of at least 3, got 0 of \(2, 3\)"),
    (lambda: X.unfold(0, 2, 0), ArgumentError, "unfold: expected step to be an integer >= 1, got 0"),
    (lambda: ops.movedim(X, 0, 2), ShapeError, r"movedim: expected an axis in \[-2, 2\), got 2"),
    (lambda: ops.movedim(X, (0, 1), 0), ShapeError, r"movedim: expected as many different axes, got \(0, 1\) and 0"),
    (lambda: ops.movedim(X, (0, 0), (0, 1)), ShapeError, r"movedim: expected as many different axes"),
    (lambda: ops.repeat_interleave(X, 2, 2), ShapeError, r"repeat_interleave: expected an axis in \[-2, 2\)"),
    (lambda: ops.repeat_interleave(X, -1), ArgumentError, "repeat_interleave: expected repeats .* >= 0, got -1"),
    (lambda: ops.repeat_interleave(X, S), DtypeError, "repeat_interleave: expected integers as repeats, got float32"),
    (lambda: ops.repeat_interleave(X, ROW), ShapeError, r"repeat_interleave: expected one number or 6, got \(2,\)"),
    (lambda: ops.repeat_interleave(X, ROW - 1, 0), ArgumentError, "expected repeats >= 0, got some as low as -1"),
    (lambda: ops.tensor_split(X, 0), ArgumentError, "tensor_split: expected indices_or_sections .* >= 1, got 0"),
    (lambda: ops.tensor_split(X, [1.0]), ArgumentError, "tensor_split: expected indices_or_sections other"),
    (lambda: ops.tensor_split(S, 2), ShapeError, r"tensor_split: expected .* at least one axis, got"),
    *each((lambda name: named(name)([]), ArgumentError, "%s: expected a list of at least one tensor, got"),
          *["vstack", "hstack", "dstack"]),
    *each((lambda name: named(name)([X, E]), ShapeError, r"cat: expected shapes that differ only along axis"),
          *["vstack", "dstack"]),
    # compare
    *each((lambda name: named(name)(X, X, rtol=-1), ArgumentError, "%s: expected rtol to be a number >= 0"),
          *["isclose", "allclose"]),
    (lambda: ops.isclose(X, ROW), ShapeError, r"isclose: expected shapes that broadcast, got \(2, 3\) and \(2,\)"),
    (lambda: ops.isclose(X, X, equal_nan=1), ArgumentError, "isclose: expected equal_nan to be True"),
    (lambda: ops.equal(X, X.double()), DtypeError, "equal: expected operands of one float dtype, got float32"),
    # counting
    (lambda: ops.nonzero(X, as_tuple=1), ArgumentError, "nonzero: expected as_tuple to be True or False, got 1"),
    (lambda: ops.argwhere("a"), DtypeError, "argwhere: expected a tensor, an array or a number, got str"),
    (lambda: ops.count_nonzero(X, 2), ShapeError, r"count_nonzero: expected an axis in \[-2, 2\), got 2"),
    (lambda: ops.masked_select(X, X), DtypeError, r"masked_select: expected a bool mask, got float32"),
    (lambda: ops.masked_select(X, ROW > 0), ShapeError, r"masked_select: expected shapes that broadcast"),
    (lambda: ops.unique(X, dim=2), ShapeError, r"unique: expected an axis in \[-2, 2\), got 2"),
    (lambda: ops.unique(X, return_counts=1), ArgumentError, "unique: expected return_counts to be True"),
    (lambda: ops.bincount(X), DtypeError, r"bincount: expected integers, got float32 \(2, 3\)"),
    (lambda: ops.bincount(N), ShapeError, r"bincount: expected a vector, got shape \(2, 3\)"),
    (lambda: ops.bincount(ROW - 1), IndexRangeError, r"bincount: expected integers in \[0, .*got some in \[-1, -1\]"),
    (lambda: ops.bincount(ROW, V), ShapeError, r"bincount: expected weights of shape \(2,\), got \(3,\)"),
    (lambda: ops.bincount(ROW, minlength=-1), ArgumentError, "bincount: expected minlength to be an integer >= 0"),
    (lambda: ops.where(X > 0, X), ArgumentError, "where: expected x and y, or neither, got x alone"),
    # diagonal
    (lambda: ops.diagonal(X, 0, 1, -1), ShapeError, r"diagonal: expected two different axes of .* 1 and -1"),
    (lambda: ops.diagonal(X, 0.5), DtypeError, "diagonal: expected an integer offset of less than .* got 0.5"),
    (lambda: ops.diagonal(X, dim2=2), ShapeError, r"diagonal: expected an axis in \[-2, 2\), got 2"),
    (lambda: ops.diag(S), ShapeError, r"diag: expected a vector or a matrix, got shape \(\)"),
    (lambda: ops.diag(V, 2**70), DtypeError, r"diag: expected an integer diagonal of less than 2\*\*48, got 118"),
    (lambda: ops.trace(V), ShapeError, r"trace: expected a matrix, got shape \(3,\)"),
    # einsum
    (lambda: ops.einsum(X, [0, 1]), DtypeError, "einsum: expected an equation first, got Tensor"),
    (lambda: ops.einsum("ij,jk", X), ArgumentError, "einsum: expected 2 operands for 'ij,jk', got 1"),
    (lambda: ops.einsum("i1", X), ArgumentError, "einsum: expected letters, commas, '...' and one"),
    (lambda: ops.einsum("i->j->i", V), ArgumentError, "einsum: expected letters, commas"),
    (lambda: ops.einsum("i..j", X), ArgumentError, "einsum: expected letters, commas"),
    (lambda: ops.einsum("ij->ik", X), ArgumentError, "einsum: expected each letter of the output once"),
    (lambda: ops.einsum("ij->ii", X), ArgumentError, "einsum: expected each letter of the output once"),
    (lambda: ops.einsum("i", X), ShapeError, "einsum: expected an operand with the axes 'i' of 'i', got 2 axes"),
    (lambda: ops.einsum("...ijk", X), ShapeError, "einsum: expected an operand with the axes '...ijk'"),
    (lambda: ops.einsum("ij,jk", X, X), ShapeError, r"einsum: expected one length for 'j' of 'ij,jk', got .* \(2, 3\)"),
    (lambda: ops.einsum("ii", X), ShapeError, "einsum: expected one length for 'i' of 'ii', got shapes"),
    (lambda: ops.tensordot(X, X, 1), ShapeError, r"tensordot: expected axes 1 of equal lengths, got shapes \(2, 3\)"),
    (lambda: ops.tensordot(X, X, 3), ArgumentError, r"tensordot: expected dims that \(2, 3\) and \(2, 3\) have"),
    (lambda: ops.tensordot(X, X, ([0, 0], [0, 1])), ShapeError, "tensordot: expected axes .* of equal lengths"),
    (lambda: ops.tensordot(X, X, ([2], [0])), ShapeError, r"tensordot: expected an axis in \[-2, 2\), got 2"),
    # functions
    *each((lambda name: named(name)("a"), DtypeError, "^%s: expected a tensor, an array or a number, got str"),
          *["acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "exp2", "log10", "log2", "logit", "nan_to_num",
            "sinh", "tan", "trunc"]),
    *each((lambda name: named(name)(X, E), ShapeError, r"%s: expected shapes that broadcast, got \(2, 3\)"),
          *["atan2", "logaddexp"]),
    *each((lambda name: named(name)(*[N] * (1 + (name == "logaddexp"))), DtypeError, "%s: expected a float tensor"),
          *["frac", "logaddexp"]),
    (lambda: ops.logit(X, 0.6), ArgumentError, r"logit: expected eps to be a number in \[0, 0.5\], got 0.6"),
    (lambda: ops.nan_to_num(X, posinf="1"), ArgumentError, "nan_to_num: expected posinf to be a number"),
    # products
    *each((lambda name: named(name)(X, X), ShapeError, r"^%s: expected shapes .*, got \(2, 3\) and \(2, 3\)"),
          *["mm", "bmm", "mv", "dot", "outer"]),
    (lambda: ops.bmm(X[None], X.T[None].repeat(2, 1, 1)), ShapeError, r"bmm: expected .*\(1, 2, 3\) and \(2, 3, 2\)"),
    (lambda: ops.addmm(X, X, X), ShapeError, r"addmm: expected shapes \(N, K\) and \(K, M\), got"),
    (lambda: ops.addmm(X, X, X.T), ShapeError, r"addmm: expected x that broadcasts to \(2, 2\), got \(2, 3\)"),
    (lambda: ops.addmm(S, X, X.T, beta="1"), ArgumentError, "addmm: expected beta to be a number, got '1'"),
    (lambda: ops.baddbmm(S, X, X), ShapeError, r"baddbmm: expected shapes \(B, N, K\) and \(B, K, M\)"),
    *each((lambda name: named(name)(X, 2, X), DtypeError, "%s: expected tensors, got the number 2: write value=2"),
          *["addcmul", "addcdiv"]),
    (lambda: ops.addcmul(X, X, X, value=None), ArgumentError, "addcmul: expected value to be a number, got None"),
    (lambda: ops.cdist(V, X), ShapeError, r"cdist: expected shapes \(..., N, D\) and \(..., M, D\), got \(3,\)"),
    (lambda: ops.cdist(X, X, -1), ArgumentError, "cdist: expected p to be a number >= 0, got -1"),
    # inverse
    *each((lambda name: named(name)(X), ShapeError, r"%s: expected square matrices \(..., N, N\), got \(2, 3\)"),
          *["det", "inverse"]),
    *each((lambda name: named(name)(N[:, :2]), DtypeError, r"%s: expected a float tensor, got int64 \(2, 2\)"),
          *["det", "inverse"]),
    (lambda: ops.inverse(X[:, :2] * 0), ArgumentError, r"inverse: expected matrices that are not singular, got one of"),
    (lambda: linalg.solve(X[:, :2] * 0, X), ArgumentError, "solve: expected matrices that are not singular"),
    (lambda: linalg.solve(X[:, :2], V), ShapeError, r"solve: expected shapes .*, got \(2, 2\) and \(3,\)"),
    (lambda: linalg.norm(X, 2), ArgumentError, r"norm: expected ord None or 'fro' for matrices, got 2 .*vector_norm"),
    (lambda: linalg.vector_norm(X, "fro"), ArgumentError, "vector_norm: expected ord to be a number, got 'fro'"),
    # pairs
    (lambda: ops.aminmax(X, dim=2), ShapeError, r"amin: expected an axis in \[-2, 2\), got 2"),
    *each((lambda name: named(name)(X, 2), ShapeError, r"(var|std): expected an axis in \[-2, 2\), got 2"),
          *["var_mean", "std_mean"]),
    *each((lambda name: named(name)("a"), DtypeError, "^%s: expected a tensor, an array or a number, got str"),
          *["aminmax", "var_mean", "std_mean"]),
    (lambda: minigrad.logspace(0, 1, -1), ArgumentError, "logspace: expected steps to be an integer in"),
    # running
    (lambda: ops.cumprod(X, 2), ShapeError, r"cumprod: expected an axis in \[-2, 2\), got 2"),
    (lambda: ops.diff(S), ShapeError, r"diff: expected a tensor with at least one axis, got shape \(\)"),
    (lambda: ops.diff(X, -1), ArgumentError, "diff: expected n to be an integer >= 0, got -1"),
    # sampling
    (lambda: minigrad.bernoulli(N), DtypeError, r"bernoulli: expected a float tensor, got int64 \(2, 3\)"),
    (lambda: minigrad.bernoulli(X), ArgumentError, r"bernoulli: expected probabilities in \[0, 1\], got"),
    (lambda: minigrad.bernoulli(X, 2), ArgumentError, r"bernoulli: expected p to be a number in \[0, 1\], got 2"),
    (lambda: minigrad.bernoulli(X, 0.5, rng=1), ArgumentError, "bernoulli: expected rng to be a numpy"),
    (lambda: X.clone().bernoulli_(-0.5), ArgumentError, r"bernoulli_: expected p to be a number in \[0, 1\]"),
    *each(
        (minigrad.multinomial,),
        (N, 1, DtypeError, "a float tensor, got int64"),
        (S, 1, ShapeError, r"weights of shape \(C,\) or \(N, C\) with C >= 1, got \(\)"),
        (E, 1, ShapeError, r"with C >= 1, got \(2, 0\)"),
        (X, 0, ArgumentError, r"num_samples to be an integer in \[1, 2\*\*48\), got 0"),
        (X, 1, 1, ArgumentError, "replacement to be True or False, got 1"),
        (X, 3, ArgumentError, r"finite weights >= 0, at least 3 of them above 0 .* got 2 of 3 in \[0, 2\]"),
        (X * 0, 1, True, ArgumentError, r"at least 1 of them above 0 in each row, got 0 of 3 in \[0, 0\]"),
        (-X, 1, ArgumentError, r"expected finite weights >= 0, .* got 0 of 3 in \[-2, -0\]"),
        (X + np.inf, 1, True, ArgumentError, "expected finite weights >= 0"),
        who="multinomial: .*",
    ),
    # scatter
    (lambda: ops.scatter(X, 0, N), ArgumentError, "scatter: expected src or value, got neither"),
    (lambda: ops.scatter(X, 0, N, 1, value=2), ArgumentError, "scatter: expected src or value, got both"),
    (lambda: ops.scatter(X, 0, N, value=X), DtypeError, "scatter: expected a number as value, got Tensor: write src"),
    (lambda: ops.scatter(X, 0, N, X, reduce="add"), ArgumentError, r"scatter: expected no reduce.* write scatter_add"),
    (lambda: ops.scatter_add(X, 0, N, V), ShapeError, r"scatter_add: expected src at least as long as index"),
    (lambda: ops.scatter_add(X, 0, N + 1, X), IndexRangeError, r"scatter_add: expected indexes in \[0, 2\), got"),
    (lambda: ops.scatter_add(X, 0, N, N), DtypeError, "scatter_add: expected a source of float32, got int64"),
    (lambda: ops.scatter_add(X, 0, V, X), DtypeError, "scatter_add: expected an integer index, got float32"),
    (lambda: ops.scatter_add(X, 1, ROW, X), ShapeError, r"scatter_add: expected an index that fits into \(2, 3\) but"),
    (lambda: ops.index_fill(X, 0, N, 1), ShapeError, r"index_fill: expected x .*, index \(K,\) and a value"),
    (lambda: ops.index_fill(X, 0, ROW, V), ShapeError, "index_fill: expected x .* a value of no axes, got"),
    (lambda: ops.index_fill(X, 0, ROW + 1, 1), IndexRangeError, r"index_fill: expected indexes in \[-2, 2\), got"),
    (lambda: ops.index_fill(N, 0, ROW, 1.5), DtypeError, "index_fill: expected a source of int64, got float32"),
    # sorting
    *each((lambda name: named(name)(X, dim=2), ShapeError, r"^%s: expected an axis in \[-2, 2\), got 2"),
          *["sort", "argsort", "median"]),
    (lambda: ops.sort(X, descending=1), ArgumentError, "sort: expected descending to be True or False, got 1"),
    (lambda: ops.argsort(X, stable=None), ArgumentError, "argsort: expected stable to be True or False, got None"),
    (lambda: ops.topk(X, 2, 2), ShapeError, r"topk: expected an axis in \[-2, 2\), got 2"),
    (lambda: ops.topk(X, 4), ArgumentError, r"topk: expected k to be an integer in \[0, 4\), got 4"),
    (lambda: ops.topk(X, 1.0), ArgumentError, r"topk: expected k to be an integer"),
    (lambda: ops.topk(X, 1, largest=0), ArgumentError, "topk: expected largest to be True or False, got 0"),
    (lambda: ops.median(X, 0, 1), ArgumentError, "median: expected keepdim to be True or False, got 1"),
    (lambda: ops.median(E, 1), ShapeError, r"median: expected at least one element .* \(2, 0\)"),
]
