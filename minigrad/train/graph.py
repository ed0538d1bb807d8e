"""Graph: a GraphModule that trains itself, on one device or on several, in the same loop."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from minigrad.absent import tell_lacking
from minigrad.absent_seeds import SEEDS
from minigrad.backend.device import Device
from minigrad.distributed.config import DdpConfig
from minigrad.graph import flow
from minigrad.graph.module import GraphModule
from minigrad.graph.wiring import Wiring
from minigrad.nn.module import Module
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.schedule import ScheduleLike
from minigrad.tensor import Tensor
from minigrad.train.batches import ShardedBatch, check_one_batch
from minigrad.train.feeder import LossFn
from minigrad.train.fleet import Builder, Devices, DistributedState, Fleet, group_of, summary
from minigrad.train.stepper import MakeOptimizer

Self = TypeVar("Self", bound="Graph")


class Graph(GraphModule):
    """A module made of named nodes that trains itself, on one device or on several; made by `FlowBuilder`.

    See `GraphModule` for what it is while it doesn't train: its nodes, tags, sub-graphs, checkpoints and pictures.
    Training takes options in any order, then `forward`, `backward` and `step`, or `epoch`, `backward_batch` and `step`.

    Whatever changes the state of a graph (train, eval, freeze, thaw, requires_grad_, zero_grad, load_state_dict,
    load_checkpoint) changes that of its replicas too; the same holds for a sub-graph. What is done to another module in
    it, or to a tensor, is done to this replica alone: name such a module by its path, as in `freeze("hidden")`.

    Args:
        wiring: What reads what.
        modules: The module of each node whose op is "module".
        label: The name under which a graph that contains this one knows it.

    Raises:
        WiringError: the wiring has faults; all of them are listed.
        ArgumentError: modules that are not those of the wiring, or names that a Graph has for itself.

    Example:
        >>> from minigrad import nn, randn
        >>> net = (
        ...     FlowBuilder.from_(nn.Linear(4, 8)).tag("hidden")
        ...     .through(nn.ReLU())
        ...     .also(nn.Linear(8, 8))
        ...     .through(nn.Linear(8, 2))
        ...     .build()
        ... )
        >>> net(randn(5, 4)).shape, net.tagged("hidden").shape
        ((5, 2), (5, 8))
        >>> [name for name, _ in net.named_parameters()][:3]
        ['hidden.weight', 'hidden.bias', 'linear_1.weight']
    """

    def __init__(self, wiring: Wiring, modules: Mapping[str, Module], label: str | None = None) -> None:
        super().__init__(wiring, modules, label)
        self._fleet = Fleet(self._who())

    # -------------------------------------------------------------------------------------------------- replicas

    def replicate(self: Self, device: Device | str) -> Self:
        """A copy on a device, with parameters and buffers of its own; it is no replica until attached."""
        return copy.deepcopy(self).to(device)

    def attach(self, *others: GraphModule) -> None:
        """Let graphs of the same structure be replicas: what changes this graph's state changes theirs.

        That is for those who combine gradients and step themselves; `distribute` attaches what it needs.

        Raises:
            ArgumentError: one that is no Graph, is this one, or has another structure; or the graph trains itself
                already, on the devices that it has.
        """
        self._fleet.attach(self, others)

    def distribute(
        self, builder: Builder, devices: Devices = None, *, config: DdpConfig | None = None, el_che: bool | None = False
    ) -> None:
        """Train on several devices from now on: this graph on the first, and a replica on each other one.

        The replicas take over this graph's values, modes, and what of it is frozen or measured. Whatever is done to
        the graph is done to all of them.

        Args:
            builder: builder(device) makes a graph of the same structure there; `graph.replicate` does. It is not
                called for the first device.
            devices: The graph's own device first. Only the CPU may be named more than once. By default every GPU where
                the graph lives on one, else its own device. Or a `DeviceGroup`, such as `simulate.SimulatedDevices`.
            config: See `DdpConfig`.
            el_che: Whether each device runs several whole batches between two reductions; None: where they differ.
                One device alone never does.

        Raises:
            ArgumentError: it is distributed already, or has stepped; wrong options, or some that contradict others.
            DeviceError: the graph, or a replica, is not on its device.
            ReplicaMismatchError: a replica differs.
        """
        self._fleet.distribute(self, builder, devices, config if config is not None else DdpConfig(), el_che)
        for part in self.subgraphs().values():
            if isinstance(part, Graph):
                part._fleet.leave_to_the_whole()

    def set_up(
        self,
        builder: Builder,
        optimizer: MakeOptimizer,
        config: DdpConfig | None = None,
        devices: Devices = None,
        el_che: bool | None = None,
    ) -> None:
        """Distribute, set the optimizer, go to training mode, and say on stderr on what; see `Trainer.setup_with`."""
        config, group = config if config is not None else DdpConfig(), group_of(devices, self.first_device())
        self.set_optimizer(optimizer)  # first: where it is refused, nothing has happened
        self.distribute(builder, group, config=config, el_che=el_che)
        self.train()
        print(f"{self._who()}: {summary(group, config, el_che)}", file=sys.stderr)

    def graph(self) -> Graph:
        """This graph: so it can be passed where something that has a graph is asked for."""
        return self

    # --------------------------------------------------------------------------------------------------- options

    def set_optimizer(self, make_optimizer: MakeOptimizer) -> None:
        """Train with optimizers that make_optimizer(params) makes, one for each replica.

        Args:
            make_optimizer: For example `lambda params: optim.SGD(params, lr=0.1)`.

        Raises:
            ArgumentError: it is no function.
        """
        self._fleet.use("set_optimizer", "from parameters to an optimizer", make_optimizer)

    def set_scheduler(self, schedule: ScheduleLike) -> None:
        """Let the learning rate of every replica follow a schedule: its base rate times schedule(step).

        Another call begins again at step 0, with the same base rate.

        Raises:
            ArgumentError: it is no function.
        """
        self._fleet.use("set_scheduler", "from a step to a factor", schedule)

    def set_loss_fn(self, loss_fn: LossFn) -> None:
        """Let `backward_batch` use loss_fn(model, batch), the mean loss over the samples of a batch.

        The function calls the model that it is given: this graph, or one of its replicas.

        Raises:
            ArgumentError: it is no function.
        """
        self._fleet.use("set_loss_fn", "from a model and a batch to a loss", loss_fn)

    def set_data_loader(self, *loaders: Any) -> None:
        """Let `epoch` read from one loader whose batches are divided, or from one loader a device.

        Args:
            loaders: Each can be iterated over again and again.

        Raises:
            ArgumentError: none, one that is an iterator, or neither one nor one a device.
        """
        self._fleet.set_data_loader(loaders)

    # --------------------------------------------------------------------------------------------------- running

    def forward(self, /, *inputs: Any, **named: Any) -> Any:
        """The output, for inputs by position in the order of `input_names`, or by name.

        On several devices each replica computes a part of the rows, and the outputs are put together in their order.

        Raises:
            ArgumentError: an input that is missing, unknown or given twice; or El Che is on, which runs whole batches.
            ShapeError: on several devices, inputs or outputs that do not have one sample a row.
            MinigradError: what a node raises, of its own class; the message begins with the node's name.
        """
        state = self._fleet.state
        return super().forward(*inputs, **named) if state is None else state.feeder.forward(self._bind(inputs, named))

    def forward_batch(self, batch: Any) -> Any:
        """The output for a batch of a loader; what is not an input, such as the targets, is left alone.

        Args:
            batch: A mapping that has the inputs by name; or a tuple or list that begins with them, in order; or the
                one tensor that is the only input; or what `epoch` gives where each device has a loader.

        Raises:
            ArgumentError: the batch lacks an input, or is what El Che runs: see `backward_batch`.
            DtypeError: the batch is none of these.
        """
        check_one_batch(f"{self._who()}.forward_batch", batch)
        state = self._fleet.state
        if state is None or not isinstance(batch, ShardedBatch):
            return super().forward_batch(batch)
        return state.feeder.forward_shards(batch)

    def backward_batch(self, batch: Any) -> Tensor:
        """Forward, loss and backward of a batch that `epoch` gave, in the way in which the devices share the work.

        Several calls before a `step` are weighted by their samples, so that together they are one mean.

        Returns:
            The mean loss over the samples of the batch, without a graph behind it.

        Raises:
            ArgumentError: there is no loss function, or a batch has no samples.
            ShapeError: the loss is not one number.
        """
        return self._fleet.backward_batch(self, batch)

    def step(self) -> None:
        """Combine the gradients of all replicas, clip them, step every optimizer and schedule, forget the gradients.

        The gradients may have come from `loss.backward()`, which adds up as in PyTorch, or from `backward_batch`.

        Raises:
            ArgumentError: there is no optimizer.
            AutogradError: there are no gradients.
            ReplicaMismatchError, LayoutError: replicas have changed; see `Replicas`.
        """
        self._fleet.at_work(self, to_step=True).step()

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
        return self._fleet.epoch(number)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every gradient; with set_to_none=False fill those present with zeros instead."""
        super().zero_grad(set_to_none)
        self._fleet.forget_gradients()

    # --------------------------------------------------------------------------------------------------- looking

    @property
    def world_size(self) -> int:
        """Number of devices."""
        return 1 if self.distributed is None else self.distributed.world_size

    @property
    def devices(self) -> tuple[Device, ...]:
        """Where the replicas live."""
        return (self.first_device(),) if self.distributed is None else self.distributed.devices

    @property
    def chunk_ratios(self) -> tuple[float, ...]:
        """The share of a batch that each device gets."""
        return (1.0,) if self.distributed is None else self.distributed.chunk_ratios

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Samples of each device in the last pass that recorded gradients; empty before the first."""
        return () if self.distributed is None else self.distributed.last_shard_sizes

    @property
    def throughput(self) -> tuple[float, ...]:
        """Samples a second of each device, an average of the latest passes; 0 before the first was measured."""
        return (0.0,) if self.distributed is None else tuple(self.distributed.ema_throughput)

    @property
    def has_el_che(self) -> bool:
        """Whether El Che decides how many whole batches each device runs between two reductions."""
        return self.distributed is not None and self.distributed.el_che is not None

    @property
    def distributed(self) -> DistributedState | None:
        """What holds the replicas together; None before the first of `distribute`, `backward_batch`, `step`."""
        return self._fleet.state

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizer of each replica; their rates and state have to stay alike.

        Raises:
            ArgumentError: there is no optimizer.
        """
        return tuple(self._fleet.at_work(self, to_step=True).optimizers)


class FlowBuilder(flow.FlowBuilder[Graph]):
    """Writes a model down verb by verb, as `minigrad.graph.FlowBuilder` does; `build` makes a Graph, which can train.

    Args:
        input_name: The name of the first input.
        into: The class that `build` makes.

    Example:
        >>> from minigrad import nn, randn
        >>> graph = FlowBuilder("image").through(nn.Linear(4, 8)).through(nn.ReLU()).build()
        >>> graph(image=randn(6, 4)).shape, graph.world_size
        ((6, 8), 1)
    """

    def __init__(self, input_name: str = "input", into: type[Graph] = Graph) -> None:
        super().__init__(input_name, into)


tell_lacking("Graph", Graph, SEEDS["Graph"])
