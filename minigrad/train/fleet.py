"""Fleet: what a graph was told about its training, in any order, and the devices and replicas that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from minigrad.arguments import as_integer
from minigrad.backend.device import Device, available_devices
from minigrad.distributed.balance.cadence import ElChe
from minigrad.distributed.balance.cost import Reading
from minigrad.distributed.balance.shares import is_balanced
from minigrad.distributed.config import DdpConfig
from minigrad.distributed.replicas.devices import DeviceGroup, LocalDevices
from minigrad.distributed.replicas.notes import EventListener, notes_of
from minigrad.errors import ArgumentError
from minigrad.graph.module import GraphModule
from minigrad.nn.module import Module
from minigrad.tensor import Tensor
from minigrad.train.feeder import Feeder, checked_at_the_end, rounds
from minigrad.train.stepper import Stepper
from minigrad.train.stopwatch import PassTime

Builder = Callable[[Device], GraphModule]
Devices = Sequence[Device | str] | DeviceGroup | None

_PULL = 0.3  # of a new reading on the average throughput
_MOVING = ("balance", "el_che", "ema_throughput", "step_count")  # what each step changes, and others may set


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
        notes, timeline: What writes spans on a `Timeline`, and what hears of events; None where the options have none.
        optimizers, schedulers: One a replica; empty before the first is made.
        balance: How a batch is divided.
        ema_throughput: Samples a second of each device, averaged over the latest passes; 0 before the first.
        step_count: Steps so far.
    """

    def __init__(
        self, replicas: Sequence[GraphModule], group: DeviceGroup, config: DdpConfig, el_che: ElChe | None = None
    ) -> None:
        self.replicas, self.group, self.config, self.el_che = tuple(replicas), group, config, el_che
        self.world_size, self.devices = len(self.replicas), group.devices
        self.balance = config.balance(self.world_size)
        self.ema_throughput = [0.0] * self.world_size
        self.step_count = 0
        self.notes = notes_of(config.timeline, group)
        self.timeline: EventListener | None = config.timeline if self.notes is None else self.notes.tracks[0]
        by_batches = (lambda: self.el_che is not None, self.notes)
        self.feeder = Feeder(self.replicas, group, self.compute_shard_sizes, *by_batches)
        beside = (self.feeder.rest, self._reduced, self.notes)
        self.stepper = Stepper(self.replicas, group, config.max_grad_norm, *beside)
        self.optimizers, self.schedulers = self.stepper.optimizers, self.stepper.schedulers

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _MOVING and hasattr(self, name):
            raise ArgumentError(
                f"graph.distributed: expected one of {', '.join(_MOVING)} to be set, got {name}, which follows from "
                "distribute, set_optimizer and set_scheduler: call these, or change a list in place"
            )
        object.__setattr__(self, name, value)

    @property
    def last_shard_sizes(self) -> tuple[int, ...]:
        """Samples of each device in the last pass that recorded gradients."""
        return self.feeder.watch.samples

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
            found: Iterator[Any] = rounds(lambda: self.el_che, loaders)
        else:
            found = iter(loaders[0]) if len(loaders) == 1 else self.feeder.shards(loaders)
        return found if self.notes is None else self.notes.reading(found)

    # --------------------------------------------------------------------------------------------- reductions

    def sync_params(self) -> None:
        """Overwrite the parameters and buffers of all replicas by those of the first."""
        self.stepper.ddp.sync_params()

    def sync_buffers(self) -> None:
        """Overwrite the buffers of all replicas by those of the first one that took part in the last pass."""
        if self.world_size > 1:
            self.stepper.sync_buffers(self.feeder.watch.samples)

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

    def _reduced(self, nbytes: int) -> None:
        if self.timeline is not None:
            self.timeline.event("reduction", step=self.step_count + 1, nbytes=nbytes)

    # -------------------------------------------------------------------------------------------------- steps

    def step(self) -> None:
        """Combine, clip, step every replica alike, and look at the balance; see `Graph.step`."""
        self.stepper.step(self.feeder.watch.samples)
        self.update_balance()

    def update_balance(self) -> bool:
        """Take in what the devices needed, and decide where that is due; whether shares or counts changed."""
        self.step_count += 1
        times = self.feeder.watch.times()
        for rank, time in enumerate(times):
            if time is not None:
                speed, old = time.samples / time.seconds, self.ema_throughput[rank]
                self.ema_throughput[rank] = old + _PULL * (speed - old) if old else speed
        if self.timeline is not None:
            fields = {"samples": self.last_shard_sizes, "sync_s": self.stepper.sync_s}
            self.timeline.event("step", step=self.step_count, **fields)
        if self.world_size == 1:
            return False
        return self._next_shares(times) if self.el_che is None else self._next_counts(self.el_che, times)

    def _next_shares(self, times: Sequence[PassTime | None]) -> bool:
        readings = [None if time is None else Reading(time.samples, time.seconds) for time in times]
        before = self.balance.division
        self.balance, division, reason = self.balance.observe(sum(self.feeder.watch.samples), readings)
        if self.balance.config.is_due(self.balance.step):
            self._note("balance", ratios=division.ratios, shards=division.shards, reason=reason)
        return division.ratios != before.ratios or division.shards != before.shards

    def _next_counts(self, el_che: ElChe, times: Sequence[PassTime | None]) -> bool:
        walls = [0.0 if time is None else 1e3 * time.seconds for time in times]
        counts = [0 if time is None else time.batches for time in times]
        self.el_che, wanted, reason = el_che.report_timing(walls, counts, 1e3 * self.stepper.sync_s)
        self._note("cadence", anchor=self.el_che.anchor, counts=wanted, reason=reason)
        return wanted != el_che.batch_counts

    def _note(self, kind: str, **fields: Any) -> None:
        """Tell of a decision."""
        self.group.event(kind, step=self.step_count, **fields)
        if self.timeline is not None:
            self.timeline.event(kind, step=self.step_count, **fields)


