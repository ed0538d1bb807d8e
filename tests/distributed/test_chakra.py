"""Chakra execution traces, read back by a decoder that shares nothing with what writes them, and run by a simulator."""

import json
import struct
from collections import Counter

import numpy as np
import pytest

from minigrad.distributed import Timeline, run, simulate
from minigrad.distributed.record.nodes import nodes_of, stretches_of
from minigrad.distributed.record.spans import TimeSpan
from minigrad.distributed.simulate import Cluster, Link, RankCost
from minigrad.errors import ArgumentError
from tests.distributed.test_attached import BYTES, LAYERS, cluster, train
from tests.distributed.test_trace import messages

TIMEOUT_S = 10.0
COMPUTE, SEND, RECV, COLLECTIVE = 4, 5, 6, 7  # NodeType
ALL_REDUCE, BARRIER = 0, 9  # CollectiveCommType
# What Chakra's own generator writes for one all-reduce of 1 MiB: examples/workload/microbenchmarks of ASTRA-sim.
THEIRS = bytes.fromhex(
    "07" "0a05302e302e34"
    "49" "1215" + b"all_reduce_16npus_1MB".hex() + "1807"
    "520e" "0a09" + b"is_cpu_op".hex() + "d80100"
    "520d" "0a09" + b"comm_type".hex() + "4800"
    "520f" "0a09" + b"comm_size".hex() + "48808040"
)  # fmt: skip


def varint(data, at):
    """A number, and where the next thing begins."""
    digits = []
    while data[at] & 128:
        digits.append(data[at] - 128)
        at += 1
    digits.append(data[at])
    return sum(digit * 128**place for place, digit in enumerate(digits)), at + 1


