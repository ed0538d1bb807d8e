"""A wiring: named nodes and what each of them reads. Pure; it knows neither tensors nor modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minigrad.errors import ArgumentError, WiringError


@dataclass(frozen=True)
class WiringNode:
    """One value that is computed.

    Attributes:
        name: Unique in its wiring.
        op: "module", or how its inputs are merged: "add", "mean", "cat".
        inputs: Names of the nodes, or inputs of the wiring, that it reads by position.
        named: Keyword and name of those that it reads by keyword, sorted.
        tag: The name by which the value can be referred to and asked for.
        label: The name of the sub-graph that computes it.
        dim: The axis of "cat".
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    named: tuple[tuple[str, str], ...] = ()
    tag: str | None = None
    label: str | None = None
    dim: int | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """Everything that it reads, once each."""
        return tuple(dict.fromkeys((*self.inputs, *(source for _, source in self.named))))


@dataclass(frozen=True)
class Wiring:
    """What reads what.

    Attributes:
        inputs: Names of what is given, in the order of the arguments.
        nodes: In an order in which they can be computed, once the wiring went through `checked`.
        output: The node, or input, whose value is the result.
    """

    inputs: tuple[str, ...]
    nodes: tuple[WiringNode, ...]
    output: str


def checked(wiring: Wiring, who: str, faults: Sequence[str] = ()) -> Wiring:
    """The wiring with its nodes in the order of computation; nodes that could be next keep the given order.

    Args:
        wiring: Nodes in any order.
        who: Names the caller in the message.
        faults: Those found before; they are reported together with those of the wiring.

    Raises:
        WiringError: there are faults; all of them are listed.

    Example:
        >>> wiring = Wiring(("x",), (WiringNode("b", "module", ("a",)), WiringNode("a", "module", ("x",))), "b")
        >>> [node.name for node in checked(wiring, "example").nodes]
        ['a', 'b']
    """
    found = [*faults, *faults_of(wiring)]
    if found:
        listed = "".join(f"\n  - {fault}" for fault in found)
        raise WiringError(f"{who}: expected a wiring without faults, got {len(found)}:{listed}", tuple(found))
    return replace(wiring, nodes=tuple(_sorted(wiring)[0]))


def faults_of(wiring: Wiring) -> list[str]:
    """Everything that is wrong with a wiring, a line each; empty where nothing is."""
    names = [*wiring.inputs, *(node.name for node in wiring.nodes)]
    known = set(names)
    return [
        *(f"{name}: expected a name of its own, got one of {n} nodes" for name, n in Counter(names).items() if n > 1),
        *(
            f"{node.name}: expected to read nodes of the wiring, got {source!r}, which is none"
            for node in wiring.nodes
            for source in node.sources
            if source not in known
        ),
        *([] if wiring.output in known else [f"output: expected a node of the wiring, got {wiring.output!r}"]),
        *([] if wiring.nodes else ["wiring: expected at least one node, got none"]),
        *_cycles(wiring),
        *_unused(wiring),
    ]


def _sorted(wiring: Wiring) -> tuple[list[WiringNode], list[WiringNode]]:
    """The nodes in an order of computation, and those that have none because they wait for a cycle."""
    order, left = [], list(wiring.nodes)
    waiting = {node.name for node in left}
    while (node := next((node for node in left if waiting.isdisjoint(node.sources)), None)) is not None:
        left.remove(node)
        waiting.discard(node.name)
        order.append(node)
    return order, left


def _cycles(wiring: Wiring) -> list[str]:
    """One line for each cycle, until none is left that shares no node with those told already."""
    told = []
    left = {node.name: node for node in _sorted(wiring)[1]}
    while left:
        cycle = _walk_to_cycle(left)
        told.append(f"{cycle[0]}: expected no cycle, got {' -> '.join([*cycle, cycle[0]])}")
        rest = tuple(node for name, node in left.items() if name not in cycle)
        left = {node.name: node for node in _sorted(Wiring((), rest, ""))[1]}
    return told


def _walk_to_cycle(left: Mapping[str, WiringNode]) -> list[str]:
    """The names on a cycle, in the direction of the data. Each node of `left` reads another of them."""
    path = [next(iter(left))]
    while (name := next(source for source in left[path[-1]].sources if source in left)) not in path:
        path.append(name)
    first, *rest = path[path.index(name) :]
    return [first, *reversed(rest)]


def _unused(wiring: Wiring) -> list[str]:
    """The nodes and inputs that reach neither the output nor a tag."""
    nodes, reached = {node.name: node for node in wiring.nodes}, set[str]()
    open_names = [wiring.output, *(node.name for node in wiring.nodes if node.tag is not None)]
    while open_names:
        name = open_names.pop()
        if name not in reached:
            reached.add(name)
            open_names += nodes[name].sources if name in nodes else ()
    lost = [name for name in nodes if name not in reached]
    read = {source for node in wiring.nodes for source in node.sources} | {wiring.output}
    return [
        *(f"{x}: expected an input that is used, got one that no node reads" for x in wiring.inputs if x not in read),
        *(f"{x}: expected a path to the output, or a tag, got neither: its value is lost" for x in lost),
    ]


def last_uses(wiring: Wiring) -> dict[str, tuple[str, ...]]:
    """By node: the values that nobody needs after it, so that they can be dropped; tagged ones and the output stay.

    Args:
        wiring: In the order of computation.
    """
    kept = {wiring.output, *(node.name for node in wiring.nodes if node.tag is not None)}
    last = {source: node.name for node in wiring.nodes for source in node.sources if source not in kept}
    return {node.name: tuple(s for s in node.sources if last.get(s) == node.name) for node in wiring.nodes}


def bind(who: str, names: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """The value of each input: the first ones by position, the others by name.

    Raises:
        ArgumentError: too many, one that is missing, unknown or given twice.
    """
    by_position = names[: len(args)]
    unknown = [name for name in named if name not in names]
    twice = [name for name in by_position if name in named]
    missing = [name for name in names[len(args) :] if name not in named]
    expected = f"{who}: expected {len(names)} input{'s' * (len(names) != 1)} ({', '.join(names)}), got "
    if len(args) > len(names):
        raise ArgumentError(f"{expected}{len(args)}")
    for what, those in (("an unknown", unknown), ("two values for", twice), ("no value for", missing)):
        if those:
            raise ArgumentError(f"{expected}{what} {', '.join(those)}")
    return [*args, *(named[name] for name in names[len(args) :])]
