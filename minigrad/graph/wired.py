"""A wiring that runs: compiled once to a program, each line of which is a module or a merge of branches."""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from minigrad.errors import ArgumentError, DtypeError, MinigradError, ShapeError
from minigrad.graph.profile import Profiler
from minigrad.graph.wiring import Wiring, WiringNode, bind, checked, last_uses
from minigrad.nn.module import Module
from minigrad.ops.join import cat
from minigrad.tensor import Tensor

Self = TypeVar("Self", bound="Wired")

MERGES = ("add", "mean", "cat")
Line = tuple[WiringNode, tuple[int, ...], tuple[tuple[str, int], ...], tuple[int, ...]]
FEATURES = 1  # the axis along which "cat" joins unless told otherwise


def merge(node: WiringNode, values: Sequence[Any]) -> Tensor:
    """The values of several branches as one.

    Shapes:
        add, mean: K times (...) -> (...)
        cat: (N, D, ...), (N, E, ...), ... -> (N, D + E + ..., ...) for dim = 1

    Raises:
        ShapeError: shapes that differ; nothing is broadcast.
        DtypeError: a value that is no tensor, or dtypes that differ.
    """
    for source, value in zip(node.inputs, values):
        if not isinstance(value, Tensor):
            raise DtypeError(f"merge: expected tensors, got {type(value).__name__} from {source}")
    if node.op == "cat":
        return cat(values, FEATURES if node.dim is None else node.dim)
    if any(value.shape != values[0].shape for value in values):
        listed = ", ".join(f"{value.shape} from {source}" for source, value in zip(node.inputs, values))
        raise ShapeError(f"merge: expected outputs of one shape, got {listed}")
    total: Tensor = functools.reduce(operator.add, values)
    return total / len(values) if node.op == "mean" else total


def program_of(wiring: Wiring, numbers: Mapping[str, int]) -> tuple[Line, ...]:
    """A checked wiring as a list of lines: each a node, the numbers of what it reads by position, keyword and number of
    what it reads by keyword, and the numbers of the values that nobody needs after it.

    Args:
        wiring: In the order of computation.
        numbers: The place of each input and node in the list of all values.
    """
    drops, lines = last_uses(wiring), []
    for node in wiring.nodes:
        reads, unused = (tuple(map(numbers.__getitem__, names)) for names in (node.inputs, drops[node.name]))
        lines.append((node, reads, tuple((keyword, numbers[source]) for keyword, source in node.named), unused))
    return tuple(lines)