class Fleet:
    """What trains a graph: options in any order, then replicas, which are in a state of their own once they work.

    It does not know its graph, which is passed to what needs it: a graph that never trains is in no cycle.

    Args:
        who: Names the graph in messages.

    Attributes:
        state: The replicas at work; None before the first of `distribute`, `backward_batch`, `step`.
    """

    def __init__(self, who: str) -> None:
        self.state: DistributedState | None = None
        self._who = who
        self._told: dict[str, Any] = {}  # functions, by the verb that set them
        self._loaders: tuple[Any, ...] = ()
        self._is_distributed = False
        self._is_part = False  # of a graph that is distributed

    def __deepcopy__(self, memo: dict[int, Any]) -> Fleet:
        """A fleet that was told nothing, of a graph without replicas."""
        return Fleet(self._who)

    # --------------------------------------------------------------------------------------------------- options

    def use(self, verb: str, what: str, function: Any) -> None:
        """Train with the function that a verb was given; what says, in words, from what it goes to what.

        Raises:
            ArgumentError: it is no function.
        """
        if not callable(function):
            raise ArgumentError(f"{self._who}.{verb}: expected a function {what}, got {type(function).__name__}")
        self._told[verb] = function

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
        number, expected = len(loaders), f"{self._who}.set_data_loader: expected one loader"
        devices = 1 if state is None else state.world_size
        if number > 1 and number != devices:
            raise ArgumentError(f"{expected}, or one for each of {devices} device(s), got {number}")
        config = state.config if state is not None and state.el_che is None else DdpConfig()
        dividing = [name for name in ("speed_hint", "min_ratio", "strategy") if getattr(config, name)]
        if number > 1 and dividing:
            raise ArgumentError(
                f"{expected}, whose batches are divided by {' and '.join(dividing)}, got one a device, which has "
                "divided them already"
            )

    # -------------------------------------------------------------------------------------------------- replicas

    def attach(self, graph: GraphModule, others: Sequence[GraphModule]) -> None:
        """See `Graph.attach`."""
        if self.state is not None or self._is_part:
            raise ArgumentError(f"{self._who}.attach: expected a graph that does not train yet, got one that does")
        self._check_replicas(graph, others)
        graph.add_replicas(others)

    def _check_replicas(self, graph: GraphModule, others: Sequence[GraphModule]) -> None:
        known, structure = graph.replicas, graph.structure_hash()
        for rank, other in enumerate(others, len(known)):
            if not isinstance(other, GraphModule) or any(other is one for one in known):
                raise ArgumentError(f"{self._who}.attach: expected another Graph as replica {rank}, got {other!r}")
            found = other.structure_hash()
            if found != structure:
                got = f"got {found[:8]} as replica {rank}"
                raise ArgumentError(f"{self._who}.attach: expected replicas of structure {structure[:8]}, {got}")

    def distribute(
        self, graph: GraphModule, builder: Builder, devices: Devices, config: DdpConfig, el_che: bool | None
    ) -> None:
        """See `Graph.distribute`."""
        if graph.replicas[1:] or self._is_distributed or (self.state is not None and self.state.step_count):
            raise ArgumentError(
                f"{self._who}.distribute: expected to be called once, before the first step(), on a graph without "
                "replicas, got another call"
            )
        group = group_of(devices, graph.first_device())
        others, cadence = _replicas(graph, builder, group, config, el_che)
        state = DistributedState((_untrained(graph), *others), group, config, cadence)
        try:
            self._check_replicas(graph, others)
            state.sync_params()
            self._check_loaders(self._loaders, state)
        except BaseException:
            state.stepper.detach()
            raise
        if self.state is not None:
            state.stepper.take_over(self.state.stepper)
        graph.add_replicas(others)
        self.state, self._is_distributed = state, True

    def leave_to_the_whole(self) -> None:
        """The graph is a part of one that is distributed: that one trains."""
        self._is_part = True

    def forget_gradients(self) -> None:
        """There are none any more."""
        if self.state is not None:
            self.state.stepper.pending.forget()

    def at_work(self, graph: GraphModule, to_step: bool = False) -> DistributedState:
        """The replicas, which are the graph alone where it was not distributed. ArgumentError: see `Graph.step`."""
        if self._is_part:
            raise ArgumentError(f"{self._who}: expected the whole graph to train, got a call of a part of it")
        if self.state is None:
            if graph.replicas[1:]:
                raise ArgumentError(
                    f"{self._who}: expected distribute() for training with replicas, got some that were attached: "
                    "combine and step those yourself"
                )
            self.state = DistributedState((_untrained(graph),), LocalDevices([graph.first_device()]), DdpConfig())
        if "set_optimizer" in self._told:
            self.state.stepper.equip(self._who, self._told["set_optimizer"], self._told.get("set_scheduler"))
        elif to_step:
            raise ArgumentError(f"{self._who}.step: expected an optimizer, got none: call set_optimizer")
        return self.state

    # ------------------------------------------------------------------------------------------------- batches

    def backward_batch(self, graph: GraphModule, batch: Any) -> Tensor:
        """See `Graph.backward_batch`."""
        if "set_loss_fn" not in self._told:
            raise ArgumentError(f"{self._who}.backward_batch: expected a loss function, got none: call set_loss_fn")
        state = self.at_work(graph)
        with state.stepper.batch() as weigh:
            return state.feeder.backward_batch(graph.replicas, batch, self._told["set_loss_fn"], weigh)

    def epoch(self, number: int) -> Iterator[Any]:
        """See `Graph.epoch`."""
        as_integer(f"{self._who}.epoch", "number", number, 0)
        loaders, state = self._loaders, self.state
        if not loaders:
            raise ArgumentError(f"{self._who}.epoch: expected a loader, got none: call set_data_loader")
        self._check_loaders(loaders, state)
        if state is not None and state.el_che is not None and "set_loss_fn" not in self._told:
            raise ArgumentError(
                f"{self._who}.epoch: expected a loss function, since El Che runs backward after each of several "
                "batches, got none: call set_loss_fn, or set el_che=False"
            )
        for loader in loaders:
            set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(number)
        return checked_at_the_end(iter(loaders[0]) if state is None else state.batches(loaders))


