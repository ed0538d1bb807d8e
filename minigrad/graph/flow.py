"""FlowBuilder: a model written down as a flow of data from module to module."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any, Generic, TypeVar

from minigrad.absent import tell_lacking
from minigrad.absent_seeds import SEEDS
from minigrad.arguments import is_integer
from minigrad.errors import ArgumentError
from minigrad.graph.module import GraphModule
from minigrad.graph.wired import FEATURES, MERGES, Wired
from minigrad.graph.wiring import Wiring, WiringNode, bind, checked
from minigrad.nn.module import Module

G = TypeVar("G", bound=GraphModule)


@dataclass(eq=False)
class Draft:
    """A node, or an input, as it was written.

    Attributes:
        verb: The call that wrote it, for messages: "through(Linear)".
        op: "input", "module" or how the sources are merged.
        sources: What it reads by position.
        module: What computes it, where op is "module".
        using: Tag by keyword.
        tag: Its tag; of an input, its name.
        dim: The axis of "cat".
    """

    verb: str
    op: str
    sources: list[Draft] = field(default_factory=list)
    module: Any = None
    using: dict[str, str] = field(default_factory=dict)
    tag: str | None = None
    dim: int | None = None


class FlowBuilder(Generic[G]):
    """Writes a model down verb by verb; `build` makes the graph, or reports everything that is wrong at once.

    There is one stream of data. It begins at the first input; `through` and `also` move it on, `split` divides it
    into branches that `merge` joins again. `tag` gives the newest output a name, and `using` hands tagged outputs
    and inputs to the newest module as keyword arguments. A tag may be used before it is written, where no cycle
    comes of it.

    Args:
        input_name: The name of the first input.
        into: The class that `build` makes.

    Raises:
        ArgumentError: into is no class of graphs; all other faults come with `build`.

    Example:
        >>> from minigrad import nn, randn
        >>> builder = (
        ...     FlowBuilder("image")
        ...     .through(nn.Linear(4, 8)).tag("hidden")
        ...     .split([nn.Linear(8, 3), nn.Linear(8, 5)]).merge("cat")
        ...     .through(nn.Linear(8, 2))
        ... )
        >>> builder.build()(image=randn(6, 4)).shape
        (6, 2)
        >>> FlowBuilder().fork(nn.ReLU()).split([nn.Tanh()]).build()
        Traceback (most recent call last):
            ...
        minigrad.errors.WiringError: FlowBuilder.build: expected a wiring without faults, got 3:
          - split: expected at least two modules, got 1
          - build: expected merge(...) first, got a split that is open
          - relu_0: expected a path to the output, or a tag, got neither: its value is lost
    """

    def __init__(self, input_name: str = "input", into: type[G] = GraphModule) -> None:  # type: ignore[assignment]
        if not isinstance(into, type) or not issubclass(into, GraphModule):
            raise ArgumentError(f"FlowBuilder: expected into as GraphModule or a class made from it, got {into!r}")
        self._into = into
        first = Draft("input", "input", tag=input_name)
        self._faults: list[str] = []
        self._check_name("FlowBuilder", input_name)
        self._drafts = [first]
        self._ends: list[Draft] = [first]  # where the stream is: several while a split is open
        self._split_open = False
        self._newest: list[Draft] = [first]  # what tag names
        self._callees: list[Draft] = []  # what using gives keywords to
        self._label: str | None = None
        self._built = False

    @classmethod
    def from_(cls, module: Module, input_name: str = "input") -> FlowBuilder[G]:
        """A flow that begins with a module: the same as FlowBuilder(input_name).through(module)."""
        return cls(input_name).through(module)

    # -------------------------------------------------------------------------------------------------- the stream

    def through(self, module: Module) -> FlowBuilder[G]:
        """Send the stream through a module: x becomes module(x)."""
        made = self._call("through", module, self._stream("through"))
        return self._move([made], [made], [made])

    def fork(self, module: Module) -> FlowBuilder[G]:
        """Send a copy of the stream through a module and leave the stream as it is; tag the result to reach it."""
        made = self._call("fork", module, self._stream("fork"))
        return self._move(self._ends, [made], [made])

    def also(self, module: Module) -> FlowBuilder[G]:
        """A residual: x becomes x + module(x). `tag` names the sum, `using` is for the module."""
        x = self._stream("also")
        body = self._call("also", module, x)
        total = self._add(Draft("also", "add", [x, body]))
        return self._move([total], [total], [body])

    def also_with(self, skip: Module, main: Module) -> FlowBuilder[G]:
        """A residual with a module on both ways: x becomes skip(x) + main(x). `using` is for main."""
        x = self._stream("also_with")
        aside, body = self._call("also_with", skip, x), self._call("also_with", main, x)
        total = self._add(Draft("also_with", "add", [aside, body]))
        return self._move([total], [total], [body])

    def split(self, modules: Sequence[Module]) -> FlowBuilder[G]:
        """Send the stream through several modules, side by side, until `merge`. `using` is for each of them.

        Args:
            modules: At least two, in the order in which they are merged.
        """
        x = self._stream("split")
        if not isinstance(modules, Sequence):
            self._faults.append(f"split: expected a list of modules, got {type(modules).__name__}")
            modules = []
        elif len(modules) < 2:
            self._faults.append(f"split: expected at least two modules, got {len(modules)}")
        made = [self._call("split", module, x) for module in modules]
        self._split_open = True
        return self._move(made or [x], made, made)

    def merge(self, how: str, dim: int | None = None) -> FlowBuilder[G]:
        """Join the branches of a split.

        Args:
            how: "add" or "mean", of outputs of one shape; or "cat", one after the other.
            dim: The axis of "cat"; 1, the features or channels, by default.
        """
        if not self._split_open:
            self._faults.append(f"merge({how!r}): expected split(...) before, got no open split")
            return self
        if how not in MERGES:
            self._faults.append(f"merge: expected how as one of {', '.join(map(repr, MERGES))}, got {how!r}")
        elif dim is not None and (how != "cat" or not is_integer(dim)):
            self._faults.append(f"merge({how!r}): expected dim with 'cat' only, an integer, got {dim!r}")
        axis = (FEATURES if dim is None else dim) if how == "cat" else None
        made = self._add(Draft(f"merge({how!r})", how if how in MERGES else "add", list(self._ends), dim=axis))
        self._split_open = False
        return self._move([made], [made], [])

    # ------------------------------------------------------------------------------------------ names and arguments

    def tag(self, name: str) -> FlowBuilder[G]:
        """Name the newest output: to use it elsewhere, and to ask the graph for it with `tagged`.

        Args:
            name: A Python name that no other tag, input or node has.
        """
        self._check_name("tag", name)
        if len(self._newest) != 1:
            self._faults.append(
                f"tag({name!r}): expected one output, got the {len(self._newest)} branches of a split: use tag_group"
            )
        else:
            self._tag("tag", self._newest[0], name)
        return self

    def tag_group(self, prefix: str) -> FlowBuilder[G]:
        """Name the branches of an open split prefix_0, prefix_1, ..."""
        self._check_name("tag_group", prefix)
        if not self._split_open or self._newest != self._ends:
            self._faults.append(f"tag_group({prefix!r}): expected it right after split(...), got it elsewhere")
        else:
            for number, draft in enumerate(self._newest):
                self._tag("tag_group", draft, f"{prefix}_{number}")
        return self

    def _tag(self, verb: str, draft: Draft, name: str) -> None:
        if draft.tag is not None:
            self._faults.append(f"{verb}({name!r}): expected an output without a name, got {draft.tag!r}")
        else:
            draft.tag = name

    def using(self, /, *tags: str, **named: str) -> FlowBuilder[G]:
        """Give the newest module tagged outputs, or inputs, as keyword arguments.

        Args:
            tags: Each is passed under its own name: using("mask") is using(mask="mask").
            named: Tag by keyword: using(memory="encoded") calls module(x, memory=...).
        """
        wanted = [*((tag, tag) for tag in tags), *named.items()]
        if not self._callees:
            listed = ", ".join(str(tag) for _, tag in wanted)
            self._faults.append(f"using({listed}): expected a module before, got none")
        for callee in self._callees:
            for keyword, tag in wanted:
                if not isinstance(tag, str):
                    self._faults.append(f"using: expected tags (str), got {tag!r}")
                elif keyword in callee.using:
                    self._faults.append(f"using({tag!r}): expected each keyword once, got {keyword!r} twice")
                else:
                    callee.using[keyword] = tag
        return self

    def input(self, *names: str) -> FlowBuilder[G]:
        """Add inputs of the graph, in the order of its arguments; `using` hands them to modules."""
        for name in names:
            self._check_name("input", name)
            self._add(Draft("input", "input", tag=name))
        return self

    def label(self, name: str) -> FlowBuilder[G]:
        """Name the whole graph: a graph that contains it has it under this name, a part of its dotted paths."""
        self._check_name("label", name)
        if self._label is not None:
            self._faults.append(f"label({name!r}): expected one label, got {self._label!r} before")
        self._label = name
        return self

    def build(self) -> G:
        """Make the graph.

        Raises:
            WiringError: the wiring has faults; all of them are listed, with the names of the nodes.
            ArgumentError: it was built before, and its modules belong to that graph.
        """
        if self._built:
            raise ArgumentError("FlowBuilder.build: expected to be called once, got a second call: write a new flow")
        wiring, modules, faults = wiring_of(self._drafts, self._stream("build"), self._into.is_reserved)
        graph = self._into(checked(wiring, "FlowBuilder.build", self._faults + faults), modules, self._label)
        self._built = True
        return graph

    # ----------------------------------------------------------------------------------------------------- details

    def _stream(self, verb: str) -> Draft:
        """Where the stream is; an open split is a fault, and is joined so that the faults after it are found too."""
        if self._split_open:
            self._faults.append(f"{verb}: expected merge(...) first, got a split that is open")
            self.merge("add")
        return self._ends[0]

    def _call(self, verb: str, module: Any, x: Draft) -> Draft:
        if not isinstance(module, Module):
            self._faults.append(f"{verb}: expected a Module, got {written(module)}")
        return self._add(Draft(f"{verb}({type(module).__name__})", "module", [x], module))

    def _add(self, draft: Draft) -> Draft:
        self._drafts.append(draft)
        return draft

    def _move(self, ends: list[Draft], newest: list[Draft], callees: list[Draft]) -> FlowBuilder[G]:
        self._ends, self._newest, self._callees = ends, newest, callees
        return self

    def _check_name(self, verb: str, name: Any) -> None:
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name) or name.startswith("_"):
            wanted = "a Python name that does not begin with an underscore"
            self._faults.append(f"{verb}: expected {wanted}, got {written(name)}")


# --------------------------------------------- from drafts to a wiring: names are given, tags looked up, calls checked


def written(value: Any) -> str:
    """A value as it stands in a message."""
    return repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__


def wiring_of(
    drafts: Sequence[Draft], output: Draft, is_reserved: Callable[[str], bool]
) -> tuple[Wiring, dict[str, Module], list[str]]:
    """The wiring of what was written, the module of each node, and the faults in names, tags and calls.

    Args:
        drafts: In the order in which they were written.
        output: The one whose value is the result.
        is_reserved: Whether a name can't be that of a child module.
    """
    labels = _labels(drafts)
    names, faults = _names(drafts, labels)
    by_tag = {draft.tag: names[draft] for draft in reversed(drafts) if draft.tag is not None}
    nodes, modules = [], {}
    for draft in drafts:
        name = names[draft]
        if draft.op == "input":
            continue
        if draft.module is not None and is_reserved(name):
            faults.append(f"{name} of {draft.verb}: expected a name that a Graph does not have for itself")
        unknown = [tag for tag in draft.using.values() if tag not in by_tag]
        if unknown:
            faults.append(
                f"{name}: expected to use one of the tags and inputs {', '.join(map(repr, reversed(by_tag)))}, got "
                f"{', '.join(map(repr, unknown))}"
            )
        if isinstance(draft.module, Module):
            modules[name] = draft.module
            fault = _call_fault(draft.module, len(draft.sources), list(draft.using))
            faults += [f"{name}: {fault}"] if fault else []
        named = sorted((key, by_tag[tag]) for key, tag in draft.using.items() if tag in by_tag)
        inputs = tuple(names[source] for source in draft.sources)
        nodes.append(WiringNode(name, draft.op, inputs, tuple(named), draft.tag, labels.get(draft), draft.dim))
    given = tuple(names[draft] for draft in drafts if draft.op == "input")
    return Wiring(given, tuple(nodes), names[output]), modules, faults


def _call_fault(module: Module, inputs: int, keywords: Sequence[str]) -> str | None:
    """Why a module can't be called with so many values by position and these keywords; None where it can."""
    kind = type(module).__name__
    if type(module).forward is Module.forward:
        return f"expected a module that can be called, got a {kind}, which has no forward()"
    if isinstance(module, Wired):
        try:
            bind(kind, module.input_names, [None] * inputs, dict.fromkeys(keywords))
        except ArgumentError as error:
            return str(error)
        return None
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*[None] * inputs, **dict.fromkeys(keywords))
    except TypeError as error:
        listed = " and ".join(["one value", *(f"{name}=" for name in keywords)])
        return f"expected {kind}.forward to take {listed}, got {kind}.forward{_brief(signature)}: {error}"
    return None


