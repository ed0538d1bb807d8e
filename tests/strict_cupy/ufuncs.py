"""cupy.ufunc: out=, dtype= and casting=, and few of the methods."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.strict_cupy import array as arrays
from tests.strict_cupy.call import call, lower, run
from tests.strict_cupy.errors import RefusedError
from tests.strict_cupy.names import AT_DTYPES

_KEYWORDS = {"out", "dtype", "casting"}


class ufunc:
    """One elementwise function, with what CuPy's takes."""

    def __init__(self, function: np.ufunc) -> None:
        self._function = function
        self.__name__ = function.__name__
        self.name = f"cupy_{function.__name__}"
        self.nin, self.nout, self.nargs = function.nin, function.nout, function.nargs

    def __repr__(self) -> str:
        return f"<ufunc {self.name!r}>"

    def __call__(self, *args: Any, **options: Any) -> Any:
        unknown = options.keys() - _KEYWORDS
        if unknown:
            raise RefusedError(f"{self.__name__}: expected out=, dtype= or casting=, got {', '.join(sorted(unknown))}")
        if any(isinstance(arg, (list, tuple)) for arg in args):
            raise RefusedError(f"{self.__name__}: expected arrays or scalars, got a list or a tuple")
        args, options = self._named_out(args, options)
        return call(self._function, self.__name__, args, options)

    def _named_out(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        out = options.get("out")
        if len(args) > self.nin:
            out = args[self.nin] if self.nout == 1 else args[self.nin :]
        if isinstance(out, tuple) and len(out) == 1:
            out = out[0]
        return args[: self.nin], {**options, "out": out} if out is not None else options

    def reduce(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Sum or product along an axis."""
        self._only("reduce", "add", "multiply")
        options = {"axis": axis, "dtype": dtype, "keepdims": keepdims, "out": out}
        return call(self._function.reduce, self.__name__, (array,), options)

    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        """Running sum or product along an axis."""
        self._only("accumulate", "add", "multiply")
        options = {"axis": axis, "dtype": dtype, "out": out}
        return call(self._function.accumulate, self.__name__, (array,), options)

    def reduceat(self, array: Any, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        """Sums of consecutive ranges."""
        self._only("reduceat", "add")
        options = {"axis": axis, "dtype": dtype, "out": out}
        return call(self._function.reduceat, self.__name__, (array, indices), options)

    def outer(self, x: Any, y: Any, **options: Any) -> Any:
        """The function on all pairs."""
        return call(self._function.outer, self.__name__, (x, y), options)

    def at(self, array: Any, indices: Any, *values: Any) -> None:
        """The function in place on the elements an index names, each as often as it is named."""
        self._only("at", *AT_DTYPES)
        if not isinstance(array, arrays.ndarray):
            raise RefusedError(f"{self.__name__}.at: expected a device array, got {type(array).__name__}")
        if array.dtype.name not in AT_DTYPES[self.__name__]:
            raise RefusedError(
                f"{self.__name__}.at: expected one of {', '.join(sorted(AT_DTYPES[self.__name__]))}, "
                f"got {array.dtype.name}"
            )
        who = f"{self.__name__}.at"
        run(self._function.at, who, [lower(who, arg) for arg in (array, indices, *values)], {})

    def _only(self, method: str, *names: str) -> None:
        if self.__name__ not in names:
            raise RefusedError(
                f"{self.__name__}.{method}: expected one of {', '.join(names)}: CuPy has it for no other"
            )
