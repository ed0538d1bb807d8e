"""Sums of products over named axes: einsum, tensordot.

Each pair of operands becomes one batched matrix product, from left to right, which is recorded, accumulates half
precision in float32 and runs on a GPU as `matmul` does; without a common axis to sum over it is an elementwise one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from minigrad.arguments import is_integer
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.arithmetic import mul
from minigrad.ops.axes import normalize_axis
from minigrad.ops.diagonal import diagonal
from minigrad.ops.linalg import matmul
from minigrad.ops.operands import TensorLike, as_operand, operands, same_device
from minigrad.ops.precision import autocasts
from minigrad.ops.reduce import sum
from minigrad.ops.shape import permute, reshape, squeeze
from minigrad.tensor import Tensor

__all__ = ["einsum", "tensordot"]

_Labels = list[Any]  # of the axes of an operand: letters, and negative numbers for the axes of "..."


@autocasts("low")
def einsum(equation: str, *tensors: Any) -> Tensor:
    """The sum of products that an equation names: einsum("bij,bjk->bik", x, y) sums x[b, i, j]·y[b, j, k] over j.

    Each term names the axes of an operand; what the output does not name is summed. A letter twice in a term takes
    its diagonal. "..." stands for axes that broadcast. Without "->" the output has those of "...", then the letters
    that occur once, in alphabetical order. Axes of length 1 broadcast. The gradient is that of the products.

    Args:
        equation: Letters, commas between the terms, "..." and one "->".
        tensors: As many as terms; also as one list.

    Raises:
        ArgumentError: an equation that says something else, or for another number of operands.
        ShapeError: an operand of another number of axes, or lengths of one letter that differ.
        DtypeError: the equation is no text (lists of axes are not taken), or operands of two float dtypes.

    Example:
        >>> import minigrad
        >>> einsum("ij,j->i", minigrad.ones(2, 3), minigrad.tensor([1.0, 2.0, 3.0])).tolist()
        [6.0, 6.0]
    """
    if not isinstance(equation, str):
        got = type(equation).__name__
        raise DtypeError(f"einsum: expected an equation first, got {got}: write lists of axes as 'ij,jk->ik'")
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    parts = [as_operand("einsum", x) for x in given]
    same_device("einsum", *parts)
    terms, output = _read(equation, [x.ndim for x in parts])
    lengths = _lengths(equation, terms, parts)
    pairs = [_reduced(x, term, lengths) for x, term in zip(parts, terms)]
    x, labels = pairs[0]
    for i, (y, others) in enumerate(pairs[1:], 2):
        wanted = {*output, *(label for _, term in pairs[i:] for label in term)}
        x, labels = _summed(x, labels, {*others, *wanted})
        x, labels = _contracted(x, labels, *_summed(y, others, {*labels, *wanted}), wanted)
    x, labels = _summed(x, labels, output)
    return _arranged(x, labels, output)


def _read(equation: str, ndims: Sequence[int]) -> tuple[list[_Labels], _Labels]:
    """The labels of each operand, and of the output."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ndims):
        raise ArgumentError(f"einsum: expected {len(terms)} operands for {equation!r}, got {len(ndims)}")
    labels = [_labels(equation, term, ndim) for term, ndim in zip(terms, ndims)]
    found = [label for term in labels for label in term]
    dots = sorted({label for label in found if isinstance(label, int)})
    letters = {label for label in found if isinstance(label, str)}
    if not arrow:
        return labels, [*dots, *sorted(letter for letter in letters if found.count(letter) == 1)]
    output: _Labels = _labels(equation, right, len(right.replace("...", "")) + len(dots) * ("..." in right))
    if len(set(output)) < len(output) or not set(output) <= {*dots, *letters}:
        raise ArgumentError(f"einsum: expected each letter of the output once, and in a term, got {equation!r}")
    return labels, output


def _labels(equation: str, term: str, ndim: int) -> _Labels:
    """The labels of a term for an operand with so many axes."""
    head, dots, tail = term.partition("...")
    letters = head + tail
    if letters and not (letters.isascii() and letters.isalpha()):
        raise ArgumentError(f"einsum: expected letters, commas, '...' and one '->', got {equation!r}")
    others = ndim - len(letters)
    if others < 0 or (others and not dots):
        raise ShapeError(f"einsum: expected an operand with the axes {term!r} of {equation!r}, got {ndim} axes")
    return [*head, *range(-others, 0), *tail]


def _lengths(equation: str, terms: list[_Labels], parts: list[Tensor]) -> dict[Any, int]:
    """The length of each label; an axis of length 1 fits any other."""
    lengths: dict[Any, int] = {}
    for term, x in zip(terms, parts):
        for label, n in zip(term, x.shape):
            known = lengths.setdefault(label, n)
            if known == 1:
                lengths[label] = n
            elif n not in (1, known):
                shapes = ", ".join(str(part.shape) for part in parts)
                name = label if isinstance(label, str) else "..."
                raise ShapeError(f"einsum: expected one length for {name!r} of {equation!r}, got shapes {shapes}")
    return lengths


