"""ReplicasTwin: the steps of replicas that one thread drives, made once more on one of them, and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minigrad.arguments import as_integer, as_list
from minigrad.distributed.inspect.twin.any_twin import AnyTwin, check_parts
from minigrad.distributed.inspect.twin.compare import TwinReport
from minigrad.distributed.inspect.twin.watch import RankWatch
from minigrad.distributed.replicas.replicas import Replicas
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.scaler import GradScaler
from minigrad.tensor import Tensor


class ReplicasTwin(AnyTwin):
    """`Twin` for replicas that one thread drives, as `Ddp.wrap` makes them.

    Gradients, parameters and buffers of replica 0 are compared, the parameters of the others with its own. Buffers are
    right where every replica has its own, or all have those of one, or their mean.

    Args:
        replicas: From `Replicas.wrap` or `Ddp.wrap`.
        optimizers: One for each replica; None where nothing steps.
        loss_fn, every, batch_dim, before_step, scaler, ulps, raises: See `Twin`.

    Attributes:
        steps, first: See `Twin`.

    Raises:
        ArgumentError: no replicas, not an optimizer for each, or as `Twin`.

    Example:
        >>> from minigrad import distributed, nn, optim, randn
        >>> models = [nn.Linear(3, 1), nn.Linear(3, 1)]
        >>> replicas = distributed.Replicas.wrap(models, ["cpu", "cpu"])
        >>> replicas.sync_params()
        >>> optimizers = [optim.SGD(model.parameters(), lr=0.1) for model in models]
        >>> twin = distributed.ReplicasTwin(replicas, optimizers, lambda module, x: module(x).square().mean())
        >>> batches = [randn(2, 3), randn(5, 3)]
        >>> for model, x in zip(models, batches):
        ...     model(x).square().mean().backward()
        >>> replicas.weighted_all_reduce_gradients([2, 5])
        >>> for optimizer in optimizers:
        ...     optimizer.step()
        >>> twin.step(batches).agrees
        True
    """

    def __init__(
        self,
        replicas: Replicas,
        optimizers: Sequence[Optimizer] | None,
        loss_fn: Callable[[Any, Any], Tensor],
        every: int = 1,
        *,
        batch_dim: int = 0,
        before_step: Callable[[Module], Any] | None = None,
        scaler: GradScaler | None = None,
        ulps: float = 8.0,
        raises: bool = True,
    ) -> None:
        if not isinstance(replicas, Replicas):
            raise ArgumentError(f"ReplicasTwin: expected Replicas, got {type(replicas).__name__}")
        listed = None if optimizers is None else as_list("ReplicasTwin", "optimizers", optimizers)
        if listed is not None and len(listed) != replicas.world_size:
            raise ArgumentError(
                f"ReplicasTwin: expected an optimizer for each of {replicas.world_size} replicas, got {len(listed)}"
            )
        first = replicas.models[0]
        check_parts(first)
        options: dict[str, Any] = {"before_step": before_step, "scaler": scaler, "ulps": ulps, "raises": raises}
        optimizer = None if listed is None else listed[0]
        super().__init__(first, replicas.devices[0], optimizer, loss_fn, every, reduce="mean", **options)
        axis = as_integer("Twin", "batch_dim", batch_dim)
        self._watches = [
            RankWatch(rank, model, axis, None if rank else self._take_state)
            for rank, model in enumerate(replicas.models)
        ]
        self._begin_step()

    def accumulate(self, batches: Sequence[Any], samples: Sequence[float] | None = None) -> None:
        """Say that a batch of each replica has been through backward; `step` says it of the last ones of a step.

        Args:
            batches, samples: See `step`.

        Raises:
            ArgumentError, DtypeError: see `step`.
        """
        count = len(self._watches)
        given = as_list("ReplicasTwin", "batches", batches)
        counts = [None] * count if samples is None else as_list("ReplicasTwin", "samples", samples)
        if len(given) != count or len(counts) != count:
            raise ArgumentError(
                f"ReplicasTwin: expected a batch for each of {count} replicas, got {len(given)}, and {len(counts)} "
                "numbers of samples"
            )
        for watch, batch, n in zip(self._watches, given, counts):
            watch.take(batch, n)

    def step(self, batches: Sequence[Any], samples: Sequence[float] | None = None) -> TwinReport | None:
        """Compare a step, where it is due; call it behind the steps of the optimizers.

        Args:
            batches: The batch of each replica, as loss_fn gets it; None of one that had none.
            samples: What each loss is a mean over; see `Twin.step`.

        Returns:
            What was found; None where the step was not due.

        Raises:
            TwinMismatchError: something differs, unless `raises` is False.
            ArgumentError, DtypeError: see `Twin.step`; or not a batch for each replica.
        """
        self.accumulate(batches, samples)
        is_due = self._is_due
        self.steps += 1
        report = None
        if is_due:
            told = [watch.told() for watch in self._watches]
            arrays = [watch.arrays for watch in self._watches]
            report = self._judged(self._watches, told, arrays)
        self._keep_gradients()
        self._begin_step()
        return self._conclude("ReplicasTwin", report)

    def close(self) -> None:
        """Listen no more."""
        for watch in self._watches:
            watch.close()

    def _begin_step(self) -> None:
        for watch in self._watches:
            watch.begin_step(self._is_due)
