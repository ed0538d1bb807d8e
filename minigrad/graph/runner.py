"""A plan that runs: the nodes computed in their order, each by its module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from minigrad.errors import ArgumentError, DtypeError, MinigradError
from minigrad.graph.nodes import merge
from minigrad.graph.plan import Plan, PlanNode, bind, checked, last_uses
from minigrad.graph.profile import Profiler
from minigrad.graph.structure import hash_of
from minigrad.nn.module import Module
from minigrad.tensor import Tensor

Self = TypeVar("Self", bound="PlanModule")


class PlanModule(Module):
    """What a Graph is while it runs: a plan, a module for each node of it, and the values of the last forward.

    Args:
        plan: What reads what.
        modules: The module of each node whose op is "module".
        label: The name under which a graph that contains this one knows it.

    Raises:
        PlanError: the plan has faults; all of them are listed.
        ArgumentError: modules that are not those of the plan, or names that the class has for itself.
    """

    def __init__(self, plan: Plan, modules: Mapping[str, Module], label: str | None = None) -> None:
        super().__init__()
        self._plan = checked(plan, self._who())
        self._label = label
        expected = [node.name for node in self._plan.nodes if node.op == "module"]
        if sorted(expected) != sorted(modules):
            raise ArgumentError(f"{self._who()}: expected modules for {', '.join(expected)}, got {', '.join(modules)}")
        for name, module in modules.items():
            if self.is_reserved(name):
                raise ArgumentError(f"{self._who()}: expected names that it does not have for itself, got {name!r}")
            self.add_module(name, module)
        self._structure_hash = hash_of(self._plan, modules)
        self._drops = last_uses(self._plan)
        self._tagged: dict[str, Any] = {}
        self._profilers: list[Profiler] = []  # one, or none: a list, so that a copy can start with an empty one

    @classmethod
    def is_reserved(cls, name: str) -> bool:
        """Whether a node can't have a name because the class, or every module, has it."""
        return hasattr(cls, name) or name == "training"

    # --------------------------------------------------------------------------------------------------- structure

    @property
    def plan(self) -> Plan:
        """The nodes, in the order in which they are computed."""
        return self._plan

    @property
    def label(self) -> str | None:
        """The name under which a graph that contains this one knows it."""
        return self._label

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs, in the order of the arguments of `forward`."""
        return self._plan.inputs

    def module_of(self, node: str) -> Module | None:
        """The module that computes a node; None where branches are merged, or there is no such node."""
        return self._modules.get(node)

    def structure_hash(self) -> str:
        """The SHA-256, in 64 hexadecimal digits, of the structure as it was built; see `graph.structure.hash_of`."""
        return self._structure_hash

    def check_call(self, inputs: int, keywords: Sequence[str]) -> None:
        """Refuse a number of positional inputs and keywords that `forward` would not take; ArgumentError."""
        bind(self._who(), self.input_names, [None] * inputs, dict.fromkeys(keywords))

    # ----------------------------------------------------------------------------------------------------- running

    def forward(self, /, *inputs: Any, **named: Any) -> Any:
        """The output, for inputs by position in the order of `input_names`, or by name.

        Raises:
            ArgumentError: an input that is missing, unknown or given twice.
            MinigradError: what a node raises, of its own class; the message begins with the node's name.
        """
        return self.run(bind(self._who(), self.input_names, inputs, named))

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
        names = self.input_names
        if isinstance(batch, Mapping):
            absent = [name for name in names if name not in batch]
            if absent:
                raise ArgumentError(
                    f"{self._who()}.forward_batch: expected {', '.join(names)} in the batch, got no "
                    f"{', '.join(absent)} among {', '.join(map(str, batch))}"
                )
            return [batch[name] for name in names]
        fields = [batch] if isinstance(batch, Tensor) else batch
        if not isinstance(fields, (tuple, list)):
            raise DtypeError(
                f"{self._who()}.forward_batch: expected a mapping, a tuple or a tensor, got {type(batch).__name__}"
            )
        if len(fields) < len(names):
            raise ArgumentError(
                f"{self._who()}.forward_batch: expected a batch that begins with {', '.join(names)}, got "
                f"{len(fields)} field(s)"
            )
        return list(fields[: len(names)])

    def run(self, inputs: Sequence[Any]) -> Any:
        """Compute every node of this replica, alone: what `forward` does once it has sorted its arguments."""
        self._tagged = {}  # before the new values are made
        values = dict(zip(self._plan.inputs, inputs))
        for node in self._plan.nodes:
            try:
                values[node.name] = self._compute(node, values)
            except MinigradError as error:
                if error.args:
                    error.args = (f"node {node.name}: {error.args[0]}", *error.args[1:])
                raise
            for name in self._drops[node.name]:
                del values[name]
        self._tagged = {node.tag: values[node.name] for node in self._plan.nodes if node.tag is not None}
        return values[self._plan.output]

    def _compute(self, node: PlanNode, values: Mapping[str, Any]) -> Any:
        args = [values[source] for source in node.inputs]
        named = {keyword: values[source] for keyword, source in node.named}
        if not self._profilers:
            return self._apply(node, args, named)
        with self._profilers[0].measure(node.name, [*args, *named.values()]):
            return self._apply(node, args, named)

    def _apply(self, node: PlanNode, args: list[Any], named: dict[str, Any]) -> Any:
        # looked up at each call: a layer may have been replaced, for example by a SyncBatchNorm
        module = self._modules.get(node.name)
        return merge(node, args) if module is None else module(*args, **named)

    @property
    def has_tags(self) -> bool:
        """Whether any node of this graph has a tag."""
        return any(node.tag is not None for node in self._plan.nodes)

    def tagged_at(self, path: str) -> Any:
        """What the last forward of this replica computed at a tag, "encoder.hidden" being one of a graph below.

        Raises:
            ArgumentError: there was no forward.
        """
        where, _, tag = path.rpartition(".")
        graph = self.get_submodule(where)
        if not isinstance(graph, PlanModule) or tag not in graph._tagged:
            raise ArgumentError(f"{self._who()}.tagged: expected a forward before, got {path!r} asked for without one")
        return graph._tagged[tag]

    def map_tagged(self, function: Callable[[Any], Any]) -> None:
        """Replace what the last forward computed at every tag of this graph."""
        self._tagged = {tag: function(value) for tag, value in self._tagged.items()}

    def tagged_values(self) -> dict[str, Any]:
        """What the last forward computed at every tag of this graph; empty where there was none."""
        return dict(self._tagged)

    def follow(self, other: PlanModule) -> None:
        """Be in the modes of a graph of the same structure, freeze what it has frozen, measure where it does."""
        for mine, theirs in zip(self.modules(), other.modules()):
            mine.training = theirs.training
            if isinstance(mine, PlanModule) and isinstance(theirs, PlanModule):
                mine._profilers = [profiler.fresh() for profiler in theirs._profilers]
        for param, known in zip(self.parameters(), other.parameters()):
            param.requires_grad_(known.requires_grad)

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """The same plan, modules of its own, no values and no timings."""
        memo[id(self._plan)] = self._plan
        memo[id(self._tagged)], memo[id(self._profilers)] = {}, []
        return super().__deepcopy__(memo)
