"""Nodes as Chakra execution traces, which simulators of clusters take as their work. Pure.

The schema is `et_def.proto` of MLCommons Chakra (github.com/mlcommons/chakra, schema/protobuf, 6dc63e1; Sridharan et
al., "Chakra: Advancing performance benchmarking and co-design using standardized execution traces", 2023): a file of a
rank is a GlobalMetadata and then its Nodes, each with its length in front. Of the messages are written:

    GlobalMetadata    version 1, attr 2
    Node              id 1, name 2, type 3, data_deps 5, start_time_micros 6, duration_micros 7, attr 10
    AttributeProto    name 1, int32_val 7, int64_val 9, bool_val 27, string_val 29

The attributes are those that Chakra's feeder and ASTRA-sim read: is_cpu_op, comm_type, comm_size, comm_src, comm_dst,
comm_tag, pg_name; and `step` of ours. Sizes are what a rank hands in. The bytes are Protocol Buffers' wire
format (protobuf.dev/programming-guides/encoding). No simulator was tried: by its source, ASTRA-sim (518bd51) takes
all_reduce, all_gather, all_to_all, reduce_scatter and, as a fixed time, broadcast, and refuses other collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from minigrad.distributed.record.nodes import Group, TraceNode

VERSION = "0.0.4"  # of the schema
_TYPES = {"compute": 4, "send": 5, "recv": 6, "collective": 7}
_COLLECTIVES = {"all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5}
_COLLECTIVES |= {"all_to_all": 6, "reduce_scatter": 7, "barrier": 9, "all_gather_object": 2, "split": 9}
_VARINT, _BYTES = 0, 2


def group_names(nodes: Mapping[int, Iterable[TraceNode]]) -> dict[Group, str]:
    """A name for each group of ranks that is not all of them: its number, from 1, as ASTRA-sim has it."""
    groups = sorted({node.group for own in nodes.values() for node in own if node.group})
    return {group: str(number) for number, group in enumerate(groups, 1)}


def trace_of(rank: int, nodes: Iterable[TraceNode], groups: Mapping[Group, str]) -> Iterator[bytes]:
    """The file of a rank, piece by piece.

    Args:
        nodes: Of the rank, in order.
        groups: What `group_names` gave.
    """
    yield _framed(_text(1, VERSION) + _message(2, _text(1, "schema") + _text(29, f"minigrad, Chakra {VERSION}")))
    for node in nodes:
        yield _framed(_node(rank, node, groups))


def _node(rank: int, node: TraceNode, groups: Mapping[Group, str]) -> bytes:
    begin_us, end_us = _us(node.began_ns), _us(node.ended_ns)
    made = _number(1, node.number) + _text(2, node.name or node.kind) + _number(3, _TYPES[node.kind])
    if node.after:
        made += _message(5, b"".join(_varint(each.number) for each in node.after))
    made += _number(6, begin_us) + _number(7, end_us - begin_us)
    return made + b"".join(_message(10, each) for each in _attributes(rank, node, groups))


def _attributes(rank: int, node: TraceNode, groups: Mapping[Group, str]) -> Iterator[bytes]:
    fields = node.fields
    yield _text(1, "is_cpu_op") + _value(27, 0)
    if node.kind == "collective":
        yield _text(1, "comm_type") + _value(9, _COLLECTIVES[fields.get("collective", "all_reduce")])
        yield _text(1, "comm_size") + _value(9, fields.get("sent_bytes", fields.get("nbytes", 0)))
        if node.group:
            yield _text(1, "pg_name") + _text(29, groups[node.group])
    elif node.kind != "compute":
        yield _text(1, "comm_size") + _value(9, fields["nbytes"])
        ends = (rank, fields["peer"]) if node.kind == "send" else (fields["peer"], rank)
        for name, value in zip(("comm_src", "comm_dst", "comm_tag"), (*ends, fields["tag"])):
            yield _text(1, name) + _value(7, value)
    yield _text(1, "step") + _value(9, node.step)


def _us(moment_ns: int) -> int:
    return (moment_ns + 500) // 1000


# -------------------------------------------------------------------------------------------------- wire format


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative number as one of 64 bits."""
    value %= 1 << 64
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _value(field: int, value: int) -> bytes:
    """A number, also where it is 0: one of several that a message may have."""
    return _varint(field << 3 | _VARINT) + _varint(value)


def _number(field: int, value: int) -> bytes:
    """A number, left out where it is 0."""
    return _value(field, value) if value else b""


def _message(field: int, made: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _framed(made)


def _text(field: int, text: Any) -> bytes:
    return _message(field, str(text).encode())


def _framed(made: bytes) -> bytes:
    return _varint(len(made)) + made
