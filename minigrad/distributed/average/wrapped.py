"""A module that may be wrapped, and the ranks that train it."""

from __future__ import annotations

from typing import Any

from minigrad.distributed.comm.context import communicator_for
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.record.listening import EventListener
from minigrad.distributed.record.noted import notes_of
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module

__all__ = ["EventListener", "module_and_ranks", "notes_of", "unwrapped"]  # two are of `record`, for averagers


def unwrapped(who: str, module: Any) -> Module:
    """A module, without a wrapper that trains it.

    Raises:
        ArgumentError: it is none.
    """
    inner = getattr(module, "module", None)
    if isinstance(inner, Module) and callable(getattr(module, "unwrap", None)):
        return inner
    if not isinstance(module, Module):
        raise ArgumentError(f"{who}: expected a Module or a wrapper of one, got {type(module).__name__}")
    return module


def module_and_ranks(who: str, module: Any, comm: Communicator | None) -> tuple[Module, Communicator]:
    """A module without its wrapper, and the ranks: those given, else the wrapper's, else this context's.

    Raises:
        ArgumentError: it is none, or there are no ranks.
    """
    inner = unwrapped(who, module)
    told = module.comm if comm is None and inner is not module else comm
    return inner, communicator_for(who, told)
