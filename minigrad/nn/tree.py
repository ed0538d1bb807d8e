"""The tree behind a Module: parameters, buffers and modules registered by assignment, and found by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

from minigrad.errors import ArgumentError, DtypeError
from minigrad.nn.parameter import Buffer, Parameter
from minigrad.tensor import Tensor

M = TypeVar("M", bound="ModuleTree[Any]")  # what its nodes are: Module

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_KINDS = {"_parameters": "Parameter", "_buffers": "Tensor", "_modules": "Module"}


class ModuleTree(Generic[M]):
    """What registers parameters, buffers and modules in the order of their assignment; the base of Module only.

    A registered object is in its registry, which keeps the order, and an ordinary attribute as well, for fast access.
    """

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Buffer | None]
    _modules: dict[str, M | None]
    _not_persistent: set[str]

    def __init__(self) -> None:
        self._parameters, self._buffers, self._modules = {}, {}, {}
        self._not_persistent = set()

    def __setattr__(self, name: str, value: Any) -> None:
        registry = _registry_of(value)
        if registry is None:
            held = self._registry_holding(name)
            if held is None:
                object.__setattr__(self, name, value)
                return
            if held == "_buffers" and isinstance(value, Tensor):
                value = Buffer(value, persistent=name not in self._not_persistent)
            elif value is not None:
                raise DtypeError(
                    f"{self._who()}: expected a {_KINDS[held]} or None for {name!r}, got {type(value).__name__}"
                )
            registry = held
        self._register(registry, name, value)

    def __delattr__(self, name: str) -> None:
        registry = self._registry_holding(name)
        if registry is not None:
            del self.__dict__[registry][name]
        object.__delattr__(self, name)

    def _registry_holding(self, name: str) -> str | None:
        fields = self.__dict__
        return next((registry for registry in _REGISTRIES if name in fields.get(registry, ())), None)

    def _register(self, registry: str, name: str, value: Any) -> None:
        fields = self.__dict__
        if "_not_persistent" not in fields:
            raise ArgumentError(
                f"{self._who()}: expected super().__init__() to be called first, got {name!r} assigned before it"
            )
        if not isinstance(name, str) or not name or "." in name:
            raise ArgumentError(f"{self._who()}: expected a name without dots, got {name!r}")
        if hasattr(type(self), name):
            raise ArgumentError(f"{self._who()}: expected a free name, got {name!r}, which the class defines")
        if isinstance(value, ModuleTree) and any(module is self for module in value.modules()):
            raise ArgumentError(f"{self._who()}: expected a tree of modules, got {name!r}, which contains this module")
        for other in _REGISTRIES:
            if other != registry:
                fields[other].pop(name, None)
        if isinstance(value, Buffer):
            (self._not_persistent.discard if value.persistent else self._not_persistent.add)(name)
        fields[registry][name] = fields[name] = value

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Assign a parameter under a name; None keeps the place."""
        self._register_new("_parameters", name, param, Parameter)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Assign a tensor that is not trained; it is in the state_dict where it is persistent."""
        buffer: Any = Buffer(tensor, persistent) if isinstance(tensor, Tensor) else tensor
        self._register_new("_buffers", name, buffer, Buffer)
        if not persistent:
            self._not_persistent.add(name)

    def add_module(self, name: str, module: M | None) -> None:
        """Assign a module under a name."""
        self._register_new("_modules", name, module, ModuleTree)

    register_module = add_module

    def _register_new(self, registry: str, name: str, value: Any, kind: type) -> None:
        if value is not None and not isinstance(value, kind):
            raise DtypeError(
                f"{self._who()}: expected a {_KINDS[registry]} or None for {name!r}, got {type(value).__name__}"
            )
        if name in self.__dict__ and name not in self.__dict__[registry]:
            raise ArgumentError(f"{self._who()}: expected a free name, got {name!r}, which is taken")
        self._register(registry, name, value)

    def _who(self) -> str:
        return type(self).__name__

    # ------------------------------------------------------------------------------------------------- the tree

    def named_children(self) -> Iterator[tuple[str, M]]:
        """The modules assigned to this one, each once, with their names."""
        return _each_once((name, child) for name, child in self._modules.items() if child is not None)

    def children(self) -> Iterator[M]:
        """The modules assigned to this one, each once."""
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, M]]:
        """This module and all below it, parents first, with their dotted names."""
        found = self._walk(prefix)
        return _each_once(found) if remove_duplicate else found

    def _walk(self, prefix: str) -> Iterator[tuple[str, M]]:
        yield prefix, cast(M, self)
        for name, child in self._modules.items():
            if child is not None:
                yield from child._walk(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[M]:
        """This module and all below it, parents first, each once."""
        return (module for _, module in self.named_modules())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The parameters with their dotted names, in order of registration.

        Args:
            prefix: Put before each name, with a dot.
            recurse: Also those of the modules below.
            remove_duplicate: Give a parameter that has several names under the first only.
        """
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters in order of registration, each once."""
        return (param for _, param in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Buffer]]:
        """The buffers with their dotted names; see `named_parameters`."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """The buffers in order of registration, each once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def _named(self, registry: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        modules = self._walk(prefix) if recurse else iter([(prefix, self)])
        found = (
            (f"{path}.{name}" if path else name, value)
            for path, module in modules
            for name, value in module.__dict__[registry].items()
            if value is not None
        )
        return _each_once(found) if remove_duplicate else found

    def num_parameters(self, trainable_only: bool = False) -> int:
        """Number of elements of all parameters, a shared one counted once."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad or not trainable_only)

    def get_submodule(self, target: str) -> M:
        """The module of a dotted name; "" is this one.

        Raises:
            ArgumentError: there is none; the names at that level are listed.
        """
        if not isinstance(target, str):
            raise ArgumentError(f"{self._who()}: expected the dotted name of a module, got {target!r:.100}")
        module = cast(M, self)
        for name in target.split(".") if target else ():
            child = module._modules.get(name)
            if child is None:
                raise ArgumentError(
                    f"{self._who()}: expected one of the modules {sorted(module._modules)} in {target!r}, got {name!r}"
                )
            module = child
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of a dotted name; ArgumentError where there is none."""
        found: Parameter = self._get("_parameters", target)
        return found

    def get_buffer(self, target: str) -> Buffer:
        """The buffer of a dotted name; ArgumentError where there is none."""
        found: Buffer = self._get("_buffers", target)
        return found

    def _get(self, registry: str, target: str) -> Any:
        path, _, name = target.rpartition(".")
        held = self.get_submodule(path).__dict__[registry]
        if held.get(name) is None:
            raise ArgumentError(f"{self._who()}: expected one of {sorted(held)} in {target!r}, got {name!r}")
        return held[name]


def _registry_of(value: Any) -> str | None:
    if isinstance(value, Parameter):
        return "_parameters"
    if isinstance(value, ModuleTree):
        return "_modules"
    return "_buffers" if isinstance(value, Buffer) else None


_T = TypeVar("_T")


def _each_once(named: Iterator[tuple[str, _T]]) -> Iterator[tuple[str, _T]]:
    seen: set[int] = set()
    for name, value in named:
        if id(value) not in seen:
            seen.add(id(value))
            yield name, value
