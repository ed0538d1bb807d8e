"""Pictures as the text of an SVG: the same text for the same figures, without a font, a library or a clock.

What has to be read apart is coloured by its kind, which the legend names; a kind that the course shows often has one
colour on all pages. Texts of the caller are escaped.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from minigrad.arguments import check_real
from minigrad.errors import ArgumentError

Bar = tuple[float, float, str, str]
Cell = str | tuple[str, str]

WIDTH = 960.0
_SIZE, _LINE, _MARGIN = 14.0, 22.0, 20.0
_RIGHT = WIDTH - _MARGIN - 30  # where axes end: half of what is written below the last place still fits
_CHARACTER = 0.58  # how wide one is, in sizes of the font; a little more than those of common fonts
_KINDS = {
    "forward": "#8ecae6",
    "backward": "#4a90d9",
    "all_reduce": "#f4a259",
    "message": "#f4a259",
    "waiting": "#d9d9d9",
    "step": "#90be6d",
    "wrong": "#e76f6f",
    "": "#ffffff",
}
_PALETTE = ("#4a90d9", "#f4a259", "#90be6d", "#b07cc6", "#e76f6f", "#4db6ac", "#c9a227", "#7f8fa6")
_DASHES = ("", "7 4", "2 4", "10 4 2 4")


def timeline(title: str, rows: Sequence[tuple[str, Sequence[Bar]]], *, unit: str = "ms") -> str:
    """Who did what when: a row for each name, a bar for each stretch of time.

    Bars of one row that overlap lie below each other. A label that does not fit into its bar is a tooltip.

    Args:
        rows: (name, bars) each, a bar (began, ended, kind, label); times in `unit`.
        unit: What the axis is in.

    Returns:
        An SVG.

    Raises:
        ArgumentError: no bar at all; a bar that ends before it began; a time that is not finite.

    Example:
        >>> picture = timeline("One step", [("rank 0", [(0, 2, "forward", ""), (2, 6, "backward", "4 ms")])])
        >>> picture.count("<rect"), "4 ms" in picture, "backward" in picture
        (5, True, True)
    """
    bars = [bar for _, of_row in rows for bar in of_row]
    if not bars:
        raise ArgumentError("timeline: expected at least one bar, got none")
    for began, ended, _, label in bars:
        check_real("timeline", began=began, ended=ended)
        if ended < began:
            raise ArgumentError(f"timeline: expected bars that end after they began, got {began} to {ended}: {label!r}")
    colours = _colours_of(kind for _, _, kind, _ in bars)
    left = _MARGIN + max(_width(name) for name, _ in rows) + 10
    drawing = _Drawing(title)
    drawing.legend(colours)
    axis = _Axis(min(0.0, *(bar[0] for bar in bars)), max(bar[1] for bar in bars), left, _RIGHT)
    top = drawing.bottom
    for name, of_row in rows:
        lanes = _lanes(of_row)
        height = 26.0 * max(lanes, default=0) + 26
        drawing.text(_MARGIN, drawing.bottom + height / 2 + 5, name)
        for (began, ended, kind, label), lane in zip(of_row, lanes):
            drawing.bar(axis.at(began), drawing.bottom + 26 * lane, axis.at(ended), 22, colours[kind], label)
        drawing.bottom += height + 8
    drawing.axis_below(axis, top, unit)
    return drawing.finish()


def curves(
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    dots: Collection[str] = (),
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """One line for each name through its points.

    Args:
        lines: The points (x, y) of each, in order.
        x: What the axis below says, with its unit; `y`: what the one on the left says.
        dots: The names whose points are not joined.
        log_x: Whether the axis is logarithmic; `log_y` likewise. Values are > 0 then.

    Returns:
        An SVG.

    Raises:
        ArgumentError: no point at all; a value that is not finite, or not > 0 on a logarithmic axis.

    Example:
        >>> curves("Loss", {"sgd": [(0, 2.3), (1, 1.1)]}, x="step", y="loss").count("<polyline")
        1
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ArgumentError("curves: expected at least one point, got none")
    for x_value, y_value in points:
        check_real("curves", x=x_value, y=y_value)
        if (log_x and x_value <= 0) or (log_y and y_value <= 0):
            raise ArgumentError(f"curves: expected values > 0 on a logarithmic axis, got {(x_value, y_value)}")
    colours = {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(lines)}
    drawing = _Drawing(title)
    drawing.legend(colours)
    top, height = drawing.bottom + _LINE, 320.0
    drawing.text(_MARGIN, drawing.bottom + 12, y)
    upward = _Axis(*_span(points, 1, log_y), top + height, top, log_y)
    left = _MARGIN + max(_width(text) for _, text in upward.ticks) + 14
    across = _Axis(*_span(points, 0, log_x), left, _RIGHT, log_x)
    for place, text in upward.ticks:
        drawing.line(left, place, _RIGHT, place, "#e3e3e3")
        drawing.text(left - 8, place + 5, text, "end")
    drawing.bottom = top + height
    drawing.axis_below(across, top, x)
    for i, (name, line) in enumerate(lines.items()):
        places = [(across.at(a), upward.at(b)) for a, b in line]
        if name not in dots:
            drawing.polyline(places, colours[name], _DASHES[i // len(_PALETTE) % len(_DASHES)])
        if name in dots or len(places) <= 24:
            drawing.dots(places, colours[name])
    return drawing.finish()


def columns(title: str, groups: Mapping[str, Mapping[str, float]], *, y: str) -> str:
    """Columns side by side, in groups, each with its value above it.

    Args:
        groups: Name of a group -> name of a column, which gives its colour -> value >= 0.
        y: What the values are, with their unit.

    Returns:
        An SVG.

    Raises:
        ArgumentError: no column at all; a value that is not finite or below 0.

    Example:
        >>> picture = columns("Calls", {"naive": {"small": 6, "large": 120}, "buckets": {"small": 1}}, y="calls")
        >>> ">120</text>" in picture, picture.count("<rect")
        (True, 6)
    """
    names = dict.fromkeys(name for group in groups.values() for name in group)
    if not names:
        raise ArgumentError("columns: expected at least one column, got none")
    for of_group in groups.values():
        for name, value in of_group.items():
            check_real("columns", 0.0, **{name: value})
    colours = {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(names)}
    most = max(value for group in groups.values() for value in group.values()) or 1.0
    one = max(_width(_figure(value)) + 8 for group in groups.values() for value in group.values())
    widths = {group: max(one * len(groups[group]), _width(group)) + 24 for group in groups}
    stretch = max(1.0, (WIDTH - 2 * _MARGIN) / sum(widths.values()))
    drawing = _Drawing(title, max(WIDTH, sum(widths.values()) + 2 * _MARGIN))
    drawing.legend(colours)
    drawing.text(_MARGIN, drawing.bottom + 12, y)
    base, left = drawing.bottom + 320, _MARGIN
    for group, of_group in groups.items():
        wide = min(one * stretch, 110.0)
        place = left + (widths[group] * stretch - wide * len(of_group)) / 2
        for name, value in of_group.items():
            height = 260 * value / most
            drawing.rectangle(place + 3, base - height, wide - 6, height, colours[name])
            drawing.text(place + wide / 2, base - height - 6, _figure(value), "middle")
            place += wide
        drawing.text(left + widths[group] * stretch / 2, base + 20, group, "middle")
        left += widths[group] * stretch
    drawing.line(_MARGIN, base, left, base, "#555555")
    drawing.bottom = base + 30
    return drawing.finish()


def grid(title: str, rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[Cell]]) -> str:
    """A table of coloured cells: who holds what, what comes in which order.

    Args:
        rows: The names on the left; `columns`: those above.
        cells: One sequence a row, of a text or (text, kind) for each column; cells of one kind have one colour.

    Returns:
        An SVG.

    Raises:
        ArgumentError: not one cell for each row and column.

    Example:
        >>> picture = grid("Parts", ["rank 0", "rank 1"], ["a", "b"], [["1", ("2", "sum")], [("3", "sum"), "4"]])
        >>> picture.count("<rect"), ">sum<" in picture
        (6, True)
    """
    if [len(row) for row in cells] != [len(columns)] * len(rows) or not columns or not rows:
        found = f"{len(cells)} rows of {', '.join(str(len(row)) for row in cells) or 'nothing'}"
        raise ArgumentError(f"grid: expected {len(rows)} rows of {len(columns)} cells, got {found}")
    table = [[(cell, "") if isinstance(cell, str) else cell for cell in row] for row in cells]
    colours = _colours_of(kind for row in table for _, kind in row)
    left = _MARGIN + max(map(_width, rows)) + 12
    texts = [*columns, *(text for row in table for text, _ in row)]
    wide = max(max(_width(text) + 14 for text in texts), min(150.0, (WIDTH - left - _MARGIN) / len(columns)))
    drawing = _Drawing(title, max(WIDTH, left + wide * len(columns) + _MARGIN))
    drawing.legend({kind: colour for kind, colour in colours.items() if kind})
    for i, name in enumerate(columns):
        drawing.text(left + wide * (i + 0.5), drawing.bottom + 14, name, "middle")
    drawing.bottom += _LINE
    for name, row in zip(rows, table):
        drawing.text(left - 10, drawing.bottom + 20, name, "end")
        for i, (text, kind) in enumerate(row):
            drawing.rectangle(left + wide * i, drawing.bottom, wide - 2, 28, colours[kind], "#bbbbbb")
            drawing.text(left + wide * (i + 0.5), drawing.bottom + 19, text, "middle")
        drawing.bottom += 30
    return drawing.finish()


class _Axis:
    """Where a value is drawn, and which values are written beside it.

    Attributes:
        ticks: (place, text) of those.
    """

    def __init__(self, least: float, most: float, start: float, end: float, log: bool = False) -> None:
        self._log = log
        if log:
            low, high = math.floor(math.log10(least) + 1e-9), math.ceil(math.log10(most) - 1e-9)
            low, high = (low, high) if low < high else (low, low + 1)
            every = max(1, math.ceil((high - low) / 8))
            values = [10.0**power for power in range(low, high + 1, every)]
            self._least, self._most = float(low), float(high)
        else:
            step = _step((most - least) or 1.0)
            low, high = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
            values = [step * i for i in range(low, max(high, low + 1) + 1)]
            self._least, self._most = values[0], values[-1]
        self.start, self.end = start, end
        self.ticks = [(self.at(value), _figure(value)) for value in values]

    def at(self, value: float) -> float:
        """The place of a value."""
        value = math.log10(value) if self._log else value
        return self.start + (self.end - self.start) * (value - self._least) / (self._most - self._least)


class _Drawing:
    """The parts of a picture, from above to below.

    Attributes:
        bottom: Down to where it is full.
    """

    def __init__(self, title: str, width: float = WIDTH) -> None:
        self._title, self._parts = _clean(title), [""]
        self._width = max(width, _width(title, 18) + 2 * _MARGIN)
        self.text(_MARGIN, 32, title, size=18)
        self.bottom = 48.0

    def text(self, x: float, y: float, text: str, anchor: str = "start", size: float = _SIZE) -> None:
        """Write."""
        at = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"'
        self._parts.append(f"<text {at}>{_clean(text)}</text>")

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str, edge: str = "#555555") -> None:
        """Draw a filled one."""
        size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self._parts.append(f'<rect {size} fill="{fill}" stroke="{edge}" stroke-width="0.8"/>')

    def line(self, x: float, y: float, to_x: float, to_y: float, colour: str) -> None:
        """Draw a thin one."""
        ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
        self._parts.append(f'<line {ends} stroke="{colour}" stroke-width="1"/>')

    def bar(self, began: float, y: float, ended: float, height: float, fill: str, label: str) -> None:
        """Draw one of a timeline, its label inside where there is room, else as a tooltip."""
        fits = _width(label) + 4 <= ended - began
        if label and not fits:
            self._parts.append(f"<g><title>{_clean(label)}</title>")
        self.rectangle(began, y, max(ended - began, 0.8), height, fill)
        if label and fits:
            self.text((began + ended) / 2, y + height / 2 + 5, label, "middle")
        elif label:
            self._parts.append("</g>")

    def polyline(self, places: Sequence[tuple[float, float]], colour: str, dashes: str) -> None:
        """Draw a line through places."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"{dashed}/>')

    def dots(self, places: Sequence[tuple[float, float]], colour: str) -> None:
        """Draw a dot at each place."""
        self._parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]

    def legend(self, colours: Mapping[str, str]) -> None:
        """Name what the colours are, in as many lines as it takes; nothing where there are none."""
        left = _MARGIN
        for name, colour in colours.items():
            if left > _MARGIN and left + 30 + _width(name) > self._width - _MARGIN:
                left, self.bottom = _MARGIN, self.bottom + _LINE
            self.rectangle(left, self.bottom, 14, 14, colour)
            self.text(left + 20, self.bottom + 12, name)
            left += 44 + _width(name)
        self.bottom += 30 if colours else 0

    def axis_below(self, axis: _Axis, top: float, name: str) -> None:
        """Draw the axis of what was drawn from `top` to here, its name at the end."""
        self.line(axis.start, self.bottom, axis.end, self.bottom, "#555555")
        self._parts.insert(1, "".join(f'<path d="M{x:.1f} {top:.1f}V{self.bottom:.1f}" stroke="#e3e3e3"/>'
                                      for x, _ in axis.ticks))
        last = -math.inf
        for place, text in axis.ticks:
            if place - _width(text) / 2 >= last:
                self.text(place, self.bottom + 18, text, "middle")
                last = place + _width(text) / 2 + 6
        self.text(axis.end, self.bottom + 38, name, "end")
        self.bottom += 44

    def finish(self) -> str:
        """All of it, on a light ground."""
        width, height = f"{self._width:.0f}", f"{self.bottom + 16:.0f}"
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        says = f'role="img" aria-label="{self._title}" font-family="sans-serif" fill="#222222"'
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {says}>',
            f'<rect width="{width}" height="{height}" fill="#fdfdfb"/>',
            *self._parts[1:],
            "</svg>\n",
        ])


def _clean(text: str) -> str:
    """A text as XML may have it."""
    return html.escape(re.sub(r"[^\t\n\r -\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]", "\uFFFD", text))


def _width(text: str, size: float = _SIZE) -> float:
    """How wide a text is, about."""
    return len(text) * size * _CHARACTER


def _figure(value: float) -> str:
    """A value in four digits."""
    if abs(value) >= 1000 and not value % 1:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.0e}"
    return f"{value:.4g}" if 1e-4 <= abs(value) < 1e4 or not value else f"{value:.3g}"


def _step(span: float) -> float:
    """1, 2 or 5 times a power of ten, of which 4 to 10 are in a span."""
    power = 10.0 ** math.floor(math.log10(span / 4))
    return next(power * times for times in (1, 2, 5, 10) if span / (power * times) <= 10)


def _span(points: Sequence[tuple[float, float]], axis: int, log: bool) -> tuple[float, float]:
    """From where to where an axis goes: from 0 where nothing is below it."""
    values = [point[axis] for point in points]
    return (min(values) if log else min(0.0, *values), max(values))


def _colours_of(kinds: Iterable[str]) -> dict[str, str]:
    """A colour for each kind, in the order in which they come; no two have the same."""
    found = list(dict.fromkeys(kinds))
    taken = {_KINDS[kind] for kind in found if kind in _KINDS}
    free = [colour for colour in _PALETTE if colour not in taken] or list(_PALETTE)
    strangers = [kind for kind in found if kind not in _KINDS]
    return {kind: _KINDS[kind] if kind in _KINDS else free[strangers.index(kind) % len(free)] for kind in found}


def _lanes(bars: Sequence[Bar]) -> list[int]:
    """The lane of each bar: the first in which it overlaps no other."""
    ends: list[float] = []
    found = {}
    for i in sorted(range(len(bars)), key=lambda i: bars[i][:2]):
        began, ended = bars[i][:2]
        lane = next((lane for lane, end in enumerate(ends) if end <= began + 1e-9), len(ends))
        ends[lane:lane + 1] = [ended]
        found[i] = lane
    return [found[i] for i in range(len(bars))]