def _untrained(graph: GraphModule) -> GraphModule:
    """The first replica: an object of its own that has everything that the graph has, and runs without a fleet."""
    twin = GraphModule.__new__(GraphModule)
    object.__setattr__(twin, "__dict__", graph.__dict__)
    return twin


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


# ------------------------ from options to decisions: which devices, whether El Che is on, and what to tell people


def group_of(devices: Devices, home: Device) -> DeviceGroup:
    """The devices to use: those named; else every GPU for a graph that lives on one, its own first; else its own."""
    if devices is None:
        gpus = [] if home.type == "cpu" else [device for device in available_devices() if device.type != "cpu"]
        return LocalDevices([home, *(gpu for gpu in gpus if gpu != home)])
    if isinstance(devices, DeviceGroup):
        return devices
    return LocalDevices(devices)


def decide_el_che(group: DeviceGroup, config: DdpConfig, el_che: bool | None) -> tuple[bool, str]:
    """Whether El Che is on, and why: None means on where the devices differ.

    Raises:
        ArgumentError: options that contradict each other.
    """
    if el_che is not None and el_che is not True and el_che is not False:
        raise ArgumentError(f"el_che: expected None, True or False, got {el_che!r}")
    tuned = config.overhead_target is not None or bool(config.max_anchor)
    if el_che is False and tuned:
        raise ArgumentError("el_che: expected no overhead_target and no max_anchor without El Che, got el_che=False")
    if el_che is True and config.max_anchor == 0:
        raise ArgumentError("el_che: expected max_anchor of None or >= 1 with el_che=True, got 0, which turns it off")
    dividing = [name for name in ("min_ratio", "strategy") if getattr(config, name) is not None]
    if el_che is True and dividing:
        raise ArgumentError(f"el_che: expected no {dividing[0]} with el_che=True, got one: batches stay whole then")
    if len(group.devices) == 1:
        return False, "there is one device"
    if el_che is False or config.max_anchor == 0:
        return False, "it was turned off"
    if el_che is True:
        return True, "it was turned on"
    if config.strategy is not None:
        return False, "a strategy divides batches"
    differ = len(set(group.models)) > 1
    return differ, "the devices differ" if differ else "the devices are alike"


