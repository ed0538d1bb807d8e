"""The formats of others in which a timeline is written: tables, and traces that other tools open."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from minigrad.arguments import as_integer
from minigrad.distributed.record.chakra import group_names, trace_of
from minigrad.distributed.record.nodes import nodes_of
from minigrad.distributed.record.kineto import rank_trace
from minigrad.distributed.record.perfetto import trace_events
from minigrad.distributed.record.spans import Event, TimeSpan, each_number
from minigrad.errors import ArgumentError
from minigrad.nn.whole_file import replace_file

_COLUMNS = ("rank", "step", "type", "kind", "name", "began_s", "ended_s", "fields")


class Exports:
    """What writes spans and events of all ranks, on one clock and in order, into files.

    Attributes:
        writers: What `save` writes a file by, for each ending; `inspect`, which reads timelines, adds .html.
    """

    writers: ClassVar[dict[str, Callable[[Any, str | os.PathLike[str]], None]]] = {
        ".json": lambda timeline, path: replace_file(path, [timeline.to_json().encode()]),
        ".csv": lambda timeline, path: timeline.to_csv(path),
    }

    def _aligned(self) -> tuple[list[TimeSpan], list[Event]]:
        raise NotImplementedError

    def to_json(self) -> str:
        """The timeline as text."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that its ending names: a page (.html), the text of `to_json` (.json), a table (.csv).

        The page is one file that needs no network: open it in a browser.

        Raises:
            ArgumentError: another ending.

        Example: `timeline.save("run.html")`
        """
        ending = os.path.splitext(path)[1].lower()
        if ending not in self.writers:
            raise ArgumentError(f"Timeline.save: expected a path that ends on {', '.join(self.writers)}, got {path!r}")
        self.writers[ending](self, path)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a table with a row for each span and event; fields are JSON."""
        spans, events = self._aligned()
        rows = [(s.rank, s.step, "span", s.kind, s.name, s.began_s, s.ended_s, s.fields) for s in spans]
        rows += [(e.rank, e.step, "event", e.kind, "", e.at_s, e.at_s, e.fields) for e in events]
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(_COLUMNS)
        for *cells, fields in sorted(rows, key=lambda row: row[5]):
            writer.writerow((*cells, json.dumps(each_number(fields, str))))
        replace_file(path, [text.getvalue().encode()])

    def to_kineto(self, folder: str | os.PathLike[str]) -> None:
        """Write traces as PyTorch's profiler does, `rank0.json` and so on, which HolisticTraceAnalysis reads.

        Its overlap of communication and computation is ours, but for moments that are rounded to microseconds. What a
        rank computes is a kernel there, on this machine's CPU too.

        Args:
            folder: Made where it is not there.

        Example: `timeline.to_kineto("traces")`, then `hta.trace_analysis.TraceAnalysis(trace_dir="traces")`
        """
        spans, _ = self._aligned()
        ranks, where = sorted({span.rank for span in spans}), Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        zero_s = min((span.began_s for span in spans), default=0.0)
        for rank in ranks:
            trace = rank_trace(rank, len(ranks), spans, zero_s)
            replace_file(where / f"rank{rank}.json", [json.dumps(trace, allow_nan=False).encode()])

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write a file that ui.perfetto.dev and chrome://tracing open: a process for each rank, its buckets beside it.

        An arrow goes from when a bucket's last gradient was ready to when the bucket was done.
        """
        replace_file(path, [json.dumps(trace_events(*self._aligned()), allow_nan=False).encode()])

    def to_chakra(self, folder: str | os.PathLike[str], world_size: int | None = None) -> None:
        """Write Chakra execution traces, which simulators of clusters take: rank.0.et and so on, one a rank.

        A node for each stretch of a rank's own work, and for each collective and message, with what it comes after.
        See `record.nodes` and `record.chakra`; not tried in a simulator. Where collectives are of groups, groups.json
        has the ranks of each, by its pg_name.

        Args:
            folder: Made where it is not there.
            world_size: For how many ranks: rank r does what rank r % n of the n recorded ones did. By default for those
                that were recorded.

        Raises:
            ArgumentError: nothing was recorded; or world_size is no integer >= 1, or another number than was recorded,
                where messages or groups name ranks.
        """
        nodes = nodes_of(*self._aligned())
        ranks = list(nodes)
        if not ranks:
            raise ArgumentError("to_chakra: expected spans or events of a rank, got none")
        count = len(ranks) if world_size is None else as_integer("to_chakra", "world_size", world_size, 1)
        groups = group_names(nodes)
        if count != len(ranks) and (groups or any(n.kind in ("send", "recv") for own in nodes.values() for n in own)):
            raise ArgumentError(
                f"to_chakra: expected world_size {len(ranks)}, for messages and groups name its ranks, got {count}"
            )
        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        for rank in range(count):
            shown = ranks[rank] if count == len(ranks) else rank
            replace_file(where / f"rank.{shown}.et", trace_of(shown, nodes[ranks[rank % len(ranks)]], groups))
        if groups:
            table = {name: list(group) for group, name in groups.items()}
            replace_file(where / "groups.json", [json.dumps(table).encode()])
