"""Make the page of a run from what `to_json` of a timeline, or of a simulation's trace, wrote."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from minigrad.distributed.inspect.page.document import save_page
from minigrad.distributed.inspect.steps import timeline_of
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate.trace import Trace
from minigrad.errors import ArgumentError


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    about = "what to_json or save wrote; several where each rank wrote its own"
    parser.add_argument("records", nargs="+", type=Path, metavar="run.json", help=about)
    parser.add_argument("-o", "--output", type=Path, help="the page; by default the first record with the ending .html")
    parser.add_argument("--title", help="of the page; by default the name of the first record")


def carry_out(options: argparse.Namespace) -> int:
    """Write the page, and say where.

    Raises:
        ArgumentError: a file holds no record, or two know of the same rank, or the page would take a record's place.
        OSError: a file cannot be read or written.
    """
    records = [record_in(path) for path in options.records]
    output = options.output or options.records[0].with_suffix(".html")
    if output in options.records:
        raise ArgumentError(f"page: expected another file for the page than {str(output)!r}, which holds the record")
    record = Timeline.merged(timeline_of("page", each) for each in records) if len(records) > 1 else records[0]
    save_page(record, output, options.title or options.records[0].stem)
    print(output)
    return 0


def record_in(path: Path) -> Timeline | Trace:
    """What a file holds.

    Raises:
        ArgumentError: there is none.
        OSError: it cannot be read.
    """
    text = path.read_bytes().decode(errors="replace")
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    form = str(read.get("format")) if isinstance(read, dict) else ""
    if form.startswith("minigrad trace"):
        return Trace.from_json(text)
    if form.startswith("minigrad timeline"):
        return Timeline.from_json(text)
    raise ArgumentError(f"page: expected a file of a timeline, or of a trace, as to_json writes it, got {str(path)!r}")
