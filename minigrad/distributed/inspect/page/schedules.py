"""A collective's schedule as a page: round by round who holds which partial sums, and what travels. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from minigrad.arguments import check_text
from minigrad.distributed.algorithms.drawing import draw, messages_of, named, spelled_states
from minigrad.distributed.algorithms.play import check_schedule
from minigrad.distributed.algorithms.schedule import CollectiveSchedule, Op, Transfer
from minigrad.distributed.inspect.page.frame import framed
from minigrad.errors import ArgumentError
from minigrad.nn.whole_file import replace_file

MOST_CELLS = 20_000  # of all rounds, so that a browser opens the page at once
# Pixels: of a line of the table, of what stands above it, beside it, and of the arrows; of a letter and around a text.
ROW, TOP, NAMES, ARROWS, LETTER, AROUND = 26, 22, 58, 84, 7.5, 14
_LEGEND = {
    "alone": "what a rank began with",
    "partly": "the sum of several ranks",
    "whole": "the sum of all",
    "came": "came in this round",
}
_DOES = {Op.COMBINE: "adds it to its own", Op.REPLACE: "puts it in the place of its own"}


def page_of_schedule(schedule: CollectiveSchedule, title: str = "") -> str:
    """A schedule as one HTML page, with no reference to anything outside it.

    For each round a picture has a line for each rank and a column for each part of the array, in it whose arrays it
    adds up there, and an arrow for each message. The same stands below as text.

    Args:
        title: By default its name and its number of ranks.

    Raises:
        ArgumentError: it is no schedule, it has more than 20,000 parts on all ranks in all rounds, or title is no text.

    Example:
        >>> from minigrad.distributed.algorithms import ring
        >>> page_of_schedule(ring(4)).count('<svg class="round"')
        7
    """
    check_schedule("page_of_schedule", schedule)
    check_text("page_of_schedule", title=title)
    states = 1 + len(schedule.rounds)
    if states * schedule.world_size * schedule.cells > MOST_CELLS:
        raise ArgumentError(
            f"page_of_schedule: expected at most {MOST_CELLS} parts on all ranks in all rounds, got {schedule.cells} "
            f"on {schedule.world_size} ranks, {states} times: draw it for fewer ranks"
        )
    keys = "".join(f'<li><b class="key {kind}"></b>{words}</li>' for kind, words in _LEGEND.items())
    keys += "<li><small>an arrow is a message; a dashed one takes the place of what was there</small></li>"
    words = "".join(f"<li>{escape(each)}</li>" for each in _sentences(schedule))
    sections = [
        f'<section id="summary"><h2>In words</h2><ul class="words">{words}</ul></section>',
        f'<section id="rounds"><h2>Round by round</h2><ul class="legend">{keys}</ul><div class="rounds">',
        *_rounds(schedule),
        "</div></section>",
        f'<section id="text"><h2>As text</h2><pre tabindex="0">{escape(draw(schedule))}</pre></section>',
    ]
    return framed(title or f"{schedule.name}, {schedule.world_size} ranks", sections)


def save_page_of_schedule(schedule: CollectiveSchedule, path: str | os.PathLike[str], title: str = "") -> None:
    """Write the page of a schedule into a file, which is replaced as a whole.

    Raises:
        ArgumentError: see `page_of_schedule`.
    """
    replace_file(path, [page_of_schedule(schedule, title).encode()])


def _sentences(schedule: CollectiveSchedule) -> Iterator[str]:
    messages, rounds = sum(map(len, schedule.rounds)), len(schedule.rounds)
    yield f"An all_reduce of {schedule.world_size} ranks: {rounds} rounds, {messages} messages in all."
    sent = schedule.sent_elements(schedule.cells)
    most, least = max(sent) / schedule.cells, min(sent) / schedule.cells
    rest = "as each does" if most == least else f"and the one that sends least {least:.3g} times"
    yield f"The rank that sends most sends {most:.3g} times the array, {rest}."
    bits = "as all communicators add" if schedule.is_in_order else "in another order than communicators do"
    yield f"It adds {bits}, and so has {'their' if schedule.is_in_order else 'other'} bits."


def _rounds(schedule: CollectiveSchedule) -> Iterator[str]:
    history = spelled_states(schedule)
    width = LETTER * max(len(text) for ranks in history for cells in ranks for text in cells) + AROUND
    for number, ranks in enumerate(history):
        said = f"round {number} <small>{messages_of(schedule, number)}</small>" if number else "at first"
        yield f'<figure class="of-round" data-round="{number}"><figcaption>{said}</figcaption>'
        yield f'<div class="scroll" tabindex="0">{svg_of_round(schedule, number, ranks, width)}</div></figure>'


def svg_of_round(schedule: CollectiveSchedule, number: int, ranks: Sequence[Sequence[str]], width: float) -> str:
    """The picture of what is there after a round, and of what came in it; of round 0, what is there at first.

    Args:
        ranks: Whose arrays each rank has added up in each part.
        width: Of a column, in pixels.
    """
    transfers = schedule.rounds[number - 1] if number else ()
    left = NAMES + (ARROWS if number else 0)
    wide, high = left + width * schedule.cells + 2, TOP + ROW * schedule.world_size + 2
    held = "; ".join(f"rank {rank}: {', '.join(cells)}" for rank, cells in enumerate(ranks))
    title = f"{schedule.name}, round {number}" if number else f"{schedule.name}, at first"
    about = f"{messages_of(schedule, number)}. Then " if transfers else ""
    came = {(each.target, part) for each in transfers for part in schedule.parts_of(each.chunk)}
    parts = [
        f'<svg class="round" role="img" aria-labelledby="title-{number} about-{number}" width="{wide:g}" '
        f'height="{high}" viewBox="0 0 {wide:g} {high}" xmlns="http://www.w3.org/2000/svg">',
        f'<title id="title-{number}">{escape(title)}</title>',
        f'<desc id="about-{number}">{escape(f"{about}each rank has, part by part, the sum of ranks: {held}")}</desc>',
        *(_text(left + width * (part + 0.5), TOP - 7, str(part), "head") for part in range(schedule.cells)),
        *(_text(NAMES - 8, _middle(rank) + 4, f"rank {rank}", "name") for rank in range(len(ranks))),
    ]
    for rank, cells in enumerate(ranks):
        for part, text in enumerate(cells):
            parts.append(_cell(schedule, rank, part, text, left + width * part, width, (rank, part) in came))
    return "\n".join([*parts, *_arrows(schedule, transfers, left), "</svg>"])


def _cell(
    schedule: CollectiveSchedule, rank: int, part: int, text: str, left: float, width: float, came: bool
) -> str:
    whole = "0" if schedule.world_size == 1 else f"0-{schedule.world_size - 1}"
    kind = "whole" if text == whole else "alone" if text.isdigit() else "partly"
    return (
        f'<g class="cell {kind}{" came" if came else ""}" data-rank="{rank}" data-part="{part}">'
        f'<rect x="{left + 2:g}" y="{TOP + ROW * rank + 2}" width="{width - 4:g}" height="{ROW - 4}"/>'
        f"{_text(left + width / 2, _middle(rank) + 4, text)}</g>"
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    of = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{of}>{text}</text>'


def _middle(rank: int) -> float:
    return TOP + ROW * (rank + 0.5)


def _arrows(schedule: CollectiveSchedule, transfers: Iterable[Transfer], left: float) -> Iterator[str]:
    """From where a rank's name stands to what a rank has afterwards."""
    for source, target, chunk, op in transfers:
        parts = schedule.parts_of(chunk)
        words = f"rank {source} sends {named(parts)} to rank {target}, which {_DOES[op]}"
        yield (
            f'<line class="{op.value}" data-source="{source}" data-target="{target}" data-first="{parts.start}" '
            f'data-stop="{parts.stop}" x1="{NAMES}" y1="{_middle(source):g}" x2="{left - 2}" y2="{_middle(target):g}" '
            f'marker-end="url(#head)"><title>{words}</title></line>'
        )
