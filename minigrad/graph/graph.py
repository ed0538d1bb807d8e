"""Graph: a Module made of named nodes."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from minigrad.arguments import check_switch
from minigrad.backend.device import Device
from minigrad.backend.timer import timer_of
from minigrad.distributed.config import DdpConfig
from minigrad.errors import ArgumentError
from minigrad.graph import checkpoint, render
from minigrad.graph.distribute import DistributedState
from minigrad.graph.plan import Plan
from minigrad.graph.profile import NodeTime, Profiler, TimerMaker
from minigrad.graph.setup import Devices, group_of, make_state, summary
from minigrad.graph.trainable import MakeOptimizer, Trainable
from minigrad.nn.module import Module
from minigrad.nn.state import IncompatibleKeys

Self = TypeVar("Self", bound="Graph")


class Graph(Trainable):
    """A module whose forward is a plan: named nodes, each a module or a merge of branches; made by `FlowBuilder`.

    A node is a child module of its name, so parameters have the dotted names that they would have in a class written
    by hand: "hidden.weight", or "encoder.linear_0.bias" in a sub-graph labelled "encoder". A node's name is the label
    of its sub-graph, else its tag, else its class and how many of that class were written before: "linear_2".

    Whatever changes the state of a graph (train, eval, freeze, thaw, requires_grad_, zero_grad, load_state_dict,
    load_checkpoint) changes that of its replicas too; the same holds for a sub-graph. What is done to another module in
    it, or to a tensor, is done to this replica alone: name such a module by its path, as in `freeze("hidden")`.

    Args:
        plan: What reads what.
        modules: The module of each node whose op is "module".
        label: The name under which a graph that contains this one knows it.

    Raises:
        PlanError: the plan has faults; all of them are listed.
        ArgumentError: modules that are not those of the plan, or names that a Graph has for itself.

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

    def __init__(self, plan: Plan, modules: Mapping[str, Module], label: str | None = None) -> None:
        super().__init__(plan, modules, label)
        self._others: tuple[Graph, ...] = ()

    # -------------------------------------------------------------------------------------------------------- tree

    def subgraphs(self) -> dict[str, Graph]:
        """The graphs below this one, by dotted path, parents first."""
        return {path: part for path, part in self.named_modules() if path and isinstance(part, Graph)}

    def subgraph(self, path: str) -> Graph:
        """The graph at a dotted path; "" is this one.

        Raises:
            ArgumentError: there is no module at that path, or one that is no Graph.
        """
        found = self.get_submodule(path)
        if not isinstance(found, Graph):
            raise ArgumentError(
                f"{self._who()}.subgraph: expected one of the graphs {list(self.subgraphs())}, got {path!r}, "
                f"a {type(found).__name__}"
            )
        return found

    def tagged(self, path: str) -> Any:
        """What the last forward computed at a tag; "encoder.hidden" is the tag "hidden" of the sub-graph "encoder".

        The value is kept, with the tape behind it, until the next forward.

        Raises:
            ArgumentError: there is no such tag, or was no forward.
        """
        where, _, tag = str(path).rpartition(".")
        graph = self.subgraph(where)
        tags = [node.tag for node in graph.plan.nodes if node.tag is not None]
        if tag not in tags:
            raise ArgumentError(f"{self._who()}.tagged: expected one of the tags {tags}, got {path!r}")
        state, at = graph._shared()
        return self.tagged_at(path) if state is None else state.tagged(at + tag)

    def tagged_values(self) -> dict[str, Any]:
        """What the last forward computed at every tag of this graph; empty where there was none."""
        state, at = self._shared()
        if state is None:
            return super().tagged_values()
        parts = [state.replicas[rank].get_submodule(at[:-1]) for rank in state.active or {0: 0}]
        tags = [part._tagged for part in parts if isinstance(part, Graph)]
        return {tag: state.tagged(at + tag) for tag in tags[0]} if all(tags) else {}

    def _shared(self) -> tuple[DistributedState | None, str]:
        """What shared out this graph's last forward among replicas, and what its tags begin with there."""
        part_of = self._training.part_of
        if part_of is None or part_of[1] in part_of[0].apart:
            return self.distributed, ""
        return part_of[0], f"{part_of[1]}."

    # ------------------------------------------------------------------------------------------------------- state

    @property
    def replicas(self) -> tuple[Graph, ...]:
        """This graph, and the copies that were attached to it."""
        return (self, *self._others)

    def replicate(self: Self, device: Device | str) -> Self:
        """A copy on a device, with parameters and buffers of its own; it is no replica until attached."""
        return copy.deepcopy(self).to(device)

    def attach(self, *others: Graph) -> None:
        """Let graphs of the same structure be replicas: what changes this graph's state changes theirs.

        That is for those who combine gradients and step themselves; `distribute` attaches what it needs.

        Raises:
            ArgumentError: one that is no Graph, is this one, or has another structure; or the graph trains itself
                already, on the devices that it has.
        """
        if self.distributed is not None or self._training.part_of is not None:
            raise ArgumentError(f"{self._who()}.attach: expected a graph that does not train yet, got one that does")
        self._attach(others)

    def _attach(self, others: tuple[Graph, ...]) -> None:
        for rank, other in enumerate(others, len(self.replicas)):
            if not isinstance(other, Graph) or any(other is known for known in self.replicas):
                raise ArgumentError(f"{self._who()}.attach: expected another Graph as replica {rank}, got {other!r}")
            if other.structure_hash() != self._structure_hash:
                raise ArgumentError(
                    f"{self._who()}.attach: expected replicas of structure {self._structure_hash[:8]}, got "
                    f"{other.structure_hash()[:8]} as replica {rank}"
                )
        self._others += others
        for path, part in self.subgraphs().items():
            part._others += tuple(other.subgraph(path) for other in others)

    def distribute(
        self,
        builder: Callable[[Device], Graph],
        devices: Devices | None = None,
        *,
        config: DdpConfig | None = None,
        el_che: bool | None = False,
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
        if self._others or self._training.is_distributed or (self.distributed and self.distributed.step_count):
            raise ArgumentError(
                f"{self._who()}.distribute: expected to be called once, before the first step(), on a graph without "
                "replicas, got another call"
            )
        group = group_of(devices, self.first_device())
        state = make_state(self, builder, group, config if config is not None else DdpConfig(), el_che)
        before = [(part, part._others) for part in (self, *self.subgraphs().values())]
        try:
            self._attach(state.replicas[1:])  # type: ignore[arg-type]
            state.sync_params()
            self._adopt(state)
            for path, part in self.subgraphs().items():
                part._training.part_of = state, path
        except BaseException:
            state.detach()
            for part, others in before:
                part._others = others
            raise

    def set_up(
        self,
        builder: Callable[[Device], Graph],
        optimizer: MakeOptimizer,
        config: DdpConfig | None = None,
        devices: Devices | None = None,
        el_che: bool | None = None,
    ) -> None:
        """Distribute, set the optimizer, go to training mode, and say on stderr on what; see `Trainer.setup_with`."""
        config, group = config if config is not None else DdpConfig(), group_of(devices, self.first_device())
        self.set_optimizer(optimizer)  # first: where it is refused, nothing has happened
        self.distribute(builder, group, config=config, el_che=el_che)
        self.train()
        print(f"{self._who()}: {summary(group, config, el_che)}", file=sys.stderr)

    def _prepared(self, needs_optimizer: bool = False) -> DistributedState:
        if self._training.part_of is not None:
            raise ArgumentError(f"{self._who()}: expected the whole graph to train, got a call of a part of it")
        if self._others and self.distributed is None:
            raise ArgumentError(
                f"{self._who()}: expected distribute() for training with replicas, got some that were attached: "
                "combine and step those yourself"
            )
        return super()._prepared(needs_optimizer)

    def graph(self) -> Graph:
        """This graph: so it can be passed where something that has a graph is asked for."""
        return self

    def freeze(self, *paths: str) -> None:
        """Stop training the parameters of the modules at dotted paths; without paths, all.

        A batch norm that is frozen still gathers statistics in training: `eval(path)` stops that.

        Raises:
            ArgumentError: a path at which there is no module; nothing was frozen.
        """
        self._set_trained(paths, False)

    def thaw(self, *paths: str) -> None:
        """Train the parameters of the modules at dotted paths again; without paths, all. Raises as `freeze` does."""
        self._set_trained(paths, True)

    def _set_trained(self, paths: tuple[str, ...], trained: bool) -> None:
        for module in [graph.get_submodule(path) for graph in self.replicas for path in paths or ("",)]:
            module.requires_grad_(trained)

    def is_frozen(self, path: str = "") -> bool:
        """Whether no parameter of the module at a dotted path is trained."""
        return not any(param.requires_grad for param in self.get_submodule(path).parameters())

    def train(self: Self, mode: bool = True, path: str = "") -> Self:
        """Set `training` of the module at a dotted path and of all below it; by default everywhere.

        Raises:
            ArgumentError: there is no module at that path, or mode is no bool.
        """
        for graph in self.replicas:
            part = graph.get_submodule(path)
            super(Graph, graph).train(mode) if part is graph else part.train(mode)
        return self

    def eval(self: Self, path: str = "") -> Self:
        """The same as train(False, path)."""
        return self.train(False, path)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Start or stop training every parameter; see `freeze` for some."""
        for graph in self.replicas:
            super(Graph, graph).requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every gradient; with set_to_none=False fill those present with zeros instead."""
        for graph in self.replicas:
            super(Graph, graph).zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Copy values into the parameters and buffers, in place; see `Module.load_state_dict`."""
        found = super().load_state_dict(state_dict, strict)
        for graph in self._others:
            graph.load_state_dict(state_dict, strict)
        return found

    def save_checkpoint(self, file: str | os.PathLike[str], path: str = "") -> None:
        """Write parameters, persistent buffers and the structure to a safetensors file; see `load_checkpoint`.

        Args:
            file: An old file of that name is replaced only once the new one is whole.
            path: The sub-graph to save; by default all.
        """
        checkpoint.save(self.subgraph(path), file)

    def load_checkpoint(
        self, file: str | os.PathLike[str], path: str = "", strict: bool = True
    ) -> checkpoint.CheckpointReport:
        """Copy what `save_checkpoint` wrote into the parameters and buffers, in place.

        Args:
            file: Where it lies.
            path: The sub-graph that takes the values; by default all.
            strict: Whether the structure must be that of the file. Where it need not be, every tensor of the same
                name, shape and dtype is taken.

        Returns:
            The names that were loaded; those of the file that were skipped, and why; those that the file lacks.

        Raises:
            StateDictError: another structure, or no checkpoint of a graph; the graph is as before.
            FileNotFoundError: there is no file.
            ArgumentError: strict is no bool, or there is no sub-graph at that path.
        """
        check_switch("load_checkpoint", strict=strict)
        return checkpoint.load([graph.subgraph(path) for graph in self.replicas], file, strict)

    # -------------------------------------------------------------------------------------------- looking at it

    def enable_profiling(self, make_timer: TimerMaker = timer_of) -> None:
        """Measure the forward of every node from now on, also below and on replicas; never makes the host wait.

        Args:
            make_timer: Makes the timer of a device: by default the host's clock for a CPU, events for a GPU.
        """
        for replica in self.replicas:
            for graph in (replica, *replica.subgraphs().values()):
                graph._profilers = [Profiler(make_timer)]

    def disable_profiling(self) -> None:
        """Stop measuring, and forget what was measured."""
        for replica in self.replicas:
            for graph in (replica, *replica.subgraphs().values()):
                graph._profilers = []

    def node_times(self) -> dict[str, NodeTime]:
        """What the forward of each node took on this replica, by dotted path: the runs that are over by now."""
        return {
            f"{path}.{name}" if path else name: time
            for path, graph in {"": self, **self.subgraphs()}.items()
            for profiler in graph._profilers
            for name, time in profiler.times().items()
        }

    def summary(self) -> str:
        """A table of the nodes: what each is, what it reads, its parameters, whether it is trained."""
        return render.summary(self)

    def to_text(self) -> str:
        """A picture in text: the nodes in order, sub-graphs indented, what each reads behind an arrow."""
        return render.to_text(self)

    def to_dot(self, times: Mapping[str, NodeTime] | None = None) -> str:
        """A picture in Graphviz's DOT language, sub-graphs as boxes.

        Args:
            times: What `node_times` gave: the more of the time a node takes, the redder it is.
        """
        return render.to_dot(self, times or {})

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """A replica: the same plan, modules of its own; neither values, timings nor replicas."""
        memo[id(self._others)] = ()
        return super().__deepcopy__(memo)
