"""The figures of a page as tables and lists, as HTML; each time is there in full as well. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from minigrad.distributed.inspect.explain import Explanation
from minigrad.distributed.inspect.page.chart import Chart, Facts, Note, held_by
from minigrad.distributed.inspect.page.words import seconds_of
from minigrad.distributed.inspect.steps import BucketTimes, RankStep
from minigrad.distributed.inspect.units import bytes_text, time_text
from minigrad.distributed.record.spans import Event, TimelineSummary

_TOTALS = {"forward_s": "forward", "backward_s": "backward", "compute_s": "computing", "idle_s": "waits for ranks"}
_TOTALS |= {"exposed_s": "waits for the wire", "hidden_s": "wire, hidden"}
_COLUMNS = {
    "wall": "whole step",
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "compute": "forward and backward",
    "optimizer": "optimizer",
    "checkpoint": "checkpoint",
    "own": "own spans",
    "idle": "waits for ranks",
    "exposed": "waits for the wire",
    "hidden": "wire, hidden",
    "other": "not noted",
}
_FEW = 12  # parameters of a bucket that are listed at once


def table(name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls by itself where it is too wide; cells are HTML."""
    heads = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    named = ((row[0], *map(_named, head[1:], row[1:])) for row in rows)
    body = "\n".join("<tr>" + "".join(row) + "</tr>" for row in named)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table>'
        f"<caption>{escape(name)}</caption><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _named(name: str, cell: str) -> str:
    """A cell that knows its column, for where a row is shown as a list."""
    return cell.replace("<td", f'<td data-of="{escape(name)}"', 1)


def name_cell(text: str) -> str:
    """The head of a row."""
    return f'<th scope="row">{escape(text)}</th>'


def time_cell(name: str, seconds: float) -> str:
    """A time, in full under its name."""
    return f'<td data-{name.replace("_", "-")}="{seconds!r}">{time_text(seconds)}</td>'


def totals_of(summary: TimelineSummary) -> str:
    """The seconds of each rank over the whole run; what stats() says, where a wrapper was attached."""
    columns, rows = summary.columns, []
    head = ["rank", "steps", "whole run", *(_TOTALS[name] for name in columns)]
    for each in summary.ranks:
        cells = [name_cell(f"rank {each.rank}"), f"<td>{each.steps}</td>"]
        cells += [time_cell(name, getattr(each, name)) for name in ("wall_s", *columns)]
        overlap = each.overlap_fraction
        cells.append(f'<td data-overlap-fraction="{overlap!r}">{overlap:.0%}</td>')
        cells.append(f"<td>{bytes_text(each.bytes_sent)}</td>")
        rows.append(cells)
    return table("The seconds of each rank, over the run", [*head, "overlap", "sent"], rows)


def choices_of(explanation: Explanation) -> str:
    """The steps as they would be under other choices; see `explain`."""
    rows = []
    for each in explanation.choices:
        saved, word = each.saved_fraction, "less" if each.saved_fraction >= 0.0 else "more"
        times = [time_cell(name, getattr(each, name)) for name in ("before_s", "step_s")]
        cells = [name_cell(each.choice + each.compared), *times]
        rows.append([*cells, f'<td data-saved-fraction="{saved!r}">{abs(saved):.1%} {word}</td>'])
    head = ["choice", "a step as it was, on average", "as it would be", "that is"]
    return table("The recorded steps, replayed under other choices", head, rows)


def figures_of(chart: Chart) -> str:
    """The seconds of each rank in a step."""
    used = [kind for kind in _COLUMNS if any(_seconds(step, kind) for step in chart.ranks.values())]
    rows = []
    for rank, step in chart.ranks.items():
        rows.append([name_cell(f"rank {rank}"), *(time_cell(f"{kind}_s", _seconds(step, kind)) for kind in used)])
    return table(f"Times of step {chart.number}", ["rank", *(_COLUMNS[kind] for kind in used)], rows)


