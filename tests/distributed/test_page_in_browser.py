"""The page in a real Chromium: no error, nothing overflows or covers other text, bars lie where the record says.

Run with -m browser; Debian has it as chromium and chromium-driver.
"""

import pytest

from minigrad.distributed import run
from minigrad.distributed.algorithms import halving_doubling
from minigrad.distributed.inspect.page import save_page_of_schedule
from minigrad.distributed.record.timeline import Timeline
from tests.distributed.browser import Browser
from tests.distributed.page_parts import bars_of, parsed
from tests.distributed.test_attached import train
from tests.distributed.test_page import simulated

pytestmark = pytest.mark.browser
SIZES = [(width, dark) for width in (1280, 390) for dark in (False, True)]
RIGHT, DOWN, END = "\ue014", "\ue015", "\ue010"

BARS = """
const found = [];
for (const lane of document.querySelectorAll("article:not([hidden]) .lane")) {
  const whole = lane.getBoundingClientRect();
  for (const bar of lane.querySelectorAll(".bar")) {
    const box = bar.getBoundingClientRect();
    found.push([Number(lane.parentElement.dataset.rank), lane.classList[1], bar.textContent,
                box.left - whole.left, box.width, box.top - whole.top, whole.width]);
  }
}
return found;
"""
# of each arrow: which ranks its words name, and where it ends, from the waiting one's lane and the late one's work
ARROWS = """
return [...document.querySelectorAll("article:not([hidden]) .arrows line")].map(line => {
  const [waiting, late] = line.textContent.match(/rank \\d+/g).map(name => name.slice(5));
  const lane = (rank, which) =>
    line.closest(".chart").querySelector(`[data-rank="${rank}"] .${which}`).getBoundingClientRect();
  const top = line.closest("svg").getBoundingClientRect().top;
  const [begin, end] = ["y1", "y2"].map(name => top + line[name].baseVal.value), up = end < begin;
  const from = lane(late, "work"), to = lane(waiting, "waiting");
  return [begin - (up ? from.top : from.bottom), end - (up ? to.bottom : to.top)];
});
"""
# each piece of text that can be seen, as it is cut by what it lies in, with what it stands on
TEXTS = """
let number = 0;
const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  number += 1;
  if (!node.data.trim() || parent.closest("script, style, title, svg, [hidden]")) continue;
  if (getComputedStyle(parent).visibility === "hidden") continue;
  if (parent.closest("thead")?.getBoundingClientRect().width < 2) continue;  // where rows are lists
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const box of range.getClientRects()) {
    let [left, right, top, bottom] = [box.left, box.right, box.top, box.bottom];
    for (let outer = parent; outer; outer = outer.parentElement) {
      if (getComputedStyle(outer).overflowX === "visible") continue;
      const edge = outer.getBoundingClientRect();
      [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
    }
    if (right - left > 1 && bottom - top > 1) found.push([node.data.trim(), number, left, right, top, bottom]);
  }
}
return found;
"""
# how far the text of each cell of a schedule reaches out of it, and each arrow's ends out of its picture
OUT = """
const found = [];
const out = (inner, outer) => Math.max(
  outer.left - inner.left, inner.right - outer.right, outer.top - inner.top, inner.bottom - outer.bottom);
for (const cell of document.querySelectorAll(".cell"))
  found.push(out(...["text", "rect"].map(each => cell.querySelector(each).getBoundingClientRect())));
for (const line of document.querySelectorAll(".round line"))
  found.push(out(line.getBoundingClientRect(), line.closest("svg").getBoundingClientRect()));
return found;
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A simulation in which rank 1 is slow, and four ranks that are threads; each with its timeline."""
    folder, threads = tmp_path_factory.mktemp("pages"), Timeline()
    run(lambda comm: train(comm, threads), 4, timeout_s=20.0)
    timeline, _ = simulated(2.0)
    for each in (timeline, threads):
        for step in range(3):
            each.event("balance", shares=[0.6, 0.4], reason="rank 1 needs 10.00 ms a layer, the others 5.00 ms")
            each.event("loss", value=1.0 / (step + 1))
    made = {"simulated": timeline, "threads": threads}
    for name, each in made.items():
        each.save(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in made}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("name", ["simulated", "threads"])