def _brief(signature: inspect.Signature) -> str:
    """A signature without its annotations."""
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _labels(drafts: Sequence[Draft]) -> dict[Draft, str | None]:
    """The label of each sub-graph, at the first node that it computes."""
    first = {id(draft.module): draft for draft in reversed(drafts) if isinstance(draft.module, Wired)}
    return {draft: draft.module.label for draft in first.values()}


def _names(drafts: Sequence[Draft], labels: Mapping[Draft, str | None]) -> tuple[dict[Draft, str], list[str]]:
    """A name for each node, unique even where the same was wanted twice; that is a fault."""
    names: dict[Draft, str] = {}
    owners: dict[str, Draft] = {}
    faults, counts = [], Counter[str]()
    for draft in drafts:
        base = draft.op if draft.op != "module" else type(draft.module).__name__.lower().lstrip("_")
        number = counts[base]
        counts[base] += 1
        name = labels.get(draft) or draft.tag or f"{base}_{number}"
        for wanted in dict.fromkeys((name, draft.tag or name)):
            other = owners.setdefault(wanted, draft)
            if other is not draft:
                faults.append(f"{wanted}: expected a name of its own, got that of {other.verb} for {draft.verb} too")
        while name in names.values():
            name += "'"
        names[draft] = name
    return names, faults


tell_lacking("FlowBuilder", FlowBuilder, SEEDS["FlowBuilder"])
