"""Modules that hold others: Sequential, ModuleList, ModuleDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from minigrad.arguments import is_integer
from minigrad.errors import ArgumentError, DtypeError, IndexRangeError
from minigrad.nn.module import Module

__all__ = ["ModuleDict", "ModuleList", "Sequential"]

_Held = TypeVar("_Held", bound="_ModuleSequence")


class _ModuleSequence(Module):
    """Modules in order, named "0", "1", ... unless they were given names."""

    def _held(self) -> list[Module]:
        return [module for module in self._modules.values() if module is not None]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._held())

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self: _Held, index: slice) -> _Held: ...

    def __getitem__(self: _Held, index: int | slice) -> Module | _Held:
        if isinstance(index, slice):
            part = type(self)()
            for name, module in list(self._modules.items())[index]:
                part.add_module(name if isinstance(self, Sequential) else str(len(part)), module)
            return part
        return self._held()[self._position(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(list(self._modules)[self._position(index)], module)

    def __delitem__(self, index: int | slice) -> None:
        held = self._held()
        del held[index if isinstance(index, slice) else self._position(index)]
        self._renumber(held)

    def _position(self, index: int) -> int:
        if not is_integer(index) or not -len(self) <= index < len(self):
            raise IndexRangeError(
                f"{self._who()}: expected an index in [{-len(self)}, {len(self)}), got {index!r}"
            )
        return index % len(self)

    def _renumber(self, held: list[Module]) -> None:
        for name in tuple(self._modules):
            delattr(self, name)
        for module in held:
            self.append(module)

    def append(self: _Held, module: Module) -> _Held:
        """Add a module at the end; returns the container."""
        name = str(len(self))
        if name in self._modules:
            raise ArgumentError(f"{self._who()}: expected {name!r} to be free, got a module of that name")
        if not isinstance(module, Module):
            raise DtypeError(f"{self._who()}: expected a Module, got {type(module).__name__}")
        self.add_module(name, module)
        return self

    def extend(self: _Held, modules: Iterable[Module]) -> _Held:
        """Add modules at the end; returns the container."""
        if not isinstance(modules, Iterable):
            raise DtypeError(f"{self._who()}: expected several Modules, got {type(modules).__name__}")
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Put a module before the one at index; those after it get new numbers."""
        if not isinstance(module, Module):
            raise DtypeError(f"{self._who()}: expected a Module, got {type(module).__name__}")
        held = self._held()
        held.insert(index, module)
        self._renumber(held)


class Sequential(_ModuleSequence):
    """Runs modules one after the other, each on the output of the one before.

    Args:
        modules: Modules, or one mapping of names to modules.

    Example:
        >>> from minigrad import nn
        >>> nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): Linear(in_features=8, out_features=2, bias=True)
        )
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self.extend(modules)  # type: ignore[arg-type]  # append refuses what is no Module

    def forward(self, x: Any) -> Any:
        """The output of the last module; x itself where there is none."""
        for module in self._modules.values():
            x = module(x)  # type: ignore[misc]
        return x


class ModuleList(_ModuleSequence):
    """A list of modules, registered under "0", "1", ...; it can't be called.

    Args:
        modules: What it holds at first.
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)


class ModuleDict(Module):
    """Modules by name, in the order in which they were added; it can't be called.

    Args:
        modules: What it holds at first.
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update({} if modules is None else modules)

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add modules, or replace those of the same names."""
        if not isinstance(modules, Mapping):
            raise DtypeError(f"{self._who()}: expected a mapping of names to Modules, got {type(modules).__name__}")
        for name, module in modules.items():
            self[name] = module

    def __getitem__(self, name: str) -> Module:
        module = self._modules.get(name)
        if module is None:
            raise ArgumentError(f"{self._who()}: expected one of {sorted(self._modules)}, got {name!r}")
        return module

    def __setitem__(self, name: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise DtypeError(f"{self._who()}: expected a Module for {name!r}, got {type(module).__name__}")
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        self[name]  # noqa: B018  says what is there
        delattr(self, name)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        """The modules."""
        return tuple(self[name] for name in self)

    def items(self) -> Iterable[tuple[str, Module]]:
        """Names and modules."""
        return tuple((name, self[name]) for name in self)
