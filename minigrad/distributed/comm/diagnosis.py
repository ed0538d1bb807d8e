"""Why ranks can't go on together, from what is seen of each: which rank, at which line, has to do what.

The calls of the ranks are aligned by number. At the first number at which they are not one call, those of the ranks
from there on, those before, and the lines that made them tell which kind of fault it is, as far as they do. Pure, but
that the user's sources are looked into: whether a line stands under an `if` on the rank.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from minigrad.distributed.comm.calls import Made
from minigrad.distributed.comm.headers import GIVE_UP
from minigrad.distributed.comm.sightings import DIED, Sighting, listed
from minigrad.distributed.comm.sources import LINE, condition, is_behind

LEFT_OUT, EXTRA, ORDER, SHAPE = "a call left out", "one call too many", "another order", "another array"
PLAN, WRAPPER, LEFT, RAISED = "another plan", "another wrapper or group", "left early", "raised"
DEAD, LATE = "died", "late"
_CALL = re.compile(r"(\w+)(?:\((.*)\))?(?: of (\d+) (\w+))?(?: in .*)?")
_WRAPPER = re.compile(r"(DDP \d+ of .*?)(?: \(.*\))*, plan (\w+)(?: bucket (\d+))?")
_RAISED = re.compile(r"rank (\d+) (?:aborted|failed first): (.*)", re.DOTALL)
_MESSAGE = re.compile(r"((send|recv)\((?:to|from) (\d+), tag \d+\)).*: expected rank \3 to (?:take|send) it")
_UNLIKE_MESSAGES = re.compile(r"both ends of a message, got (.*) on rank (\d+) and (.*) on rank (\d+)")
_LAST_MESSAGE = re.compile(r"((send|recv)\((?:to|from) (\d+), tag \d+\))")
_PLACES = re.compile(r"; rank ([\d, ]+): (?:waiting )?at (\S+:\d+ in [^\s;]+)")


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
    seen = _placed(seen, error)
    seq = first_difference(seen)
    found = _raised(seen, error, seq) or _message(seen, error) or _gone(seen, error, seq)
    if found is not None:
        return found
    here = {each.rank: each.numbered.get(seq) for each in seen if each.calls or not each.unseen}
    here = here if None in here.values() else {each.rank: each.numbered.get(seq) for each in seen}
    missing = tuple(rank for rank, made in here.items() if made is None)
    words = Counter(made.what for made in here.values() if made is not None)
    if len(words) < 2:
        return _missing(seen, missing, seq, error)
    return _slipped(seen, seq) or _unlike(_sides(seen, seq, _what))


def _what(made: Made) -> str:
    return made.what


def _whole(made: Made) -> tuple[str, str]:
    return made.what, made.line


def _sides(seen: Sequence[Sighting], seq: int, same: Callable[[Made], object]) -> _Sides:
    """The sides at a number; where as many ranks are on each, most is the one that makes what came before.

    Args:
        same: What two calls that are the same have in common.
    """
    here = {each.rank: each.numbered[seq] for each in seen if seq in each.numbered}
    ranks: dict[object, list[int]] = {}
    for rank, made in here.items():
        ranks.setdefault(same(made), []).append(rank)
    by_rank = {each.rank: each.numbered for each in seen}
    before = [made for number, made in sorted(by_rank[next(iter(here))].items()) if number < seq]
    usual, known = _usual(before, same), {same(made) for made in before}
    most = max(ranks, key=lambda call: (len(ranks[call]), bool(usual) and same(usual[0]) == call, call in known))
    odd = next(call for call in ranks if call != most)
    calls = [[m for number, m in sorted(by_rank[ranks[call][0]].items()) if number >= seq] for call in (most, odd)]
    before = [made for number, made in sorted(by_rank[ranks[most][0]].items()) if number < seq]
    return _Sides(tuple(ranks[most]), tuple(ranks[odd]), calls[0], calls[1], before)


def _placed(seen: Sequence[Sighting], error: str) -> list[Sighting]:
    """With the lines that an error tells of ranks of which nothing else is known."""
    told = {int(rank): line for ranks, line in _PLACES.findall(error) for rank in ranks.split(",")}
    return [each if each.at or each.gone else replace(each, at=told.get(each.rank, "")) for each in seen]


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
    what = words.removeprefix("it raised ").split("\n")[0].rstrip(")")
    who = listed([rank.rank])
    remedy = f"mend what {who} raised{_at(line)}: the errors of the other ranks come of it"
    return Diagnosis(RAISED, (rank.rank,), line, f"{who} raised: {what}", remedy)


def _message(seen: Sequence[Sighting], error: str) -> Diagnosis | None:
    """A rank that did not come to the other end of a message."""
    unlike = _UNLIKE_MESSAGES.search(error)
    if unlike is not None:
        theirs, rank = (unlike[1], unlike[2]) if unlike[1].startswith("recv") else (unlike[3], unlike[4])
        taker = next((each for each in seen if each.rank == int(rank)), Sighting(int(rank)))
        line = next((made.line for made in reversed(taker.calls) if made.what == theirs), taker.at)
        met = f"{unlike[1]} on rank {unlike[2]} met {unlike[3]} on rank {unlike[4]}"
        remedy = f"let rank {rank} give an array of the same dtype and size as the other end{_at(line)}"
        return Diagnosis(SHAPE, (taker.rank,), line, met, remedy)
    told = _MESSAGE.search(error)
    other = next((each for each in seen if told is not None and each.rank == int(told[3])), None)
    if told is None or other is None:
        return None
    who, does = listed([other.rank]), "recv" if told[2] == "send" else "send"
    kind = LEFT if other.gone and not other.gone.startswith(DIED) else DEAD if other.gone else LATE
    line = other.at or (other.last.line if other.last else "")
    what = f"{who} {other.gone or 'is there' + _at(other.at)} and did not come to the other end of {told[1]}"
    remedy = f"let {who} call {does}, with the same tag, dtype and size, as often as the other end does"
    remedy += _at(line) if other.at else _at(line).replace(" at ", ", after its call at ", 1)
    return Diagnosis(kind, (other.rank,), line, what, remedy)


def _gone(seen: Sequence[Sighting], error: str, seq: int) -> Diagnosis | None:
    """A rank that has left, or died, and lacks a call that others have made."""
    gone = [each for each in seen if each.gone and (seq < 0 or seq not in each.numbered) and _is_cause(each, error)]
    if not gone:
        return None
    dead = [each for each in gone if each.gone.startswith(DIED)]
    ranks = tuple(each.rank for each in dead or gone)
    last, waited = (dead or gone)[0].last, _made_at(seen, seq)
    line = last.line if last else ""
    who, what = listed(ranks), _each({each.rank: f"{each.gone}{_after(each)}" for each in dead or gone})
    if dead:
        remedy = (
            f"look into what {who} wrote last, and its exit status: a signal, or memory that ran out"
            f"{_at(line and f'or after {line}')}"
        )
        return Diagnosis(DEAD, ranks, line, what, remedy)
    need = f"{waited.what}, as the others do{_at(waited.line)}" if waited else "as many calls as the others"
    remedy = f"let {who} make {need}, before leaving; where ranks have different numbers of batches, use ddp.join()"
    return Diagnosis(LEFT, ranks, line, what, remedy)


def _is_cause(rank: Sighting, error: str) -> bool:
    """Whether that a rank is gone is why others failed, as they say; else it left, or was ended, after a failure."""
    return not error or f"rank {rank.rank} {rank.gone}" in error


def _after(rank: Sighting) -> str:
    return f" after {rank.last.what}{_at(rank.last.line)}" if rank.last else " before its first call"


def _missing(seen: Sequence[Sighting], missing: tuple[int, ...], seq: int, error: str) -> Diagnosis:
    """Ranks that are there, and have not made a call."""
    late, waited = [each for each in seen if each.rank in missing], _made_at(seen, seq)
    if not late or waited is None:
        return Diagnosis(LATE, (), "", "all ranks have made the same calls", "look into what each of them is at")
    late = [each for each in late if not each.unseen or each.calls] or late
    call = f"call {seq}, {waited.what}, which others made{_at(waited.line)}"
    inside = [each for each in late if each.elsewhere]
    free = [each for each in late if not each.elsewhere and any(_waits_for(other, each.rank) for other in inside)]
    if free:  # the others wait for these
        late, missing = free, tuple(each.rank for each in free)
    elif inside:
        ranks, each = tuple(rank.rank for rank in inside), inside[0]
        line = _line_in(each.elsewhere) or each.at
        remedy = (
            f"let {listed(ranks)} make {call}, before waiting in {each.elsewhere}; or let all ranks of that group "
            "come there first: calls of a communicator and of its groups need one order on all ranks"
        )
        what = _each({rank.rank: f"waits in {rank.elsewhere}" for rank in inside})
        return Diagnosis(WRAPPER, ranks, line, what, remedy)
    each = late[0]
    line = each.at or (each.last.line if each.last else "")
    what = f"{_each({each.rank: _place(each) for each in late})}, without call {seq}"
    message = _message_of(each, error) if len(missing) == 1 else None
    if message is not None:
        does = "recv" if message[2] == "send" else "send"
        remedy = (
            f"let rank {message[3]} call {does} for the {message[1]} in which {listed(missing)} waits{_at(line)}, or "
            f"leave that out: then {listed(missing)} comes to {call}"
        )
        return Diagnosis(LATE, missing, line, what, remedy)
    remedy = f"let {listed(missing)} make {call}; or, where it only takes long there, give a larger timeout"
    return Diagnosis(LATE, missing, line, what, remedy)


def _waits_for(rank: Sighting, other: int) -> bool:
    """Whether a rank waits in a call of a group that another one is of."""
    group = re.search(r" of group \[([\d, ]+)\]", rank.elsewhere)
    return group is not None and other in map(int, group[1].split(","))


def _message_of(rank: Sighting, error: str) -> re.Match[str] | None:
    """The message in which a rank waits, by its last call, or by what an error tells of that."""
    if rank.last and rank.last.seq < 0:
        return _LAST_MESSAGE.match(rank.last.what) if rank.at in ("", rank.last.line) else None
    told = f"rank {rank.rank} last called "
    return _LAST_MESSAGE.match(error.split(told, 1)[1]) if told in error else None


def _place(rank: Sighting) -> str:
    place = f"is{_at(rank.at)}" if rank.at else rank.unseen or "did not say where it is"
    return f"{place}{f', after {rank.last.what}{_at(rank.last.line)}' if rank.last else ', before its first call'}"


def _made_at(seen: Sequence[Sighting], seq: int) -> Made | None:
    return next((each.numbered[seq] for each in seen if seq in each.numbered), None)


# ---------------------------------------------------------------------------------------------- calls that are not one


def _unlike(sides: _Sides) -> Diagnosis:
    """Two calls of one number, of ranks that are all there."""
    ours, theirs = sides.calls[0], sides.others[0]
    who, others = listed(sides.odd), listed(sides.most)
    met = _met(sides)
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
        again = "; where that line makes several calls, let it make them in one order on all ranks"
        remedy += _at(theirs.line) + (again if theirs.line == ours.line != "" else "")
        return Diagnosis(SHAPE, sides.odd, theirs.line, met, remedy)
    return _sequence(sides, met)


def _met(sides: _Sides) -> str:
    ours, theirs = sides.calls[0], sides.others[0]
    met = f"{listed(sides.odd)} made {theirs.what}{_at(theirs.line)} where {listed(sides.most)} made {ours.what}"
    return f"{met}{_at(ours.line)}"


def _same_but_array(ours: Made, theirs: Made, sides: _Sides) -> bool:
    """Whether one call has another array, or argument: made at one line, unless both are calls of their own."""
    mine, other = _CALL.match(ours.what), _CALL.match(theirs.what)
    if mine is None or other is None or mine[1] != other[1] or _layout(mine[2]) != _layout(other[2]):
        return False
    known = {made.what for made in (*sides.before, *sides.calls[1:], *sides.others[1:])}
    count = (ours.what in known) + (theirs.what in known)
    return count == 0 or count == 1 and (ours.line == theirs.line or not ours.line or not theirs.line)


def _layout(detail: str | None) -> str:
    """What a call is for, of what stands in its parentheses."""
    return re.sub(r"^(root \d+|\w+)", "", detail or "")


def _slipped(seen: Sequence[Sighting], seq: int) -> Diagnosis | None:
    """Of ranks that make the same calls at different lines up to where they do not: one was left out, or too many."""
    numbered = [each.numbered for each in seen if each.calls]
    first = seq
    while all(first - 1 in calls and calls[first - 1].line for calls in numbered):
        if len({calls[first - 1].line for calls in numbered}) == 1:
            break
        first -= 1
    known = first == 0 or all(first - 1 in calls for calls in numbered)  # else they may be of different programs
    if first == seq or not known:
        return None
    sides = _sides(seen, first, _whole)
    ours, theirs = ([_whole(made) for made in calls] for calls in (sides.calls, sides.others))
    if ours[0] not in theirs and theirs[0] not in ours:
        return None
    usual, less, more = _usual(sides.before, _whole), _goes_on(ours[1:], theirs), _goes_on(theirs[1:], ours)
    if less != more:
        kind = LEFT_OUT if less else EXTRA
    elif usual and _whole(usual[0]) == theirs[0]:
        sides = sides.swapped()
        kind = _beside_usual(sides, usual)
    elif usual and _whole(usual[0]) == ours[0]:
        kind = _beside_usual(sides, usual)
    else:
        kind = LEFT_OUT if theirs[0] in ours else EXTRA
    if kind == ORDER:
        return None
    return _in_sequence(kind, sides, f"{_met(sides)}, as call {first}, which call {seq} shows")


def _goes_on(calls: Sequence[object], others: Sequence[object]) -> bool:
    """Whether calls are others, as far as both are known."""
    known = min(len(calls), len(others))
    return known > 0 and calls[:known] == others[:known]


def _sequence(sides: _Sides, met: str) -> Diagnosis:
    """Whether a call was left out, was one too many, or made in another order."""
    kind, turned = _kind_of(sides)
    return _in_sequence(kind, turned, met if turned == sides else _met(turned))


def _in_sequence(kind: str, sides: _Sides, met: str) -> Diagnosis:
    ours, theirs = sides.calls[0], sides.others[0]
    who, others = listed(sides.odd), listed(sides.most)
    if kind == LEFT_OUT:
        before = f"before {theirs.what}{_at(theirs.line)}"
        remedy = f"let {who} make {ours.what} too, as {others} did{_at(ours.line)}, {before}"
    elif kind == EXTRA:
        inside = condition(theirs.line)
        where = f", which stands under `{inside}`," if inside else ""
        remedy = f"make {theirs.what}{_at(theirs.line)}{where} on all ranks, or on none: {others} did not make it there"
        if not inside:
            remedy += f"; or, where it came too early, let {who} make {ours.what} before it{_at(ours.line)}"
    elif inside := _same_condition(sides):
        remedy = f"make the same calls in one order in all branches of `{inside}`{_at(theirs.line)}"
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
    for same in (_whole, _what):
        usual = _usual(sides.before, same)
        for each in (sides, sides.swapped()):
            if usual and same(usual[0]) == same(each.calls[0]):
                return _beside_usual(each, usual), each
    return _by_lines(sides)


def _bucket(made: Made) -> str:
    """The number of the bucket that travels in a call; empty for others."""
    found = _WRAPPER.search(made.what)
    return found[3] or "" if found else ""


def _usual(before: Sequence[Made], same: Callable[[Made], object]) -> Sequence[Made]:
    """What came, when the last calls before were made an earlier time, behind them; empty where they were not."""
    words = [same(made) for made in before]
    best, length = 0, 0
    for end in range(len(words) - 1, 0, -1):
        alike = 0
        while alike < end and words[end - 1 - alike] == words[-1 - alike]:
            alike += 1
        if alike > length:
            best, length = end, alike
    return before[best:] if length else ()


def _beside_usual(sides: _Sides, usual: Sequence[Made]) -> str:
    """What the odd side did, where the other made the call that usually comes."""
    ours, theirs = sides.calls[0], sides.others[0]
    later = [made for made in usual[1:] if made.what == theirs.what]
    if not later:
        return LEFT_OUT if is_behind(theirs.line, ours.line) else EXTRA
    moved = theirs.line and (theirs.line == ours.line or all(made.line != theirs.line for made in later))
    return ORDER if moved else LEFT_OUT


def _by_lines(sides: _Sides) -> tuple[str, _Sides]:
    """By the lines of the two calls alone: one that stands above another one of a function is made before it."""
    mine, other = LINE.match(sides.calls[0].line), LINE.match(sides.others[0].line)
    if _same_condition(sides):
        return ORDER, sides
    for each in (sides, sides.swapped()):
        if condition(each.others[0].line) and not condition(each.calls[0].line):
            return EXTRA, each
    if mine is None or other is None or (mine[1], mine[3]) != (other[1], other[3]):
        known = [made.what for made in sides.before]
        new = sides.calls[0].what in known and sides.others[0].what not in known
        return EXTRA if new else LEFT_OUT, sides  # which is what is most often so
    if mine[2] == other[2]:
        return ORDER, sides
    return (LEFT_OUT if int(mine[2]) < int(other[2]) else EXTRA), sides


def _same_condition(sides: _Sides) -> str:
    """The `if` on a rank in whose branches both calls stand."""
    mine, other = condition(sides.calls[0].line), condition(sides.others[0].line)
    return mine if mine == other and sides.calls[0].line != sides.others[0].line else ""


# ----------------------------------------------------------------------------------------------------------- in words


def _each(said: Mapping[int, str]) -> str:
    """What is said of each rank; of those of which the same is said, together.

    Example:
        >>> _each({0: "is gone", 2: "is gone", 1: "has returned"})
        'ranks 0, 2 are gone, rank 1 has returned'
    """
    ranks: dict[str, list[int]] = {}
    for rank, text in said.items():
        ranks.setdefault(text, []).append(rank)
    plural = {"is": "are", "has": "have", "was": "were", "waits": "wait"}
    words = []
    for text, group in ranks.items():
        first, space, rest = text.partition(" ")
        first = plural.get(first, first) if len(group) > 1 else first
        rest = rest if len(group) == 1 else rest.replace("its ", "their ").replace("it is", "they are")
        words.append(f"{listed(group)} {first}{space}{rest}")
    return ", ".join(words)


def _at(line: str) -> str:
    return f" at {line}" if line else ""


def _line_in(words: str) -> str:
    found = re.search(r" at (\S+:\d+ in \S+)", words)
    return found[1] if found else ""
