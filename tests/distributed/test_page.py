"""The page of a run: what it shows lies where the record says, in words and figures that are the record's."""

import math
import re
from importlib.resources import files

import pytest
from hypothesis import given, strategies as st

from minigrad.distributed import simulate
from minigrad.distributed.inspect.__main__ import main
from minigrad.distributed.inspect.explain import explain
from minigrad.distributed.inspect.page import page_of, save_page
from minigrad.distributed.inspect.page.chart import in_rows, ticks_of
from minigrad.distributed.inspect.page.document import chosen_of
from minigrad.distributed.inspect.steps import steps_of
from minigrad.distributed.record.spans import Event, TimeSpan
from minigrad.distributed.record.timeline import Timeline
from tests.distributed.page_parts import bars_of, figures_of, parsed, style_of
from tests.distributed.test_attached import BYTES, LAYERS, STEPS, WIRE_S, cluster, train

ONCE = ("forward_s", "backward_s", "idle_s", "exposed_s", "hidden_s")


def simulated(slower):
    timeline = Timeline()
    trace = simulate.run(train, cluster(slower), timeline)
    return timeline, trace


@pytest.fixture(scope="module")
def late():
    """Rank 1 needs 10 ms a layer, rank 0 needs 5: it waits 6.25 ms for each bucket but the first two."""
    return simulated(2.0)


def noted(spans=(), events=()):
    """A timeline of (rank, kind, name, began_s, ended_s, step, fields) and (rank, kind, at_s, step, fields)."""
    return Timeline.of([TimeSpan(*each) for each in spans], [Event(*each) for each in events], "one")


def test_bars_of_eight_equal_layers_by_hand():
    """20 ms of forward, 5 ms of backward a layer, 3.75 ms of wire a bucket: 63.75 ms in all."""
    timeline, _ = simulated(1.0)
    bars = [bar for bar in bars_of(parsed(page_of(timeline))) if (bar.step, bar.rank) == (1, 1)]
    whole_s = 0.02 + 0.005 * LAYERS + WIRE_S
    found = {(bar.lane, bar.label): (bar.left, bar.width) for bar in bars}
    assert found["work", "Sequential"] == pytest.approx((0.0, 0.02 / whole_s), abs=1e-6)
    for number in range(LAYERS):
        begin_s = 0.02 + 0.005 * number
        leaf, wire = found["work", f"{LAYERS - 1 - number}.weight"], found["wire", f"bucket {number}"]
        assert leaf == pytest.approx((begin_s / whole_s, 0.005 / whole_s), abs=1e-6)
        assert wire == pytest.approx(((begin_s + 0.005) / whole_s, WIRE_S / whole_s), abs=1e-6)
    last = f"bucket {LAYERS - 1}"
    assert found["waiting", last] == pytest.approx((1.0 - WIRE_S / whole_s, WIRE_S / whole_s), abs=1e-6)
    assert {bar.top for bar in bars} == {0.0} and [bar.label for bar in bars if bar.lane == "waiting"] == [last]
    [about] = [bar.about for bar in bars if (bar.lane, bar.label) == ("wire", "bucket 3")]
    assert about == "on the wire: bucket 3: 3.75 ms, from 40.0 ms to 43.8 ms; 1.00 KiB of 4.weight"


def record(draw):
    """Spans of two ranks in two steps, as they come; some take no time, some overlap, names are what users type."""
    kinds = ["data", "forward", "backward", "weighted", "optimizer", "mine", "idle", "exposed", "wire", "pass"]
    spans = []
    for rank in range(2):
        for step in range(2):
            for _ in range(draw(st.integers(1, 6))):
                begin, length = draw(st.integers(0, 50)) / 7, draw(st.integers(0, 20)) / 7
                name = draw(st.sampled_from(["", "fc", "</script><b>", "a&b\"'"]))
                spans.append((rank, draw(st.sampled_from(kinds)), name, 10 * step + begin, 10 * step + begin + length))
                spans[-1] = TimeSpan(*spans[-1], step, {})
    return spans


