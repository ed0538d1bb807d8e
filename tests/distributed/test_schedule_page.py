"""The page of a schedule: what is drawn in each round is what an independent computation has there."""

import functools
import re
from xml.etree import ElementTree

import pytest

from minigrad.distributed.algorithms import (
    WHOLE,
    Chunk,
    CollectiveSchedule,
    Op,
    Transfer,
    all_pairs,
    draw,
    halving_doubling,
    hierarchical,
    ring,
    tree,
)
from minigrad.distributed.inspect.__main__ import main
from minigrad.distributed.inspect.page import page_of_schedule, save_page_of_schedule
from minigrad.errors import ArgumentError
from tests.distributed.page_parts import parsed

MAKERS = {
    "ring": ring,
    "tree": tree,
    "halving_doubling": halving_doubling,
    "all_pairs": all_pairs,
    "nodes": functools.partial(hierarchical, ranks_per_node=2, inner="tree", outer="ring"),
}
SVG = "{http://www.w3.org/2000/svg}"


def drawings(page):
    """The picture of each round, read by a parser of XML."""
    return [ElementTree.fromstring(each) for each in re.findall(r"<svg class=\"round\".*?</svg>", page, re.S)]


def ranks_in(text):
    """The ranks that a cell names, such as 0-2,5: each as often as it is there."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return sorted(rank for first, *last in ends for rank in range(first, (last or [first])[0] + 1))


def drawn(svg):
    """What stands in each cell: the ranks in it, its kind, and whether it came in this round."""
    found = {}
    for cell in svg.iter(SVG + "g"):
        kinds = cell.attrib["class"].split()
        [text] = [each.text for each in cell.iter(SVG + "text")]
        place = int(cell.attrib["data-rank"]), int(cell.attrib["data-part"])
        found[place] = ranks_in(text), kinds[1], "came" in kinds
    return found


def counted(schedule, size):
    """How often each rank's array is in each element of each rank, round by round, and which elements just came."""
    world = range(schedule.world_size)
    now = [[[int(rank == own) for rank in world] for _ in range(size)] for own in world]
    yield now, set()
    for transfers in schedule.rounds:
        after, came = [[list(counts) for counts in own] for own in now], set()
        for source, target, (first, stop, of), op in transfers:
            for at in range(size * first // of, size * stop // of):
                old = after[target][at] if op is Op.COMBINE else [0 for _ in world]
                after[target][at] = [a + b for a, b in zip(old, now[source][at])]
                came.add((target, at))
        now = after
        yield now, came


@pytest.mark.parametrize("name", MAKERS)
def test_partial_sums_and_messages_are_those_of_an_independent_computation(name):
    for world_size in range(1, 7):
        schedule = MAKERS[name](world_size)
        pictures = drawings(page_of_schedule(schedule))
        assert len(pictures) == len(schedule.rounds) + 1
        for number, (svg, (now, came)) in enumerate(zip(pictures, counted(schedule, schedule.cells))):
            wanted = {}
            for rank, own in enumerate(now):
                for part, counts in enumerate(own):
                    there = sorted(other for other, count in enumerate(counts) for _ in range(count))
                    kind = "whole" if len(there) == world_size else "alone" if len(there) == 1 else "partly"
                    wanted[rank, part] = (there, kind, (rank, part) in came)
            assert drawn(svg) == wanted
            names = [f"data-{key}" for key in ("source", "target", "first", "stop")]
            arrows = [
                ([int(line.attrib[name]) for name in names], line.attrib["class"]) for line in svg.iter(SVG + "line")
            ]
            assert arrows == [
                ([source, target, first * schedule.cells // of, stop * schedule.cells // of], op.value)
                for source, target, (first, stop, of), op in (schedule.rounds[number - 1] if number else ())
            ]


def test_an_arrow_goes_from_the_line_of_its_source_to_that_of_its_target():
    for svg in drawings(page_of_schedule(all_pairs(4))):
        lines = {each.text: float(each.attrib["y"]) for each in svg.iter(SVG + "text") if each.text.startswith("rank")}
        cells = {int(cell.attrib["data-rank"]): cell.find(SVG + "rect") for cell in svg.iter(SVG + "g")}
        for arrow in svg.iter(SVG + "line"):
            source, target = arrow.attrib["data-source"], int(arrow.attrib["data-target"])
            assert float(arrow.attrib["y1"]) == pytest.approx(lines[f"rank {source}"] - 4)
            top, high = float(cells[target].attrib["y"]), float(cells[target].attrib["height"])
            assert float(arrow.attrib["y2"]) == top + high / 2
            assert arrow.find(SVG + "title").text.startswith(f"rank {source} sends part ")


def test_it_can_be_read_without_seeing_it_and_needs_nothing_else():
    schedule = ring(3)
    page = page_of_schedule(schedule, title="<b>mine</b>")
    root = parsed(page)
    ids = [each.attrs["id"] for each in root.find() if "id" in each.attrs]
    assert len(ids) == len(set(ids))
    for svg in root.find("svg", "round"):
        assert svg.attrs["role"] == "img" and set(svg.attrs["aria-labelledby"].split()) <= set(ids)
    second = drawings(page)[1]
    assert second.find(SVG + "title").text == "ring, round 1"
    assert second.find(SVG + "desc").text == (
        "0 > 1 part 0, 1 > 2 part 1, 2 > 0 part 2. Then each rank has, part by part, the sum of ranks: "
        "rank 0: 0, 0, 0,2; rank 1: 0-1, 1, 1; rank 2: 2, 1-2, 2"
    )
    assert [each.text for each in root.find("pre")] == [draw(schedule)]
    said = [each.text for each in next(root.find("ul", "words")).find("li")]
    assert said[:2] == [
        "An all_reduce of 3 ranks: 4 rounds, 12 messages in all.",
        "The rank that sends most sends 1.33 times the array, as each does.",
    ]
    outside = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert re.findall(r"(?i)https?:|//[a-z]|@import|<link|<img|<script| src=| href=|url\((?!#head)", outside) == []
    assert "<b>mine</b>" not in page


def test_names_are_text_and_what_carries_nothing_is_said():
    there, back = Transfer(1, 0, WHOLE, Op.COMBINE), Transfer(0, 1, WHOLE, Op.REPLACE)
    odd = CollectiveSchedule("<&>", 2, ((there,), (Transfer(0, 1, Chunk(1, 1, 2), Op.COMBINE), back)))
    assert [svg.find(SVG + "title").text for svg in drawings(page_of_schedule(odd))][1] == "<&>, round 1"
    assert "round 2: 0 > 1 no part, 0 > 1 parts 0-1" in draw(odd)


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["schedule", "ring", "3"]) == 0
    assert capsys.readouterr().out == "ring-3.html\n"
    assert (tmp_path / "ring-3.html").read_text() == page_of_schedule(ring(3))
    nodes = ["schedule", "hierarchical", "4", "--ranks-per-node", "2", "--outer", "tree"]
    assert main([*nodes, "-o", "nodes.html"]) == 0
    assert (tmp_path / "nodes.html").read_text() == page_of_schedule(hierarchical(4, 2, outer="tree"))
    capsys.readouterr()
    assert main([*nodes, "--text"]) == 0
    assert capsys.readouterr().out == draw(hierarchical(4, 2, outer="tree")) + "\n"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["ring", "0"], "ring: expected world_size"),
        (["hierarchical", "4"], "schedule: expected --ranks-per-node with hierarchical, got none"),
        (["ring", "4", "--inner", "tree"], "schedule: expected options of nodes with hierarchical only, got ring"),
        (["ring", "40"], "page_of_schedule: expected at most 20000 parts"),
        (["tree", "2", "-o", "none/tree.html"], "none"),
    ],
)
def test_the_command_says_what_it_lacks(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["schedule", *arguments]) == 2
    assert words in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_wrong_arguments(tmp_path):
    for call, words in (
        (lambda: page_of_schedule("ring"), "page_of_schedule: expected a CollectiveSchedule, got 'ring'"),
        (lambda: page_of_schedule(ring(2), title=3), "page_of_schedule: expected title"),
        (lambda: draw(ring), "draw: expected a CollectiveSchedule, got <function ring"),
        (lambda: save_page_of_schedule(ring, tmp_path / "ring.html"), "expected a CollectiveSchedule"),
    ):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert words in str(caught.value)
