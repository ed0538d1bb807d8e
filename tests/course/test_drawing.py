"""Pictures are XML, the same every time, with everything inside them and no texts over each other."""

import math
import xml.etree.ElementTree

import pytest

from minigrad.course import drawing
from minigrad.errors import ArgumentError

SPACE = "{http://www.w3.org/2000/svg}"
PICTURES = {
    "timeline": lambda: drawing.timeline(
        "Steps <&>", [(f"rank {r}", [(0, 2, "forward", "f"), (2, 6 + r, "backward", 'a "b"'), (3, 5, "mine", "")])
                      for r in range(3)]
    ),
    "curves": lambda: drawing.curves("Loss", {f"line {i}": [(0, i), (9, 1.5)] for i in range(11)}, x="step", y="loss"),
    "logarithmic": lambda: drawing.curves(
        "Cost", {"ring": [(2.0**k, 1e-5 + 2.0**k * 1e-9) for k in range(4, 25)]},
        x="bytes", y="s", log_x=True, log_y=True,
    ),
    "columns": lambda: drawing.columns(
        "Calls", {f"model {i}": {"naive": 10.0**i, "buckets": 0.123456, "none": 0} for i in range(7)}, y="calls"
    ),
    "grid": lambda: drawing.grid(
        "Parts", ["rank 0", "rank 1"], [f"part {i}" for i in range(9)], [[("0+1", "sum")] * 9, ["1"] * 9]
    ),
}


@pytest.fixture(params=PICTURES)
def picture(request):
    return xml.etree.ElementTree.fromstring(PICTURES[request.param]())


