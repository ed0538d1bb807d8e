"""What a Graph adds to a plan that runs: it trains itself, on one device or on several, in the same loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any, TypeVar

from minigrad.arguments import as_integer
from minigrad.autograd import is_grad_enabled
from minigrad.backend.device import CPU, Device
from minigrad.backend.flags import raise_all_found
from minigrad.errors import ArgumentError
from minigrad.graph.batches import ShardedBatch, Window, deal
from minigrad.graph.distribute import DistributedState, LossFn
from minigrad.graph.plan import Plan, bind
from minigrad.graph.runner import PlanModule
from minigrad.graph.setup import local_state
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.schedule import LRScheduler, ScheduleLike
from minigrad.tensor import Tensor

Self = TypeVar("Self", bound="Trainable")
MakeOptimizer = Callable[[list[Parameter]], Optimizer]


@dataclass
class Training:
    """What a graph was told about its training, in any order; what follows from all of it is in `state`."""

    make_optimizer: MakeOptimizer | None = None
    schedule: ScheduleLike | None = None
    loss_fn: LossFn | None = None
    loaders: tuple[Any, ...] = ()
    state: DistributedState | None = None
    is_distributed: bool = False
    made: list[Any] = field(default_factory=list)  # what the optimizers in `state` were made from
    part_of: tuple[DistributedState, str] | None = None  # for a sub-graph: what trains the whole, and its path there


class Trainable(PlanModule):
    """A plan that trains: options in any order, then `forward`, `backward`, `step`, or `epoch` and `backward_batch`."""

    def __init__(self, plan: Plan, modules: Mapping[str, Module], label: str | None = None) -> None:
        super().__init__(plan, modules, label)
        self._training = Training()

    # --------------------------------------------------------------------------------------------------- options

    def set_optimizer(self, make_optimizer: MakeOptimizer) -> None:
        """Train with optimizers that make_optimizer(params) makes, one for each replica.

        Args:
            make_optimizer: For example `lambda params: optim.SGD(params, lr=0.1)`.

        Raises:
            ArgumentError: it is no function.
        """
        made_from = self._function("set_optimizer", "from parameters to an optimizer", make_optimizer)
        self._training.make_optimizer = made_from

    def set_scheduler(self, schedule: ScheduleLike) -> None:
        """Let the learning rate of every replica follow a schedule: its base rate times schedule(step).

        Another call begins again at step 0, with the same base rate.

        Raises:
            ArgumentError: it is no function.
        """
        self._training.schedule = self._function("set_scheduler", "from a step to a factor", schedule)

    def set_loss_fn(self, loss_fn: LossFn) -> None:
        """Let `backward_batch` use loss_fn(model, batch), the mean loss over the samples of a batch.

        The function calls the model that it is given: this graph, or one of its replicas.

        Raises:
            ArgumentError: it is no function.
        """
        self._training.loss_fn = self._function("set_loss_fn", "from a model and a batch to a loss", loss_fn)

    def _function(self, who: str, what: str, value: Any) -> Any:
        if not callable(value):
            raise ArgumentError(f"{self._who()}.{who}: expected a function {what}, got {type(value).__name__}")
        return value

    def set_data_loader(self, *loaders: Any) -> None:
        """Let `epoch` read from one loader whose batches are divided, or from one loader a device.

        Args:
            loaders: Each can be iterated over again and again.

        Raises:
            ArgumentError: none, one that is an iterator, or neither one nor one a device.
        """
        for loader in loaders:
            if not hasattr(loader, "__iter__") or hasattr(loader, "__next__"):
                raise ArgumentError(
                    f"{self._who()}.set_data_loader: expected loaders that can be iterated over in every epoch, got "
                    f"{type(loader).__name__}"
                )
        if not loaders:
            raise ArgumentError(f"{self._who()}.set_data_loader: expected a loader, or one a device, got none")
        if self._training.is_distributed:
            self._check_loaders(loaders, self._training.state)
        self._training.loaders = loaders

    def _check_loaders(self, loaders: Sequence[Any], state: DistributedState | None) -> None:
        """What the loaders and the devices have to do with each other."""
        number = 1 if state is None else state.world_size
        if len(loaders) > 1 and len(loaders) != number:
            raise ArgumentError(
                f"{self._who()}.set_data_loader: expected one loader, or one for each of {number} device(s), got "
                f"{len(loaders)}"
            )
        if len(loaders) > 1 and state is not None and state.el_che is None:
            given = [name for name in ("speed_hint", "min_ratio") if getattr(state.config, name)]
            if given:
                raise ArgumentError(
                    f"{self._who()}.set_data_loader: expected one loader, whose batches are divided by "
                    f"{' and '.join(given)}, got one a device, which has divided them already"
                )

    # --------------------------------------------------------------------------------------------------- running

    def forward(self, /, *inputs: Any, **named: Any) -> Any:
        """The output, for inputs by position in the order of `input_names`, or by name.

        On several devices each replica computes a part of the rows, and the outputs are put together in their order.

        Raises:
            ArgumentError: an input that is missing, unknown or given twice; or El Che is on, which runs whole batches.
            ShapeError: on several devices, inputs or outputs that do not have one sample a row.
            MinigradError: what a node raises, of its own class; the message begins with the node's name.
        """
        values = bind(self._who(), self.input_names, inputs, named)
        state, part_of = self._training.state, self._training.part_of
        if part_of is not None:
            part_of[0].apart.add(part_of[1])
        if state is None or state.alone:
            if state is not None and 0 not in state.active:
                raise ArgumentError(
                    f"{self._who()}: expected loss_fn(model, batch) to call the model that it is given, a replica on "
                    "another device, got a call of this graph"
                )
            return self.run(values)
        self._refuse_parts(state)
        return state.forward(values)

    def forward_batch(self, batch: Any) -> Any:
        """The output for a batch of a loader; what is not an input, such as the targets, is left alone.

        Args:
            batch: A mapping that has the inputs by name; or a tuple or list that begins with them, in order; or the
                one tensor that is the only input; or what `epoch` gives where each device has a loader.

        Raises:
            ArgumentError: the batch lacks an input, or is what El Che runs: see `backward_batch`.
            DtypeError: the batch is none of these.
        """
        if isinstance(batch, Window):
            raise ArgumentError(
                f"{self._who()}.forward_batch: expected a batch, got several whole ones a device, after each of which "
                "El Che runs backward: call backward_batch(batch), or set el_che=False"
            )
        state = self._training.state
        if not isinstance(batch, ShardedBatch) or state is None:
            return super().forward_batch(batch)
        self._refuse_parts(state)
        return state.forward_shards(batch)

    def _refuse_parts(self, state: DistributedState) -> None:
        if state.el_che is not None and is_grad_enabled():
            raise ArgumentError(
                f"{self._who()}: expected epoch() and backward_batch() for training with El Che, which runs whole "
                "batches on each device, got a forward: set_loss_fn and set_data_loader, or set el_che=False; "
                "evaluate under no_grad()"
            )

    def backward_batch(self, batch: Any) -> Tensor:
        """Forward, loss and backward of a batch that `epoch` gave, in the way in which the devices share the work.

        Several calls before a `step` are weighted by their samples, so that together they are one mean.

        Returns:
            The mean loss over the samples of the batch, without a graph behind it.

        Raises:
            ArgumentError: there is no loss function, or a batch has no samples.
            ShapeError: the loss is not one number.
        """
        loss_fn = self._training.loss_fn
        if loss_fn is None:
            raise ArgumentError(f"{self._who()}.backward_batch: expected a loss function, got none: call set_loss_fn")
        return self._prepared().backward_batch(batch, loss_fn)

    def step(self) -> None:
        """Combine the gradients of all replicas, clip them, step every optimizer and schedule, forget the gradients.

        The gradients may have come from `loss.backward()`, which adds up as in PyTorch, or from `backward_batch`.

        Raises:
            ArgumentError: there is no optimizer.
            AutogradError: there are no gradients.
            ReplicaMismatchError, LayoutError: replicas have changed; see `Replicas`.
        """
        self._prepared(needs_optimizer=True).step()

    def epoch(self, number: int) -> Iterator[Any]:
        """The batches of an epoch, for `forward_batch` or `backward_batch`.

        With El Che each is several whole batches a device. No batch is left out: at the end of an epoch some devices
        get fewer.

        Args:
            number: >= 0; handed to the `set_epoch` of the loaders' samplers.

        Raises:
            ArgumentError: there is no loader, or El Che is on without a loss function.
            IndexRangeError: after the last batch, where a GPU found a label or an index out of range and nothing was
                read from it since.
        """
        as_integer(f"{self._who()}.epoch", "number", number, 0)
        loaders, state = self._training.loaders, self._training.state
        if not loaders:
            raise ArgumentError(f"{self._who()}.epoch: expected a loader, got none: call set_data_loader")
        self._check_loaders(loaders, state)
        el_che = state is not None and state.el_che is not None
        if el_che and self._training.loss_fn is None:
            raise ArgumentError(
                f"{self._who()}.epoch: expected a loss function, since El Che runs backward after each of several "
                "batches, got none: call set_loss_fn, or set el_che=False"
            )
        for loader in loaders:
            set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(number)
        if state is None or (len(loaders) == 1 and not el_che):
            return _checked_at_the_end(iter(loaders[0]))
        return _checked_at_the_end(_windows(state, loaders) if el_che else _sharded(state, loaders))

    # --------------------------------------------------------------------------------------------------- looking

    @property
    def world_size(self) -> int:
        """Number of devices."""
        return 1 if self._training.state is None else self._training.state.world_size

    @property
    def devices(self) -> tuple[Device, ...]:
        """Where the replicas live."""
        return (self.first_device(),) if self._training.state is None else self._training.state.devices

    def first_device(self) -> Device:
        """Where the graph itself lives; the CPU where it has no parameter."""
        return next((param.device for param in self.parameters()), CPU)

    @property
    def chunk_ratios(self) -> tuple[float, ...]:
        """The share of a batch that each device gets."""
        return (1.0,) if self._training.state is None else self._training.state.chunk_ratios

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Samples of each device in the last pass that recorded gradients; empty before the first."""
        return () if self._training.state is None else self._training.state.last_shard_sizes

    @property
    def throughput(self) -> tuple[float, ...]:
        """Samples a second of each device, an average of the latest passes; 0 before the first was measured."""
        state = self._training.state
        return (0.0,) if state is None else tuple(state.ema_throughput)

    @property
    def has_el_che(self) -> bool:
        """Whether El Che decides how many whole batches each device runs between two reductions."""
        return self._training.state is not None and self._training.state.el_che is not None

    @property
    def distributed(self) -> DistributedState | None:
        """What holds the replicas together; None before the first of `distribute`, `backward_batch`, `step`."""
        return self._training.state

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizer of each replica; their rates and state have to stay alike.

        Raises:
            ArgumentError: there is no optimizer.
        """
        return tuple(self._prepared(needs_optimizer=True).optimizers)

    # --------------------------------------------------------------------------------------------------- inside

    def _adopt(self, state: DistributedState) -> None:
        """Train with these replicas from now on."""
        training = self._training
        self._check_loaders(training.loaders, state)
        if training.state is not None:
            training.state.detach()
            state.pending = training.state.pending
        training.state, training.is_distributed, training.made = state, True, []

    def _prepared(self, needs_optimizer: bool = False) -> DistributedState:
        """The replicas, which are this graph alone where it was not distributed, with the optimizers asked for."""
        training = self._training
        if training.state is None:
            training.state = local_state(self, self.first_device())
        if needs_optimizer and training.make_optimizer is None:
            raise ArgumentError(f"{self._who()}.step: expected an optimizer, got none: call set_optimizer")
        wanted = [training.make_optimizer, training.schedule]
        if training.make_optimizer is not None and training.made != wanted:
            self._make_optimizers(training.state, training.make_optimizer)
            training.made = wanted
        return training.state

    def _make_optimizers(self, state: DistributedState, make: MakeOptimizer) -> None:
        """Those that are there already stay, where only the schedule is new."""
        training = self._training
        if not training.made or training.made[0] is not make:
            state.optimizers = [make(list(replica.parameters())) for replica in state.replicas]
        for optimizer, replica in zip(state.optimizers, state.replicas):
            self._check_optimizer(optimizer, replica)
        for scheduler in state.schedulers:  # the next one begins where this one did
            for group, rate in zip(scheduler.optimizer.param_groups, scheduler.base_lrs):
                group["lr"] = rate
        schedule = training.schedule
        state.schedulers = [] if schedule is None else [LRScheduler(each, schedule) for each in state.optimizers]

    def _check_optimizer(self, optimizer: Any, replica: PlanModule) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(
                f"{self._who()}.set_optimizer: expected the function to make an Optimizer, got "
                f"{type(optimizer).__name__}"
            )
        own = {id(param) for param in replica.parameters()}
        if any(id(param) not in own for group in optimizer.param_groups for param in group["params"]):
            raise ArgumentError(
                f"{self._who()}.set_optimizer: expected an optimizer of the parameters that the function is given, "
                "got one that steps others"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every gradient; with set_to_none=False fill those present with zeros instead."""
        super().zero_grad(set_to_none)
        if self._training.state is not None:
            self._training.state.pending.forget()

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """A graph that was told nothing about training."""
        memo[id(self._training)] = Training()
        return super().__deepcopy__(memo)


def _sharded(state: DistributedState, loaders: Sequence[Any]) -> Iterator[ShardedBatch]:
    """One shard from each loader, until all have ended."""
    for shards in zip_longest(*loaders):
        sizes = [0 if shard is None else state.count_shard(rank, shard) for rank, shard in enumerate(shards)]
        if any(sizes):
            yield ShardedBatch(shards, sizes, state.devices[0])


def _checked_at_the_end(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
    raise_all_found()


def _windows(state: DistributedState, loaders: Sequence[Any]) -> Iterator[Window]:
    """As many whole batches for each device as El Che says, until all loaders have ended."""
    readers = [iter(loader) for loader in loaders]
    while True:
        assert state.el_che is not None
        if len(readers) == 1:
            batches = list(islice(readers[0], state.el_che.total_batches))
            window = deal(batches, state.el_che.clamp_total(len(batches)))
        else:
            counts = state.el_che.batch_counts
            window = Window(tuple(tuple(islice(reader, count)) for reader, count in zip(readers, counts)))
        if not any(window.counts):
            return
        yield window