class Wired(Module):
    """A module whose forward is a wiring: named nodes, each a child module of its name or a merge of branches.

    Args:
        wiring: What reads what.
        modules: The module of each node whose op is "module".
        label: The name under which a graph that contains this one knows it.

    Raises:
        WiringError: the wiring has faults; all of them are listed.
        ArgumentError: modules that are not those of the wiring, or names that the class has for itself.
    """

    def __init__(self, wiring: Wiring, modules: Mapping[str, Module], label: str | None = None) -> None:
        super().__init__()
        self._wiring = checked(wiring, self._who())
        self._label = label
        expected = [node.name for node in self._wiring.nodes if node.op == "module"]
        if sorted(expected) != sorted(modules):
            raise ArgumentError(f"{self._who()}: expected modules for {', '.join(expected)}, got {', '.join(modules)}")
        for name, module in modules.items():
            if self.is_reserved(name):
                raise ArgumentError(f"{self._who()}: expected names that it does not have for itself, got {name!r}")
            self.add_module(name, module)
        self._structure_hash = hash_of(self._wiring, modules)
        names = (*self._wiring.inputs, *(node.name for node in self._wiring.nodes))
        numbers = {name: number for number, name in enumerate(names)}
        self._program = program_of(self._wiring, numbers)
        self._output = numbers[self._wiring.output]
        self._tags = tuple((node.tag, numbers[node.name]) for node in self._wiring.nodes if node.tag is not None)
        self._tagged: dict[str, Any] = {}  # what the last run computed at each tag: always this one dict
        self._profilers: list[Profiler] = []  # one, or none: always this one list

    @classmethod
    def is_reserved(cls, name: str) -> bool:
        """Whether a node can't have a name because the class, or every module, has it."""
        return hasattr(cls, name) or name == "training"

    # --------------------------------------------------------------------------------------------------- structure

    @property
    def wiring(self) -> Wiring:
        """The nodes, in the order in which they are computed."""
        return self._wiring

    @property
    def label(self) -> str | None:
        """The name under which a graph that contains this one knows it."""
        return self._label

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs, in the order of the arguments of `forward`."""
        return self._wiring.inputs

    def module_of(self, node: str) -> Module | None:
        """The module that computes a node; None where branches are merged, or there is no such node."""
        return self._modules.get(node)

    def structure_hash(self) -> str:
        """The SHA-256, in 64 hexadecimal digits, of the structure as it was built; see `graph.wired.hash_of`."""
        return self._structure_hash

    # ----------------------------------------------------------------------------------------------------- running

    def _bind(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        names = self._wiring.inputs
        return inputs if not named and len(inputs) == len(names) else bind(self._who(), names, inputs, named)

    def run(self, inputs: Sequence[Any]) -> Any:
        """Compute every node of this replica, alone: what `forward` does once it has sorted its arguments."""
        tagged, modules, profilers = self._tagged, self._modules, self._profilers
        tagged.clear()  # before the new values are made
        values = list(inputs)
        node = self._wiring.nodes[0]
        try:
            for line in self._program:
                node, reads, named, drops = line
                module = modules.get(node.name)  # looked up each time: it may have been replaced, as by a SyncBatchNorm
                if module is None or named or profilers:
                    values.append(self._compute(line, module, values))
                else:
                    values.append(module(*map(values.__getitem__, reads)))
                for i in drops:
                    values[i] = None
        except MinigradError as error:
            if error.args:
                error.args = (f"node {node.name}: {error.args[0]}", *error.args[1:])
            raise
        for tag, i in self._tags:
            tagged[tag] = values[i]
        return values[self._output]

    def _compute(self, line: Line, module: Module | None, values: Sequence[Any]) -> Any:
        """A node that merges, reads by keyword or is measured."""
        node, reads, named, _ = line
        args, keywords = [values[i] for i in reads], {keyword: values[i] for keyword, i in named}
        if not self._profilers:
            return merge(node, args) if module is None else module(*args, **keywords)
        with self._profilers[0].measure(node.name, [*args, *keywords.values()]):
            return merge(node, args) if module is None else module(*args, **keywords)

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """The same wiring, modules of its own, no values and no timings."""
        for shared in (self._wiring, self._program):
            memo[id(shared)] = shared
        memo.setdefault(id(self._tagged), {})
        memo[id(self._profilers)] = []
        return super().__deepcopy__(memo)


def fields_of(who: str, names: Sequence[str], batch: Any) -> list[Any]:
    """The inputs of these names in a batch; see `GraphModule.forward_batch`."""
    if isinstance(batch, Mapping):
        absent = [name for name in names if name not in batch]
        if absent:
            raise ArgumentError(
                f"{who}: expected {', '.join(names)} in the batch, got no {', '.join(absent)} among "
                f"{', '.join(map(str, batch))}"
            )
        return [batch[name] for name in names]
    fields = [batch] if isinstance(batch, Tensor) else batch
    if not isinstance(fields, (tuple, list)):
        raise DtypeError(f"{who}: expected a mapping, a tuple or a tensor, got {type(batch).__name__}")
    if len(fields) < len(names):
        raise ArgumentError(f"{who}: expected a batch that begins with {', '.join(names)}, got {len(fields)} field(s)")
    return list(fields[: len(names)])


# ---------------------------------------------------------------------------------------------- the hash of a structure


def hash_of(wiring: Wiring, modules: Mapping[str, Module]) -> str:
    """The SHA-256 of a graph's structure, in 64 hexadecimal digits.

    What counts: the inputs and their order; for each node its operation, the class, settings and shapes of its
    module, its tag or label, and what it reads; which parameters are shared; the output. What does not: values,
    dtypes, devices, the order in which side branches were written, and the numbers in names such as "linear_0".

    Args:
        wiring: In the order of computation.
        modules: The module of each node that has one.
    """
    digests = {name: _digest(["input", name]) for name in wiring.inputs}
    for node in wiring.nodes:
        reads = [digests[source] for source in node.inputs]
        named = [[keyword, digests[source]] for keyword, source in node.named]
        what = _describe(modules[node.name]) if node.name in modules else None
        digests[node.name] = _digest([node.op, node.dim, node.tag, node.label, what, reads, named])
    computed = sorted(digests[node.name] for node in wiring.nodes)
    return _digest(["graph", list(wiring.inputs), computed, _shared(digests, modules), digests[wiring.output]])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def _describe(module: Module) -> list[Any]:
    """The class, settings and shapes of a module and of all below it; a graph among them is its hash."""
    parts: list[Any] = []
    closed: tuple[str, ...] = ()  # below these all is told by a hash
    for path, part in module.named_modules(remove_duplicate=False):
        if path.startswith(closed):
            continue
        if isinstance(part, Wired):
            closed += (f"{path}." if path else "",)
            parts.append([path, "Graph", part.structure_hash()])
            continue
        named = [each(recurse=False, remove_duplicate=False) for each in (part.named_parameters, part.named_buffers)]
        shapes = [[[name, list(x.shape)] for name, x in tensors] for tensors in named]
        parts.append([path, type(part).__name__, part.extra_repr(), *shapes])
    return parts


def _shared(digests: Mapping[str, str], modules: Mapping[str, Module]) -> list[Any]:
    """The places of each parameter that has several."""
    places: dict[int, list[list[str]]] = defaultdict(list)
    for node, module in modules.items():
        for path, param in module.named_parameters(remove_duplicate=False):
            places[id(param)].append([digests[node], path])
    return sorted(sorted(several) for several in places.values() if len(several) > 1)
