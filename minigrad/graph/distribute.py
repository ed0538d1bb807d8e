"""A graph on several devices of one process: each batch in parts, gradients added up, replicas that step alike.

One tape spans all replicas. What a loss gives the parameters of each replica are parts of one gradient, that of the
loss, so the parts are summed: for the mean over all samples that is the gradient of the mean, whatever the shards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minigrad.autograd import is_grad_enabled
from minigrad.backend.device import Device
from minigrad.data.collate import map_tensors
from minigrad.distributed import collectives as in_memory
from minigrad.distributed.balance.cadence import ElChe
from minigrad.distributed.balance.cost import Reading
from minigrad.distributed.balance.division import Balance
from minigrad.distributed.balance.shares import is_balanced
from minigrad.distributed.config import DdpConfig
from minigrad.distributed.replicas.devices import DeviceGroup
from minigrad.distributed.ddp.nesting import check_complete
from minigrad.distributed.replicas.replicas import Replicas
from minigrad.errors import ArgumentError, AutogradError, ShapeError
from minigrad.graph.batches import ShardedBatch, Window, count_samples, gather, scatter, sizes_of
from minigrad.graph.pending import Pending
from minigrad.graph.runner import PlanModule
from minigrad.graph.stopwatch import PassTime, Stopwatch, SyncWatch, boundary
from minigrad.optim.clip import clip_replicas_grad_norm_
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.schedule import LRScheduler
from minigrad.ops.creation import full_like
from minigrad.tensor import Tensor, tensors_in

LossFn = Callable[[Any, Any], Tensor]

_PULL = 0.3  # of a new reading on the average throughput


@dataclass(eq=False)
class DistributedState:
    """A graph's replicas, their optimizers, and how batches are divided among them.

    Attributes:
        replicas: One a device; the first is the graph itself.
        group: The devices.
        config: The options.
        el_che: The cadence, where whole batches are run between two reductions.
        optimizers, schedulers: One a replica.
        balance: How a batch is divided.
        last_shard_sizes: Samples of each device in the last pass that recorded gradients.
        last_el_che_counts: Batches of each device in the last window.
        ema_throughput: Samples a second of each device, averaged over the latest passes; 0 before the first.
        step_count: Steps so far.
        pending: The gradients since the last step.
    """

    replicas: tuple[PlanModule, ...]
    group: DeviceGroup
    config: DdpConfig
    el_che: ElChe | None = None
    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[LRScheduler] = field(default_factory=list)
    last_shard_sizes: tuple[int, ...] = ()
    last_el_che_counts: tuple[int, ...] = ()
    step_count: int = 0
    pending: Pending = field(default_factory=Pending)

    def __post_init__(self) -> None:
        options = self.config.balance_config()
        if self.world_size == 1:
            options = replace(options, speed_hint=None)  # there is nothing to compare with
        self.balance = Balance.start(self.world_size, options)
        self.ema_throughput = [0.0] * self.world_size
        self.ddp = Replicas.wrap(self.replicas, self.devices, collectives=self.group.collectives)
        self.active: dict[int, int] = {}  # samples of each replica that took part in the last forward
        self.alone = False  # whether a forward of the first replica is its own, and not that of all
        self.apart: set[str] = set()  # paths of sub-graphs that ran by themselves since the last forward of all
        self._watch = Stopwatch([self.group.timer(rank) for rank in range(self.world_size)])
        self._sync = SyncWatch([self.group.timer(rank) for rank in range(self.world_size)])
        self._dealt: tuple[int, ...] = ()  # the shards of the batch that `backward_batch` works on
        self._working: int | None = None  # the replica whose backward is under way
        self._tagging = [
            [part for part in replica.modules() if isinstance(part, PlanModule) and part.has_tags]
            for replica in self.replicas
        ]
        self._params = [param for replica in self.replicas for param in replica.parameters()]
        for param in self._params:
            param.listeners += (self,)

    def detach(self) -> None:
        """Leave the replicas alone, for good: what trained them is no part of what trains them next."""
        self.optimizers, self.schedulers = [], []
        for param in self._params:
            param.listeners = tuple(listener for listener in param.listeners if listener is not self)

    @property
    def world_size(self) -> int:
        """Number of devices."""
        return len(self.replicas)

    @property
    def reduces(self) -> bool:
        """Whether gradients need the other replicas'; no wrapper can combine them then."""
        return self.world_size > 1

    @property
    def unfinished(self) -> str:
        """What a gradient is until it is combined, and what to do about it; empty where it is whole."""
        if self.pending.combined or not self.pending or self.world_size == 1:
            return ""
        return (
            f"that of one of {self.world_size} replicas of a Graph: call graph.step(), which clips to "
            "DdpConfig(max_grad_norm=...); or graph.distributed.all_reduce_gradients(), then clip and step them all"
        )

    @property
    def devices(self) -> tuple[Device, ...]:
        """Where the replicas live."""
        return self.group.devices

    @property
    def chunk_ratios(self) -> tuple[float, ...]:
        """The share of a batch that each device gets."""
        return self.balance.division.ratios

    # ------------------------------------------------------------------------------------------------ running

    def compute_shard_sizes(self, batch_size: int) -> tuple[int, ...]:
        """The samples of each device in the coming pass; their sum is the batch, and any batch will do."""
        return self.balance.shard_sizes(batch_size)

    def is_balanced(self) -> bool:
        """Whether the shards of the last pass were equal."""
        return is_balanced(self.last_shard_sizes)

    def forward(self, inputs: Sequence[Any]) -> Any:
        """The output for a batch, of which each replica computes its part; one that came in shards is cut like them."""
        samples, dealt = self.count(inputs), sizes_of(inputs) or self._dealt
        fits = len(dealt) == self.world_size and sum(dealt) == samples
        sizes = dealt if fits else self.compute_shard_sizes(samples)
        return self.forward_parts(scatter(inputs, sizes, self.devices), sizes)

    def forward_shards(self, batch: ShardedBatch) -> Any:
        """The output for a batch that came in shards."""
        shards = [batch.shard(rank, device) for rank, device in enumerate(self.devices)]
        parts = [
            [map_tensors(lambda x: x.to(device), x) for x in replica.inputs_of(shard)] if size else []
            for replica, device, shard, size in zip(self.replicas, self.devices, shards, batch.sizes)
        ]
        return self.forward_parts(parts, batch.sizes)

    def forward_parts(self, parts: Sequence[list[Any]], sizes: Sequence[int]) -> Any:
        """The outputs of the replicas that have a part, as one output on the first device."""
        recording = is_grad_enabled()
        if recording:
            self._begin_pass(sizes)
        self.active = {rank: sizes[rank] for rank, part in enumerate(parts) if part}
        try:
            outputs = [self._run(rank, parts[rank], size, recording) for rank, size in self.active.items()]
        finally:
            self.apart.clear()
        if self.world_size == 1:
            return outputs[0]
        return gather("Graph", outputs, list(self.active.values()), self.devices[0])

    def tagged(self, path: str) -> Any:
        """What the last forward computed at a tag, put together like its output."""
        values = [self.replicas[rank].tagged_at(path) for rank in self.active or {0: 0}]
        if len(values) == 1:
            return values[0]
        return gather("Graph.tagged", values, list(self.active.values()), self.devices[0])

    def count(self, inputs: Sequence[Any]) -> int:
        """The samples in a batch."""
        if self.world_size > 1:
            return count_samples("Graph", dict(zip(self.replicas[0].input_names, inputs)))
        return next((x.shape[0] for x in tensors_in(list(inputs)) if x.ndim), 1)

    def count_shard(self, rank: int, shard: Any) -> int:
        """The samples in a batch of one device."""
        return count_samples("Graph", dict(zip(self.replicas[rank].input_names, self.replicas[rank].inputs_of(shard))))

    def _begin_pass(self, samples: Sequence[int], batches: Sequence[int] | None = None) -> None:
        self.last_shard_sizes = tuple(samples)
        self._watch.begin(samples, batches)

    def _run(self, rank: int, inputs: Sequence[Any], samples: int, recording: bool) -> Any:
        """One replica's forward, with a mark on the tape where its backward will begin."""
        replica = self.replicas[rank]
        with self.devices[rank].current():
            if not recording:
                return replica.run(inputs)
            self._watch.switch(rank)
            try:
                self.group.clocks[rank].compute(samples)
                output = replica.run(inputs)
            finally:
                self._watch.switch(None)
        # one mark for one tensor, so that an output which is tagged too stays one
        mark = functools.cache(functools.partial(boundary, passed=functools.partial(self._work_on, rank)))
        for part in self._tagging[rank]:
            part.map_tagged(lambda value: map_tensors(mark, value))
        return map_tensors(mark, output)

    def _work_on(self, rank: int | None) -> None:
        """From now on the backward of this replica runs, or of none."""
        if rank == self._working:
            return
        if self._working is not None:
            self.group.clocks[self._working].progress(1.0)
        self._watch.switch(rank)
        self._working = rank

    # ----------------------------------------------------------------------------------------------- backward

    def begin(self, leaves: list[Any]) -> None:
        """A backward begins; see `BackwardListener`."""
        self._look_for_gradients()
        self.pending.begin()

    def leaf(self, leaf: Any) -> None:
        """A gradient is complete; the reduction comes later."""

    def end(self, error: BaseException | None) -> None:
        """A backward is over."""
        self._work_on(None)

    def backward_batch(self, batch: Any, loss_fn: LossFn) -> Tensor:
        """Forward, loss and backward of a batch; see `Graph.backward_batch`."""
        self._look_for_gradients()
        self.pending.in_batch = True
        try:
            return self._run_window(batch, loss_fn) if isinstance(batch, Window) else self._run_batch(batch, loss_fn)
        finally:
            self.pending.in_batch, self._dealt = False, ()

    def _run_batch(self, batch: Any, loss_fn: LossFn) -> Tensor:
        if isinstance(batch, ShardedBatch):
            samples, self._dealt = sum(batch.sizes), batch.sizes
        else:
            batch = map_tensors(lambda x: x.to(self.devices[0]), batch)
            samples = self.count(self.replicas[0].inputs_of(batch))
        with self.devices[0].current():
            return self._backward(loss_fn(self.replicas[0], batch), samples, samples)

    def _run_window(self, window: Window, loss_fn: LossFn) -> Tensor:
        """Whole batches on each device, in turns so that devices work side by side; the mean loss over all samples.

        Two GPUs wait for each other at a copy between them: batches go to theirs before the first turn, and losses
        stay where they are until after the last.
        """
        sizes = [[self.count_shard(rank, batch) for batch in each] for rank, each in enumerate(window.batches)]
        total = sum(map(sum, sizes))
        if not total:
            raise ArgumentError("Graph.backward_batch: expected batches with samples, got none")
        self._begin_pass([sum(each) for each in sizes], window.counts)
        self.last_el_che_counts = window.counts
        there = [[self._over(rank, batch) for batch in each] for rank, each in enumerate(window.batches)]
        losses: dict[int, Tensor] = {}  # the part that each device has in the mean
        for turn in range(max(window.counts)):
            for rank, batches in enumerate(there):
                if turn < len(batches) and sizes[rank][turn]:
                    loss = self._run_whole(rank, batches[turn], sizes[rank][turn], total, loss_fn)
                    with self.devices[rank].current():
                        part = loss * (sizes[rank][turn] / total)
                        losses[rank] = losses[rank] + part if rank in losses else part
        with self.devices[0].current():
            first, *others = [loss.to(self.devices[0]) for loss in losses.values()]
            return functools.reduce(Tensor.__add__, others, first)

    def _over(self, rank: int, batch: Any) -> Any:
        """A batch on its device where it lies on another GPU; from the host it comes when it is its turn."""
        return map_tensors(lambda x: x if x.device.type == "cpu" else x.to(self.devices[rank]), batch)

    def _run_whole(self, rank: int, batch: Any, samples: int, total: int, loss_fn: LossFn) -> Tensor:
        """One batch of one device, forward and backward; its mean loss, there."""
        self._work_on(rank)
        self.alone, self.active = True, {rank: samples}
        self.apart.clear()
        try:
            self.group.clocks[rank].compute(samples)
            here = map_tensors(lambda x: x.to(self.devices[rank]), batch)
            with self.devices[rank].current():
                return self._backward(loss_fn(self.replicas[rank], here), samples, total)
        finally:
            self.alone = False
            self._work_on(None)

    def _backward(self, loss: Any, samples: int, total: int) -> Tensor:
        """Backward of a mean over some samples, weighted so that all since the last step make one mean."""
        if not isinstance(loss, Tensor) or loss.data.size != 1:
            got = f"shape {loss.shape}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ShapeError(f"Graph.backward_batch: expected loss_fn to return one mean loss, got {got}")
        if not samples:
            raise ArgumentError("Graph.backward_batch: expected a batch with samples, got one of 0")
        loss.backward(full_like(loss.detach(), self.pending.weigh(samples, total)))
        return loss.detach()

    # --------------------------------------------------------------------------------------------- reductions

    def sync_params(self) -> None:
        """Overwrite the parameters and buffers of all replicas by those of the first."""
        self.ddp.sync_params()

    def sync_buffers(self) -> None:
        """Overwrite the buffers of all replicas by those of the first one that took part in the last pass."""
        if self.world_size > 1:
            self.ddp.sync_buffers(next((rank for rank, n in enumerate(self.last_shard_sizes) if n), 0))

    def all_reduce_gradients(self) -> None:
        """Add up what the replicas have of the gradient; each then has all of it. Once before each step.

        Raises:
            AutogradError: it was done already.
        """
        factor = self.pending.factor
        alone = self.world_size == 1 and factor == 1.0 and self.group.collectives is in_memory
        self._once(lambda: None if alone else self.ddp.sum_gradients(factor))

    def weighted_all_reduce_gradients(self, batch_size: int) -> None:
        """Combine gradients of losses that were means over each replica's own shard: Σ n_r·g_r / Σ n_r.

        Nothing here makes such gradients; it is for those who run the replicas themselves.

        Args:
            batch_size: The sum of `last_shard_sizes`, which are the weights.

        Raises:
            ArgumentError: batch_size is not that sum, or 0.
            AutogradError: gradients are combined already.
        """
        if batch_size != sum(self.last_shard_sizes) or not batch_size:
            raise ArgumentError(
                "weighted_all_reduce_gradients: expected the samples of the last pass, "
                f"{self.last_shard_sizes or 'none'}, to add up to batch_size > 0, got {batch_size}"
            )
        self._once(lambda: self.ddp.weighted_all_reduce_gradients(self.last_shard_sizes))

    def _once(self, reduce: Callable[[], None]) -> None:
        if self.pending.combined:
            raise AutogradError("Graph: expected gradients to combine, got those that are: call step() or zero_grad()")
        reduce()
        self.pending.combined = True
        if self.config.timeline is not None and self.world_size > 1:
            self.config.timeline.event("reduction", step=self.step_count + 1, nbytes=self.ddp.last_bytes)

    def _look_for_gradients(self) -> None:
        """Somebody else may have dropped them, such as an optimizer's zero_grad."""
        if self.pending and all(param.grad_array is None for param in self._params):
            self.pending.forget()

    # ------------------------------------------------------------------------------------------------- steps

    def step(self) -> None:
        """Combine, clip, step every replica alike, and look at the balance; see `Graph.step`."""
        if not any(param.grad_array is not None for param in self._params):
            raise AutogradError("Graph.step: expected gradients, got none: call backward() first")
        check_complete("Graph.step", self._params)
        with self._sync.measure():
            if not self.pending.combined:
                self.all_reduce_gradients()
            self.sync_buffers()
        if self.config.max_grad_norm is not None:
            clip_replicas_grad_norm_([list(r.parameters()) for r in self.replicas], self.config.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()
        for param in self._params:
            param.grad_array = None
        self.pending.forget()
        self.update_balance()

    def update_balance(self) -> bool:
        """Take in what the devices needed, and decide where that is due; whether shares or counts changed."""
        self.step_count += 1
        times = self._watch.times()
        for rank, time in enumerate(times):
            if time is not None:
                speed, old = time.samples / time.seconds, self.ema_throughput[rank]
                self.ema_throughput[rank] = old + _PULL * (speed - old) if old else speed
        if self.config.timeline is not None:
            fields = {"samples": self.last_shard_sizes, "sync_s": self._sync.last_s()}
            self.config.timeline.event("step", step=self.step_count, **fields)
        if self.world_size == 1:
            return False
        return self._next_shares(times) if self.el_che is None else self._next_counts(self.el_che, times)

    def _next_shares(self, times: Sequence[PassTime | None]) -> bool:
        readings = [None if time is None else Reading(time.samples, time.seconds) for time in times]
        before = self.balance.division
        self.balance, plan, reason = self.balance.observe(sum(self.last_shard_sizes), readings)
        if self.balance.config.is_due(self.balance.step):
            self._note("balance", step=self.step_count, ratios=plan.ratios, shards=plan.shards, reason=reason)
        return plan.ratios != before.ratios or plan.shards != before.shards

    def _next_counts(self, el_che: ElChe, times: Sequence[PassTime | None]) -> bool:
        walls = [0.0 if time is None else 1e3 * time.seconds for time in times]
        counts = [0 if time is None else time.batches for time in times]
        self.el_che, wanted, reason = el_che.report_timing(walls, counts, 1e3 * self._sync.last_s())
        self._note("cadence", step=self.step_count, anchor=self.el_che.anchor, counts=wanted, reason=reason)
        return wanted != el_che.batch_counts

    def _note(self, kind: str, **fields: Any) -> None:
        """Tell of a decision."""
        self.group.event(kind, **fields)
        if self.config.timeline is not None:
            self.config.timeline.event(kind, **fields)
