"""Ddp: several replicas in one process, driven by one thread, with their gradients combined on request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from minigrad.arguments import as_samples
from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.distributed import collectives as in_memory
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.base import check_root
from minigrad.distributed.comm.differences import check_alike
from minigrad.distributed.ddp.agreement import check_free, describe, places_of
from minigrad.distributed.ddp.buffers import BufferMemory
from minigrad.distributed.ddp.alike import Alike
from minigrad.distributed.ddp.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, BucketPlan, plan_buckets
from minigrad.distributed.ddp.deprecated import DeprecatedSetup
from minigrad.distributed.ddp.layout import Layout, adopt, fill_missing, give_names
from minigrad.distributed.ddp.nesting import check_complete
from minigrad.distributed.ddp.combine import as_weight, weight_of
from minigrad.errors import ArgumentError, DeviceError, UnreducedGradientError
from minigrad.nn.inventory import Inventory
from minigrad.nn.module import Module
from minigrad.stamp import mark_changed
from minigrad.tensor import Tensor


class ListCollectives(Protocol):
    """Collectives of which one thread is all ranks; the module `minigrad.distributed.collectives` is one."""

    def all_reduce(self, arrays: Sequence[Array], op: ReduceOp = ReduceOp.SUM) -> None:
        """Overwrite every array by the reduction of all of them."""

    def broadcast(self, arrays: Sequence[Array], root: int) -> None:
        """Overwrite every array by the root's."""


