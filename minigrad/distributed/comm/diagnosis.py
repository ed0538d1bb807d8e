"""Why ranks can't go on together, from what is seen of each: which rank, at which line, has to do what.

The calls of the ranks are aligned by number. At the first number at which they are not one call, those of the ranks
from there on, those before, and the lines that made them tell which kind of fault it is, as far as they do. Pure, but
that the user's sources are looked into: whether a line stands under an `if` on the rank.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from minigrad.distributed.comm.calls import Made
from minigrad.distributed.comm.headers import GIVE_UP
from minigrad.distributed.comm.sightings import DIED, Sighting, listed

LEFT_OUT, EXTRA, ORDER, SHAPE = "a call left out", "one call too many", "another order", "another array"
PLAN, WRAPPER, LEFT, RAISED = "another plan", "another wrapper or group", "left early", "raised"
DEAD, LATE = "died", "late"
_CALL = re.compile(r"(\w+)(?:\((.*)\))?(?: of (\d+) (\w+))?(?: in .*)?")
_WRAPPER = re.compile(r"(DDP \d+ of .*?)(?: \(.*\))*, plan (\w+)(?: bucket (\d+))?")
_RAISED = re.compile(r"rank (\d+) (?:aborted|failed first): (.*)", re.DOTALL)
_MESSAGE = re.compile(r"((send|recv)\((?:to|from) (\d+), tag \d+\)).*: expected rank \3 to (?:take|send) it")
_LINE = re.compile(r"(\S+):(\d+) in (.*)")


class Diagnosis(NamedTuple):
    """What is wrong.

    Attributes:
        kind: One of the names above.
        ranks: Those that have to do something else.
        line: Of the user's code, where that is; empty where nobody knows.
        what: What they did, in words.
        remedy: What they have to do.
    """

    kind: str
    ranks: tuple[int, ...]
    line: str
    what: str
    remedy: str


class _Sides(NamedTuple):
    """The two calls that meet, and what each side calls from there on: of most ranks, and of the odd ones."""

    most: tuple[int, ...]
    odd: tuple[int, ...]
    calls: Sequence[Made]
    others: Sequence[Made]
    before: Sequence[Made]

    def swapped(self) -> _Sides:
        return _Sides(self.odd, self.most, self.others, self.calls, self.before)


def first_difference(seen: Sequence[Sighting]) -> int:
    """The first number at which the ranks have not all made one call, as far back as all lists go; -1 for none."""
    numbered = {each.rank: each.numbered for each in seen if each.calls or not each.unseen}
    starts = [min(calls) for calls in numbered.values() if calls]
    ends = [max(calls) for calls in numbered.values() if calls]
    start = 0 if len(starts) < len(numbered) else max(starts, default=0)
    for seq in range(start, max(ends, default=-1) + 1):
        if len({(made.what if made else None) for made in (calls.get(seq) for calls in numbered.values())}) > 1:
            return seq
    return -1


def diagnose(seen: Sequence[Sighting], error: str = "") -> Diagnosis:
    """Which rank has to do what.

    Args:
        seen: The ranks.
        error: What made the world fail, in words.

    Example:
        >>> calls = Made(0, "all_reduce(SUM) of 3 float32", "a.py:3 in f"), Made(1, "barrier", "a.py:4 in f")
        >>> diagnose([Sighting(0, calls), Sighting(1, calls[:1], gone="closed its communicator")]).kind
        'left early'
    """
    seq = first_difference(seen)
    found = _raised(seen, error, seq) or _message(seen, error) or _gone(seen, seq)
    if found is not None:
        return found
    here = {each.rank: each.numbered.get(seq) for each in seen}
    missing = tuple(rank for rank, made in here.items() if made is None)
    words = Counter(made.what for made in here.values() if made is not None)
    if len(words) < 2:
        return _missing(seen, missing, seq)
    first = next(made.what for made in here.values() if made is not None)
    most = max(words, key=lambda what: (words[what], what == first))
    odd = next(made.what for made in here.values() if made is not None and made.what != most)
    sides = [tuple(rank for rank, made in here.items() if made and made.what == what) for what in (most, odd)]
    calls = [_from(next(each for each in seen if each.rank == ranks[0]), seq) for ranks in sides]
    reference = next(each for each in seen if each.rank == sides[0][0])
    before = [made for made in reference.calls if 0 <= made.seq < seq]
    return _unlike(_Sides(sides[0], sides[1], calls[0], calls[1], before))


def _from(rank: Sighting, seq: int) -> list[Made]:
    return [made for number, made in sorted(rank.numbered.items()) if number >= seq]


# ------------------------------------------------------------------------------------------------ ranks that are gone


def _raised(seen: Sequence[Sighting], error: str, seq: int) -> Diagnosis | None:
    """A rank that raised, aborted or gave up."""
    for each in seen:
        made = each.numbered.get(seq)
        words = each.raised or (made.what if made is not None and made.what.startswith(f"{GIVE_UP}(") else "")
        if words:
            return _of_raised(each, words.removeprefix(f"{GIVE_UP}("), made)
    told = _RAISED.search(error)
    if told is not None:
        rank = int(told[1])
        return _of_raised(next((each for each in seen if each.rank == rank), Sighting(rank)), told[2], None)
    return None


def _of_raised(rank: Sighting, words: str, made: Made | None) -> Diagnosis:
    place = re.search(r" at (\S+:\d+ in \S+)", words)
    last = made or rank.last
    line = place[1].rstrip(")") if place else last.line if last else ""
    what = words.split("\n")[0].rstrip(")")
    who = listed([rank.rank])
    remedy = f"mend what {who} raised{_at(line)}: the errors of the other ranks come of it"
    return Diagnosis(RAISED, (rank.rank,), line, f"{who} raised: {what}", remedy)


def _message(seen: Sequence[Sighting], error: str) -> Diagnosis | None:
    """A rank that did not come to the other end of a message."""
    told = _MESSAGE.search(error)
    other = next((each for each in seen if told is not None and each.rank == int(told[3])), None)
    if told is None or other is None:
        return None
    who, does = listed([other.rank]), "recv" if told[2] == "send" else "send"
    kind = LEFT if other.gone and not other.gone.startswith(DIED) else DEAD if other.gone else LATE
    line = other.at or (other.last.line if other.last else "")
    what = f"{who} {other.gone or 'is there' + _at(other.at)} and did not come to the other end of {told[1]}"
    remedy = f"let {who} call {does}, with the same tag, dtype and size, as often as the other end does{_at(line)}"
    return Diagnosis(kind, (other.rank,), line, what, remedy)


def _gone(seen: Sequence[Sighting], seq: int) -> Diagnosis | None:
    """A rank that has left, or died, and lacks a call that others have made."""
    gone = [each for each in seen if each.gone and (seq < 0 or seq not in each.numbered)]
    if not gone:
        return None
    dead = [each for each in gone if each.gone.startswith(DIED)]
    ranks = tuple(each.rank for each in dead or gone)
    last, waited = (dead or gone)[0].last, _made_at(seen, seq)
    after = f" after {last.what}{_at(last.line)}" if last else " before its first call"
    line = last.line if last else ""
    who = listed(ranks)
    if dead:
        remedy = (
            f"look into what {who} wrote last, and its exit status: a signal, or memory that ran out"
            f"{_at(line and f'or after {line}')}"
        )
        return Diagnosis(DEAD, ranks, line, f"{who} {dead[0].gone}{after}", remedy)
    need = f"{waited.what}, as the others do{_at(waited.line)}" if waited else "as many calls as the others"
    remedy = f"let {who} make {need}, before it leaves; where ranks have different numbers of batches, use ddp.join()"
    return Diagnosis(LEFT, ranks, line, f"{who} {gone[0].gone}{after}", remedy)


def _missing(seen: Sequence[Sighting], missing: tuple[int, ...], seq: int) -> Diagnosis:
    """Ranks that are there, and have not made a call."""
    late, waited = [each for each in seen if each.rank in missing], _made_at(seen, seq)
    if not late or waited is None:
        return Diagnosis(LATE, (), "", "all ranks have made the same calls", "look into what each of them is at")
    late = [each for each in late if not each.unseen or each.calls] or late
    call = f"call {seq}, {waited.what}, which others made{_at(waited.line)}"
    inside = [each for each in late if each.elsewhere]
    if inside:
        ranks, each = tuple(rank.rank for rank in inside), inside[0]
        line = _line_in(each.elsewhere) or each.at
        remedy = (
            f"let {listed(ranks)} make {call}, before it waits in {each.elsewhere}; or let all ranks of that group "
            "come there first: calls of a communicator and of its groups need one order on all ranks"
        )
        return Diagnosis(WRAPPER, ranks, line, f"{listed(ranks)} waits in {each.elsewhere}", remedy)
    each = late[0]
    last = f"; its last call was {each.last.what}{_at(each.last.line)}" if each.last else ""
    place = f"is{_at(each.at)}" if each.at else each.unseen or "did not say where it is"
    remedy = f"let {listed(missing)} make {call}; or, where it is only slow there, give a larger timeout"
    line = each.at or (each.last.line if each.last else "")
    return Diagnosis(LATE, missing, line, f"{listed(missing)} {place} and has not made call {seq}{last}", remedy)


def _made_at(seen: Sequence[Sighting], seq: int) -> Made | None:
    return next((each.numbered[seq] for each in seen if seq in each.numbered), None)


# ---------------------------------------------------------------------------------------------- calls that are not one


def _unlike(sides: _Sides) -> Diagnosis:
    """Two calls of one number, of ranks that are all there."""
    ours, theirs = sides.calls[0], sides.others[0]
    who, others = listed(sides.odd), listed(sides.most)
    met = f"{who} made {theirs.what}{_at(theirs.line)} where {others} made {ours.what}{_at(ours.line)}"
    mine, other = _WRAPPER.search(ours.what), _WRAPPER.search(theirs.what)
    if mine and other and mine[1] != other[1]:
        remedy = f"let {who} go through {mine[1]} before {other[1]}: wrappers need one order of backwards on all ranks"
        return Diagnosis(WRAPPER, sides.odd, theirs.line, met, remedy)
    if mine and other and mine[2] != other[2]:
        remedy = (
            f"give {who} the same parameters to train, and the same bucket sizes, as {others}: freeze, thaw and wrap "
            "alike on all ranks"
        )
        return Diagnosis(PLAN, sides.odd, theirs.line, met, remedy)
    if not (mine and other and mine[3] != other[3]) and _same_but_array(ours, theirs, sides):
        remedy = f"let {who} give an array of the same shape and dtype, and the same arguments, as {others}"
        remedy += _at(theirs.line)
        return Diagnosis(SHAPE, sides.odd, theirs.line, met, remedy)
    return _sequence(sides, met)


def _same_but_array(ours: Made, theirs: Made, sides: _Sides) -> bool:
    """Whether one call has another array, or argument: made at one line, unless both are calls of their own."""
    mine, other = _CALL.match(ours.what), _CALL.match(theirs.what)
    if mine is None or other is None or mine[1] != other[1]:
        return False
    known = {made.what for made in (*sides.before, *sides.calls[1:], *sides.others[1:])}
    count = (ours.what in known) + (theirs.what in known)
    return count == 0 or count == 1 and ours.line == theirs.line


def _sequence(sides: _Sides, met: str) -> Diagnosis:
    """Whether a call was left out, was one too many, or made in another order."""
    kind, sides = _kind_of(sides)
    ours, theirs = sides.calls[0], sides.others[0]
    who, others = listed(sides.odd), listed(sides.most)
    if kind == LEFT_OUT:
        remedy = f"let {who} make {ours.what} too, as {others} did{_at(ours.line)}, before it makes {theirs.what}"
    elif kind == EXTRA:
        inside = _condition(theirs.line)
        where = f", which stands under `{inside}`," if inside else ""
        remedy = f"make {theirs.what}{_at(theirs.line)}{where} on all ranks, or on none: {others} did not make it there"
    else:
        remedy = (
            f"let {who} make {ours.what} before {theirs.what}, as {others} did: one order on all ranks, which a loop "
            "over a set, over files as they are listed, or over what comes first, has not"
        )
    return Diagnosis(kind, sides.odd, theirs.line, met, remedy)


def _kind_of(sides: _Sides) -> tuple[str, _Sides]:
    """The kind, and the sides such that the odd one has to change."""
    ours, theirs = sides.calls[0], sides.others[0]
    comes = any(made.what == theirs.what for made in sides.calls[1:])
    came = any(made.what == ours.what for made in sides.others[1:])
    if comes and came:
        return ORDER, sides
    if comes or came:  # one side is ahead: it has made the call of the other since
        known = any(made.what == theirs.what for made in sides.before) or _bucket(ours) and _bucket(theirs)
        return LEFT_OUT if comes else ORDER if known else EXTRA, sides
    for each in (sides, sides.swapped()):
        usual = _usual(each.before)
        if usual and usual[0].what == each.calls[0].what:
            return _beside_usual(each, usual), each
    return _by_lines(sides)


def _bucket(made: Made) -> str:
    """The number of the bucket that travels in a call; empty for others."""
    found = _WRAPPER.search(made.what)
    return found[3] or "" if found else ""


def _usual(before: Sequence[Made]) -> Sequence[Made]:
    """What came, when the last calls before were made an earlier time, behind them; empty where they were not."""
    words = [made.what for made in before]
    best, length = 0, 0
    for end in range(len(words) - 1, 0, -1):
        same = 0
        while same < end and words[end - 1 - same] == words[-1 - same]:
            same += 1
        if same > length:
            best, length = end, same
    return before[best:] if length else ()


def _beside_usual(sides: _Sides, usual: Sequence[Made]) -> str:
    """What the odd side did, where the other made the call that usually comes."""
    ours, theirs = sides.calls[0], sides.others[0]
    later = [made for made in usual[1:] if made.what == theirs.what]
    if not later:
        return EXTRA
    moved = theirs.line and (theirs.line == ours.line or all(made.line != theirs.line for made in later))
    return ORDER if moved else LEFT_OUT


def _by_lines(sides: _Sides) -> tuple[str, _Sides]:
    """By the lines of the two calls alone: one that stands above another one of a function is made before it."""
    mine, other = _LINE.match(sides.calls[0].line), _LINE.match(sides.others[0].line)
    for each in (sides, sides.swapped()):
        if _condition(each.others[0].line) and not _condition(each.calls[0].line):
            return EXTRA, each
    if mine is None or other is None or (mine[1], mine[3]) != (other[1], other[3]):
        return LEFT_OUT, sides  # which is what is most often so
    if mine[2] == other[2]:
        return ORDER, sides
    return (LEFT_OUT if int(mine[2]) < int(other[2]) else EXTRA), sides


def _condition(line: str) -> str:
    """The innermost `if` on a rank under which a line stands, as it is written; empty where it stands under none.

    By indentation: Python 3.11 can't parse in two threads at once.
    """
    place = _LINE.match(line)
    lines = linecache.getlines(place[1]) if place is not None else []
    number = int(place[2]) if place is not None else 0
    if not 0 < number <= len(lines):
        return ""
    depth = _depth(lines[number - 1])
    for text in reversed(lines[: number - 1]):
        words = text.strip()
        if not words or words.startswith("#") or _depth(text) > depth:
            continue
        if _depth(text) < depth:
            depth = _depth(text)
            if words.startswith(("if ", "elif ")) and "rank" in words:
                return words.split("  #")[0]
            if words.startswith(("def ", "class ", "async def ")):
                return ""
            if words.startswith(("else:", "elif ")):
                depth += 1  # its `if` stands as deep
    return ""


def _depth(text: str) -> int:
    return len(text) - len(text.lstrip())


# ----------------------------------------------------------------------------------------------------------- in words


def _at(line: str) -> str:
    return f" at {line}" if line else ""


def _line_in(words: str) -> str:
    found = re.search(r" at (\S+:\d+ in \S+)", words)
    return found[1] if found else ""
