"""Modules that hold others, or parameters: Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

from minigrad.arguments import is_integer
from minigrad.errors import ArgumentError, DtypeError, IndexRangeError
from minigrad.nn.joint import may_join, run_joined
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.tensor import Tensor

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]

_Item = TypeVar("_Item")
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
        return self._held()[_position(self, index)]

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(list(self._modules)[_position(self, index)], module)

    def __delitem__(self, index: int | slice) -> None:
        held = self._held()
        del held[index if isinstance(index, slice) else _position(self, index)]
        self._renumber(held)

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

    def __iadd__(self: _Held, modules: Iterable[Module]) -> _Held:
        return self.extend(modules)

    def __add__(self: _Held, modules: Iterable[Module]) -> _Held:
        return type(self)().extend(self).extend(modules)

    def pop(self, index: int) -> Module:
        """Remove a module and return it; those after it get new numbers."""
        module = self._held()[_position(self, index)]
        del self[index]
        return module

    def insert(self: _Held, index: int, module: Module) -> _Held:
        """Put a module before the one at index, after which all get new numbers; returns the container."""
        if not isinstance(module, Module):
            raise DtypeError(f"{self._who()}: expected a Module, got {type(module).__name__}")
        held = self._held()
        held.insert(index, module)
        self._renumber(held)
        return self


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
        if may_join(x):
            return run_joined(tuple(self._modules.values()), x)
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


class _ByName(Module, Generic[_Item]):
    """Parameters or modules by name, in the order in which they were added; it can't be called."""

    _registry: str
    _kind: str

    def _held(self) -> dict[str, _Item]:
        return self.__dict__[self._registry]  # type: ignore[no-any-return]

    def _checked(self, name: str, value: Any) -> _Item:
        """What is registered for a value; DtypeError where it can't be."""
        raise NotImplementedError

    def update(self, items: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add items, or replace those of the same names: a mapping, or pairs of names and items."""
        try:
            found = list((items if hasattr(items, "items") else dict(items)).items())
        except (TypeError, ValueError) as error:
            got = type(items).__name__
            raise DtypeError(f"{self._who()}: expected a mapping of names to {self._kind}s, got {got}") from error
        for name, value in found:
            self[name] = value

    def get(self, name: str, default: Any = None) -> Any:
        """What has a name, or default where nothing has it."""
        return self[name] if name in self else default

    def pop(self, name: str) -> _Item:
        """Remove what has a name, and return it."""
        found = self[name]
        del self[name]
        return found

    def clear(self) -> None:
        """Remove everything."""
        for name in tuple(self):
            del self[name]

    def __getitem__(self, name: str) -> _Item:
        found = self._held().get(name)
        if found is None:
            raise ArgumentError(f"{self._who()}: expected one of {sorted(self._held())}, got {name!r}")
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        self._register_new(self._registry, name, self._checked(name, value), object)

    def __delitem__(self, name: str) -> None:
        self[name]  # noqa: B018  says what is there
        delattr(self, name)

    def __len__(self) -> int:
        return len(self._held())

    def __iter__(self) -> Iterator[str]:
        return iter(self._held())

    def __contains__(self, name: object) -> bool:
        return name in self._held()

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._held().keys()

    def values(self) -> Iterable[_Item]:
        """What it holds."""
        return tuple(self[name] for name in self)

    def items(self) -> Iterable[tuple[str, _Item]]:
        """Names, and what they stand for."""
        return tuple((name, self[name]) for name in self)


class ModuleDict(_ByName[Module]):
    """Modules by name, in the order in which they were added; it can't be called.

    Args:
        modules: What it holds at first.
    """

    _registry, _kind = "_modules", "Module"

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update({} if modules is None else modules)

    def _checked(self, name: str, value: Any) -> Module:
        if not isinstance(value, Module):
            raise DtypeError(f"{self._who()}: expected a Module for {name!r}, got {type(value).__name__}")
        return value


class ParameterDict(_ByName[Parameter]):
    """Parameters by name, in the order in which they were added; it can't be called.

    A mapping other than an OrderedDict is added in the order of its sorted names, as in PyTorch: by it an optimizer's
    state numbers them.

    Args:
        parameters: What it holds at first; a tensor becomes a parameter on its memory.
    """

    _registry, _kind = "_parameters", "Parameter"

    def __init__(self, parameters: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.update({} if parameters is None else parameters)

    def update(self, items: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add items, or replace those of the same names; those of a dict in the order of its sorted names."""
        if isinstance(items, Mapping) and not isinstance(items, OrderedDict):
            items = sorted(items.items(), key=lambda item: str(item[0]))
        super().update(items)

    def _checked(self, name: str, value: Any) -> Parameter:
        return _as_parameter(self._who(), f" for {name!r}", value)

    def extra_repr(self) -> str:
        """What it holds."""
        return _listed(self.items())


class ParameterList(Module):
    """A list of parameters, registered under "0", "1", ...; it can't be called.

    Args:
        values: What it holds at first; a tensor becomes a parameter on its memory.

    Example:
        >>> from minigrad import nn, ones
        >>> scales = nn.ParameterList([ones(2), ones(3)])
        >>> scales
        ParameterList((0): float32 (2,), (1): float32 (3,))
        >>> list(scales.state_dict())
        ['0', '1']
    """

    def __init__(self, values: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self.extend(() if values is None else values)

    def _held(self) -> list[Any]:
        return list(self._parameters.values())

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._held())

    @overload
    def __getitem__(self, index: int) -> Parameter: ...
    @overload
    def __getitem__(self, index: slice) -> ParameterList: ...

    def __getitem__(self, index: int | slice) -> Parameter | ParameterList:
        if isinstance(index, slice):
            return type(self)(self._held()[index])
        found: Parameter = self._held()[_position(self, index)]
        return found

    def __setitem__(self, index: int, value: Tensor) -> None:
        name = list(self._parameters)[_position(self, index)]
        self.register_parameter(name, _as_parameter(self._who(), "", value))

    def __iadd__(self, values: Iterable[Tensor]) -> ParameterList:
        return self.extend(values)

    def append(self, value: Tensor) -> ParameterList:
        """Add a parameter at the end; returns the list."""
        self.register_parameter(str(len(self)), _as_parameter(self._who(), "", value))
        return self

    def extend(self, values: Iterable[Tensor]) -> ParameterList:
        """Add parameters at the end; returns the list."""
        if isinstance(values, Tensor) or not isinstance(values, Iterable):
            raise DtypeError(f"{self._who()}: expected several Parameters, got {type(values).__name__}")
        for value in values:
            self.append(value)
        return self

    def extra_repr(self) -> str:
        """What it holds."""
        return _listed(self._parameters.items())


def _as_parameter(who: str, place: str, value: Any) -> Parameter:
    if not isinstance(value, Tensor):
        raise DtypeError(f"{who}: expected a Parameter or a Tensor{place}, got {type(value).__name__}")
    return value if isinstance(value, Parameter) else Parameter(value)


def _listed(items: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"({name}): {value.dtype.name} {value.shape}" for name, value in items)


def _position(held: Any, index: Any) -> int:
    """An index of a list as one from its beginning; IndexRangeError where there is nothing."""
    count = len(held)
    if not is_integer(index) or not -count <= index < count:
        who = type(held).__name__
        raise IndexRangeError(f"{who}: expected an index in [{-count}, {count}), got {index!r}")
    return int(index) % count
