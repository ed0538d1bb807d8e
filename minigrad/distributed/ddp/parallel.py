"""DistributedDataParallel: one rank's wrapper of a module, whose backward combines gradients over all ranks.

Here are options, the count of samples in forward, and what a user calls. Its `Reducer` listens to the parameters and
combines gradients, `own` knows what they weigh, and `Upkeep` hands on buffers and compares replicas after a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any, Literal

from minigrad.arguments import as_integer, as_real, as_samples, as_sequence, check_choice, check_switch
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.ddp.agreement import check_replicas, check_wrappable, tell_of_copy
from minigrad.distributed.ddp.bitwise import ShardedBackward
from minigrad.distributed.ddp.buckets import MIB, BucketPlan
from minigrad.distributed.ddp.hooks import CommHook
from minigrad.distributed.ddp.join import JOIN, check_stateful, joined
from minigrad.distributed.ddp.reducer import Options, Reducer
from minigrad.distributed.ddp.stats import NonFinite, Stats
from minigrad.distributed.ddp.upkeep import BufferPolicy, Upkeep, policy_of
from minigrad.errors import ArgumentError, ShapeError
from minigrad.nn.module import Module
from minigrad.recording import is_grad_enabled, is_recomputing
from minigrad.stamp import mark_changed, next_number
from minigrad.tensor import Tensor


class DistributedDataParallel(Module):
    """A module whose gradients are those of the mean over the global batch, whatever each rank's shard.

    Each rank wraps its own replica and computes the mean loss over its own samples; when `backward()` returns, the
    gradients are Σ n_r·g_r / Σ n_r over all ranks, in buckets that travel while backward still runs. n_r is the
    length of axis `batch_dim` of the first tensor argument of forward, added up over the forwards that backward
    reaches; `with ddp.samples(n):` sets it where the loss is a mean over something else, such as tokens.

    Args:
        module: The replica. All ranks must have the same parameters in the same order.
        comm: The ranks; by default those of this context, see `distributed.init` and `run`.
        batch_dim: Axis of the samples in the first tensor argument: 1 for recurrence and attention in (T, N, ...).
        bucket_cap_mb: Largest bucket in MiB; see `plan_buckets`.
        first_bucket_mb: Largest first bucket in MiB; the cap where that is less.
        bucket_cap_bytes: Largest bucket in bytes, instead of bucket_cap_mb.
        find_unused_parameters: Let a backward leave parameters out: they count as zero. Else the rank that does raises
            UnreducedGradientError, and the others RankFailedError: their gradients are worthless, and may be NaN. Where
            all ranks leave one out alike, each raises the former, and no rank has failed: training can go on.
        broadcast_buffers: "broadcast" (or True), "mean" or "none" (or False); see `Upkeep`.
        buffer_cadence: Passes between two synchronisations of the buffers.
        sync: "auto": each backward outside `no_sync` synchronises. "manual": none does; call `sync_gradients`.
        reduce: "mean" as above; "sum" adds the gradients up, for losses that are sums or already global.
        init_sync: Broadcast parameters and buffers of rank 0 at construction.
        bucket_plan: A plan to use, for example one saved from another run.
        check_replicas_every: Compare the bits of all replicas in every so many synchronising passes: parameters, and
            buffers where these have just been synchronised; see `record.fingerprint`. None compares nothing.
        track_nonfinite: Look for infinite and NaN gradients while they are weighted; see `nonfinite_gradients`.
        timeline: A `Timeline`, on which forward, backward and the life of each bucket are noted.

    Attributes:
        module, comm: What was given.

    Raises:
        ReplicaMismatchError: the replicas differ in names, shapes, dtypes, order or requires_grad, or in an option
            that has to be alike; on all ranks. Later a synchronising backward raises it, when gradients are combined,
            where the optimizers, schedules or loss scales of these parameters differ, as after one rank alone has
            loaded a state, and a checking one where bits differ.
        ArgumentError: nothing to train, a wrapper inside, or a wrong option.
        DeviceError: the parameters do not live on the communicator's device.

    Example:
        >>> from minigrad import nn, distributed, randn
        >>> def body(comm):
        ...     ddp = distributed.DistributedDataParallel(nn.Linear(3, 1), comm)
        ...     ddp(randn(4, 3)).mean().backward()
        ...     return ddp.module.weight.grad.tolist()
        >>> first, second = distributed.run(body, 2)
        >>> first == second
        True
    """

    def __init__(
        self,
        module: Module,
        comm: Communicator | None = None,
        *,
        batch_dim: int = 0,
        bucket_cap_mb: float = 25,
        first_bucket_mb: float = 1,
        bucket_cap_bytes: int | None = None,
        find_unused_parameters: bool = False,
        broadcast_buffers: BufferPolicy | bool = True,
        buffer_cadence: int = 1,
        sync: Literal["auto", "manual"] = "auto",
        reduce: Literal["mean", "sum"] = "mean",
        init_sync: bool = True,
        bucket_plan: BucketPlan | None = None,
        check_replicas_every: int | None = None,
        track_nonfinite: bool = False,
        timeline: Any = None,
    ) -> None:
        super().__init__()
        comm = check_wrappable(module, comm, DistributedDataParallel)
        check_choice("DistributedDataParallel", ("mean", "sum"), reduce=reduce)
        check_choice("DistributedDataParallel", ("auto", "manual"), sync=sync)
        switches = {"find_unused_parameters": find_unused_parameters, "track_nonfinite": track_nonfinite}
        check_switch("DistributedDataParallel", **switches, init_sync=init_sync)
        as_integer("DistributedDataParallel", "batch_dim", batch_dim)
        cap = _cap_bytes("bucket_cap_mb", bucket_cap_mb)
        if bucket_cap_bytes is not None:
            cap = as_integer("DistributedDataParallel", "bucket_cap_bytes", bucket_cap_bytes, 1)
        first_cap = min(_cap_bytes("first_bucket_mb", first_bucket_mb), cap)
        mean = reduce == "mean"
        self._options = Options(cap, first_cap, find_unused_parameters, mean, track_nonfinite, bucket_plan)
        self._upkeep_options = (broadcast_buffers, buffer_cadence, check_replicas_every, timeline)
        self.sync = sync
        alike: dict[str, object] = {"reduce": reduce, "sync": sync, "init_sync": init_sync, **switches}
        alike |= {"broadcast_buffers": policy_of(broadcast_buffers), "buffer_cadence": buffer_cadence}
        alike |= {"batch_dim": batch_dim, "check_replicas_every": check_replicas_every}
        alike |= {"bucket_cap_mb or bucket_cap_bytes, in bytes,": cap, "bucket_plan": getattr(bucket_plan, "id", None)}
        alike["first_bucket_mb, in bytes,"] = first_cap
        check_replicas(module, comm, alike)
        self._wrap(module, comm, batch_dim)
        if init_sync:
            self.broadcast_parameters(0)

    def _wrap(self, module: Module, comm: Communicator, batch_dim: int) -> None:
        self.module = module
        self.comm, self._gpu = comm, None if comm.device.type == "cpu" else comm.device
        named = list(module.named_parameters())
        self.reducer = Reducer(comm, named, self._options, type(module).__name__)
        self.batch_dim = batch_dim
        self.reducer.alike.set_option(JOIN, None)
        self.reducer.syncing = self.sync == "auto"
        self._sharded = ShardedBackward(self.reducer)
        self._upkeep = Upkeep(module, self.reducer, *self._upkeep_options)
        self.reducer.after_pass, self._passes, self.kept_beside = self._after_pass, 0, ("_passes",)  # see nn.bundle

    def _after_pass(self, active_ranks: list[int]) -> None:
        self._passes += 1
        if active_ranks and (self._upkeep.check.every is not None or self._upkeep.inventory.buffers()):
            self._upkeep.after_pass(active_ranks, self._passes)

    @property
    def batch_dim(self) -> int:
        """Axis of the samples in the first tensor argument; the same on all ranks."""
        return self._batch_dim

    @batch_dim.setter
    def batch_dim(self, axis: int) -> None:
        self._batch_dim = as_integer("DistributedDataParallel", "batch_dim", axis)
        self.reducer.alike.set_option("batch_dim", self._batch_dim)

    # -------------------------------------------------------------------------------------------- training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, and count the samples where gradients are recorded."""
        recording = is_grad_enabled() and not is_recomputing()
        if recording:
            self._check_parameters()
            samples = self._count(args, kwargs)
            began_s, began = self.comm.clock.now_s(), next_number()
        if self._gpu is None:
            output = self.module(*args, **kwargs)
        else:
            with self._gpu.current():  # a net, for a thread that is on another one
                output = self.module(*args, **kwargs)
        if recording:
            self.reducer.own.add_forward(samples, began)
            self.reducer.stats.forward_s += self.comm.clock.now_s() - began_s
        return output

    def _call_watched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stats, clock = self.reducer.stats, self.comm.clock
        began_s, before_s = clock.now_s(), stats.forward_s
        self.reducer.lane.called_s = began_s
        output = super()._call_watched(args, kwargs)
        if is_grad_enabled() and not is_recomputing():  # in a simulation forward's time passes before it is called
            stats.forward_s = before_s + (clock.now_s() - began_s)
        return output

    def _count_samples(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        try:
            return self._count(args, kwargs)
        except (ArgumentError, ShapeError):
            if is_grad_enabled():
                raise
            return super()._count_samples(args, kwargs)  # an evaluation may be given anything

    def _count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        if self.reducer.own.said is not None:
            return self.reducer.own.said
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor):
                axis = self._batch_dim
                if not -value.ndim <= axis < value.ndim:
                    raise ShapeError(
                        f"DistributedDataParallel: expected an input with axis batch_dim={axis}, "
                        f"got shape {value.shape}: use samples(n)"
                    )
                return float(value.shape[axis])
        raise ArgumentError(
            "DistributedDataParallel: expected a tensor argument to count samples, got none: use samples(n)"
        )

    def samples(self, n: float) -> AbstractContextManager[None]:
        """Count n samples for the forward or the backward inside, instead of the length of the batch.

        Use it where the loss is a mean over something else: the tokens that are not padding, say. n may be 0.

        Example: `with ddp.samples(mask.sum().item()): loss.backward()`
        """
        return self.reducer.own.saying(as_samples("samples", n))

    def no_sync(self) -> AbstractContextManager[None]:
        """Keep the gradients of each backward inside local; the next backward outside combines all of them.

        What counts is where backward() is called, not where forward was. The rank's weight is then its samples since
        the last synchronisation, or since all gradients were None (zeros are not); gradients add up as in PyTorch, so
        for K passes of a mean divide by K. A combined gradient that was not zeroed is the same on all ranks and stays
        in, once, since the weights add up to 1.
        """
        return self.reducer.quiet()

    def flush(self) -> None:
        """Take part in this step's synchronisation without a backward.

        For a rank whose loss reaches no parameter, or to combine what was accumulated under `no_sync`. What counts
        are the samples of the forwards since the last backward, and those accumulated.
        """
        self._check_parameters()
        self.reducer.combine("flush")

    def sync_gradients(self) -> None:
        """Combine the gradients of the backwards since the last time, bucket after bucket; for sync="manual".

        Raises:
            UnreducedGradientError: a trainable parameter has none, unless find_unused_parameters.
        """
        self._synchronize("sync_gradients", one_by_one=True)

    def overlapped_sync_gradients(self) -> None:
        """The same, with the same bits, but all buckets are under way before the first is waited for."""
        self._synchronize("overlapped_sync_gradients", one_by_one=False)

    def _synchronize(self, what: str, one_by_one: bool) -> None:
        self._check_parameters()
        self.reducer.combine(what, strict=not self.reducer.options.find_unused, one_by_one=one_by_one)

    def join(
        self,
        *,
        divide_by_initial_world_size: bool = False,
        throw_on_early_termination: bool = False,
        also: Sequence[Any] = (),
    ) -> AbstractContextManager[None]:
        """Train inside on ranks with different numbers of batches: `with ddp.join(): for batch in loader: ...`.

        A rank that leaves the block takes part in the others' passes until all have left it: with what it accumulated
        under `no_sync` and has not combined, then with no samples. It makes no optimizer steps meanwhile: at the end
        all ranks get the parameters of one that was there last, and the state of what is named in `also`. State that
        stayed behind is refused in the next pass outside.

        Args:
            divide_by_initial_world_size: Weight as if the ranks without data had contributed zeros of the others'
                mean size, as PyTorch does by default; else the gradient is that of the mean over the samples there.
            throw_on_early_termination: Raise on all ranks as soon as one has no more data.
            also: What else to hand on, in the same order on all ranks: optimizers, schedules and loss scales that make
                steps inside; anything with state_dict and load_state_dict. Plain SGD has no state and needs none.

        Raises:
            RankFailedError: with throw_on_early_termination; it names the ranks that ran out.
            ArgumentError: something in also has no state; or a SyncBatchNorm inside, whose collectives in forward a
                rank without data does not make.
        """
        if self.reducer.in_order:
            raise ArgumentError("join: expected no SyncBatchNorm or nn.all_gather, got one: give ranks batches alike")
        options = (divide_by_initial_world_size, throw_on_early_termination, check_stateful("join", also))
        return joined(self.reducer, self.broadcast_parameters, *options)

    def backward_shards(
        self, loss_fn: Callable[..., Tensor], shards: Sequence[Any], counts: Sequence[float] | None = None
    ) -> float:
        """Compute the gradients of several shards one after the other: the same bits for any number of ranks.

        The batch is cut into V shards, a power of two; rank r gives shards r·V/W .. (r+1)·V/W - 1. The gradients
        are those of the mean over all samples, and have the bits of one rank with all V shards, under the conditions
        of `minigrad.distributed.ddp.bitwise`. A shard without samples is left out.

        Args:
            loss_fn: loss_fn(*shard) for a tuple, loss_fn(shard) else: the mean loss over the samples of a shard.
            shards: This rank's; as many on every rank.
            counts: Samples of each of them; by default the length of axis `batch_dim` of its first tensor.

        Returns:
            The mean loss over the samples of all shards (the sum of their losses with reduce="sum"), equal on all
            ranks; NaN where there are none.

        Raises:
            ReplicaMismatchError: on all ranks, where the numbers of shards differ, or are no power of two in all.
            AutogradError: there are gradients already. DtypeError: 16-bit parameters.
            ArgumentError: a comm hook or SyncBatchNorm, sync="manual", `no_sync` or `samples` around it, wrong counts,
                or a shard without tensor.

        Example:
            >>> from minigrad import nn, distributed, randn
            >>> ddp = distributed.DDP(nn.Linear(3, 1), distributed.SoloCommunicator())
            >>> loss = ddp.backward_shards(lambda x: ddp(x).square().mean(), [randn(4, 3), randn(2, 3)])
        """
        if not callable(loss_fn):
            raise ArgumentError(f"backward_shards: expected loss_fn as a function, got {loss_fn!r:.100}")
        as_sequence("backward_shards", "shards", shards)
        if counts is not None:
            as_sequence("backward_shards", "counts", counts)
        self._check_parameters()
        with self.comm.device.current():
            return self._sharded.run(loss_fn, shards, counts, self.batch_dim)

    def stats(self, all_ranks: bool = False) -> Stats:
        """Seconds, bytes and calls since construction or `reset()`; all_ranks, which all call, adds `ranks`, `late`."""
        return self.reducer.stats.asked(all_ranks, self.comm)

    def nonfinite_gradients(self) -> list[NonFinite]:
        """Which ranks handed in infinite or NaN gradients since the last call, and in which buckets; needs
        track_nonfinite. All ranks call it, and it waits for their devices.
        """
        flags = self.reducer.buckets.nonfinite
        if flags is None:
            raise ArgumentError("nonfinite_gradients: expected a wrapper with track_nonfinite=True, got one without")
        self.reducer.under_way.check_idle("nonfinite_gradients")
        return flags.take()

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Add up gradients by hook(state, bucket, comm) instead of one all-reduce a bucket.

        The hook gets a `GradBucket`. What it takes out of that, by `gradients()`, `buffer()`, `pack` or `all_reduce`,
        is weighted by n_r / Σn, `param.grad` before that is not. It returns an object with wait() that leaves the sum
        over the ranks in the bucket, and never divides. All ranks register the same hook, once, before a backward.

        Args:
            state: Passed on to the hook.
            hook: For example `fp16_compress_hook`.

        Raises:
            ArgumentError: no function, or a hook is there already.
            ReplicaMismatchError: other ranks register another one.
        """
        self.reducer.register_hook(state, hook)

    def broadcast_parameters(self, root: int = 0) -> None:
        """Overwrite parameters and buffers of all ranks, in place, by the root's.

        Raises:
            ArgumentError: root is no rank.
        """
        as_integer(f"rank {self.comm.rank}: broadcast_parameters", "root", root, 0, self.comm.world_size)
        self.reducer.under_way.check_idle("broadcast_parameters")
        works = [self.comm.broadcast(values, root) for values in self.reducer.layout.values()]
        self._upkeep.broadcast(root)
        for work in works:
            work.wait()
        for param in self.module.parameters():
            mark_changed(param)

    # ----------------------------------------------------------------------------------------------- state

    @property
    def plan(self) -> BucketPlan:
        """The bucket plan in force; print it, or save it with `to_json`."""
        return self.reducer.buckets.plan

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own state_dict: its keys have no `module.` in front."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load a state_dict of the module, with or without `module.` in front of all keys."""
        return self.module.load_state_dict(_of_module(self.module, state_dict), strict, assign)

    def unwrap(self) -> Module:
        """Stop combining gradients, and return the module.

        Its SyncBatchNorm layers that use this wrapper's communicator will use that of the next one.
        """
        self.reducer.detach()
        self._upkeep.leave()
        return self.module

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        tell_of_copy(self.reducer.name, self.comm)
        twin = object.__new__(type(self))
        Module.__init__(twin)
        memo[id(self)] = twin
        twin._options, twin._upkeep_options, twin.sync = self._options, self._upkeep_options, self.sync
        twin.training = self.training
        twin._wrap(deepcopy(self.module, memo), self.comm, self.batch_dim)
        twin.reducer.hook = deepcopy(self.reducer.hook, memo)
        return twin

    def _check_parameters(self) -> None:
        self._upkeep.inventory.check(f"rank {self.comm.rank}: DistributedDataParallel", self.module)


def _cap_bytes(name: str, mib: float) -> int:
    return max(1, int(as_real("DistributedDataParallel", f"{name}, in MiB,", mib, above=0.0, finite=True) * MIB))


def _of_module(module: Module, state: Any) -> Any:
    """A state_dict without the `module.` in front of all its names, unless that is part of the module's own."""
    front, own = "module.", module._state().keys()
    if not isinstance(state, dict) or own & state or not all(str(name).startswith(front) for name in state):
        return state
    return {name.removeprefix(front): x for name, x in state.items()}
