"""From gradients to a step: what has come since the last one is combined over the replicas, clipped, and stepped by.

One tape spans all replicas. What a loss gives the parameters of each replica are parts of one gradient, that of the
loss, so the parts are summed: for the mean over all samples that is the gradient of the mean, whatever the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from minigrad.distributed import collectives as in_memory
from minigrad.distributed.replicas.devices import DeviceGroup
from minigrad.distributed.ddp.refusals import check_complete
from minigrad.distributed.replicas.notes import ReplicaNotes
from minigrad.distributed.replicas.replicas import Replicas
from minigrad.errors import ArgumentError, AutogradError
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.nn.clip import clip_replicas_grad_norm_
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.schedule import ScheduleLike
from minigrad.optim.scheduler import LRScheduler
from minigrad.train.stopwatch import SyncWatch

MakeOptimizer = Callable[[list[Parameter]], Optimizer]
Notice = Callable[..., None]


@dataclass
class Pending:
    """Gradients that wait for a step, and what they weigh.

    Attributes:
        combined: Whether they are combined over the replicas already.
        in_batch: Whether `backward_batch` is under way.
    """

    combined: bool = False
    in_batch: bool = False
    _kind: str = ""  # how they came
    _first: int = 0  # samples of the first batch: weights stay near 1, whatever comes
    _samples: int = 0  # of all

    def __bool__(self) -> bool:
        return self.combined or bool(self._kind)

    def begin(self) -> None:
        """A backward begins.

        Raises:
            AutogradError: gradients are combined, or came in another way: they can't be weighed together.
        """
        if self.combined:
            raise AutogradError(
                "Graph: expected step() or zero_grad() once gradients are combined, got another backward"
            )
        kind = "backward_batch()" if self.in_batch else "backward()"
        if self._kind not in ("", kind):
            raise AutogradError(
                f"Graph: expected {self._kind} alone between two steps, got {kind} too: the first weighs by samples"
            )
        self._kind = kind

    def weigh(self, samples: int, total: int) -> float:
        """The weight of a mean over some samples, one of several batches of `total` together."""
        self._first = self._first or total
        self._samples += samples
        return samples / self._first

    @property
    def factor(self) -> float:
        """What makes the weights add up to 1."""
        return self._first / self._samples if self._samples else 1.0

    def forget(self) -> None:
        """There are no gradients any more."""
        self.combined, self._kind = False, ""
        self._first = self._samples = 0


class Stepper:
    """What combines, clips and steps; it hears every backward that reaches a parameter of a replica.

    Args:
        replicas: One a device.
        group: The devices.
        max_norm: Clip the combined gradient to this L2 norm; None for no clipping.
        over: Called when a backward is over.
        reduced: Called with the bytes of one device's gradients when several devices' are combined.
        notes: Get what is combined, and each replica's optimizer.

    Attributes:
        pending: The gradients since the last step.
        ddp: What combines.
        optimizers, schedulers: One a replica.
        reduces: Whether gradients need the other replicas'; no wrapper can combine them then.

    Raises:
        ArgumentError, DeviceError, ReplicaMismatchError: see `Replicas.wrap`.
    """

    def __init__(
        self,
        replicas: Sequence[Module],
        group: DeviceGroup,
        max_norm: float | None,
        over: Notice,
        reduced: Notice,
        notes: ReplicaNotes | None = None,
    ) -> None:
        self.pending = Pending()
        self.ddp = Replicas.wrap(replicas, group.devices, collectives=group.collectives)
        self.ddp.notes = self._notes = notes
        self.optimizers: list[Optimizer] = []
        self.schedulers: list[LRScheduler] = []
        self.reduces = len(replicas) > 1
        self._replicas, self._max_norm, self._over, self._reduced = replicas, max_norm, over, reduced
        self._in_memory = group.collectives is in_memory
        self._sync = SyncWatch([group.timer(rank) for rank in range(len(replicas))])
        self._made: list[Any] = []  # what the optimizers were made from
        self._params = [param for replica in replicas for param in replica.parameters()]
        for param in self._params:
            param.listeners += (self,)

    def detach(self) -> None:
        """Leave the replicas alone, for good: what trained them is no part of what trains them next."""
        self.optimizers.clear()
        self.schedulers.clear()
        for param in self._params:
            param.listeners = tuple(listener for listener in param.listeners if listener is not self)

    def take_over(self, other: Stepper) -> None:
        """Go on with the gradients of another one, which is detached."""
        other.detach()
        self.pending = other.pending

    @property
    def unfinished(self) -> str:
        """What a gradient is until it is combined, and what to do about it; empty where it is whole."""
        if self.pending.combined or not self.pending or not self.reduces:
            return ""
        return (
            f"that of one of {len(self._replicas)} replicas of a Graph: call graph.step(), which clips to "
            "DdpConfig(max_grad_norm=...); or graph.distributed.all_reduce_gradients(), then clip and step them all"
        )

    @property
    def sync_s(self) -> float:
        """Seconds of the last reduction that all devices have passed; 0 before the first."""
        return self._sync.last_s()

    # ----------------------------------------------------------------------------------------------- backward

    @contextmanager
    def batch(self) -> Iterator[Callable[[int, int], float]]:
        """In the block gradients come from `backward_batch`; what is given says what each mean weighs."""
        self.look_for_gradients()
        self.pending.in_batch = True
        try:
            yield self.pending.weigh
        finally:
            self.pending.in_batch = False

    def begin(self, leaves: list[Any]) -> None:
        """A backward begins; see `BackwardListener`."""
        self.look_for_gradients()
        self.pending.begin()

    def leaf(self, leaf: Any) -> None:
        """A gradient is complete; the reduction comes later."""

    def end(self, error: BaseException | None) -> None:
        """A backward is over."""
        self._over()

    def look_for_gradients(self) -> None:
        """Somebody else may have dropped them, such as an optimizer's zero_grad."""
        if self.pending and all(param.grad_array is None for param in self._params):
            self.pending.forget()

    # -------------------------------------------------------------------------------------------------- steps

    def equip(self, who: str, make: MakeOptimizer, schedule: ScheduleLike | None) -> None:
        """Step with optimizers that make(params) makes, one for each replica; they stay where the schedule is new only.

        Raises:
            ArgumentError: make made no optimizer, or one of other parameters.
        """
        wanted = [make, schedule]
        if self._made == wanted:
            return
        if not self._made or self._made[0] is not make:
            self.optimizers[:] = [make(list(replica.parameters())) for replica in self._replicas]
        for optimizer, replica in zip(self.optimizers, self._replicas):
            _check_optimizer(who, optimizer, replica.parameters())
        for scheduler in self.schedulers:  # the next one begins where this one did
            for group, rate in zip(scheduler.optimizer.param_groups, scheduler.base_lrs):
                group["lr"] = rate
        self.schedulers[:] = [LRScheduler(each, schedule) for each in self.optimizers] if schedule is not None else []
        self._made = wanted

    def sum_gradients(self) -> None:
        """Add up what the replicas have of the gradient; each then has all of it. AutogradError: it was done."""
        factor = self.pending.factor
        alone = not self.reduces and factor == 1.0 and self._in_memory
        self._once(lambda: None if alone else self.ddp.sum_gradients(factor))

    def average_gradients(self, samples: Sequence[int]) -> None:
        """Replace gradients by Σ n_r·g_r / Σ n_r. AutogradError: they were combined already."""
        self._once(lambda: self.ddp.weighted_all_reduce_gradients(samples))

    def _once(self, reduce: Callable[[], None]) -> None:
        if self.pending.combined:
            raise AutogradError("Graph: expected gradients to combine, got those that are: call step() or zero_grad()")
        reduce()
        self.pending.combined = True
        if self.reduces:
            self._reduced(self.ddp.last_bytes)

    def sync_buffers(self, samples: Sequence[int]) -> None:
        """Overwrite the buffers of all replicas by those of the first one that had samples."""
        self.ddp.sync_buffers(next((rank for rank, n in enumerate(samples) if n), 0))

    def step(self, samples: Sequence[int]) -> None:
        """Combine, clip, and step every replica alike; see `Graph.step`.

        Args:
            samples: Of each replica in the last pass; see `sync_buffers`.
        """
        if not any(param.grad_array is not None for param in self._params):
            raise AutogradError("Graph.step: expected gradients, got none: call backward() first")
        check_complete("Graph.step", self._params)
        with self._sync.measure():
            if not self.pending.combined:
                self.sum_gradients()
            if self.reduces:
                self.sync_buffers(samples)
        if self._notes is None:
            self._step_all()
        else:
            with self._notes.spanning("optimizer"):
                self._step_all()
        self.pending.forget()

    def _step_all(self) -> None:
        if self._max_norm is not None:
            clip_replicas_grad_norm_([list(replica.parameters()) for replica in self._replicas], self._max_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()
        for param in self._params:
            param.grad_array = None


def _check_optimizer(who: str, optimizer: Any, params: Iterable[Parameter]) -> None:
    expected = f"{who}.set_optimizer: expected"
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"{expected} the function to make an Optimizer, got {type(optimizer).__name__}")
    own = {id(param) for param in params}
    if any(id(param) not in own for group in optimizer.param_groups for param in group["params"]):
        what = "an optimizer of the parameters that the function is given"
        raise ArgumentError(f"{expected} {what}, got one that steps others")