def boxes(picture):
    """(left, top, right, bottom, text) of each text, about; rather too narrow, so that an overlap is one."""
    for text in picture.iter(f"{SPACE}text"):
        size, x, y = (float(text.get(key)) for key in ("font-size", "x", "y"))
        width = len(text.text) * size * 0.5
        left = x - {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")] * width
        yield left, y - 0.7 * size, left + width, y, text.text


def overlaps(picture):
    found = list(boxes(picture))
    return [
        (a[4], b[4])
        for i, a in enumerate(found)
        for b in found[i + 1:]
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]


@pytest.mark.parametrize("name", PICTURES)
def test_the_same_every_time(name):
    assert PICTURES[name]() == PICTURES[name]()


def test_no_text_lies_over_another(picture):
    assert overlaps(picture) == []


def test_texts_that_overlap_are_seen():
    drawn = xml.etree.ElementTree.fromstring(PICTURES["grid"]())
    drawn.append(next(drawn.iter(f"{SPACE}text")))
    assert len(overlaps(drawn)) == 1


def test_everything_is_inside(picture):
    width, height = float(picture.get("width")), float(picture.get("height"))
    assert picture.get("viewBox") == f"0 0 {width:g} {height:g}"
    for left, top, right, bottom, _ in boxes(picture):
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
    for rectangle in picture.iter(f"{SPACE}rect"):
        x, y, wide, high = (float(rectangle.get(key, 0)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width and 0 <= y <= y + high <= height


def test_a_bar_is_as_long_as_its_time_and_begins_there():
    drawn = xml.etree.ElementTree.fromstring(
        drawing.timeline("", [("a", [(0, 2, "forward", ""), (2, 8, "backward", "")]), ("b", [(5, 8, "forward", "")])])
    )
    colours = {rect.get("fill"): rect for rect in drawn.iter(f"{SPACE}rect") if rect.get("height") == "14.0"}
    assert len(colours) == 2  # the legend
    bars = [(float(rect.get("x")), float(rect.get("width"))) for rect in drawn.iter(f"{SPACE}rect")
            if rect.get("height") == "22.0"]
    [(first, two), (second, six), (third, three)] = bars
    assert two == pytest.approx(six / 3, abs=0.1) and three == pytest.approx(six / 2, abs=0.1)
    assert second == pytest.approx(first + two, abs=0.1) and third == pytest.approx(second + six / 2, abs=0.1)


def test_bars_that_overlap_lie_in_lanes_and_a_long_label_is_a_tooltip():
    drawn = xml.etree.ElementTree.fromstring(
        drawing.timeline("", [("a", [(0, 9, "forward", "in"), (8, 10, "message", "out"), (8.5, 8.6, "x", "long")])])
    )
    tops = [rect.get("y") for rect in drawn.iter(f"{SPACE}rect") if rect.get("height") == "22.0"]
    assert len(set(tops)) == 3
    assert [title.text for title in drawn.iter(f"{SPACE}title")] == ["long"]


def test_a_point_is_where_its_axes_say():
    drawn = xml.etree.ElementTree.fromstring(
        drawing.curves("", {"a": [(1, 1), (10, 10), (100, 100)]}, x="x", y="y", log_x=True, log_y=True)
    )
    [line] = drawn.iter(f"{SPACE}polyline")
    (x0, y0), (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in line.get("points").split())
    assert (x1 - x0, y1 - y0) == (pytest.approx(x2 - x1, abs=0.2), pytest.approx(y2 - y1, abs=0.2))
    texts = drawn.iter(f"{SPACE}text")
    marks = {text.text: float(text.get("x")) for text in texts if text.get("text-anchor") == "middle"}
    assert marks["1"] == pytest.approx(x0, abs=0.1) and marks["100"] == pytest.approx(x2, abs=0.1)


def test_dots_are_not_joined():
    drawn = xml.etree.ElementTree.fromstring(
        drawing.curves("", {"a": [(i, i) for i in range(30)], "b": [(i, i) for i in range(30)]}, x="", y="", dots=["b"])
    )
    assert len(list(drawn.iter(f"{SPACE}polyline"))) == 1 and len(list(drawn.iter(f"{SPACE}circle"))) == 30


def test_columns_are_as_high_as_their_values():
    drawn = xml.etree.ElementTree.fromstring(drawing.columns("", {"a": {"x": 4, "y": 1}, "b": {"x": 2}}, y=""))
    heights = [float(rect.get("height")) for rect in drawn.iter(f"{SPACE}rect")][3:]
    assert heights == pytest.approx([4 * heights[1], heights[1], 2 * heights[1]], abs=0.1)


def test_no_two_kinds_have_one_colour():
    kinds = ["forward", "backward", "all_reduce", "a", "b", "c", "d"]
    drawn = xml.etree.ElementTree.fromstring(drawing.timeline("", [("", [(0, 1, kind, "") for kind in kinds])]))
    assert len({rect.get("fill") for rect in drawn.iter(f"{SPACE}rect") if rect.get("height") == "14.0"}) == len(kinds)


def test_what_xml_may_not_have_is_replaced():
    drawn = xml.etree.ElementTree.fromstring(drawing.grid("a\x00b", ["<r>"], ["&"], [['"']]))
    assert [text.text for text in drawn.iter(f"{SPACE}text")] == ["a\ufffdb", "&", "<r>", '"']


@pytest.mark.parametrize("make, message", [
    (lambda: drawing.timeline("", []), "at least one bar"),
    (lambda: drawing.timeline("", [("a", [(2, 1, "", "")])]), "end after they began"),
    (lambda: drawing.timeline("", [("a", [(0, math.inf, "", "")])]), "ended"),
    (lambda: drawing.curves("", {"a": []}, x="", y=""), "at least one point"),
    (lambda: drawing.curves("", {"a": [(0, 1)]}, x="", y="", log_x=True), "logarithmic"),
    (lambda: drawing.curves("", {"a": [(0, math.nan)]}, x="", y=""), "y"),
    (lambda: drawing.columns("", {}, y=""), "at least one column"),
    (lambda: drawing.columns("", {"a": {"b": -1.0}}, y=""), "b"),
    (lambda: drawing.grid("", ["a"], ["b"], [["1", "2"]]), "1 rows of 1 cells, got 1 rows of 2"),
])
def test_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
