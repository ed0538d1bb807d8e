"""The operations of one tensor that have a form with an underscore, which writes into it: abs_ to triu_."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from minigrad.ops import activation, arithmetic, compare, elementwise, functions, products, reduce
from minigrad.ops import mask as choice
from minigrad.ops.assign import update
from minigrad.ops.methods import method
from minigrad.tensor import Tensor


def _bind(function: Callable[..., Tensor]) -> None:
    """Make the form of an operation that writes into its tensor a method."""
    name = f"{function.__name__}_"

    @functools.wraps(function)
    def change(x: Tensor, *args: Any, **options: Any) -> Tensor:
        return update(name, x, function, *args, **options)

    change.__name__ = change.__qualname__ = name
    change.__doc__ = f"`{function.__name__}`, written into x; returns x."
    method(change)


for _function in (
    *(elementwise.abs, elementwise.ceil, elementwise.cos, elementwise.erf, elementwise.exp, elementwise.expm1),
    *(elementwise.floor, elementwise.log, elementwise.log1p, arithmetic.neg, elementwise.reciprocal, activation.relu),
    *(elementwise.round, elementwise.rsqrt, elementwise.sigmoid, elementwise.sign, elementwise.sin, elementwise.sqrt),
    *(elementwise.square, elementwise.tanh, compare.logical_and, compare.logical_not, compare.logical_or),
    *(compare.logical_xor, compare.bitwise_not, choice.tril, choice.triu, reduce.cumsum, functions.trunc),
    *(functions.log2, functions.log10, functions.tan, functions.nan_to_num, products.addcmul, products.addcdiv),
):
    _bind(_function)