def message(data):
    """The values of each field of a message."""
    fields, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key % 8 == 0:
            value, at = varint(data, at)
        elif key % 8 == 1:
            (value,), at = struct.unpack_from("<d", data, at), at + 8
        else:
            assert key % 8 == 2
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length
        fields.setdefault(key // 8, []).append(value)
    return fields


def node(data):
    """A node as plain data, its attributes by name."""
    fields = message(data)
    assert not fields.keys() - {1, 2, 3, 4, 5, 6, 7, 10}
    deps, packed = [], b"".join(fields.get(5, []))
    while packed:
        dep, at = varint(packed, 0)
        deps.append(dep)
        packed = packed[at:]
    (name,), (kind,) = fields[2], fields[3]
    made = {"id": fields.get(1, [0])[0], "name": name.decode(), "type": kind, "deps": deps}
    made |= {"start": fields.get(6, [0])[0], "us": fields.get(7, [0])[0]}
    for each in map(message, fields.get(10, [])):
        ((label,), (value,)) = each.values()
        made[label.decode()] = value.decode() if isinstance(value, bytes) else value
    return made


def read(data):
    """The version of a file, and its nodes."""
    messages, at = [], 0
    while at < len(data):
        length, at = varint(data, at)
        messages.append(data[at : at + length])
        at += length
    assert at == len(data)
    return message(messages[0])[1][0].decode(), [node(each) for each in messages[1:]]


def written(timeline, folder, **options):
    """The nodes of each file."""
    timeline.to_chakra(folder, **options)
    files = sorted(folder.glob("rank.*.et"), key=lambda path: int(path.name.split(".")[1]))
    found = [read(path.read_bytes()) for path in files]
    assert {version for version, _ in found} == {"0.0.4"}
    return [nodes for _, nodes in found]


def simulated(ranks):
    """When each node of each rank ends, in µs: each takes as long as it took; collectives begin together."""
    ends = [{} for _ in ranks]
    calls = [[each for each in nodes if each["type"] == COLLECTIVE] for nodes in ranks]
    partners = {(rank, each["id"]): place for rank, own in enumerate(calls) for place, each in enumerate(own)}
    for _ in range(sum(map(len, ranks))):
        before = sum(map(len, ends))
        for rank, nodes in enumerate(ranks):
            for each in nodes:
                if each["id"] in ends[rank]:
                    continue
                place = partners.get((rank, each["id"]))
                together = [(rank, each)] if place is None else [(r, own[place]) for r, own in enumerate(calls)]
                if any(dep not in ends[r] for r, n in together for dep in n["deps"]):
                    break  # what comes later has to wait as well
                begin = max([ends[r][dep] for r, n in together for dep in n["deps"]], default=each["start"])
                for r, n in together:
                    ends[r][n["id"]] = begin + n["us"]
        if sum(map(len, ends)) == before:
            break
    return ends


def test_the_decoder_reads_what_chakra_writes():
    version, (only,) = read(THEIRS)
    assert version == "0.0.4" and len(THEIRS) == 82
    assert only == {
        "id": 0, "name": "all_reduce_16npus_1MB", "type": COLLECTIVE, "deps": [], "start": 0, "us": 0,
        "is_cpu_op": 0, "comm_type": ALL_REDUCE, "comm_size": 2**20,
    }  # fmt: skip


def test_a_step_of_eight_equal_layers_by_hand(tmp_path):
    """20 ms of forward, 5 ms of backward a layer, then the next step: 3.75 ms of wire for each but the last are hidden.

    The samples go out as backward begins, each bucket as its gradient is ready.
    """
    timeline = Timeline()
    simulate.run(train, cluster(), timeline, "auto", 2)
    for nodes in written(timeline, tmp_path):
        step = [each for each in nodes if each["step"] == 0]
        computing = [each for each in step if each["type"] == COMPUTE]
        assert [(each["name"], each["us"]) for each in computing] == [
            ("forward Sequential", 20000), *[(f"backward {i}.weight", 5000) for i in reversed(range(LAYERS))]
        ]  # fmt: skip
        calls = [each for each in step if each["type"] == COLLECTIVE]
        assert [each["name"] for each in calls] == ["samples", *[f"bucket {i}" for i in range(LAYERS)]]
        assert [each["comm_size"] for each in calls] == [24] + [BYTES] * LAYERS
        assert {(each["comm_type"], each["is_cpu_op"]) for each in calls} == {(ALL_REDUCE, 0)}
        assert [each["us"] for each in calls[1:]] == [3750] * LAYERS
        assert [each["start"] for each in calls[1:]] == [25000 + 5000 * i for i in range(LAYERS)]
        ids = [each["id"] for each in computing]
        assert [each["deps"] for each in computing] == [[], *[[each] for each in ids[:-1]]]
        assert calls[0]["deps"] == ids[:1]
        for number, (call, before) in enumerate(zip(calls[1:], calls)):
            assert sorted(call["deps"]) == sorted([ids[number + 1], before["id"]])
        later = next(each for each in nodes if each["step"] == 1)
        assert later["name"] == "forward Sequential" and later["deps"] == [ids[-1], calls[-1]["id"]]


@pytest.mark.parametrize("how", ["auto", "sync_gradients", "overlapped_sync_gradients"])
@pytest.mark.parametrize("slower", [1.0, 1.7])
def test_counts_sizes_and_dependencies_are_those_of_the_record(tmp_path, how, slower):
    """What a simulator makes of them is the recorded run, to the microsecond; of the trace that is made of it, too."""
    timeline = Timeline()
    trace = simulate.run(train, cluster(slower), timeline, how)
    for number, record in enumerate((timeline, trace.timeline)):
        ranks = written(record, tmp_path / str(number))
        zero_s = min(span.began_s for span in record.spans)
        for rank, (nodes, ends) in enumerate(zip(ranks, simulated(ranks))):
            wire = [span for span in record.spans if (span.rank, span.kind) == (rank, "wire")]
            calls = [each for each in nodes if each["type"] == COLLECTIVE]
            assert len(calls) == len(wire)
            assert Counter(c["comm_size"] for c in calls) == Counter(s.fields["sent_bytes"] for s in wire)
            assert [each["id"] for each in nodes] == list(range(len(nodes)))
            assert all(dep < each["id"] for each in nodes for dep in each["deps"])
            assert ends == {each["id"]: each["start"] + each["us"] for each in nodes}
            over_s = max(span.ended_s for span in record.spans if span.rank == rank)
            assert max(ends.values()) == pytest.approx((over_s - zero_s) * 1e6, abs=1.0)
            waited_s = sum(s.seconds for s in record.spans if s.rank == rank and s.kind in ("idle", "exposed", "wait"))
            own = [span for span in record.spans if span.rank == rank and span.kind not in ("wire", "pass")]
            worked_s = max(s.ended_s for s in own) - min(s.began_s for s in own) - waited_s
            assert sum(each["us"] for each in nodes if each["type"] == COMPUTE) == pytest.approx(worked_s * 1e6, abs=40)


def test_on_threads_nothing_comes_before_what_it_comes_after(tmp_path):
    timeline = Timeline()
    run(lambda comm: train(comm, timeline), 2, timeout_s=TIMEOUT_S)
    for rank, nodes in enumerate(written(timeline, tmp_path)):
        wire = [span for span in timeline.spans if (span.rank, span.kind) == (rank, "wire")]
        calls = [each for each in nodes if each["type"] == COLLECTIVE]
        assert sorted(each["comm_size"] for each in calls) == sorted(span.fields["sent_bytes"] for span in wire)
        assert all(after["deps"].count(before["id"]) == 1 for before, after in zip(calls, calls[1:]))
        optimizing = [each for each in nodes if each["name"] == "optimizer"]
        assert len(optimizing) >= 3  # each after all buckets of its pass
        for each in nodes:
            for dep in each["deps"]:
                assert nodes[dep]["start"] + nodes[dep]["us"] <= each["start"] + 1
        for step in range(3):
            first = next(each for each in nodes if each["step"] == step and each["name"] == "optimizer")
            last = [each for each in calls if each["step"] == step][-1]
            chain, reached = [first], set()
            while chain:
                known = chain.pop()
                reached.add(known["id"])
                chain += [nodes[dep] for dep in known["deps"] if dep not in reached]
            assert last["id"] in reached


def test_messages_and_groups(tmp_path):
    trace = simulate.run(messages, Cluster((RankCost(),) * 4, Link(1e-3, 1e6)))
    ranks = written(trace, tmp_path)
    sent, came = (next(each for each in ranks[r] if each["type"] == t) for r, t in ((0, SEND), (2, RECV)))
    for each in (sent, came):
        assert (each["comm_src"], each["comm_dst"], each["comm_tag"], each["comm_size"]) == (0, 2, 3, 40)
    split, summed = (each for each in ranks[2] if each["type"] == COLLECTIVE)
    assert split["comm_type"] == BARRIER and "pg_name" not in split
    assert (summed["comm_size"], summed["pg_name"]) == (16, "2") and came["id"] in summed["deps"]
    assert json.loads((tmp_path / "groups.json").read_text()) == {"1": [0, 1], "2": [2, 3]}
    with pytest.raises(ArgumentError, match="expected world_size 4, for messages and groups name its ranks, got 8"):
        trace.to_chakra(tmp_path, 8)


def spans_of(*rows):
    """Spans of rank 0: kind, when it began and ended, its step and fields."""
    return [TimeSpan(0, kind, kind, began_s, ended_s, step, fields) for kind, began_s, ended_s, step, fields in rows]


def test_what_is_done_after_a_wait_comes_after_what_was_waited_for():
    """Of two wrappers in one pass the rank waits for the first; the other's bucket is over by then, but goes on."""
    one, other = {"of": "one", "queued_s": 0.0}, {"of": "other", "queued_s": 0.0}
    spans = spans_of(
        ("backward", 0.0, 1.0, 0, {}), ("wire", 1.0, 2.0, 0, other), ("wire", 1.0, 3.0, 0, one),
        ("exposed", 1.0, 3.0, 0, one), ("mine", 3.0, 4.0, 0, {}), ("mine", 4.0, 5.0, 0, {}),
        ("pass", 1.0, 4.0, 0, other), ("pass", 1.0, 5.0, 0, one),
    )  # fmt: skip
    (nodes,) = nodes_of(spans, []).values()
    first, second, third, fourth, fifth = nodes
    assert [n.kind for n in nodes] == ["compute", "collective", "collective", "compute", "compute"]
    assert [n.fields.get("of") for n in nodes[1:3]] == ["other", "one"]
    assert second.after == third.after == [first]
    assert fourth.after == [first, third] and fifth.after == [second, fourth]  # the pass of the other is over


def test_what_is_done_after_a_wait_comes_after_the_messages_that_were_waited_for():
    came = {"of": "one", "collective": "recv", "peer": 1, "tag": 0, "nbytes": 8, "queued_s": 0.0}
    spans = spans_of(
        ("mine", 0.0, 1.0, 0, {}), ("wire", 1.0, 2.0, 0, came), ("wire", 1.0, 2.5, 0, came),
        ("exposed", 1.0, 3.0, 0, {"of": "one"}), ("mine", 3.0, 4.0, 0, {}),
    )  # fmt: skip
    (nodes,) = nodes_of(spans, []).values()
    assert [n.kind for n in nodes] == ["compute", "recv", "recv", "compute"]
    assert nodes[3].after == nodes[:3] and nodes[1].after == nodes[2].after == nodes[:1]


def test_a_step_of_a_trace_comes_after_the_calls_of_the_step_before():
    """Also where they were over before anybody waited; not where they are still under way."""
    spans = spans_of(
        ("compute", 0.0, 2.0, 0, {}), ("wire", 2.0, 3.0, 0, {"queued_s": 0.0}), ("compute", 2.0, 4.0, 1, {}),
        ("wire", 4.0, 7.0, 1, {"queued_s": 0.0}), ("compute", 4.0, 6.0, 2, {}), ("compute", 7.0, 8.0, 3, {}),
    )  # fmt: skip
    (nodes,) = nodes_of(spans, []).values()
    assert [(n.kind[:4], n.name, [each.number for each in n.after]) for n in nodes] == [
        ("comp", "compute compute", []), ("coll", "wire", [0]), ("comp", "compute compute", [0]),
        ("coll", "wire", [1, 2]), ("comp", "compute compute", [1, 2]), ("comp", "not noted", [4]),
        ("comp", "compute compute", [3, 5]),
    ]  # fmt: skip


def at_once(comm):
    for _ in range(3):
        comm.all_reduce(np.zeros(2)).wait()
        comm.clock.compute(10)
        comm.all_reduce(np.zeros(2))
        comm.barrier()


@pytest.mark.parametrize("speeds", [[1, 1], [2, 1]])
def test_calls_that_take_no_time_are_in_order(tmp_path, speeds):
    """Each comes after the one before, and what is computed after all before it, though all is at one moment."""
    for nodes in written(simulate.run(at_once, Cluster.of_speeds(speeds)), tmp_path):
        kinds = [(each["type"], each.get("comm_type")) for each in nodes]
        assert kinds == 3 * [(COLLECTIVE, ALL_REDUCE), (COMPUTE, None), (COLLECTIVE, ALL_REDUCE), (COLLECTIVE, BARRIER)]
        known = {}
        for each in nodes:
            known[each["id"]] = {dep for last in each["deps"] for dep in (last, *known[last])}
        assert all(known[each["id"]] == set(range(each["id"])) for each in nodes)


def test_for_any_world_size(tmp_path):
    """Ranks are repeated: rank 3 does what rank 1 did."""
    timeline = Timeline()
    simulate.run(train, cluster(1.7), timeline)
    two = written(timeline, tmp_path / "two")
    five = written(timeline, tmp_path / "five", world_size=5)
    assert five == [two[0], two[1], two[0], two[1], two[0]] and two[0] != two[1]
    assert written(timeline, tmp_path / "one", world_size=1) == two[:1]
    assert not (tmp_path / "five" / "groups.json").exists()


@pytest.mark.parametrize("spans, cuts, stretches", [
    ([], [], []),
    ([(0, 9, "a"), (2, 4, "b"), (4, 5, "b")], [], [(0, 2, "a"), (2, 5, "b"), (5, 9, "a")]),
    ([(0, 3, "a"), (5, 6, "b")], [], [(0, 3, "a"), (3, 5, None), (5, 6, "b")]),
    ([(0, 6, "a")], [0, 2, 6, 8], [(0, 2, "a"), (2, 6, "a")]),
    ([(0, 6, "a"), (4, 8, "b")], [], [(0, 4, "a"), (4, 8, "b")]),
    ([(0, 6, "a"), (0, 6, "b")], [], [(0, 6, "b")]),
    ([(0, 9, "a"), (1, 5, "b"), (2, 7, "c")], [], [(0, 1, "a"), (1, 2, "b"), (2, 7, "c"), (7, 9, "a")]),
])
def test_stretches(spans, cuts, stretches):
    assert stretches_of(spans, cuts) == stretches
