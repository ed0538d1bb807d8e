"""Sums and their kin, the largest and smallest, prefixes, sorting."""

from __future__ import annotations

from typing import Any

import minigrad as mg
from tests.onnx.node import Function, Inexpressible, Node, ints


def _reduction(function: Function) -> Function:
    """A node that takes its axes as an input: all where there are none, or none where it says so."""

    def reduce(node: Node, x: Any, axes: Any = None) -> Any:
        dims = ints(axes) if axes is not None else list(node.get("axes", ()))
        if not dims and node.get("noop_with_empty_axes"):
            return x
        if not x.numel() and node.kind in ("ReduceMax", "ReduceMin"):
            raise Inexpressible("the largest or smallest of nothing is an error, as in PyTorch")
        return function(x, tuple(dims) or tuple(range(x.ndim)), bool(node.get("keepdims", 1)))

    return reduce


def _product(x: Any, dims: tuple[int, ...], keepdim: bool) -> Any:
    """One axis after the other, the last one first, so that those before it keep their numbers."""
    for dim in sorted((dim % x.ndim for dim in dims), reverse=True):
        x = mg.prod(x, dim, keepdim)
    return x


def _truth_of(function: Function, of_bools: Function) -> Function:
    return lambda x, dims, keepdim: (of_bools if x.dtype == mg.bool_ else function)(x, dims, keepdim)


def _arg(function: Function) -> Function:
    def find(node: Node, x: Any) -> Any:
        dim, keepdim = node.get("axis", 0), bool(node.get("keepdims", 1))
        if not node.get("select_last_index"):
            return function(x, dim, keepdim)
        return x.shape[dim] - 1 - function(mg.flip(x, dim), dim, keepdim)

    return find


def _prefixes(function: Function, neutral: int) -> Function:
    def scan(node: Node, x: Any, axis: Any) -> Any:
        (dim,) = ints(axis)
        x = mg.flip(x, dim) if node.get("reverse") else x
        if node.get("exclusive"):
            first = mg.full_like(mg.narrow(x, dim, 0, 1), neutral)
            x = mg.cat([first, mg.narrow(x, dim, 0, x.shape[dim] - 1)], dim)
        sums = function(x, dim, dtype=x.dtype)
        return mg.flip(sums, dim) if node.get("reverse") else sums

    return scan


def _top(node: Node, x: Any, k: Any) -> tuple[Any, Any]:
    found = mg.topk(x, *ints(k), node.get("axis", -1), bool(node.get("largest", 1)), bool(node.get("sorted", 1)))
    return found.values, found.indices


def _hardmax(node: Node, x: Any) -> Any:
    dim = node.get("axis", -1) % x.ndim
    found = mg.ops.one_hot(mg.argmax(x, dim), x.shape[dim]).to(x.dtype)
    return mg.ops.movedim(found, -1, dim)


def _lp_normalization(node: Node, x: Any) -> Any:
    """Nothing but zeros stays."""
    size = mg.norm(x, node.get("p", 2), node.get("axis", -1), keepdim=True)
    return x / mg.where(size == 0, mg.ones_like(size), size)


FUNCTIONS: dict[str, Function] = {
    "Det": lambda node, x: mg.det(x),
    "ReduceL1": _reduction(lambda x, dims, keep: mg.sum(mg.abs(x), dims, keep)),
    "ReduceL2": _reduction(lambda x, dims, keep: mg.norm(x, 2, dims, keep)),
    "ReduceLogSum": _reduction(lambda x, dims, keep: mg.log(mg.sum(x, dims, keep))),
    "ReduceLogSumExp": _reduction(mg.logsumexp),
    "ReduceMax": _reduction(_truth_of(mg.amax, mg.ops.any)),
    "ReduceMean": _reduction(mg.mean),
    "ReduceMin": _reduction(_truth_of(mg.amin, mg.ops.all)),
    "ReduceProd": _reduction(_product),
    "ReduceSum": _reduction(mg.ops.sum),
    "ReduceSumSquare": _reduction(lambda x, dims, keep: mg.ops.sum(x * x, dims, keep)),
    "ArgMax": _arg(mg.argmax),
    "ArgMin": _arg(mg.argmin),
    "CumProd": _prefixes(lambda *a, **k: mg.cumprod(*a, **k), 1),
    "CumSum": _prefixes(mg.cumsum, 0),
    "Hardmax": _hardmax,
    "LpNormalization": _lp_normalization,
    "TopK": _top,
}
