"""Entry points that `Ddp` had and `Trainer` has now."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from minigrad.errors import ArgumentError


@runtime_checkable
class SetsItselfUp(Protocol):
    """A Graph."""

    def set_up(self, builder: Callable[..., Any], optimizer: Callable[..., Any], *args: Any, **options: Any) -> None:
        """See `Graph.set_up`."""


class DeprecatedSetup:
    """Aliases of `Trainer.setup` and `Trainer.setup_with`; each warns."""

    @staticmethod
    def setup(
        model: SetsItselfUp, builder: Callable[..., Any], optimizer: Callable[..., Any], **options: Any
    ) -> None:
        """Use `Trainer.setup`."""
        _forward("setup", "setup", model, builder, optimizer, **options)

    @staticmethod
    def setup_with(
        model: SetsItselfUp, builder: Callable[..., Any], optimizer: Callable[..., Any], config: Any, **options: Any
    ) -> None:
        """Use `Trainer.setup_with`."""
        _forward("setup_with", "setup_with", model, builder, optimizer, config, **options)

    @staticmethod
    def auto(model: SetsItselfUp, builder: Callable[..., Any], optimizer: Callable[..., Any], **options: Any) -> None:
        """Use `Trainer.setup`."""
        _forward("auto", "setup", model, builder, optimizer, **options)

    @staticmethod
    def auto_with(
        model: SetsItselfUp, builder: Callable[..., Any], optimizer: Callable[..., Any], config: Any, **options: Any
    ) -> None:
        """Use `Trainer.setup_with`."""
        _forward("auto_with", "setup_with", model, builder, optimizer, config, **options)


def _forward(old: str, new: str, model: SetsItselfUp, *args: Any, **options: Any) -> None:
    warnings.warn(f"Ddp.{old} is deprecated: use Trainer.{new}, which does the same", DeprecationWarning, stacklevel=3)
    if not isinstance(model, SetsItselfUp):
        raise ArgumentError(f"Ddp.{old}: expected a Graph, got {type(model).__name__}")
    model.set_up(*args, **options)