@pytest.mark.parametrize("width, dark", SIZES, ids=[f"{w}-{'dark' if d else 'light'}" for w, d in SIZES])
def test_in_a_window(browser, pages, name, width, dark):
    browser.log()
    browser.open(pages[name], width, dark=dark)
    assert browser.log() == []
    assert browser.run("return performance.getEntriesByType('resource').map(each => each.name)") == []
    assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(15, 19, 24)" if dark else "rgb(255, 255, 255)"
    )
    heads = "return [...document.querySelectorAll('article:not([hidden]) h4')].map(e => e.scrollWidth - e.clientWidth)"
    assert set(browser.run(heads)) == {0}
    wanted = list(bars_of(parsed(pages[name].read_text())))
    for step in range(3):
        browser.run("slider.value = arguments[0]; slider.dispatchEvent(new Event('input'))", step)
        found, here = browser.run(BARS), [bar for bar in wanted if bar.step == step]
        assert len(found) == len(here) > 20
        for (rank, lane, label, left, wide, top, whole), bar in zip(found, here):
            assert (rank, lane, label, top) == (bar.rank, bar.lane, bar.label, bar.top)
            assert left == pytest.approx(bar.left * whole, abs=0.1)
            assert wide == pytest.approx(max(1.0, bar.width * whole), abs=0.1)
        arrows = browser.run(ARROWS)
        assert all(max(map(abs, each)) < 0.1 for each in arrows) and (arrows or name == "threads")
        texts = browser.run(TEXTS)
        assert len(texts) > 60 and overlapping(texts) == []
        assert [text for text, _, left, right, _, _ in texts if left < 0 or right > width] == []


@pytest.mark.parametrize("width, dark", SIZES, ids=[f"{w}-{'dark' if d else 'light'}" for w, d in SIZES])
def test_page_of_a_schedule(browser, tmp_path, width, dark):
    save_page_of_schedule(halving_doubling(8), tmp_path / "schedule.html")
    browser.log()
    browser.open(tmp_path / "schedule.html", width, dark=dark)
    assert browser.log() == []
    assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [width, width]
    found = browser.run(OUT)
    assert len(found) == 7 * 64 + 6 * 8 and max(found) <= 0.0
    assert overlapping(browser.run(TEXTS)) == []
    ink = browser.run("return getComputedStyle(document.querySelector('.cell text')).fill")
    assert ink == ("rgb(230, 234, 239)" if dark else "rgb(27, 31, 36)")


def overlapping(texts, least=1.0):
    """The pairs of texts that share more than so many pixels both ways."""
    found = []
    for at, (text, node, left, right, top, bottom) in enumerate(texts):
        for other, other_node, a, b, c, d in texts[at + 1 :]:
            if node != other_node and min(right, b) - max(left, a) > least and min(bottom, d) - max(top, c) > 4 * least:
                found.append((text, other))
    return found


def test_without_a_mouse(browser, pages):
    browser.open(pages["simulated"], 1280)
    browser.run("slider.value = 0; slider.dispatchEvent(new Event('input')); slider.focus()")
    browser.press([RIGHT])
    shown = "return [which.textContent, document.querySelector('article:not([hidden])').id]"
    assert browser.run(shown) == ["1", "step-1"]
    browser.press([END])
    assert browser.run("return which.textContent") == "2"
    browser.run("document.querySelector('article:not([hidden]) .chart').focus()")
    told = []
    for key in (RIGHT, RIGHT, DOWN, END):
        browser.press([key])
        told.append(browser.run("return told.textContent"))
    assert told[0].startswith("rank 0, forward: Sequential: 20.0 ms, from 0 s to 20.0 ms")
    assert told[1].startswith("rank 0, backward: 7.weight: 5.00 ms, from 20.0 ms to 25.0 ms")
    assert told[2].startswith("rank 0, waits for the wire: bucket 1") and "bucket 7" in told[3]


def test_without_scripts_every_step_is_there(browser, pages):
    browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(pages["simulated"], 390)
        seen = browser.devtools("DOM.getDocument", depth=0)["root"]["nodeId"]
        steps = browser.devtools("DOM.querySelectorAll", nodeId=seen, selector="article.step:not([hidden])")["nodeIds"]
        boxes = [browser.devtools("DOM.getBoxModel", nodeId=each)["model"] for each in steps]
        assert len(boxes) == 3 and all(box["height"] > 200 for box in boxes)
    finally:
        browser.devtools("Emulation.setScriptExecutionDisabled", value=False)
