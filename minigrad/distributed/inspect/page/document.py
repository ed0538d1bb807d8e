"""The page of a run: one HTML file that needs nothing else, neither network nor library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import median

from minigrad.arguments import check_text
from minigrad.distributed.inspect.explain import Explanation, explain
from minigrad.distributed.inspect.page.chart import Chart, Facts, chart_of, notes_of
from minigrad.distributed.inspect.page.curves import curves_of
from minigrad.distributed.inspect.page.drawing import KINDS, WIDTH, class_of, figure_of, picture_of
from minigrad.distributed.inspect.page.frame import framed
from minigrad.distributed.inspect.page.tables import buckets_of, cells_of, figures_of, name_of_note, notes_of_step
from minigrad.distributed.inspect.page.tables import choices_of, totals_of
from minigrad.distributed.inspect.page.words import help_of, sentences_of
from minigrad.distributed.inspect.steps import RankStep, paces_s, steps_of, timeline_of
from minigrad.distributed.inspect.units import time_text
from minigrad.distributed.record.spans import Event
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate.trace import Trace
from minigrad.nn.whole_file import replace_file

MOST_SPANS = 20_000  # that are drawn, so that a browser opens the page at once
_SEEN = 1e-6  # of a step: less is rounding
_CONTROLS = """<div class="controls" id="controls" hidden>
<button type="button" id="before" aria-label="the step before">&#9664;</button>
<label>step <output id="which">{which}</output>
<input type="range" id="slider" min="0" max="{last}" value="{shown}"></label>
<button type="button" id="after" aria-label="the next step">&#9654;</button>
<p id="told" role="status">Point at a bar, or go into the picture and press an arrow key, to read about it here.</p>
</div>"""
_LEGEND = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "compute": "forward and backward",
    "weighted": "handing a bucket in",
    "optimizer": "optimizer",
    "checkpoint": "checkpoint",
    "own": "spans of your own",
    "idle": "waits for ranks",
    "exposed": "waits for the wire",
    "wire": "on the wire",
}


def page_of(record: Timeline | Trace, title: str = "Timeline of a run") -> str:
    """A run as one HTML page, with no reference to anything outside it.

    It has the run in words, a picture of each step with a slider over them, the figures of each rank, buckets with
    their parameters, decisions as notes, curves, and what would help. Where there are more than 20,000 spans, not every
    step is drawn, nor is it looked for what would help; the page says so.

    Args:
        record: A timeline, of all ranks (see `Timeline.gather`), or the trace of a simulation.

    Raises:
        ArgumentError: it is neither, or title is no text.

    Example:
        >>> timeline = Timeline()
        >>> with timeline.span("data"):
        ...     pass
        >>> page_of(timeline).startswith("<!doctype html>")
        True
    """
    timeline = timeline_of("page_of", record)
    check_text("page_of", title=title)
    steps, facts = steps_of(timeline), timeline.facts
    events: dict[int, list[Event]] = {}
    for event in timeline.events:
        events.setdefault(event.step, []).append(event)
    shown = chosen_of(steps)
    long_s = dict(zip(steps, paces_s(steps.values()) if steps else ()))
    charts = [chart_of(each, steps[each], events.get(each, ()), facts, long_s[each]) for each in shown]
    explanation = explain(record) if steps and spans_in(steps) <= MOST_SPANS else None
    text = [_words(timeline, steps, shown, explanation)]
    if charts:
        curves = curves_of(steps, timeline.events)
        across = {step for curve in curves for points in curve.lines.values() for step, _ in points} | steps.keys()
        ends = min(across), max(across)
        text += _steps(charts, events, ends)
        text.append('<section id="curves"><h2>From step to step</h2><div class="curves">')
        text += [*(figure_of(curve, ends) for curve in curves), "</div></section>"]
    text += [_choices(explanation), _totals(timeline), _plans(facts), _decisions(events, len(timeline.ranks))]
    return framed(title, text, script="page.js")


def save_page(record: Timeline | Trace, path: str | os.PathLike[str], title: str = "Timeline of a run") -> None:
    """Write the page of a run into a file; `timeline.save("run.html")` does.

    Args:
        record: A timeline, of all ranks (see `Timeline.gather`), or the trace of a simulation.
        path: Of the file, which is replaced as a whole.

    Raises:
        ArgumentError: record is neither, or title is no text.
    """
    timeline_of("save_page", record)
    replace_file(path, [page_of(record, title).encode()])


def chosen_of(steps: Mapping[int, Mapping[int, RankStep]], most: int = MOST_SPANS) -> list[int]:
    """The numbers of the steps that are drawn: all, or where they have too many spans some at equal distances."""
    numbers, total = list(steps), spans_in(steps)
    if total <= most:
        return numbers
    count = max(1, len(numbers) * most // total)
    if count == 1:
        return numbers[-1:]
    return [numbers[round(each * (len(numbers) - 1) / (count - 1))] for each in range(count)]


def spans_in(steps: Mapping[int, Mapping[int, RankStep]]) -> int:
    """How many spans all steps have."""
    return sum(len(step.spans) for ranks in steps.values() for step in ranks.values())


def _words(
    timeline: Timeline,
    steps: Mapping[int, Mapping[int, RankStep]],
    shown: Sequence[int],
    explanation: Explanation | None,
) -> str:
    said = sentences_of(timeline, steps)
    if explanation is not None:
        said.append(help_of(explanation))
    elif steps:
        said.append("What would help was not looked for in so many spans: explain() does.")
    if len(shown) < len(steps):
        said.append(f"{len(shown)} of {len(steps)} steps are drawn, at equal distances; all figures are of all steps.")
    return f'<section id="summary"><h2>In words</h2><ul class="words">{_items(said)}</ul></section>'


def _items(said: Iterable[str]) -> str:
    return "".join(f"<li>{escape(each)}</li>" for each in said)


def _steps(charts: Sequence[Chart], events: Mapping[int, Sequence[Event]], ends: tuple[int, int]) -> list[str]:
    """Every step, the one that is nearest to the median first in sight."""
    middle = median(chart.pace_s for chart in charts)
    typical = min(range(len(charts)), key=lambda each: abs(charts[each].pace_s - middle))
    used = {class_of(bar.kind) for chart in charts for bar in chart.bars if bar.width > _SEEN}
    keys = [f'<li><b class="key {kind}"></b>{_LEGEND[kind]}</li>' for kind in (*KINDS, "own") if kind in used]
    if any(chart.arrows for chart in charts):
        keys.append("<li><small>arrows: from the rank that came last to one that waited for it</small></li>")
    parts = ['<section id="steps"><h2>Step by step</h2>', f'<ul class="legend">{"".join(keys)}</ul>']
    parts.append(_CONTROLS.format(last=len(charts) - 1, shown=typical, which=charts[typical].number))
    for chart in charts:
        across = WIDTH * (chart.number - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else WIDTH / 2
        about = f'id="step-{chart.number}" data-step="{chart.number}" data-across="{across:g}"'
        parts.append(f'<article class="step" {about}>')
        took, across_all = time_text(chart.pace_s), time_text(chart.seconds)
        drawn = f"; {across_all} from the first moment of any rank in it" if across_all != took else ""
        parts.append(f"<h3>Step {chart.number} <small>{took}{drawn}</small></h3>")
        parts += [picture_of(chart), notes_of_step(chart, events.get(chart.number, ()))]
        parts += [figures_of(chart), buckets_of(chart), "</article>"]
    return [*parts, "</section>"]


def _choices(explanation: Explanation | None) -> str:
    if explanation is None or not explanation.choices:
        return ""
    return f'<section id="choices"><h2>What would help</h2>{choices_of(explanation)}</section>'


def _totals(timeline: Timeline) -> str:
    summary = timeline.summary()
    if not any(rank.calls for rank in summary.ranks):
        return ""
    return f'<section id="totals"><h2>The whole run</h2>{totals_of(summary)}</section>'


def _plans(facts: Facts) -> str:
    cells = cells_of(facts)
    return f'<section id="buckets"><h2>Buckets and their parameters</h2>{cells}</section>' if cells else ""


def _decisions(events: Mapping[int, Sequence[Event]], ranks: int) -> str:
    """Each decision of the run, with its reason."""
    said = []
    for number, own in sorted(events.items()):
        for note in notes_of(own, 0.0, 0.0):
            where = f"step {number}" if number >= 0 else "setting up"
            said.append(f"<li><b>{where}: {escape(name_of_note(note, ranks))}</b> {escape(note.text)}</li>")
    return f'<section id="decisions"><h2>Decisions</h2><ul class="notes">{"".join(said)}</ul></section>' if said else ""
