"""Pictures of a graph: text, a table, and Graphviz's DOT language."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from minigrad.graph.wiring import WiringNode
from minigrad.graph.profile import NodeTime
from minigrad.graph.wired import Wired

_INDENT = "  "
_GAP = "  "


def _inside(graph: Wired, name: str) -> Wired | None:
    """The sub-graph that computes a node; None where another module does, or none."""
    module = graph.module_of(name)
    return module if isinstance(module, Wired) else None


def _what(graph: Wired, node: WiringNode) -> str:
    """What computes a node, in a few words: a class with its settings, or with the classes that it holds."""
    if node.op != "module":
        return f"merge {node.op}" + ("" if node.dim is None else f" along axis {node.dim}")
    module = graph.get_submodule(node.name)
    kind = type(module).__name__
    if isinstance(module, Wired):
        return f"{kind} {module.structure_hash()[:8]}"
    inside = ", ".join(type(child).__name__ for child in module.children())
    return f"{kind}[{inside}]" if inside else f"{kind}({module.extra_repr()})"


def _reads(node: WiringNode) -> str:
    return ", ".join([*node.inputs, *(f"{keyword}={source}" for keyword, source in node.named)])


def _title(graph: Wired) -> str:
    count = graph.num_parameters()
    flow = f"{graph.label or 'graph'}({', '.join(graph.input_names)}) -> {graph.wiring.output}"
    return f"{flow}, structure {graph.structure_hash()[:8]}, {count:,} parameter{'s' * (count != 1)}"


def node_texts(graph: Wired) -> dict[str, str]:
    """By dotted path: what each node is and what it reads, also below."""
    return {path: f"{_what(owner, node)} <- {_reads(node)}" for path, owner, node in _walk(graph, "")}


def _walk(graph: Wired, prefix: str) -> Iterator[tuple[str, Wired, WiringNode]]:
    """Every node with its dotted path and the graph that has it; those of a sub-graph follow it."""
    for node in graph.wiring.nodes:
        yield prefix + node.name, graph, node
        inside = _inside(graph, node.name)
        if inside is not None:
            yield from _walk(inside, f"{prefix}{node.name}.")


def _shown(path: str, node: WiringNode) -> str:
    """The name of a node as it is shown: indented by its depth, with a tag that is not its name."""
    tag = f" [{node.tag}]" if node.tag not in (None, node.name) else ""
    return _INDENT * path.count(".") + node.name + tag


def to_text(graph: Wired) -> str:
    """See `GraphModule.to_text`."""
    rows = [(_shown(path, node), _what(owner, node), f"<- {_reads(node)}") for path, owner, node in _walk(graph, "")]
    return "\n".join([_title(graph), *_table(rows)])


def summary(graph: Wired) -> str:
    """See `GraphModule.summary`."""
    header = ("node", "what", "reads", "parameters", "trained")
    rows = [(_shown(path, n), _what(of, n), _reads(n), *_counts(of, n)) for path, of, n in _walk(graph, "")]
    return "\n".join([_title(graph), *_table([header, *rows])])


def _counts(owner: Wired, node: WiringNode) -> tuple[str, str]:
    if node.op != "module":
        return "0", "-"
    module = owner.get_submodule(node.name)
    count, trained = module.num_parameters(), module.num_parameters(trainable_only=True)
    return f"{count:,}", ("yes" if trained == count else "in part" if trained else "no") if count else "-"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of columns that are as wide as their widest field."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return (_GAP.join(field.ljust(width) for field, width in zip(row, widths)).rstrip() for row in rows)


# -------------------------------------------------------------------------------------------------------------- DOT


def to_dot(graph: Wired, times: Mapping[str, NodeTime]) -> str:
    """See `GraphModule.to_dot`."""
    lines = [f"digraph {_quoted(graph.label or 'graph')} {{", f"{_INDENT}node [shape=box, fontname=monospace]"]
    lines += [_INDENT + line for line in _dot_body(graph, "", times)]
    output = _origin(graph, "", graph.wiring.output)
    lines += [f'{_INDENT}"output" [shape=ellipse]', f'{_INDENT}{_quoted(output)} -> "output"', "}"]
    return "\n".join(lines)


def _dot_body(graph: Wired, prefix: str, times: Mapping[str, NodeTime]) -> Iterator[str]:
    slowest = max((time.total_s for time in times.values()), default=0.0)
    yield from (f"{_quoted(prefix + name)} [label={_quoted(name)}, shape=ellipse]" for name in graph.input_names)
    for node in graph.wiring.nodes:
        path, shown = prefix + node.name, _shown(node.name, node)
        inside = _inside(graph, node.name)
        if inside is None:
            text = f"{shown}\n{_what(graph, node)}"
            yield f"{_quoted(path)} [label={_quoted(text)}{_colour(times.get(path), slowest)}]"
        else:
            yield f"subgraph {_quoted(f'cluster_{path}')} {{"
            yield f"{_INDENT}label={_quoted(shown)}"
            yield from (_INDENT + line for line in _dot_body(inside, f"{path}.", times))
            yield "}"
        yield from _edges(graph, prefix, node, inside)


def _edges(graph: Wired, prefix: str, node: WiringNode, inside: Wired | None) -> Iterator[str]:
    """An arrow for each value that a node reads; those into a sub-graph end at its inputs."""
    reads = [*((source, "") for source in node.inputs), *((source, keyword) for keyword, source in node.named)]
    for position, (source, keyword) in enumerate(reads):
        target, label = prefix + node.name, f" [label={_quoted(keyword)}]" if keyword else ""
        if inside is not None:
            target, label = f"{target}.{keyword or inside.input_names[position]}", ""
        yield f"{_quoted(_origin(graph, prefix, source))} -> {_quoted(target)}{label}"


def _origin(graph: Wired, prefix: str, name: str) -> str:
    """The box from which the value of a node comes: of a sub-graph, that of its output."""
    inside = _inside(graph, name)
    while inside is not None:
        graph, prefix = inside, f"{prefix}{name}."
        name = graph.wiring.output
        inside = _inside(graph, name)
    return prefix + name


def _colour(time: NodeTime | None, slowest: float) -> str:
    if time is None or not slowest:
        return ""
    return f', style=filled, fillcolor="0.000 {time.total_s / slowest:.3f} 1.000", tooltip="{time.mean_s * 1e3:.3f} ms"'


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