@given(st.composite(record)())
def test_each_span_is_one_bar_where_the_record_says(spans):
    page = page_of(Timeline.of(spans, [], "one"))
    bars = list(bars_of(parsed(page)))
    steps = steps_of(Timeline.of(spans, [], "one"))
    wanted = []
    for number, ranks in steps.items():
        begin = min(step.began_s for step in ranks.values())
        here = [span for step in ranks.values() for span in step.spans]
        ends = [step.ended_s for step in ranks.values()] + [s.ended_s for s in here if s.kind != "pass"]
        whole = max(ends) - begin
        for span in here:
            if span.kind != "pass" and span.ended_s > span.began_s:
                lane = {"idle": "waiting", "exposed": "waiting", "wire": "wire"}.get(span.kind, "work")
                kind = "own" if span.kind == "mine" else span.kind
                place = round((span.began_s - begin) / whole, 5), round(span.seconds / whole, 5)
                wanted.append((number, span.rank, lane, kind, *place))
    found = [(*bar[:4], round(bar.left, 5), round(bar.width, 5)) for bar in bars]
    assert len(found) == len(wanted)
    for one, other in zip(sorted(found), sorted(wanted)):
        assert one[:4] == other[:4] and one[4:] == pytest.approx(other[4:], abs=3e-5)
    rows = {}
    for bar in bars:
        rows.setdefault((bar.step, bar.rank, bar.lane, bar.top), []).append((bar.left, bar.left + bar.width))
    for own in map(sorted, rows.values()):
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in zip(own, own[1:]))
    assert "</script><b>" not in page


def test_one_thing_after_the_other_is_on_the_wire_of_a_trace(late):
    """Of what all have called while the wire was busy too; it is as long as the steps say that the wire worked."""
    bars = [bar for bar in bars_of(parsed(page_of(late[1]))) if bar.lane == "wire" and bar.rank == 1]
    assert len(bars) == STEPS * (LAYERS + 1) and {bar.top for bar in bars} == {0}
    for number, step in enumerate(late[1].ranks[1].steps):
        part = sum(bar.width for bar in bars if bar.step == number)
        assert part == pytest.approx((step.exposed_s + step.hidden_s) / (step.end_s - step.begin_s), rel=1e-3)


def test_what_lies_in_another_span_is_drawn_below_it():
    times = {"in": (1, 2), "net": (0, 3), "two": (2, 3)}
    spans = [TimeSpan(0, "forward", name, *each, 0, {}) for name, each in times.items()]
    assert [(row, span.name) for row, span in in_rows(spans)] == [(0, "net"), (1, "in"), (1, "two")]


@pytest.mark.parametrize(
    "seconds, unit, ticks",
    [(0.0637, "ms", "0 20 40 60"), (1.0, "s", "0 0.2 0.4 0.6 0.8 1"), (5e-6, "µs", "0 1 2 3 4 5")],
)
def test_ticks_are_round_numbers_where_they_belong(seconds, unit, ticks):
    found_unit, found = ticks_of(seconds)
    assert (found_unit, " ".join(text for _, text in found)) == (unit, ticks)
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[unit]
    assert [left for left, _ in found] == pytest.approx([float(text) * scale / seconds for _, text in found])


def test_figures_are_those_of_stats_and_of_the_timeline_to_the_last_digit(late):
    timeline, trace = late
    root = parsed(page_of(timeline))
    for rank, stats in enumerate(trace.results):
        whole = figures_of(root, "totals", f"rank {rank}")
        assert [whole[name] for name in ONCE] == [getattr(stats, name) for name in ONCE]
        assert whole["overlap_fraction"] == stats.overlap_fraction
        for number, ranks in steps_of(timeline).items():
            shown = figures_of(root, "steps", f"rank {rank}", number)
            assert len(shown) >= 5
            assert all(value == getattr(ranks[rank], name) for name, value in shown.items())
            of_trace = trace.ranks[rank].steps[number]
            for name in ("idle_s", "exposed_s", "hidden_s"):
                assert shown[name] == pytest.approx(getattr(of_trace, name), abs=1e-15)


