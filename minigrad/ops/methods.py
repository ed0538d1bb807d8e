"""How an operation gets its names, each said once, where it stands.

In the `__all__` of its family it is `minigrad.ops.<name>` and `minigrad.<name>`, and `minigrad.nn.functional.<name>`
where the family is one of networks. `@method` makes it a method of a tensor, `@method_as("__add__")` an operator or a
method of another name; `minigrad/bound.py` declares these for type checkers. What it does inside `autocast` is said by
`@autocasts`, in precision.py. Whatever users call by a name takes the keywords of PyTorch and NumPy too, see
`minigrad/foreign.py`; operators, and the rooms of the library, call the function itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from minigrad.errors import ArgumentError
from minigrad.foreign import spoken
from minigrad.tensor import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])
Bound = TypeVar("Bound")  # a function or a property


def method(function: Function) -> Function:
    """Make a function a method of a tensor, under its own name.

    Raises:
        ArgumentError: a tensor has something of that name.
    """
    return method_as(function.__name__)(function)


def method_as(*names: str) -> Callable[[Bound], Bound]:
    """Make a function, or a property, a method of a tensor under these names.

    Raises:
        ArgumentError: a tensor has something of that name.
    """

    def bind(function: Any) -> Any:
        for name in names:
            if any(name in vars(kind) for kind in Tensor.__mro__ if kind is not object):
                raise ArgumentError(f"@method: expected a name that Tensor has not, got {name!r}: use @method_as(...)")
            plain = name.startswith("__") or isinstance(function, property)
            setattr(Tensor, name, function if plain else spoken(function))
        return function

    return bind


def names_in(module: dict[str, Any]) -> list[str]:
    """What a module that gathers names has for its `__all__`: its public names, but for modules."""
    return sorted(
        name for name, value in module.items() if not (name.startswith("_") or isinstance(value, ModuleType))
    )
