"""From what a FlowBuilder wrote down to a plan: names are given, tags are looked up, calls are checked."""

from __future__ import annotations

import inspect
import keyword
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minigrad.errors import ArgumentError
from minigrad.graph.plan import Plan, PlanNode
from minigrad.graph.runner import PlanModule
from minigrad.nn.module import Module


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


def name_fault(name: Any) -> str | None:
    """Why something can't be the name of a node; None where it can."""
    if isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_"):
        return None
    return f"expected a Python name that does not begin with an underscore, got {written(name)}"


def written(value: Any) -> str:
    """A value as it stands in a message."""
    return repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__


def plan_of(
    drafts: Sequence[Draft], output: Draft, is_reserved: Callable[[str], bool]
) -> tuple[Plan, dict[str, Module], list[str]]:
    """The plan of what was written, the module of each node, and the faults in names, tags and calls.

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
        nodes.append(PlanNode(name, draft.op, inputs, tuple(named), draft.tag, labels.get(draft), draft.dim))
    given = tuple(names[draft] for draft in drafts if draft.op == "input")
    return Plan(given, tuple(nodes), names[output]), modules, faults


def _call_fault(module: Module, inputs: int, keywords: Sequence[str]) -> str | None:
    """Why a module can't be called with so many values by position and these keywords; None where it can."""
    kind = type(module).__name__
    if type(module).forward is Module.forward:
        return f"expected a module that can be called, got a {kind}, which has no forward()"
    if isinstance(module, PlanModule):
        try:
            module.check_call(inputs, keywords)
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


def _labels(drafts: Sequence[Draft]) -> dict[Draft, str]:
    """The label of each labelled sub-graph, at the first node that it computes."""
    labels: dict[Draft, str] = {}
    seen: set[int] = set()
    for draft in drafts:
        module = draft.module
        if isinstance(module, PlanModule) and module.label is not None and id(module) not in seen:
            seen.add(id(module))
            labels[draft] = module.label
    return labels


def _names(drafts: Sequence[Draft], labels: Mapping[Draft, str]) -> tuple[dict[Draft, str], list[str]]:
    """A name for each node, unique even where the same was wanted twice; that is a fault."""
    names: dict[Draft, str] = {}
    owners: dict[str, Draft] = {}
    faults = []
    counts: Counter[str] = Counter()
    used: set[str] = set()
    for draft in drafts:
        base = draft.op if draft.op != "module" else type(draft.module).__name__.lower().lstrip("_")
        number = counts[base]
        counts[base] += 1
        name = labels.get(draft) or draft.tag or f"{base}_{number}"
        for wanted in dict.fromkeys((name, draft.tag or name)):
            other = owners.setdefault(wanted, draft)
            if other is not draft:
                faults.append(f"{wanted}: expected a name of its own, got that of {other.verb} for {draft.verb} too")
        while name in used:
            name += "'"
        used.add(name)
        names[draft] = name
    return names, faults