def _seconds(step: RankStep, kind: str) -> float:
    return float(getattr(step, f"{kind}_s")) if kind in ("wall", "hidden") else seconds_of(step, kind)


def buckets_of(chart: Chart) -> str:
    """When each bucket of a step was ready, and on the wire, on the first and on the last rank."""
    found: dict[tuple[str, int, int], list[BucketTimes]] = {}
    for step in chart.ranks.values():
        for bucket in step.buckets:
            found.setdefault((bucket.of, bucket.passed, bucket.bucket), []).append(bucket)
    rows = []
    for (_, passed, number), own in found.items():
        ready = [each.ready_s for each in own if each.ready_s is not None]
        cells = [name_cell(f"bucket {number}"), f"<td>{passed}</td>", f"<td>{bytes_text(own[0].nbytes)}</td>"]
        wire = [stretch for each in own for stretch in each.wire]
        moments = {"ready_first_s": min(ready, default=None), "ready_last_s": max(ready, default=None)}
        moments["wire_s"] = min((began_s for began_s, _ in wire), default=None)
        moments["done_s"] = max((ended_s for _, ended_s in wire), default=None)
        for name, at_s in moments.items():
            cells.append("<td>not seen</td>" if at_s is None else time_cell(name, at_s - chart.began_s))
        rows.append(cells)
    if not rows:
        return ""
    head = ["bucket", "pass", "size", "ready on the first rank", "ready on the last", "wire begins", "done"]
    return table(f"Buckets of step {chart.number}, from its beginning", head, rows)


def notes_of_step(chart: Chart, events: Iterable[Event]) -> str:
    """What was decided and measured in a step, and who waited for whom."""
    said = [f"<b>{escape(name_of_note(note, len(chart.ranks)))}</b> {escape(note.text)}" for note in chart.notes]
    measured = sorted((event for event in events if "value" in event.fields), key=lambda e: (e.kind, e.rank, e.at_s))
    said += [f"<b>{escape(event.kind)}</b> rank {event.rank}: {_plain(event.fields['value'])}" for event in measured]
    for arrow in chart.arrows:
        what = f"rank {arrow.waiting} waited {time_text(arrow.seconds)} for rank {arrow.late}"
        said.append(f"<b>late</b> {escape(f'{what}: {arrow.name}' if arrow.name else what)}")
    return f'<ul class="notes">{"".join(f"<li>{each}</li>" for each in said)}</ul>' if said else ""


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else escape(str(value))


def name_of_note(note: Note, ranks: int) -> str:
    """Its kind, and on which of so many ranks."""
    everywhere = len(note.ranks) == ranks > 1
    named = "all ranks" if everywhere else "rank" + "s" * (len(note.ranks) > 1) + " " + ", ".join(map(str, note.ranks))
    return f"{note.kind}, {named}:"


def cells_of(facts: Facts) -> str:
    """The buckets of each wrapper as cells, as wide as they are big, with their parameters."""
    parts, seen = list[str](), set[str]()
    for about in facts.values():
        for of, plan in about.items():
            if of in seen or not isinstance(plan, Mapping) or "buckets" not in plan:
                continue
            seen.add(of)
            cells = [_cell(number, held_by(about, of, number)) for number in range(len(plan["buckets"]))]
            parts.append(f'<h3>{escape(of)}</h3><ol class="plan">{"".join(cells)}</ol>')
    return "\n".join(parts)


def _cell(number: int, held: Sequence[tuple[str, int]]) -> str:
    nbytes = sum(size for _, size in held)
    names = "".join(f"<li>{escape(name)} <small>{bytes_text(size)}</small></li>" for name, size in held)
    names = f"<ul>{names}</ul>"
    if len(held) > _FEW:
        names = f"<details><summary>{len(held)} parameters</summary>{names}</details>"
    style = f'style="flex-grow:{nbytes}"'
    return f'<li class="bucket" data-bucket="{number}" {style}><b>bucket {number}</b> {bytes_text(nbytes)}{names}</li>'
