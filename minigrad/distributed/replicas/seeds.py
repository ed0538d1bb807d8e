"""`Ddp`, as the seeds call `Replicas`, with what it had there: groups of tensors, and what `Trainer` does now."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from minigrad.absent import tell_lacking
from minigrad.distributed.replicas.model_copy import ReplicaGroup, groups_of
from minigrad.distributed.replicas.replicas import Replicas
from minigrad.errors import ArgumentError
from minigrad.nn.parameter import Buffer, Parameter


def _warn(old: str, new: str) -> None:
    words = f"Ddp.{old} is deprecated: use Trainer.{new}, which does the same"
    warnings.warn(words, DeprecationWarning, stacklevel=3)


def _alias(old: str, new: str) -> Any:
    def forward(model: Any, *args: Any, **options: Any) -> None:
        _warn(old, new)
        if not callable(getattr(model, "set_up", None)):
            raise ArgumentError(f"Ddp.{old}: expected a Graph, got {type(model).__name__}")
        model.set_up(*args, **options)

    forward.__doc__ = f"Use `Trainer.{new}`; warns."
    return staticmethod(forward)


class Ddp(Replicas):
    """`Replicas`, with aliases of `Trainer.setup` and `Trainer.setup_with`, and the tensors of all replicas by name.

    Example:
        >>> from minigrad import nn
        >>> ddp = Ddp.wrap([nn.Linear(3, 1), nn.Linear(3, 1)], ["cpu", "cpu"])
        >>> [group.name for group in ddp.param_groups], ddp.param_groups[0][1] is ddp.models[1].weight
        (['weight', 'bias'], True)
    """

    setup, auto = (_alias(old, "setup") for old in ("setup", "auto"))
    setup_with, auto_with = (_alias(old, "setup_with") for old in ("setup_with", "auto_with"))

    @staticmethod
    def builder(make_model: Any, make_optimizer: Any, train_fn: Any) -> Any:
        """Use `Trainer.builder`; warns."""
        _warn("builder", "builder")
        trainer = sys.modules["minigrad"].Trainer  # of a room below this one, which is loaded where it is asked for
        return trainer.builder(make_model, make_optimizer, train_fn)

    @property
    def param_groups(self) -> tuple[ReplicaGroup[Parameter], ...]:
        """Parameter i of all replicas, in the order of the module: param_groups[i][rank] is the tensor itself.

        Each has its name in the module as `name`. An optimizer's are another thing: each replica has its own.

        Raises:
            LayoutError: a parameter was replaced, moved or added since `wrap`.
        """
        self._check()
        return groups_of([model.named_parameters() for model in self.models])

    @property
    def buffer_groups(self) -> tuple[ReplicaGroup[Buffer], ...]:
        """Buffer i of all replicas, in the order of the module: buffer_groups[i][rank] is the tensor itself.

        Raises:
            LayoutError: a parameter was replaced, moved or added since `wrap`, or replicas have other buffers.
        """
        self._check()
        return groups_of([model.named_buffers() for model in self.models])


tell_lacking("Ddp", Ddp)
