"""The operators of the array, and its methods that forward to NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.strict_cupy.array import ndarray
from tests.strict_cupy.call import call, run
from tests.strict_cupy.errors import RefusedError
from tests.strict_cupy.names import METHODS, VIEWS

_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "divmod": "divmod",
    "pow": "power",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "matmul": "matmul",
}
_COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}
_NOT_IN_PLACE = {"divmod", "matmul"}


def bind(space: Any) -> None:
    """Give the array class its operators, by the functions of a namespace, and its forwarding methods."""
    for name, function in {**_BINARY, **_COMPARISONS}.items():
        own = getattr(space, function)
        setattr(ndarray, f"__{name}__", _binary(own))
        if name in _BINARY:
            setattr(ndarray, f"__r{name}__", _reflected(own))
            if name not in _NOT_IN_PLACE:
                setattr(ndarray, f"__i{name}__", _in_place(own))
    for name, function in _UNARY.items():
        setattr(ndarray, f"__{name}__", _unary(getattr(space, function)))
    for name, keywords in METHODS.items():
        setattr(ndarray, name, _method(name, keywords))
    ndarray.dot = lambda self, other, out=None: space.dot(self, other, out)


def _defers(other: Any) -> bool:
    """Whether the other operand wants to do it itself, as a Tensor does."""
    return getattr(other, "__array_ufunc__", np.add) is None


def _binary(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: NotImplemented if _defers(other) else function(self, other)


def _reflected(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: NotImplemented if _defers(other) else function(other, self)


def _in_place(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: NotImplemented if _defers(other) else function(self, other, out=self)


def _unary(function: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda self: function(self)


def _method(name: str, keywords: frozenset[str]) -> Callable[..., Any]:
    function = getattr(np.ndarray, name)

    def method(self: ndarray, *args: Any, **options: Any) -> Any:
        unknown = options.keys() - keywords
        if unknown:
            raise RefusedError(f"{name}: expected keywords of {sorted(keywords)}, got {', '.join(sorted(unknown))}")
        if name in VIEWS:
            return self._view(run(function, name, [self.memory, *args], options))
        return call(function, name, (self, *args), options)

    method.__name__ = name
    return method
