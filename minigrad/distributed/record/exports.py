"""The formats of others in which a timeline is written: tables, and traces that other tools open."""

from __future__ import annotations

import csv
import io
import json
import os

from minigrad.distributed.record.perfetto import trace_events
from minigrad.distributed.record.spans import Event, TimeSpan, each_number
from minigrad.nn.whole_file import replace_file

_COLUMNS = ("rank", "step", "type", "kind", "name", "began_s", "ended_s", "fields")


class Exports:
    """What writes spans and events of all ranks, on one clock and in order, into files."""

    def _aligned(self) -> tuple[list[TimeSpan], list[Event]]:
        raise NotImplementedError

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

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write a file that ui.perfetto.dev and chrome://tracing open: a process for each rank, its buckets beside it.

        An arrow goes from when a bucket's last gradient was ready to when the bucket was done.
        """
        replace_file(path, [json.dumps(trace_events(*self._aligned()), allow_nan=False).encode()])
