"""The picture of a step, and the curves, as HTML. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from minigrad.distributed.inspect.page.chart import LANES, Arrow, Bar, Chart
from minigrad.distributed.inspect.page.curves import Curve, scale_of
from minigrad.distributed.inspect.units import time_text

KINDS = ("data", "forward", "backward", "compute", "weighted", "optimizer", "checkpoint", "idle", "exposed", "wire")
# Pixels: of the axis, of a strip for notes, of a rank's head, of a row of bars, and between lanes and ranks.
AXIS, STRIP, HEAD, ROW, GAP, AFTER = 24, 16, 26, 22, 3, 14
WIDTH, HEIGHT = 1000.0, 120.0  # of a curve, in units of its own
COLOURS = 8


def percent(part: float) -> str:
    """A part of the width, as CSS has it.

    Example:
        >>> percent(0.125), percent(0.0)
        ('12.5%', '0%')
    """
    return f"{100.0 * part:.5f}".rstrip("0").rstrip(".") + "%"


def class_of(kind: str) -> str:
    """What a span's colour goes by: its kind, or that it is a user's own."""
    return kind if kind in KINDS else "own"


def picture_of(chart: Chart) -> str:
    """Axis, notes, ranks and arrows of a step."""
    label = f"Step {chart.number}: arrow keys go from bar to bar"
    parts = [f'<div class="chart" tabindex="0" role="group" aria-label="{label}">']
    parts += ['<div class="axis" aria-hidden="true">', *(_tick(left, text, chart.unit) for left, text in chart.ticks)]
    parts.append("</div>")
    if chart.notes:
        flags = (f'<b class="flag" style="left:{percent(each.left)}"></b>' for each in chart.notes)
        parts.append(f'<div class="strip" aria-hidden="true">{"".join(flags)}</div>')
    by_rank: dict[int, list[Bar]] = {rank: [] for rank in chart.ranks}
    for bar in chart.bars:
        by_rank[bar.rank].append(bar)
    parts += [_rank(chart, rank, bars) for rank, bars in by_rank.items()]
    return "\n".join([*parts, _arrows(chart), "</div>"])


def _tick(left: float, text: str, unit: str) -> str:
    """What stands at a moment; the first one names the unit."""
    name = f"{text} {unit}" if left == 0.0 else text
    side = ' class="last"' if left > 0.94 else ""
    return f'<i{side} style="left:{percent(left)}">{name}</i>'


def _rank(chart: Chart, rank: int, bars: Iterable[Bar]) -> str:
    step = chart.ranks[rank]
    waited = {"ranks": step.idle_s, "wire": step.exposed_s}
    waits = [f"{what} {time_text(seconds)}" for what, seconds in waited.items() if seconds]
    said = [f"works {time_text(step.work_s)}", *(["waits: " + ", ".join(waits)] if waits else [])]
    parts = [f'<div class="rank" data-rank="{rank}"><h4><span>rank {rank} <small>{"; ".join(said)}</small></span></h4>']
    of_lane: dict[str, list[Bar]] = {lane: [] for lane in LANES}
    for bar in bars:
        of_lane[bar.lane].append(bar)
    for lane, own in of_lane.items():
        parts.append(f'<div class="lane {lane}" style="height:{chart.rows[lane] * ROW}px">')
        parts += [_bar(bar) for bar in own]
        parts.append("</div>")
    return "\n".join([*parts, "</div>"])


def _bar(bar: Bar) -> str:
    place = f"left:{percent(bar.left)};width:{percent(bar.width)}" + (f";top:{bar.row * ROW}px" if bar.row else "")
    word, _, number = bar.label.rpartition(" ")
    short = word == "bucket" and number.isdigit()  # where there is little room, its number alone
    label = f"<span><i>bucket </i>{number}</span>" if short else f"<span>{escape(bar.label)}</span>"
    return f'<b class="bar {class_of(bar.kind)}" style="{place}" title="{escape(bar.about)}">{label}</b>'


def _arrows(chart: Chart) -> str:
    """From each rank that came last to those that waited for it, over the whole picture."""
    if not chart.arrows:
        return ""
    lines = [f'<svg class="arrows" width="100%" height="{height_of(chart)}" aria-hidden="true">']
    lines += [_arrow(chart, arrow) for arrow in chart.arrows]
    return "\n".join([*lines, "</svg>"])


def _arrow(chart: Chart, arrow: Arrow) -> str:
    tops, left = tops_of(chart), percent(arrow.left)
    begin, end = tops_of_rank(chart, arrow.late), tops_of_rank(chart, arrow.waiting)
    if end < begin:  # from the edge of one's work to that of the other's waiting
        begin, end = begin + tops["work"], end + tops["wire"] - GAP
    else:
        begin, end = begin + tops["waiting"] - GAP, end + tops["waiting"]
    about = f"rank {arrow.waiting} waited {time_text(arrow.seconds)} for rank {arrow.late}"
    place = f'x1="{left}" x2="{left}" y1="{begin}" y2="{end}"'
    return f'<line {place} marker-end="url(#head)"><title>{escape(about)}</title></line>'


def tops_of(chart: Chart) -> dict[str, int]:
    """Where each lane begins, below the top of its rank."""
    tops, reached = dict[str, int](), HEAD
    for lane in LANES:
        tops[lane] = reached
        reached += chart.rows[lane] * ROW + GAP
    return tops


def tops_of_rank(chart: Chart, rank: int) -> int:
    """Where a rank begins, below the top of the picture."""
    above = AXIS + (STRIP if chart.notes else 0)
    return above + list(chart.ranks).index(rank) * _height_of_rank(chart)


def height_of(chart: Chart) -> int:
    """Of the whole picture."""
    return AXIS + (STRIP if chart.notes else 0) + len(chart.ranks) * _height_of_rank(chart)


def _height_of_rank(chart: Chart) -> int:
    return HEAD + sum(chart.rows[lane] * ROW for lane in LANES) + (len(LANES) - 1) * GAP + AFTER


def figure_of(curve: Curve, steps: tuple[int, int]) -> str:
    """A curve with its axes and the names of its lines.

    Args:
        steps: The first and the last one of the run.
    """
    low, high = scale_of(curve)
    shown = [time_text(each) if curve.unit == "s" else f"{each:.3g}" for each in (high, low)]
    left_out = f" <small>({curve.left_out} not finite, left out)</small>" if curve.left_out else ""
    parts = [f"<figure><figcaption>{escape(curve.name)}{left_out}</figcaption>", '<div class="plot">']
    parts.append(f'<div class="scale" aria-hidden="true"><span>{shown[0]}</span><span>{shown[1]}</span></div>')
    about = f"{curve.name}, from {shown[1]} to {shown[0]}, over steps {steps[0]} to {steps[1]}"
    parts.append(
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none" role="img" aria-label="{escape(about)}">'
    )
    for number, (name, points) in enumerate(curve.lines.items()):
        placed = places_of(points, steps, (low, high))
        parts.append(f'<polyline class="line{number % COLOURS}" data-line="{escape(name)}" points="{placed}"/>')
    parts.append(f'<line class="now" x1="0" x2="0" y1="0" y2="{HEIGHT:g}"/></svg>')
    ends = f"<span>step {steps[0]}</span><span>{steps[1]}</span>"
    parts.append(f'<div class="ends" aria-hidden="true">{ends}</div></div>')
    parts.append(_names_of(curve.lines))
    return "\n".join([*parts, "</figure>"])


def places_of(points: Iterable[tuple[int, float]], steps: tuple[int, int], scale: tuple[float, float]) -> str:
    """The points of a line in the units of its picture; one alone becomes a short stretch, so that it is seen."""
    (first, last), (low, high) = steps, scale
    placed = []
    for step, value in points:
        across = WIDTH * ((step - first) / (last - first) if last > first else 0.5)
        up = (value - low) / (high - low) if high > low else 0.5
        placed.append(f"{across:.2f},{HEIGHT * (1.0 - up):.2f}")
    return " ".join(placed * 2 if len(placed) == 1 else placed)


def _names_of(lines: Mapping[str, object]) -> str:
    keys = (f'<li><b class="key line{n % COLOURS}"></b>{escape(name)}</li>' for n, name in enumerate(lines))
    return f'<ul class="lines">{"".join(keys)}</ul>'
