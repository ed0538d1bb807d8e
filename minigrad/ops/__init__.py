"""The operations, a file for each family: forward and backward of one stand next to each other.

`METHODS` is the one table that binds them to Tensor; `minigrad.bound` declares the same names for type checkers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.ops.arithmetic import (
    add,
    div,
    floor_divide,
    maximum,
    minimum,
    mul,
    neg,
    pow,
    radd,
    rdiv,
    remainder,
    rfloor_divide,
    rmul,
    rpow,
    rremainder,
    rsub,
    sub,
)
from minigrad.ops.inplace import add_, copy_, fill_, mul_, setitem, zero_
from minigrad.ops.linalg import linear, matmul
from minigrad.tensor import Tensor

__all__ = [
    "add",
    "div",
    "floor_divide",
    "linear",
    "matmul",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "pow",
    "remainder",
    "sub",
]

METHODS: dict[str, Callable[..., Any]] = {
    # operators
    "__add__": add,
    "__radd__": radd,
    "__sub__": sub,
    "__rsub__": rsub,
    "__mul__": mul,
    "__rmul__": rmul,
    "__truediv__": div,
    "__rtruediv__": rdiv,
    "__floordiv__": floor_divide,
    "__rfloordiv__": rfloor_divide,
    "__mod__": remainder,
    "__rmod__": rremainder,
    "__pow__": pow,
    "__rpow__": rpow,
    "__neg__": neg,
    "__matmul__": matmul,
    # arithmetic
    "matmul": matmul,
    "maximum": maximum,
    "minimum": minimum,
    "pow": pow,
    # in place
    "__setitem__": setitem,
    "copy_": copy_,
    "fill_": fill_,
    "zero_": zero_,
    "add_": add_,
    "mul_": mul_,
}

for _name, _function in METHODS.items():
    setattr(Tensor, _name, _function)
del _name, _function
