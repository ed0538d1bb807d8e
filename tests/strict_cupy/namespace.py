"""The module that plays cupy: NumPy's functions under CuPy's names and rules, and nothing else."""

from __future__ import annotations

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tests.strict_cupy import operators
from tests.strict_cupy.array import ndarray
from tests.strict_cupy.call import call
from tests.strict_cupy.device import cuda, no_sync, syncs
from tests.strict_cupy.errors import MissingError
from tests.strict_cupy.functions import OWN
from tests.strict_cupy.names import GENERATOR, LINALG, PRESENT
from tests.strict_cupy.ufuncs import ufunc


class _Space(ModuleType):
    """A module that finds its names in a table, and says of others that CuPy has them not."""

    def __init__(self, name: str, source: Any, names: frozenset[str]) -> None:
        super().__init__(name)
        self._source, self._names = source, names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._names:
            raise MissingError(f"{self.__name__}.{name}: expected a name of CuPy 14.2, got one that it does not have")
        value = _wrapped(name, getattr(self._source, name))
        setattr(self, name, value)
        return value


def _wrapped(name: str, value: Any) -> Any:
    """A ufunc or a function under CuPy's rules; a class or a constant as it is."""
    if isinstance(value, np.ufunc):
        return ufunc(value)
    if isinstance(value, type) or not callable(value):
        return value

    def function(*args: Any, **options: Any) -> Any:
        return call(value, name, args, options)

    function.__name__ = name
    return function


class Generator:
    """cupy.random.Generator: the distributions that it has, on another stream than CuPy's."""

    def __init__(self, seed: Any = None) -> None:
        self._generator = np.random.default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        if name not in GENERATOR:
            raise MissingError(f"Generator.{name}: expected a method of CuPy 14.2's generator, got one it has not")
        return _wrapped(name, getattr(self._generator, name))


def _build() -> Any:
    space: Any = _Space("cupy", np, PRESENT)
    space.__version__ = "14.2.0"
    space.ndarray, space.ufunc, space.cuda = ndarray, ufunc, cuda
    space.is_available = cuda.is_available
    space.syncs, space.no_sync = syncs, no_sync
    for name, function in OWN.items():
        setattr(space, name, function)
    space.linalg = _Space("cupy.linalg", np.linalg, LINALG)
    space.linalg.matmul = space.matmul
    tricks = _Space("cupy.lib.stride_tricks", np.lib.stride_tricks, frozenset({"as_strided", "sliding_window_view"}))
    space.lib = SimpleNamespace(stride_tricks=tricks)
    space.random = SimpleNamespace(Generator=Generator, default_rng=Generator)
    operators.bind(space)
    return space


def _build_cupyx() -> dict[str, ModuleType]:
    """What lies beside cupy: the error function, and nothing more so far."""
    names = ("cupyx", "cupyx.scipy", "cupyx.scipy.special")
    modules: dict[str, Any] = {name: _Space(name, None, frozenset()) for name in names}
    modules["cupyx"].scipy, modules["cupyx.scipy"].special = modules[names[1]], modules[names[2]]
    modules[names[2]].erf = lambda x: call(_erf, "erf", (x,), {})
    return modules


def _build_backends() -> dict[str, ModuleType]:
    """What lies below cupy, without the bindings of cuBLAS: those can't be captured, and nobody calls them."""
    return {name: ModuleType(name) for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.libs")}


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


cupy = _build()
MODULES: dict[str, ModuleType] = {"cupy": cupy, **_build_cupyx(), **_build_backends()}  # for sys.modules
