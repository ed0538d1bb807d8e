"""Fleet: what a graph was told about its training, in any order, and the replicas that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from minigrad.arguments import as_integer
from minigrad.backend.device import Device
from minigrad.backend.flags import raise_all_found
from minigrad.distributed.balance.cadence import ElChe
from minigrad.distributed.config import DdpConfig
from minigrad.distributed.replicas.devices import DeviceGroup, LocalDevices
from minigrad.errors import ArgumentError
from minigrad.graph.module import GraphModule
from minigrad.nn.module import Module
from minigrad.optim.schedule import ScheduleLike
from minigrad.tensor import Tensor
from minigrad.train.feeder import LossFn
from minigrad.train.setup import Devices, decide_el_che, group_of
from minigrad.train.state import DistributedState
from minigrad.train.stepper import MakeOptimizer

Builder = Callable[[Device], GraphModule]


class Fleet:
    """What trains a graph: options in any order, then replicas, which are in a state of their own once they work.

    It does not know its graph, which is passed to what needs it: a graph that never trains is in no cycle.

    Args:
        who: Names the graph in messages.

    Attributes:
        state: The replicas at work; None before the first of `distribute`, `backward_batch`, `step`.
        others: The replicas beside the graph's own modules.
        is_part: Whether the graph is a sub-graph of one that trains.
    """

    def __init__(self, who: str) -> None:
        self.state: DistributedState | None = None
        self.others: tuple[GraphModule, ...] = ()
        self.is_part = False
        self._who = who
        self._make_optimizer: MakeOptimizer | None = None
        self._schedule: ScheduleLike | None = None
        self._loss_fn: LossFn | None = None
        self._loaders: tuple[Any, ...] = ()
        self._is_distributed = False

    # --------------------------------------------------------------------------------------------------- options

    def set_optimizer(self, make_optimizer: MakeOptimizer) -> None:
        """See `Graph.set_optimizer`."""
        self._make_optimizer = self._function("set_optimizer", "from parameters to an optimizer", make_optimizer)

    def set_scheduler(self, schedule: ScheduleLike) -> None:
        """See `Graph.set_scheduler`."""
        self._schedule = self._function("set_scheduler", "from a step to a factor", schedule)

    def set_loss_fn(self, loss_fn: LossFn) -> None:
        """See `Graph.set_loss_fn`."""
        self._loss_fn = self._function("set_loss_fn", "from a model and a batch to a loss", loss_fn)

    def _function(self, verb: str, what: str, value: Any) -> Any:
        if not callable(value):
            raise ArgumentError(f"{self._who}.{verb}: expected a function {what}, got {type(value).__name__}")
        return value

    def set_data_loader(self, loaders: tuple[Any, ...]) -> None:
        """See `Graph.set_data_loader`."""
        who = f"{self._who}.set_data_loader"
        for loader in loaders:
            if not hasattr(loader, "__iter__") or hasattr(loader, "__next__"):
                raise ArgumentError(
                    f"{who}: expected loaders that can be iterated over in every epoch, got {type(loader).__name__}"
                )
        if not loaders:
            raise ArgumentError(f"{who}: expected a loader, or one a device, got none")
        if self._is_distributed:
            self._check_loaders(loaders, self.state)
        self._loaders = loaders

    def _check_loaders(self, loaders: Sequence[Any], state: DistributedState | None) -> None:
        """What the loaders and the devices have to do with each other."""
        number = 1 if state is None else state.world_size
        if len(loaders) > 1 and len(loaders) != number:
            raise ArgumentError(
                f"{self._who}.set_data_loader: expected one loader, or one for each of {number} device(s), got "
                f"{len(loaders)}"
            )
        if len(loaders) > 1 and state is not None and state.el_che is None:
            given = [name for name in ("speed_hint", "min_ratio") if getattr(state.config, name)]
            if given:
                raise ArgumentError(
                    f"{self._who}.set_data_loader: expected one loader, whose batches are divided by "
                    f"{' and '.join(given)}, got one a device, which has divided them already"
                )

    # -------------------------------------------------------------------------------------------------- replicas

    def attach(self, graph: GraphModule, others: Sequence[GraphModule]) -> None:
        """See `Graph.attach`."""
        if self.state is not None or self.is_part:
            raise ArgumentError(f"{self._who}.attach: expected a graph that does not train yet, got one that does")
        self._check_replicas(graph, others)
        self.others += tuple(others)

    def _check_replicas(self, graph: GraphModule, others: Sequence[GraphModule]) -> None:
        known, structure = graph.replicas, graph.structure_hash()
        for rank, other in enumerate(others, len(known)):
            if not isinstance(other, GraphModule) or any(other is one for one in known):
                raise ArgumentError(f"{self._who}.attach: expected another Graph as replica {rank}, got {other!r}")
            if other.structure_hash() != structure:
                raise ArgumentError(
                    f"{self._who}.attach: expected replicas of structure {structure[:8]}, got "
                    f"{other.structure_hash()[:8]} as replica {rank}"
                )

    def distribute(
        self, graph: GraphModule, builder: Builder, devices: Devices, config: DdpConfig, el_che: bool | None
    ) -> None:
        """See `Graph.distribute`."""
        if self.others or self._is_distributed or (self.state is not None and self.state.step_count):
            raise ArgumentError(
                f"{self._who}.distribute: expected to be called once, before the first step(), on a graph without "
                "replicas, got another call"
            )
        group = group_of(devices, graph.first_device())
        others, cadence = _replicas(graph, builder, group, config, el_che)
        state = DistributedState((graph.bare(), *others), group, config, cadence)
        try:
            self._check_replicas(graph, others)
            state.sync_params()
            self._check_loaders(self._loaders, state)
        except BaseException:
            state.stepper.detach()
            raise
        if self.state is not None:
            self.state.stepper.detach()
            state.stepper.pending = self.state.stepper.pending
        self.state, self.others, self._is_distributed = state, others, True

    def join(self, others: Sequence[GraphModule], is_part: bool) -> None:
        """Let these be replicas too, of a sub-graph of one that is_part says to train as a whole."""
        self.others, self.is_part = (*self.others, *others), is_part

    def forget_gradients(self) -> None:
        """There are none any more."""
        if self.state is not None:
            self.state.stepper.pending.forget()

    def _at_work(self, graph: GraphModule) -> DistributedState:
        """The replicas, which are the graph alone where it was not distributed."""
        if self.is_part:
            raise ArgumentError(f"{self._who}: expected the whole graph to train, got a call of a part of it")
        if self.state is None:
            if self.others:
                raise ArgumentError(
                    f"{self._who}: expected distribute() for training with replicas, got some that were attached: "
                    "combine and step those yourself"
                )
            self.state = DistributedState((graph.bare(),), LocalDevices([graph.first_device()]), DdpConfig())
        if self._make_optimizer is not None:
            self.state.stepper.equip(self._who, self._make_optimizer, self._schedule)
        return self.state

    def with_optimizers(self, graph: GraphModule) -> DistributedState:
        """The replicas, ready to step. ArgumentError: there is no optimizer."""
        state = self._at_work(graph)
        if self._make_optimizer is None:
            raise ArgumentError(f"{self._who}.step: expected an optimizer, got none: call set_optimizer")
        return state

    # ------------------------------------------------------------------------------------------------- batches

    def backward_batch(self, graph: GraphModule, batch: Any) -> Tensor:
        """See `Graph.backward_batch`."""
        if self._loss_fn is None:
            raise ArgumentError(f"{self._who}.backward_batch: expected a loss function, got none: call set_loss_fn")
        state = self._at_work(graph)
        with state.stepper.weighing() as weigh:
            return state.feeder.backward_batch(graph.replicas, batch, self._loss_fn, weigh)

    def epoch(self, number: int) -> Iterator[Any]:
        """See `Graph.epoch`."""
        as_integer(f"{self._who}.epoch", "number", number, 0)
        loaders, state = self._loaders, self.state
        if not loaders:
            raise ArgumentError(f"{self._who}.epoch: expected a loader, got none: call set_data_loader")
        self._check_loaders(loaders, state)
        if state is not None and state.el_che is not None and self._loss_fn is None:
            raise ArgumentError(
                f"{self._who}.epoch: expected a loss function, since El Che runs backward after each of several "
                "batches, got none: call set_loss_fn, or set el_che=False"
            )
        for loader in loaders:
            set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(number)
        return _checked_at_the_end(iter(loaders[0]) if state is None else state.batches(loaders))


def _replicas(
    graph: GraphModule, builder: Builder, group: DeviceGroup, config: DdpConfig, el_che: bool | None
) -> tuple[tuple[GraphModule, ...], ElChe | None]:
    """Replicas for all devices but the first, and the cadence."""
    if not callable(builder) or isinstance(builder, Module):
        raise ArgumentError(
            f"distribute: expected a function from a device to a graph as builder, got {type(builder).__name__}"
        )
    if not isinstance(config, DdpConfig):
        raise ArgumentError(f"distribute: expected a DdpConfig, got {type(config).__name__}")
    on, _ = decide_el_che(group, config, el_che)
    cadence = ElChe.start(len(group.devices), config.cadence_config()) if on else None
    others = []
    for device in group.devices[1:]:
        with device.current():
            other = builder(device)
        if not isinstance(other, GraphModule):
            raise ArgumentError(
                f"distribute: expected builder(device) to return a Graph, got {type(other).__name__} for {device}"
            )
        other.follow(graph)
        others.append(other)
    return tuple(others), cadence


def _checked_at_the_end(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
    raise_all_found()
