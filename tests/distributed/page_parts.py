"""A page of a run taken apart, by a parser that knows nothing of who wrote it."""

import re
from html.parser import HTMLParser
from typing import Any, NamedTuple

VOID = {"meta", "input", "br", "link", "img"}


class PageBar(NamedTuple):
    """A bar as the page has it; left and width in parts of its lane's, top in pixels."""

    step: int
    rank: int
    lane: str
    kind: str
    label: str
    left: float
    width: float
    top: float
    about: str


class Element:
    """An element with its text, and those in it."""

    def __init__(self, tag: str, attrs: dict[str, Any]) -> None:
        self.tag, self.attrs, self.children = tag, attrs, []

    @property
    def text(self):
        return "".join(each if isinstance(each, str) else each.text for each in self.children)

    @property
    def classes(self):
        return (self.attrs.get("class") or "").split()

    def find(self, tag=None, cls=None):
        """Those in it, however deep, of a tag and a class."""
        for child in self.children:
            if isinstance(child, Element):
                if tag in (None, child.tag) and (cls is None or cls in child.classes):
                    yield child
                yield from child.find(tag, cls)


class _Parser(HTMLParser):
    def __init__(self):
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> where <{self.open[-1].tag}> is open"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def parsed(page):
    """The page as elements; each that is opened is closed, in order."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert [element.tag for element in parser.open] == [""]
    return parser.root


def style_of(element):
    """The declarations of an element's own style, as numbers."""
    declared = dict(part.split(":") for part in element.attrs["style"].split(";"))
    return {name: float(re.sub("(px|%)$", "", value)) for name, value in declared.items()}


def bars_of(root):
    """Every bar of every step."""
    for article in root.find("article", "step"):
        for rank in article.find("div", "rank"):
            for lane in rank.find("div", "lane"):
                for bar in lane.find("b", "bar"):
                    style = style_of(bar)
                    which = int(article.attrs["data-step"]), int(rank.attrs["data-rank"]), lane.classes[1]
                    place = style["left"] / 100, style["width"] / 100, style.get("top", 0.0)
                    yield PageBar(*which, bar.classes[1], bar.text, *place, bar.attrs["title"])


def figures_of(root, section, row, step=None):
    """The times in the row of a rank, in full, by name: of a step, or of the run."""
    [table] = [
        each
        for part in root.find()
        if part.attrs.get("id") == (section if step is None else f"step-{step}")
        for each in part.find("table")
        if step is None or each.text.startswith("Times of step")
    ]
    [line] = [line for line in table.find("tr") if any(head.text == row for head in line.find("th"))]
    cells = [(name, value) for cell in line.find("td") for name, value in cell.attrs.items() if name != "data-of"]
    return {name.removeprefix("data-").replace("-", "_"): float(value) for name, value in cells}