class Ddp(DeprecatedSetup):
    """Replicas in this process, one a device, whose gradients are combined when you say so; made by `Ddp.wrap`.

    Replica r has rank r. Run forward and backward on each with its shard of the batch, then combine, then step the
    optimizer of each. The replicas stay equal as long as they start equal and their optimizers are alike.

    Attributes:
        models: The replicas.
        devices: Where each of them lives.
        plan: The bucket plan.
        last_bytes: What of one replica's gradients travelled in the last reduction: 16-bit ones as float32.

    Example:
        >>> from minigrad import nn, randn
        >>> replicas = [nn.Linear(3, 1), nn.Linear(3, 1)]
        >>> ddp = Ddp.wrap(replicas, ["cpu", "cpu"])
        >>> ddp.sync_params()
        >>> for model, samples in zip(replicas, (3, 5)):
        ...     model(randn(samples, 3)).mean().backward()
        >>> ddp.weighted_all_reduce_gradients([3, 5])
        >>> bool((replicas[0].weight.grad == replicas[1].weight.grad).all())
        True
    """

    @classmethod
    def wrap(
        cls,
        models: Sequence[Module],
        devices: Sequence[Device | str],
        *,
        bucket_cap_bytes: int = DEFAULT_CAP_BYTES,
        first_bucket_bytes: int = DEFAULT_FIRST_CAP_BYTES,
        collectives: ListCollectives | None = None,
    ) -> Ddp:
        """Take over replicas that are on their devices already.

        Args:
            models: One replica a rank, at least one; equal in everything but values.
            devices: The device of each. A GPU may be named more than once where collectives can take that.
            bucket_cap_bytes, first_bucket_bytes: See `plan_buckets`.
            collectives: How replicas reach each other: `NcclDevices` between GPUs; the module
                `minigrad.distributed.collectives`, in memory, for replicas that share one; that is the default on the
                CPU.

        Raises:
            ArgumentError: no or too few replicas or devices, a device or a replica named twice, parameters that two
                replicas share or that another wrapper reduces, nothing to train.
            DeviceError: a replica is not on its device, or several GPUs have no collectives.
            ReplicaMismatchError: the replicas differ; the first difference is named.
        """
        return cls(models, devices, bucket_cap_bytes, first_bucket_bytes, collectives)

    def __init__(
        self,
        models: Sequence[Module],
        devices: Sequence[Device | str],
        bucket_cap_bytes: int,
        first_bucket_bytes: int,
        collectives: ListCollectives | None,
    ) -> None:
        self.models = tuple(models)
        self.devices = tuple(Device(device) for device in devices)
        _check_models(self.models, self.devices)
        _check_devices(self.models, self.devices, collectives)
        self._check_agreement()
        self._collectives: ListCollectives = collectives if collectives is not None else in_memory
        self._caps = (bucket_cap_bytes, first_bucket_bytes)
        self._inventories = [Inventory(model) for model in self.models]
        self._buffers = [BufferMemory(inventory) for inventory in self._inventories]
        self._layouts = [Layout(list(model.named_parameters())) for model in self.models]
        self._alikes = [Alike(layout) for layout in self._layouts]
        for model in self.models:
            give_names(model.named_parameters())
        self.last_bytes = 0
        self._set_plan()

    @property
    def world_size(self) -> int:
        """Number of replicas."""
        return len(self.models)

    # ---------------------------------------------------------------------------------------------- values

    def sync_params(self) -> None:
        """Overwrite the parameters and buffers of all replicas, in place, by those of replica 0."""
        self._check()
        check_complete("sync_params", [param for layout in self._layouts for param in layout.params])
        for arrays in zip(*(layout.values() for layout in self._layouts)):
            self._collectives.broadcast(arrays, 0)
        for layout in self._layouts[1:]:
            for param in layout.params:
                mark_changed(param)
        self._sync_buffers()

    def sync_buffers(self, root: int = 0) -> None:
        """Overwrite the buffers of all replicas, such as running statistics, in place, by those of one of them.

        Raises:
            ArgumentError: root is no replica's number.
        """
        check_root("sync_buffers", 0, root, self.world_size)
        self._check()
        self._sync_buffers(root)

    def _sync_buffers(self, root: int = 0) -> None:
        self._check_agreement()
        for same in zip(*(memory.pieces() for memory in self._buffers)):
            self._collectives.broadcast([piece.pack() for piece in same], root)
            for rank, piece in enumerate(same):
                if rank != root:
                    piece.unpack()

    # ------------------------------------------------------------------------------------------- gradients

    def all_reduce_gradients(self) -> None:
        """Replace the gradients of each replica by their mean over the replicas.

        That is the gradient of the mean over the global batch where all shards have one size. A gradient that no
        replica has stays None.

        Raises:
            UnreducedGradientError: some replicas have a gradient, and some have none.
            LayoutError: a parameter was replaced, moved or added since `wrap`.
            ReplicaMismatchError: requires_grad was changed on some replicas only, or their optimizers, schedules or
                loss scales differ; the first difference is named.
        """
        self._combine("all_reduce_gradients", [1.0] * self.world_size)

    def weighted_all_reduce_gradients(self, batch_counts: Sequence[float]) -> None:
        """Replace the gradients of each replica by Σ n_r·g_r / Σ n_r over the replicas.

        That is the gradient of the mean over the global batch, where replica r's loss is a mean over its n_r
        samples. A replica with n_r = 0 adds nothing, whatever its gradients, and needs none; it gets the result too.

        Args:
            batch_counts: n_r of each replica: samples, or whatever its loss is a mean over; finite and >= 0.

        Raises:
            ArgumentError: not one count a replica, a count that is none, or no count above 0.
            UnreducedGradientError: a replica with n_r > 0 has no gradient where another has one.
            LayoutError, ReplicaMismatchError: see `all_reduce_gradients`.
        """
        who = "weighted_all_reduce_gradients"
        if len(batch_counts) != self.world_size:
            raise ArgumentError(f"{who}: expected {self.world_size} batch counts, got {len(batch_counts)}")
        counts = [as_samples(f"{who}: batch count of rank {rank}", n) for rank, n in enumerate(batch_counts)]
        if not any(counts):
            raise ArgumentError(f"{who}: expected a batch count above 0, got {list(batch_counts)}")
        self._combine(who, counts)

    def sum_gradients(self, factor: float = 1.0) -> None:
        """Replace the gradients of each replica by their sum over the replicas, times a factor.

        That is for a loss whose graph spans the replicas: what it gave each of them are parts of one gradient. A
        replica's missing gradient counts as zero; one that no replica has stays None.

        Raises:
            ArgumentError: the factor is no finite number >= 0.
            LayoutError, ReplicaMismatchError: see `all_reduce_gradients`.
        """
        weight = as_samples("sum_gradients: factor", factor)
        self._check()
        self._check_state()
        self._add_up(self._used("sum_gradients", [0.0] * self.world_size), [weight] * self.world_size)

    def _combine(self, who: str, counts: list[float]) -> None:
        self._check()
        self._check_state()
        total = math.fsum(counts)
        self._add_up(self._used(who, counts), [weight_of(count, total) for count in counts])

    def _add_up(self, used: set[int], weights: list[float]) -> None:
        """Replace the gradients of these parameters by their weighted sum, bucket by bucket."""
        self.last_bytes = 0
        for bucket in self.plan.buckets:
            if used.isdisjoint(bucket.entries):
                continue
            for layout, device in zip(self._layouts, self.devices):
                with device.current():
                    fill_missing(layout.params_of(bucket))
            gradients = [layout.gradients(bucket) for layout in self._layouts]
            factors = [as_weight(array, weight) for array, weight in zip(gradients, weights)]
            in_memory.weighted_all_reduce(gradients, factors, self._send)
        for layout in self._layouts:
            for i in used:
                adopt(layout.params[i])

    def _send(self, arrays: Sequence[Array]) -> None:
        self.last_bytes += int(arrays[0].nbytes)
        self._collectives.all_reduce(arrays)

    def _used(self, who: str, counts: list[float]) -> set[int]:
        """The numbers of the parameters that have a gradient."""
        check_complete(who, [param for layout in self._layouts for param in layout.params])
        used = set()
        for i in (i for bucket in self.plan.buckets for i in bucket.entries):
            missing = [rank for rank, layout in enumerate(self._layouts) if layout.params[i].grad_array is None]
            if len(missing) == self.world_size:
                continue
            lacking = [rank for rank in missing if counts[rank] > 0.0]
            if lacking:
                raise UnreducedGradientError(
                    f"{who}: expected a gradient of {self._layouts[0].names[i]} on every replica that counts, got "
                    f"none on rank {', '.join(map(str, lacking))}: use it in the loss there, or count 0 samples"
                )
            used.add(i)
        return used

    # ---------------------------------------------------------------------------------------------- checks

    def _check(self) -> None:
        """Refuse replicas that have changed since they were wrapped, or differ; follow requires_grad where all have."""
        for rank, (model, layout, inventory) in enumerate(zip(self.models, self._layouts, self._inventories)):
            inventory.check(f"rank {rank}: Ddp", model)
            layout.check()
        self._check_modes()
        if any(layout.trainable() != self._trainable for layout in self._layouts) or self._wanted() != self._combined:
            self._set_plan()

    def _check_modes(self) -> None:
        modes = [inventory.modes() for inventory in self._inventories]
        if modes.count(modes[0]) == len(modes):
            return
        names = [f"training of {name or 'the whole'}" for name, _ in self.models[0].named_modules()]
        found = {rank: dict(zip(names, each)) for rank, each in enumerate(modes) if len(each) == len(names)}
        check_alike("Ddp", "modes", found, "call train() or eval() on all of them")

    def _wanted(self) -> list[bool]:
        """Which parameters are combined: those trained, and those frozen after a replica had got a gradient."""
        same = zip(*(layout.params for layout in self._layouts))
        return [any(param.requires_grad or param.grad_array is not None for param in each) for each in same]

    def _set_plan(self) -> None:
        entries = [layout.entries() for layout in self._layouts]
        found = {rank: {entry.name: entry for entry in each} for rank, each in enumerate(entries)}
        check_alike("Ddp", "layouts", found, "give each replica an optimizer of its own, freeze them alike")
        self._trainable, self._combined = self._layouts[0].trainable(), self._wanted()
        combined = [replace(entry, trainable=wanted) for entry, wanted in zip(entries[0], self._combined)]
        self.plan: BucketPlan = plan_buckets(combined, *self._caps)

    def _check_agreement(self) -> None:
        check_alike("Ddp", "replicas", {rank: describe(model) for rank, model in enumerate(self.models)})

    def _check_state(self) -> None:
        """Refuse replicas that differ beside the model. A loss scale of several need not have met all of them yet."""
        marks = [alike.mark() for alike in self._alikes]
        if marks.count(marks[0]) == len(marks):
            return
        scales = {id(c) for alike in self._alikes for c in alike.companions() if places_of(c, {}) is None}
        found = {rank: alike.describe(idle=len(scales) == 1) for rank, alike in enumerate(self._alikes)}
        for alike in self._alikes:
            alike.compare("Ddp", found)


