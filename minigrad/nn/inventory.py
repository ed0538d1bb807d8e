"""What a module and all below it hold, so that a change of it can be noticed cheaply."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter, is_
from typing import Any

from minigrad.errors import LayoutError
from minigrad.nn.module import Module
from minigrad.nn.parameter import Buffer

_registries = attrgetter("_parameters", "_buffers", "_modules")


class Inventory:
    """What a module and all below it hold: compared in every step, and listed anew only where something has changed.

    Args:
        module: Whose parameters have to stay those that it has now; its buffers may change.
    """

    def __init__(self, module: Module) -> None:
        self._known = _identities(module)
        self._take(module)

    def _take(self, module: Module) -> None:
        self._module, self._modules = module, [*module.modules()]
        registries = self._held()
        self._sizes = [*map(len, registries)]
        self._names = [*chain.from_iterable(registries)]
        self._values = [*chain.from_iterable(map(dict.values, registries))]
        self._buffers = list(module.buffers())

    def _held(self) -> list[dict[str, Any]]:
        return [*chain.from_iterable(map(_registries, self._modules))]

    def _is_current(self) -> bool:
        """Whether every module holds what it held, in no more than a few calls."""
        registries = self._held()
        return (
            [*map(len, registries)] == self._sizes
            and [*chain.from_iterable(registries)] == self._names
            and all(map(is_, chain.from_iterable(map(dict.values, registries)), self._values))
        )

    def check(self, who: str, module: Module) -> None:
        """Refuse a module whose parameters are not those that it had.

        Args:
            module: The one that was given, or what has taken its place.

        Raises:
            LayoutError: a parameter was replaced, added or removed, and is named; or their order is another.
        """
        if module is self._module and self._is_current():
            return
        now = _identities(module)
        if now != self._known:
            changed = ", ".join(sorted({name for name, _ in set(now) ^ set(self._known)}))
            raise LayoutError(
                f"{who}: expected the parameters that were wrapped, got "
                f"{f'others at {changed}' if changed else 'them in another order'}: "
                "wrap the module after its last change"
            )
        self._take(module)

    def buffers(self) -> list[Buffer]:
        """The buffers that there are now, in order of registration, each once."""
        return self._buffers if self._is_current() else list(self._module.buffers())

    def modes(self) -> list[bool]:
        """Whether each module is in training, in the order of `modules()`."""
        return [module.training for module in self._modules]


def _identities(module: Module) -> list[tuple[str, int]]:
    return [(name, id(param)) for name, param in module.named_parameters()]