@pytest.mark.parametrize("which", ["timeline", "trace"])
def test_arrows_go_from_who_was_late_to_who_waited(late, which):
    """Rank 1 has layer k at 40 + 10 (k + 1) ms; rank 0 is through at 60 ms, and each 3.75 ms later it waits again."""
    root = parsed(page_of(late[which == "trace"]))
    article = next(each for each in root.find("article") if each.attrs["data-step"] == "1")
    found = [(line.attrs["x1"], line.text) for line in article.find("line") if "marker-end" in line.attrs]
    whole_ms, came_ms = 40 + 10 * LAYERS + 1e3 * WIRE_S, [40 + 10 * (k + 1) for k in range(2, LAYERS)]
    assert [float(left[:-1]) for left, _ in found] == pytest.approx([100 * at / whole_ms for at in came_ms], abs=1e-4)
    assert {text for _, text in found} == {"rank 0 waited 6.25 ms for rank 1"}
    ranks = [rank for rank in article.find("div", "rank")]
    assert [rank.attrs["data-rank"] for rank in ranks] == ["0", "1"]
    lines = [line for line in article.find("line")]
    assert all(float(line.attrs["y1"]) > float(line.attrs["y2"]) for line in lines)  # upwards


def test_an_arrow_stands_where_the_wire_takes_no_time_too():
    """Rank 1 calls 1 s after rank 0; what both wait for is over at once."""
    alike = {"of": "ddp", "pass": 0, "bucket": 0}
    spans = [(0, "backward", "w", 0.0, 1.0, 0, {}), (1, "backward", "w", 0.0, 2.0, 0, {})]
    spans.append((0, "idle", "bucket 0", 1.0, 2.0, 0, alike))
    spans += [(rank, "wire", "bucket 0", 2.0, 2.0, 0, alike | {"queued_s": 1.0 - rank}) for rank in (0, 1)]
    [line] = [line for line in parsed(page_of(noted(spans))).find("line") if "marker-end" in line.attrs]
    assert (line.attrs["x1"], line.text) == ("100%", "rank 0 waited 1.00 s for rank 1")


def test_buckets_have_their_parameters(late):
    root = parsed(page_of(late[0]))
    cells = list(root.find("li", "bucket"))
    assert [cell.attrs["data-bucket"] for cell in cells] == [str(number) for number in range(LAYERS)]
    names = [[each.text for each in cell.find("li")] for cell in cells]
    assert names == [[f"{number}.weight 1.00 KiB"] for number in reversed(range(LAYERS))]
    assert all(style_of(cell) == {"flex-grow": BYTES} for cell in cells)


def test_words_by_hand(late):
    """In 123.75 ms rank 0 computes 20 + 40, waits 6 · 6.25 and, for the wire, 7 · 3.75; rank 1 40 + 80, and 3.75."""
    root = parsed(page_of(late[0]))
    [words] = root.find("ul", "words")
    said = [each.text for each in words.find("li")]
    assert said[0] == f"2 ranks, {STEPS} steps."
    took = f"The median of {STEPS} steps took 124 ms; on average a step took 124 ms."
    assert said[1].startswith(f"{took} The longest, step ")
    shown = {name: float(part) for part, name in re.findall(r"(\d+)% ([a-z ]+)", said[2])}
    assert shown == {"forward": 24, "backward": 48, "waiting for ranks": 15, "waiting for the wire": 12}
    hidden = round(100 * (1 - 30 / 60))
    assert said[3] == f"Of the time that the wire worked, {hidden}% was hidden behind what the ranks did."
    assert said[4].startswith("Rank 0 waited longest for other ranks, ") and said[4].endswith("and rank 1 least, 0 s.")
    assert any(each.startswith("Rank 1 was late in backward: by ") for each in said)