def unused_options(on: bool, config: DdpConfig, world_size: int) -> list[str]:
    """Options that make no difference here."""
    names = ["min_ratio"] if on else ["overhead_target", "max_anchor"]
    if world_size == 1:
        names += ["min_ratio", "speed_hint", "strategy"]
    return [name for name in names if getattr(config, name)]


def idle_gpus(group: DeviceGroup) -> list[str]:
    """The GPUs of this machine where the graph was built on its CPU, and what would use them."""
    if any(device.type != "cpu" for device in group.devices):
        return []
    gpus = [str(device) for device in available_devices() if device.type != "cpu"]
    return [f"{', '.join(gpus)} (build the graph on {gpus[0]}, or pass devices)"] if gpus else []


def summary(group: DeviceGroup, config: DdpConfig, el_che: bool | None) -> str:
    """A line for people: the devices, whether El Che is on and why, and the options that make no difference."""
    on, reason = decide_el_che(group, config, el_che)
    number = len(group.devices)
    kinds = [(len(list(same)), *kind) for kind, same in groupby(zip(map(str, group.devices), group.models))]
    listed = [f"{f'{n} x ' if n > 1 else ''}{device}: {model}" for n, device, model in kinds]
    unused = unused_options(on, config, number) + idle_gpus(group)
    parts = [f"{number} device{'s' * (number > 1)}", *listed, f"El Che is {'on' if on else 'off'}: {reason}"]
    return " | ".join(parts + ([f"not used: {', '.join(unused)}"] if unused else []))
