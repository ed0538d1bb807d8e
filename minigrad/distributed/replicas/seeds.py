"""`Ddp`, as the seeds call `Replicas`, with the entry points that it had there and `Trainer` has now."""

from __future__ import annotations

import warnings
from typing import Any

from minigrad.distributed.replicas.replicas import Replicas
from minigrad.errors import ArgumentError


def _alias(old: str, new: str) -> Any:
    def forward(model: Any, *args: Any, **options: Any) -> None:
        warnings.warn(
            f"Ddp.{old} is deprecated: use Trainer.{new}, which does the same", DeprecationWarning, stacklevel=2
        )
        if not callable(getattr(model, "set_up", None)):
            raise ArgumentError(f"Ddp.{old}: expected a Graph, got {type(model).__name__}")
        model.set_up(*args, **options)

    forward.__doc__ = f"Use `Trainer.{new}`; warns."
    return staticmethod(forward)


class Ddp(Replicas):
    """`Replicas`, with aliases of `Trainer.setup` and `Trainer.setup_with`."""

    setup, auto = (_alias(old, "setup") for old in ("setup", "auto"))
    setup_with, auto_with = (_alias(old, "setup_with") for old in ("setup_with", "auto_with"))