@pytest.mark.parametrize("which", ["timeline", "trace"])
def test_what_would_help_is_what_explain_says(late, which):
    """A network that takes no time leaves what rank 1 computes, 120 of 123.75 ms."""
    record = late[which == "trace"]
    root = parsed(page_of(record))
    choices = explain(record).choices
    for each in choices:
        shown = figures_of(root, "choices", each.choice + each.compared)
        assert shown == {name: getattr(each, name) for name in ("before_s", "step_s", "saved_fraction")}
    free = figures_of(root, "choices", "a network that takes no time")
    assert [free["before_s"], free["step_s"]] == pytest.approx([0.12375, 0.12], rel=1e-4)
    [words] = root.find("ul", "words")
    assert f"What would help most is {choices[0].choice}: on average a step of " in words.text


def test_curves_and_notes_by_hand():
    events = [(rank, "loss", 0.5 + step, step, {"value": 4.0 - step}) for step in range(3) for rank in (0, 1)]
    events.append((0, "loss", 3.5, 3, {"value": math.nan}))
    events += [(rank, "balance", 1.5, 1, {"shares": [0.25, 0.75], "reason": "1 < 2 & so"}) for rank in (0, 1)]
    spans = [(rank, "data", "", step, step + 1.0 + rank / 2, step, {}) for step in range(4) for rank in (0, 1)]
    root = parsed(page_of(noted(spans, events)))
    figures = {figure.find("figcaption").__next__().text: figure for figure in root.find("figure")}
    assert list(figures) == ["loss (1 not finite, left out)", "shares of the batch", "time of a step of each rank"] + [
        "of it at work, not waiting"
    ]
    lines = {line.attrs["data-line"]: line.attrs["points"] for line in next(iter(figures.values())).find("polyline")}
    assert lines == dict.fromkeys(("rank 0", "rank 1"), "0.00,0.00 333.33,60.00 666.67,120.00")
    shares = [line.attrs["points"] for line in figures["shares of the batch"].find("polyline")]
    assert shares == [f"333.33,{up} 666.67,{up} 1000.00,{up}" for up in ("80.00", "0.00")]  # from 0 to 0.75
    [decision] = [each for part in root.find("section") if part.attrs["id"] == "decisions" for each in part.find("li")]
    assert decision.text == "step 1: balance, all ranks: 1 < 2 & so; shares [0.25, 0.75]"
    article = next(each for each in root.find("article") if each.attrs["data-step"] == "1")
    assert [style_of(flag)["left"] for flag in article.find("b", "flag")] == [pytest.approx(100 * 0.5 / 1.5, abs=1e-4)]


def test_a_page_needs_nothing_else(late):
    for record in (*late, Timeline()):
        page = page_of(record, title="<i>mine</i>")
        root = parsed(page)
        assert re.findall(r"(?i)https?:|//[a-z]|@import|<link|<iframe|<img| src=| href=|url\((?!#head)", page) == []
        assert "default-src 'none'" in page and "<i>mine</i>" not in page
        ids = [element.attrs["id"] for element in root.find() if "id" in element.attrs]
        assert len(ids) == len(set(ids))


def test_a_page_of_nothing_says_so():
    assert "Nothing was recorded." in page_of(Timeline())


def test_odd_records_have_a_page_too():
    """No time at all, nothing finite, a figure of a step that did nothing, one of setting up, ranks in other steps."""
    events = [(0, "loss", 0.0, 0, {"value": math.inf}), (0, "rate", 0.0, -1, {"value": 1.0})]
    events += [(0, "rate", 0.0, 4, {"value": 2.0}), (1, "odd", 0.0, 4, {"value": "text", "shares": [1, "b"]})]
    spans = [(0, "data", "", 0.0, 0.0, 0, {}), (1, "mine", "x", 0.0, 0.0, 2, {"a": None, "b": [1.5, math.nan]})]
    root = parsed(page_of(noted(spans, events)))
    titles = [title.text for title in root.find("figcaption")]
    assert titles[:2] == ["loss (1 not finite, left out)", "rate"] and list(bars_of(root)) == []
    assert [line.attrs["points"] for line in root.find("polyline")][0] == "1000.00,60.00 1000.00,60.00"


