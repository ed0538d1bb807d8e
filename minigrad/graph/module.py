"""GraphModule: a Module made of named nodes, with tags, sub-graphs, checkpoints and pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from minigrad.arguments import check_switch
from minigrad.backend.device import CPU, Device
from minigrad.backend.timer import timer_of
from minigrad.errors import ArgumentError
from minigrad.graph import checkpoint, render
from minigrad.graph.profile import NodeTime, Profiler, TimerMaker
from minigrad.graph.wired import Wired, fields_of
from minigrad.graph.wiring import Wiring
from minigrad.nn.module import Module
from minigrad.nn.state import IncompatibleKeys, State

Self = TypeVar("Self", bound="GraphModule")
Join = Callable[[list[Any]], Any]

_only = itemgetter(0)


class GraphModule(Wired):
    """A module whose forward is a wiring: named nodes, each a module or a merge of branches; made by `FlowBuilder`.

    A node is a child module of its name, so parameters have the dotted names that they would have in a class written
    by hand: "hidden.weight", or "encoder.linear_0.bias" in a sub-graph labelled "encoder". A node's name is the label
    of its sub-graph, else its tag, else its class and how many of that class were written before: "linear_2".

    Args:
        wiring: What reads what.
        modules: The module of each node whose op is "module".
        label: The name under which a graph that contains this one knows it.

    Raises:
        WiringError: the wiring has faults; all of them are listed.
        ArgumentError: modules that are not those of the wiring, or names that a graph has for itself.

    Example:
        >>> from minigrad import nn, randn
        >>> from minigrad.graph.wiring import WiringNode
        >>> wiring = Wiring(("x",), (WiringNode("layer", "module", ("x",), tag="out"),), "layer")
        >>> net = GraphModule(wiring, {"layer": nn.Linear(4, 2)})
        >>> net(randn(5, 4)).shape, net.tagged("out").shape
        ((5, 2), (5, 2))
    """

    def __init__(self, wiring: Wiring, modules: Mapping[str, Module], label: str | None = None) -> None:
        super().__init__(wiring, modules, label)
        self._shown: tuple[list[dict[str, Any]], Join] = ([self._tagged], _only)  # where `tagged` looks
        self._others: list[GraphModule] = []  # replicas beside this one: always this one list

    def forward(self, /, *inputs: Any, **named: Any) -> Any:
        """The output, for inputs by position in the order of `input_names`, or by name.

        Raises:
            ArgumentError: an input that is missing, unknown or given twice.
            MinigradError: what a node raises, of its own class; the message begins with the node's name.
        """
        if self._shown[1] is not _only:
            self._shown = ([self._tagged], _only)
        return self.run(self._bind(inputs, named))

    def forward_multi(self, inputs: Sequence[Any]) -> Any:
        """The output for a list of all inputs, in the order of `input_names`."""
        return self(*inputs)

    def forward_batch(self, batch: Any) -> Any:
        """The output for a batch of a loader; what is not an input, such as the targets, is left alone.

        Args:
            batch: A mapping that has the inputs by name; or a tuple or list that begins with them, in order; or the
                one tensor that is the only input.

        Raises:
            ArgumentError: the batch lacks an input.
            DtypeError: the batch is none of these.
        """
        return self(*self.inputs_of(batch))

    def inputs_of(self, batch: Any) -> list[Any]:
        """The inputs in a batch, in the order of `input_names`; see `forward_batch`."""
        return fields_of(f"{self._who()}.forward_batch", self.input_names, batch)

    # -------------------------------------------------------------------------------------------------------- tree

    @property
    def replicas(self) -> tuple[GraphModule, ...]:
        """This graph, and those whose state changes with it: they were attached, or made by `Graph.distribute`."""
        return (self, *self._others)

    def add_replicas(self, others: Sequence[GraphModule]) -> None:
        """Let what changes the state of this graph, or of one below it, change that of graphs of its structure."""
        for path, part in {"": self, **self.subgraphs()}.items():
            part._others += [other.subgraph(path) for other in others]

    def first_device(self) -> Device:
        """Where the graph lives; the CPU where it has no parameter."""
        return next((param.device for param in self.parameters()), CPU)

    def subgraphs(self) -> dict[str, GraphModule]:
        """The graphs below this one, by dotted path, parents first."""
        return {path: part for path, part in self.named_modules() if path and isinstance(part, GraphModule)}

    def subgraph(self, path: str) -> GraphModule:
        """The graph at a dotted path; "" is this one.

        Raises:
            ArgumentError: there is no module at that path, or one that is no Graph.
        """
        found = self.get_submodule(path)
        if not isinstance(found, GraphModule):
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
        tags = [tag for tag, _ in graph._tags]
        if tag not in tags:
            raise ArgumentError(f"{self._who()}.tagged: expected one of the tags {tags}, got {path!r}")
        several, join = graph._shown
        if not all(tag in tagged for tagged in several):
            raise ArgumentError(f"{self._who()}.tagged: expected a forward before, got {path!r} asked for without one")
        return join([tagged[tag] for tagged in several])

    def tagged_values(self) -> dict[str, Any]:
        """What the last forward computed at every tag of this graph; empty where there was none."""
        several, join = self._shown
        return {tag: join([tagged[tag] for tagged in several]) for tag in several[0]} if all(several) else {}

    @property
    def has_tags(self) -> bool:
        """Whether any node of this graph has a tag."""
        return bool(self._tags)

    def map_tagged(self, function: Callable[[Any], Any]) -> None:
        """Replace what the last forward computed at every tag of this graph."""
        self._tagged.update({tag: function(value) for tag, value in self._tagged.items()})

    def show_tags_of(self, replicas: Sequence[GraphModule], join: Join) -> None:
        """Let `tagged` give what these replicas compute, joined when somebody asks, until a forward of this one alone.

        Args:
            replicas: Of the same structure; this one may be among them.
            join: Makes one value of that of each.
        """
        self._shown = ([replica._tagged for replica in replicas], join)

    # ------------------------------------------------------------------------------------------------------- state

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
            Module.train(part, mode) if part is graph else part.train(mode)
        return self

    def eval(self: Self, path: str = "") -> Self:
        """The same as train(False, path)."""
        return self.train(False, path)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Start or stop training every parameter; see `freeze` for some."""
        for graph in self.replicas:
            Module.requires_grad_(graph, requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every gradient; with set_to_none=False fill those present with zeros instead."""
        for graph in self.replicas:
            Module.zero_grad(graph, set_to_none)

    def load_state_dict(self, state_dict: State, strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Copy values into the parameters and buffers, in place; see `Module.load_state_dict`."""
        found, *_ = [Module.load_state_dict(graph, state_dict, strict, assign) for graph in self.replicas]
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
        for graph in self._with_parts():
            graph._profilers[:] = [Profiler(make_timer)]

    def disable_profiling(self) -> None:
        """Stop measuring, and forget what was measured."""
        for graph in self._with_parts():
            graph._profilers.clear()

    def _with_parts(self) -> list[GraphModule]:
        return [graph for replica in self.replicas for graph in (replica, *replica.subgraphs().values())]

    def node_times(self) -> dict[str, NodeTime]:
        """What the forward of each node took on this replica, by dotted path: the runs that are over by now."""
        return {
            f"{path}.{name}" if path else name: time
            for path, graph in {"": self, **self.subgraphs()}.items()
            for profiler in graph._profilers
            for name, time in profiler.times().items()
        }

    def follow(self, other: GraphModule) -> None:
        """Be in the modes of a graph of the same structure, freeze what it has frozen, measure where it does."""
        for mine, theirs in zip(self.modules(), other.modules()):
            mine.training = theirs.training
            if isinstance(mine, GraphModule) and isinstance(theirs, GraphModule):
                mine._profilers[:] = [profiler.fresh() for profiler in theirs._profilers]
        for param, known in zip(self.parameters(), other.parameters()):
            param.requires_grad_(known.requires_grad)

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
        """The same wiring, modules of its own; neither values, timings nor replicas."""
        memo[id(self._others)] = []
        memo[id(self._tagged)] = {}
        memo[id(self._shown)] = ([memo[id(self._tagged)]], _only)
        return super().__deepcopy__(memo)