def _check_models(models: tuple[Module, ...], devices: tuple[Device, ...]) -> None:
    if not models or len(models) != len(devices):
        raise ArgumentError(f"Ddp: expected replicas and a device for each, got {len(models)} and {len(devices)}")
    owner: dict[int, int] = {}
    for rank, model in enumerate(models):
        if not isinstance(model, Module):
            raise ArgumentError(f"Ddp: expected modules, got {type(model).__name__} as replica {rank}")
        for name, tensor in _state(model):
            first = owner.setdefault(id(tensor), rank)
            if first != rank:
                raise ArgumentError(
                    f"Ddp: expected replicas of their own, got one {name} in replicas {first} and {rank}: "
                    "copy the module with copy.deepcopy"
                )
        check_free(f"Ddp: replica {rank}", model.parameters())
    if not any(p.requires_grad for p in models[0].parameters()):
        raise ArgumentError(f"Ddp: expected a parameter that requires grad, got none in {type(models[0]).__name__}")


def _check_devices(
    models: tuple[Module, ...], devices: tuple[Device, ...], collectives: ListCollectives | None
) -> None:
    listed = ", ".join(map(str, devices))
    gpus = [device for device in devices if device.type != "cpu"]
    if collectives is None and len(set(gpus)) != len(gpus):
        raise ArgumentError(
            f"Ddp: expected each GPU once, got {listed}: pass collectives=minigrad.distributed.collectives, "
            "which combines replicas that share one in its memory"
        )
    if collectives is None and len(set(devices)) > 1:
        raise DeviceError(f"Ddp: expected replicas on the CPU, or collectives for several devices, got {listed}")
    for rank, (model, device) in enumerate(zip(models, devices)):
        for name, tensor in _state(model):
            if tensor.device != device:
                raise DeviceError(
                    f"Ddp: expected replica {rank} on {device}, got {name} on {tensor.device}: move the module first"
                )


def _state(model: Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]
