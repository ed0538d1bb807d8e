"""The structure of a graph as a hash: equal for equal structure, however it was written down."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from minigrad.graph.plan import Plan
from minigrad.nn.module import Module


@runtime_checkable
class Structured(Protocol):
    """A module that knows the hash of its own structure, as a Graph does."""

    def structure_hash(self) -> str:
        """64 hexadecimal digits."""


def hash_of(plan: Plan, modules: Mapping[str, Module]) -> str:
    """The SHA-256 of a graph's structure, in 64 hexadecimal digits.

    What counts: the inputs and their order; for each node its operation, the class, settings and shapes of its
    module, its tag or label, and what it reads; which parameters are shared; the output. What does not: values,
    dtypes, devices, the order in which side branches were written, and the numbers in names such as "linear_0".

    Args:
        plan: In the order of computation.
        modules: The module of each node that has one.
    """
    digests = {name: _digest(["input", name]) for name in plan.inputs}
    for node in plan.nodes:
        reads = [digests[source] for source in node.inputs]
        named = [[keyword, digests[source]] for keyword, source in node.named]
        what = _describe(modules[node.name]) if node.name in modules else None
        digests[node.name] = _digest([node.op, node.dim, node.tag, node.label, what, reads, named])
    computed = sorted(digests[node.name] for node in plan.nodes)
    return _digest(["graph", list(plan.inputs), computed, _shared(digests, modules), digests[plan.output]])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def _describe(module: Module) -> list[Any]:
    """The class, settings and shapes of a module and of all below it; a graph among them is its hash."""
    parts: list[Any] = []
    closed: tuple[str, ...] = ()  # below these all is told by a hash
    for path, part in module.named_modules(remove_duplicate=False):
        if path.startswith(closed):
            continue
        if isinstance(part, Structured):
            closed += (f"{path}." if path else "",)
            parts.append([path, type(part).__name__, part.structure_hash()])
            continue
        params = [[name, list(p.shape)] for name, p in part.named_parameters(recurse=False, remove_duplicate=False)]
        buffers = [[name, list(b.shape)] for name, b in part.named_buffers(recurse=False, remove_duplicate=False)]
        parts.append([path, type(part).__name__, part.extra_repr(), params, buffers])
    return parts


def _shared(digests: Mapping[str, str], modules: Mapping[str, Module]) -> list[Any]:
    """The places of each parameter that has several."""
    places: dict[int, list[list[str]]] = defaultdict(list)
    for node, module in modules.items():
        for path, param in module.named_parameters(remove_duplicate=False):
            places[id(param)].append([digests[node], path])
    return sorted(sorted(several) for several in places.values() if len(several) > 1)
