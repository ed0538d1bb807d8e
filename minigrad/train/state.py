"""The replicas of a graph in formation: what feeds them, what steps them, and how the work is divided among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from minigrad.distributed.balance.cadence import ElChe
from minigrad.distributed.balance.cost import Reading
from minigrad.distributed.balance.division import Balance
from minigrad.distributed.balance.shares import is_balanced
from minigrad.distributed.config import DdpConfig
from minigrad.distributed.replicas.devices import DeviceGroup
from minigrad.errors import ArgumentError
from minigrad.graph.module import GraphModule
from minigrad.train.feeder import Feeder, rounds
from minigrad.train.stepper import Stepper
from minigrad.train.stopwatch import PassTime

_PULL = 0.3  # of a new reading on the average throughput


class DistributedState:
    """A graph's replicas, their optimizers, and how batches are divided among them; `graph.distributed`.

    Args:
        replicas: One a device.
        group: The devices.
        config: The options.
        el_che: The cadence, where whole batches are run between two reductions.

    Attributes:
        replicas, group, config, el_che: As given; the cadence as it is by now.
        world_size, devices: Number of devices, and where the replicas live.
        feeder: What gives each replica its part of the work.
        stepper: What combines gradients, clips and steps.
        optimizers: One a replica; empty before the first is made.
        balance: How a batch is divided.
        ema_throughput: Samples a second of each device, averaged over the latest passes; 0 before the first.
        step_count: Steps so far.
    """

    def __init__(
        self, replicas: Sequence[GraphModule], group: DeviceGroup, config: DdpConfig, el_che: ElChe | None = None
    ) -> None:
        self.replicas, self.group, self.config, self.el_che = tuple(replicas), group, config, el_che
        self.world_size, self.devices = len(self.replicas), group.devices
        options = config.balance_config()
        if self.world_size == 1:
            options = replace(options, speed_hint=None)  # there is nothing to compare with
        self.balance = Balance.start(self.world_size, options)
        self.ema_throughput = [0.0] * self.world_size
        self.step_count = 0
        self.feeder = Feeder(self.replicas, group, self.compute_shard_sizes, el_che is not None)
        self.stepper = Stepper(self.replicas, group, config.max_grad_norm, self._rest, self._reduced)
        self.optimizers = self.stepper.optimizers

    @property
    def last_shard_sizes(self) -> tuple[int, ...]:
        """Samples of each device in the last pass that recorded gradients."""
        return self.feeder.last_shard_sizes

    @property
    def last_el_che_counts(self) -> tuple[int, ...]:
        """Batches of each device in the last round."""
        return self.feeder.last_el_che_counts

    # ------------------------------------------------------------------------------------------------- shares

    @property
    def chunk_ratios(self) -> tuple[float, ...]:
        """The share of a batch that each device gets."""
        return self.balance.division.ratios

    def compute_shard_sizes(self, batch_size: int) -> tuple[int, ...]:
        """The samples of each device in the coming pass; their sum is the batch, and any batch will do."""
        return self.balance.shard_sizes(batch_size)

    def is_balanced(self) -> bool:
        """Whether the shards of the last pass were equal."""
        return is_balanced(self.last_shard_sizes)

    def batches(self, loaders: Sequence[Any]) -> Iterator[Any]:
        """What `Graph.epoch` gives: batches, shards of batches where each device has a loader, or rounds of El Che."""
        if self.el_che is not None:
            return rounds(lambda: self.el_che, loaders)
        return iter(loaders[0]) if len(loaders) == 1 else self.feeder.shards(loaders)

    # --------------------------------------------------------------------------------------------- reductions

    def sync_params(self) -> None:
        """Overwrite the parameters and buffers of all replicas by those of the first."""
        self.stepper.ddp.sync_params()

    def sync_buffers(self) -> None:
        """Overwrite the buffers of all replicas by those of the first one that took part in the last pass."""
        self.stepper.sync_buffers(self.feeder.first_in_pass)

    def all_reduce_gradients(self) -> None:
        """Add up what the replicas have of the gradient; each then has all of it. Once before each step.

        Raises:
            AutogradError: it was done already.
        """
        self.stepper.sum_gradients()

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
        self.stepper.average_gradients(self.last_shard_sizes)

    def _rest(self) -> None:
        self.feeder.work_on(None)

    def _reduced(self, nbytes: int) -> None:
        if self.config.timeline is not None:
            self.config.timeline.event("reduction", step=self.step_count + 1, nbytes=nbytes)

    # -------------------------------------------------------------------------------------------------- steps

    def step(self) -> None:
        """Combine, clip, step every replica alike, and look at the balance; see `Graph.step`."""
        self.stepper.step(self.feeder.first_in_pass)
        self.update_balance()

    def update_balance(self) -> bool:
        """Take in what the devices needed, and decide where that is due; whether shares or counts changed."""
        self.step_count += 1
        times = self.feeder.watch.times()
        for rank, time in enumerate(times):
            if time is not None:
                speed, old = time.samples / time.seconds, self.ema_throughput[rank]
                self.ema_throughput[rank] = old + _PULL * (speed - old) if old else speed
        if self.config.timeline is not None:
            fields = {"samples": self.last_shard_sizes, "sync_s": self.stepper.sync_s}
            self.config.timeline.event("step", step=self.step_count, **fields)
        if self.world_size == 1:
            return False
        return self._next_shares(times) if self.el_che is None else self._next_counts(self.el_che, times)

    def _next_shares(self, times: Sequence[PassTime | None]) -> bool:
        readings = [None if time is None else Reading(time.samples, time.seconds) for time in times]
        before = self.balance.division
        self.balance, division, reason = self.balance.observe(sum(self.last_shard_sizes), readings)
        if self.balance.config.is_due(self.balance.step):
            self._note("balance", step=self.step_count, ratios=division.ratios, shards=division.shards, reason=reason)
        return division.ratios != before.ratios or division.shards != before.shards

    def _next_counts(self, el_che: ElChe, times: Sequence[PassTime | None]) -> bool:
        walls = [0.0 if time is None else 1e3 * time.seconds for time in times]
        counts = [0 if time is None else time.batches for time in times]
        self.el_che, wanted, reason = el_che.report_timing(walls, counts, 1e3 * self.stepper.sync_s)
        self._note("cadence", step=self.step_count, anchor=self.el_che.anchor, counts=wanted, reason=reason)
        return wanted != el_che.batch_counts

    def _note(self, kind: str, **fields: Any) -> None:
        """Tell of a decision."""
        self.group.event(kind, **fields)
        if self.config.timeline is not None:
            self.config.timeline.event(kind, **fields)
