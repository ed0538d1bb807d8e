"""The modules that a captured step has called: its replays have their options and parts as they were then."""

from __future__ import annotations

from operator import is_
from typing import Any

from minigrad.backend.capturing import Capture, refuse_in_capture
from minigrad.errors import CaptureError
from minigrad.nn.parameter import Buffer, Parameter
from minigrad.nn.tree import ModuleTree

_PARTS = (Parameter, Buffer, ModuleTree)
_OPTIONS = (bool, int, float, str, type(None))


class CalledModules:
    """Refuses replays after a module was changed by hand: its mode, an option, a parameter, buffer or module in it.

    Options are plain values under public names. Integers count only in layers of ours: others may count calls by one.
    """

    def __init__(self, capture: Capture) -> None:
        self._modules: dict[int, Any] = {}
        self._buffers: dict[int, list[Any]] = {}
        self._kept: list[tuple[Any, dict[str, Any], list[Any]]] = []
        capture.ends.append(self._end)
        capture.checks.append(self._check)

    def add(self, module: Any) -> None:
        """It is called."""
        if id(module) not in self._modules:
            self._modules[id(module)] = module
            self._buffers[id(module)] = list(module._buffers.values())

    def _end(self) -> None:
        for module in self._modules.values():
            if not _same(list(module._buffers.values()), self._buffers[id(module)]):
                refuse_in_capture(type(module).__name__, "another tensor as its buffer", "write to it by copy_()")
            self._kept.append((module, dict(vars(module)), list(vars(module).values())))

    def _check(self) -> None:
        for module, fields, values in self._kept:
            if not _same(list(vars(module).values()), values):
                self._look_closer(module, fields)

    def _look_closer(self, module: Any, fields: dict[str, Any]) -> None:
        is_ours = type(module).__module__.startswith("minigrad.")
        for name, value in fields.items():
            now = vars(module).get(name)
            if now is value or name.startswith("_"):
                continue
            is_part = isinstance(value, _PARTS) or isinstance(now, _PARTS)
            both = type(value), type(now)
            is_option = all(kind in _OPTIONS for kind in both) and (is_ours or int not in both)
            if is_part or (is_option and now != value):
                words = "another one" if is_part else f"{now!r} in place of {value!r}"
                raise CaptureError(
                    f"captured step: expected {name} of {type(module).__name__} as it was when captured, got {words}: "
                    "capture it again"
                )


def _same(values: list[Any], kept: list[Any]) -> bool:
    return len(values) == len(kept) and all(map(is_, values, kept))


def modules_of(capture: Capture) -> CalledModules:
    """Those of a captured step."""
    return capture.part(CalledModules, lambda: CalledModules(capture))
