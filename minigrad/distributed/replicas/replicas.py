"""Several replicas in one process, driven by one thread, with their gradients combined on request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from minigrad.arguments import as_samples
from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.distributed import collectives as in_memory
from minigrad.distributed.comm.checks import check_root
from minigrad.distributed.comm.differences import check_alike, describe
from minigrad.distributed.ddp.agreement import places_of, present
from minigrad.distributed.ddp.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, BucketPlan, plan_buckets
from minigrad.distributed.ddp.combine import as_weight, weight_of
from minigrad.distributed.ddp.refusals import check_complete
from minigrad.distributed.replicas.model_copy import ModelCopy, check_devices, check_models
from minigrad.distributed.replicas.notes import ListCollectives, ReplicaNotes, Timeline
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.stamp import mark_changed

_UNSEEN = nullcontext()


class Replicas:
    """Replicas in this process, one a device, whose gradients are combined when you say so; made by `Replicas.wrap`.

    Replica r has rank r. Run forward and backward on each with its shard of the batch, then combine, then step the
    optimizer of each. The replicas stay equal as long as they start equal and their optimizers are alike.

    Attributes:
        notes: What writes on a timeline; None where there is none.
        models: The replicas.
        devices: Where each of them lives.
        plan: The bucket plan.
        last_bytes: What of one replica's gradients travelled in the last reduction: 16-bit ones as float32.

    Example:
        >>> from minigrad import nn, randn
        >>> models = [nn.Linear(3, 1), nn.Linear(3, 1)]
        >>> replicas = Replicas.wrap(models, ["cpu", "cpu"])
        >>> replicas.sync_params()
        >>> for model, samples in zip(models, (3, 5)):
        ...     model(randn(samples, 3)).mean().backward()
        >>> replicas.weighted_all_reduce_gradients([3, 5])
        >>> bool((models[0].weight.grad == models[1].weight.grad).all())
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
        timeline: Timeline | None = None,
    ) -> Replicas:
        """Take over replicas that are on their devices already.

        Args:
            models: One replica a rank, at least one; equal in everything but values.
            devices: The device of each. A GPU may be named more than once where collectives can take that.
            bucket_cap_bytes, first_bucket_bytes: See `plan_buckets`.
            collectives: How replicas reach each other: `NcclDevices` between GPUs; the module
                `minigrad.distributed.collectives`, in memory, for replicas that share one; that is the default on the
                CPU.
            timeline: Has a track for each replica: its forward by module, its backward by leaf, and its buckets.

        Raises:
            ArgumentError: no or too few replicas or devices, a device or a replica named twice, parameters that two
                replicas share or that another wrapper reduces, nothing to train.
            DeviceError: a replica is not on its device, or several GPUs have no collectives.
            ReplicaMismatchError: the replicas differ; the first difference is named.
        """
        made = cls(models, devices, bucket_cap_bytes, first_bucket_bytes, collectives)
        if timeline is not None:
            made.notes = ReplicaNotes(timeline, made.devices, getattr(collectives, "clocks", ()))
            made.notes.listen(made.models)
        return made

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
        check_models("Replicas", self.models, self.devices)
        check_devices("Replicas", self.models, self.devices, in_memory=collectives is None)
        self._check_agreement()
        self._collectives: ListCollectives = collectives if collectives is not None else in_memory
        self._caps = (bucket_cap_bytes, first_bucket_bytes)
        self._copies = [ModelCopy(f"rank {rank}: Replicas", model) for rank, model in enumerate(self.models)]
        self._layouts = [each.layout for each in self._copies]
        self.last_bytes = 0
        self.notes: ReplicaNotes | None = None
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
        with _UNSEEN if self.notes is None else self.notes.passing(ends_step=False):
            for same in zip(*(each.buffers.pieces() for each in self._copies)):
                arrays = [piece.pack() for piece in same]
                if self.notes is None:
                    self._collectives.broadcast(arrays, root)
                else:
                    self.notes.send("broadcast", self._collectives.broadcast, arrays, root)
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
        with _UNSEEN if self.notes is None else self.notes.passing():
            self._add_up_buckets(used, weights)
        for each in self._copies:
            each.adopt(used)

    def _add_up_buckets(self, used: set[int], weights: list[float]) -> None:
        for bucket in self.plan.buckets:
            if used.isdisjoint(bucket.entries):
                continue
            if self.notes is not None:
                self.notes.weigh(bucket)
            gradients = [each.layout.filled(bucket) for each in self._copies]
            factors = [as_weight(array, weight) for array, weight in zip(gradients, weights)]
            in_memory.weighted_all_reduce(gradients, factors, self._send)

    def _send(self, arrays: Sequence[Array]) -> None:
        self.last_bytes += int(arrays[0].nbytes)
        if self.notes is None:
            self._collectives.all_reduce(arrays)
        else:
            self.notes.send("all_reduce", self._collectives.all_reduce, arrays)

    def _used(self, who: str, counts: list[float]) -> set[int]:
        """The numbers of the parameters that have a gradient."""
        check_complete(who, [param for layout in self._layouts for param in layout.params])
        has = {
            i: [layout.params[i].grad_array is not None for layout in self._layouts]
            for bucket in self.plan.buckets
            for i in bucket.entries
        }
        return present(who, self._layouts[0].names, counts, has)

    # ---------------------------------------------------------------------------------------------- checks

    def _check(self) -> None:
        """Refuse replicas that have changed since they were wrapped, or differ; follow requires_grad where all have."""
        for each in self._copies:
            each.check()
        self._check_modes()
        if any(layout.trainable() != self._trainable for layout in self._layouts) or self._wanted() != self._combined:
            self._set_plan()

    def _check_modes(self) -> None:
        modes = [each.modes() for each in self._copies]
        if modes.count(modes[0]) == len(modes):
            return
        names = [f"training of {name or 'the whole'}" for name, _ in self.models[0].named_modules()]
        found = {rank: dict(zip(names, each)) for rank, each in enumerate(modes) if len(each) == len(names)}
        check_alike("Replicas", "modes", found, "call train() or eval() on all of them")

    def _wanted(self) -> list[bool]:
        """Which parameters are combined: those trained, and those frozen after a replica had got a gradient."""
        same = zip(*(layout.params for layout in self._layouts))
        return [any(param.requires_grad or param.grad_array is not None for param in each) for each in same]

    def _set_plan(self) -> None:
        entries = [layout.entries() for layout in self._layouts]
        found = {rank: {entry.name: entry for entry in each} for rank, each in enumerate(entries)}
        check_alike("Replicas", "layouts", found, "give each replica an optimizer of its own, freeze them alike")
        self._trainable, self._combined = self._layouts[0].trainable(), self._wanted()
        combined = [replace(entry, trainable=wanted) for entry, wanted in zip(entries[0], self._combined)]
        self.plan: BucketPlan = plan_buckets(combined, *self._caps)

    def _check_agreement(self) -> None:
        check_alike("Replicas", "replicas", {rank: describe(model) for rank, model in enumerate(self.models)})

    def _check_state(self) -> None:
        """Refuse replicas that differ beside the model. A loss scale of several need not have met all of them yet."""
        alikes = [each.alike for each in self._copies]
        marks = [alike.mark() for alike in alikes]
        if marks.count(marks[0]) == len(marks):
            return
        scales = {id(c) for alike in alikes for c in alike.companions() if places_of(c, {}) is None}
        found = {rank: alike.describe(idle=len(scales) == 1) for rank, alike in enumerate(alikes)}
        for alike in alikes:
            alike.compare("Replicas", found)