def _reduced(x: Tensor, labels: _Labels, lengths: dict[Any, int]) -> tuple[Tensor, _Labels]:
    """An operand that has each label once: its diagonals; and none along which it is broadcast."""
    for label in [label for label in dict.fromkeys(labels) if labels.count(label) > 1]:
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError(f"einsum: expected equal lengths for {label!r} within a term, got shape {x.shape}")
            x = diagonal(x, 0, first, second)
            labels = [*(known for i, known in enumerate(labels) if i not in (first, second)), label]
    thin = [i for i, label in enumerate(labels) if x.shape[i] == 1 != lengths[label]]
    if thin:
        x, labels = squeeze(x, tuple(thin)), [label for i, label in enumerate(labels) if i not in thin]
    return x, labels


def _summed(x: Tensor, labels: _Labels, wanted: Collection[Any]) -> tuple[Tensor, _Labels]:
    """x summed over the labels that nobody wants."""
    alone = tuple(i for i, label in enumerate(labels) if label not in wanted)
    return (sum(x, alone), [label for label in labels if label in wanted]) if alone else (x, labels)


def _contracted(
    x: Tensor, labels: _Labels, y: Tensor, others: _Labels, wanted: Collection[Any]
) -> tuple[Tensor, _Labels]:
    """The product of two operands, summed over the labels of both that nobody wants."""
    shared = [label for label in labels if label in others]
    inner = [label for label in shared if label not in wanted]
    batch = [label for label in shared if label in wanted]
    rows = [label for label in labels if label not in shared]
    columns = [label for label in others if label not in shared]
    x, y = _arranged(x, labels, batch + rows + inner), _arranged(y, others, batch + inner + columns)
    many, above = x.shape[: len(batch)], x.shape[len(batch) : len(batch) + len(rows)]
    across = y.shape[len(batch) + len(inner) :]
    if not inner:
        x, y = reshape(x, (*many, *above, *(1,) * len(columns))), reshape(y, (*many, *(1,) * len(rows), *across))
        return mul(x, y), batch + rows + columns
    depth = math.prod(y.shape[len(batch) : len(batch) + len(inner)])
    left = reshape(x, (*many, math.prod(above), depth))
    right = reshape(y, (*many, depth, math.prod(across)))
    return reshape(matmul(left, right), (*many, *above, *across)), batch + rows + columns


def _arranged(x: Tensor, labels: _Labels, order: _Labels) -> Tensor:
    """x with its axes in this order of their labels."""
    return x if labels == order else permute(x, [labels.index(label) for label in order])


@autocasts("low")
def tensordot(x: TensorLike, other: TensorLike, dims: Any = 2) -> Tensor:
    """The sum of products over pairs of axes; the output has the other axes of x, then those of other.

    Args:
        dims: How many of the last axes of x meet the first of other, or a list of axes of each.

    Shapes:
        (A, K), (K, B) -> (A, B) for dims = 1

    Raises:
        ShapeError: an axis out of range or named twice, or lengths that differ.
        ArgumentError: dims is neither an integer >= 0 nor two lists of one length.
    """
    x, other = operands("tensordot", x, other)
    if is_integer(dims) and 0 <= dims <= min(x.ndim, other.ndim):
        ours, theirs = list(range(x.ndim - dims, x.ndim)), list(range(dims))
    elif isinstance(dims, (list, tuple)) and len(dims) == 2 and all(isinstance(axes, (list, tuple)) for axes in dims):
        ours = [normalize_axis("tensordot", axis, x.ndim) for axis in dims[0]]
        theirs = [normalize_axis("tensordot", axis, other.ndim) for axis in dims[1]]
    else:
        shapes = f"{x.shape} and {other.shape}"
        raise ArgumentError(f"tensordot: expected dims that {shapes} have, or two lists of axes, got {dims!r}")
    for i, j in zip(ours, theirs):  # a length of 1 broadcasts
        if x.shape[i] != other.shape[j] and 1 in (x.shape[i], other.shape[j]):
            x, other = (sum(x, i, True), other) if other.shape[j] == 1 else (x, sum(other, j, True))
    lengths = [x.shape[i] for i in ours], [other.shape[i] for i in theirs]
    if lengths[0] != lengths[1] or len({*ours}) < len(ours) or len({*theirs}) < len(theirs):
        raise ShapeError(f"tensordot: expected axes {dims} of equal lengths, got shapes {x.shape} and {other.shape}")
    labels = list(range(x.ndim))
    others = [ours[theirs.index(i)] if i in theirs else x.ndim + i for i in range(other.ndim)]
    kept = [label for label in [*labels, *others] if label not in ours]
    return _contracted(x, labels, other, others, kept)[0]