def test_of_too_many_steps_some_are_drawn_at_equal_distances():
    timeline = noted([(0, "data", "", step, step + 0.5, step, {}) for step in range(100)])
    assert chosen_of(steps_of(timeline), 100) == list(range(100))
    assert chosen_of(steps_of(timeline), 10) == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    assert chosen_of(steps_of(timeline), 0) == [99]


def test_saving(late, tmp_path):
    timeline, trace = late
    timeline.save(tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text() == page_of(timeline)
    save_page(trace, tmp_path / "trace.html", title="A simulation")
    assert "<title>A simulation</title>" in (tmp_path / "trace.html").read_text()


def test_what_is_written_can_be_read_on_what_it_is_written_on():
    """Contrast of at least 4.5 to 1 (WCAG 2.2, 1.4.3), light and dark."""
    css = files("minigrad.distributed.inspect.page").joinpath("page.css").read_text()
    light, dark = (dict(re.findall(r"--(\w+): (#\w{6});", css[part])) for part in _themes(css))
    assert light.keys() == dark.keys()
    for theme in (light, dark):
        grounds = {name: colour for name, colour in theme.items() if not re.match("line|ink|quiet|mark|rule", name)}
        for name, colour in grounds.items():
            assert contrast(theme["ink"], colour) >= 4.5, name
        for ground in ("paper", "panel"):
            assert contrast(theme["quiet"], theme[ground]) >= 4.5
            for number in range(8):
                assert contrast(theme[f"line{number}"], theme[ground]) >= 3.0  # 1.4.11, of graphics


def _themes(css):
    first, second = [match.start() for match in re.finditer(r":root", css)]
    return slice(first, second), slice(second, css.index("box-sizing"))


def contrast(one, other):
    """The ratio of two colours' luminance (WCAG 2.2)."""

    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("which", [0, 1], ids=["timeline", "trace"])
def test_the_command_makes_a_page_of_a_file(late, which, tmp_path, capsys):
    (tmp_path / "run.json").write_text(late[which].to_json())
    assert main(["page", str(tmp_path / "run.json")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'run.html'}\n"
    assert (tmp_path / "run.html").read_text() == page_of(late[which], title="run")


def test_the_command_takes_the_files_of_all_ranks(tmp_path):
    paths = [str(tmp_path / f"rank{rank}.json") for rank in range(2)]
    for rank, path in enumerate(paths):
        noted([(rank, "data", "", rank, rank + 1.0, 0, {})]).save(path)
    assert main(["page", *paths, "-o", str(tmp_path / "both.html"), "--title", "Both"]) == 0
    root = parsed((tmp_path / "both.html").read_text())
    assert [(bar.rank, bar.left, bar.width) for bar in bars_of(root)] == [(0, 0.0, 0.5), (1, 0.5, 0.5)]


@pytest.mark.parametrize("text", ["", "[1]", '{"format": "minigrad timeline 1"}', '{"format": 3}', "\xff"])
def test_the_command_says_what_is_no_record(text, tmp_path, capsys):
    path = tmp_path / "run.json"
    path.write_bytes(text.encode("latin-1"))
    assert main(["page", str(path)]) == 2
    assert "expected" in capsys.readouterr().err and not path.with_suffix(".html").exists()
    assert main(["page", str(tmp_path / "none.json")]) == 2
    noted().save(path)
    assert main(["page", str(path), "-o", str(path)]) == 2
    assert path.read_text() == noted().to_json()
