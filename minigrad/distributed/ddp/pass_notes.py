"""The notes of a pass as spans, made of plain numbers when a timeline is read, not while its rank runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from minigrad.distributed.comm.work import DoneWork
from minigrad.distributed.ddp.account import Account
from minigrad.distributed.ddp.logbook import Logbook
from minigrad.distributed.record.spans import PASS
from minigrad.distributed.record.track import ALL_MEET, Later, Moment


class BucketNotes(NamedTuple):
    """What all passes by one plan have in common.

    Attributes:
        name: Of the wrapper, with its ranks.
        leaves: Name of each parameter, and the bucket that it is in, or None; by its id.
        nbytes: Of each bucket.
        on_device: Buckets have a stream of their own, whose time is that of their launches.
    """

    name: str
    leaves: dict[int, tuple[str, int | None]]
    nbytes: Sequence[int]
    on_device: bool


class CallNote(NamedTuple):
    """A call of a pass.

    Attributes:
        started_s, done_s: When all ranks had called it, and when it was over.
        began_s, called_s: While this rank called it.
        blocked: Whether the call was over when it returned, and tells when it ran.
    """

    started_s: float
    done_s: float
    began_s: float
    called_s: float
    blocked: bool


CallNumbers = tuple[float, float, float, float, bool]
Wait = tuple[int, float, float]
Numbers = tuple[list[CallNumbers], list[tuple[str, "int | None"]], float, list[Wait]]


def numbers_of(logbook: Logbook, account: Account | None) -> Numbers:
    """What of a pass's calls is kept: plain numbers, for works hold arrays.

    Args:
        account: What it came to; None on a GPU.

    Returns:
        The calls, kind and bytes of each, how long that for the samples held the rank, and the waits; see `told`.
    """
    calls, which = list[CallNumbers](), dict[int, int]()
    for work, called_s, returned_s in logbook.calls if account is not None else ():
        started_s, done_s = account.spans[id(work)]  # type: ignore[union-attr]
        which[id(work)] = len(calls)
        calls.append((started_s, done_s, called_s, returned_s, isinstance(work, DoneWork) and work.span is not None))
    waits = [(which[id(work)], began_s, ended_s) for work, began_s, ended_s in logbook.waits if id(work) in which]
    work, called_s, returned_s = logbook.calls[0]
    return calls, logbook.handed, 0.0 if isinstance(work, DoneWork) else returned_s - called_s, waits


Launch = tuple[int, int, Moment, Moment]


def told(
    plan: BucketNotes,
    number: int,
    began: Moment,
    leaves: Sequence[tuple[int, Moment]],
    launches: Sequence[Launch],
    calls: Sequence[tuple[float, float, float, float, bool]],
    handed: Sequence[tuple[str, int | None]],
    held_s: float,
    waits: Sequence[Wait],
    row_bytes: int,
    first_s: float,
    last_s: float,
    sums: dict[str, Any],
    are_noted: bool = False,
) -> Later:
    """The spans, events and meetings of a pass.

    Args:
        number: Of the pass.
        began: When backward did.
        leaves: The id of each whose gradient was complete, and when; of other wrappers in the same backward, too.
        launches: Of each bucket that went out: the number of the first call for it, that of the first one after it,
            when its launch began, and when it was over.
        calls: As `CallNote`; the first is that for the samples. On a GPU there are none.
        handed: Kind and bytes of each; None for `row_bytes`.
        held_s: How long the call for the samples held the rank, waiting aside.
        waits: Number of the call, when the rank began to wait for it, and when that was over.
        row_bytes: Of the sum of the samples.
        first_s, last_s: When the pass began, and when it was over.
        sums: Its figures.
        are_noted: Its leaves were those of a backward that was local, which has noted them.
    """
    made: list[tuple[Any, ...]] = []
    mine: dict[str, Any] = {"of": plan.name, "pass": number}
    ready = _note_leaves([] if are_noted else made, plan, began, leaves, () if plan.on_device else launches)
    names = [("samples", {**mine, "nbytes": row_bytes, "held_s": held_s})]
    for bucket, (first, last, launch_s, over_s) in enumerate(launches):
        each = {**mine, "bucket": bucket, "nbytes": plan.nbytes[bucket]}
        name = f"bucket {bucket}"
        if bucket in ready:
            made.append(("ready", ready[bucket], each))
        if plan.on_device:
            sent = [nbytes or 0 for _, nbytes in handed[first:last]]
            kind = handed[first][0] if sent else "all_reduce"
            wire = {**each, "collective": kind, "sent_bytes": sum(sent)}
            made.append(("wire", name, launch_s, over_s, wire))
        else:
            made.append(("weighted", name, launch_s, over_s, each))
        names += [(name, each)] * (last - first)
    names += [("after the gradients", mine)] * (len(calls) - len(names))
    known = list(map(CallNote._make, calls))
    _note_wire(made, names, known, [row_bytes if nbytes is None else nbytes for _, nbytes in handed], handed)
    _note_waits(made, names, known, waits)
    made.append((PASS, plan.name, first_s, last_s, {**mine, **sums}))
    ends_s = [call.called_s for call in known]
    for waited_for, _, ended_s in waits:
        ends_s[waited_for] = ended_s
    met = {
        f"{plan.name}: {number}.{n}": (call.began_s, ends_s[n])
        for n, call in enumerate(known)
        if handed[n][0] in ALL_MEET
    }
    return made, met


def told_locally(plan: BucketNotes, began: Moment, leaves: Sequence[tuple[int, Moment]]) -> Later:
    """The spans of the leaves of a backward in which nothing is combined."""
    made: list[tuple[Any, ...]] = []
    _note_leaves(made, plan, began, leaves, ())
    return made, {}


def _note_leaves(
    made: list[tuple[Any, ...]],
    plan: BucketNotes,
    began: Moment,
    leaves: Sequence[tuple[int, Moment]],
    launches: Sequence[Launch],
) -> dict[int, Moment]:
    """Note each leaf, without what launches took in between; when the last of each bucket was complete."""
    last_s, ready, at = began, dict[int, Moment](), 0
    for leaf, moment_s in leaves:
        name, bucket = plan.leaves.get(leaf, ("", None))
        while at < len(launches) and float(launches[at][2]) < float(moment_s):
            last_s = max(float(last_s), min(float(launches[at][3]), float(moment_s)))
            at += 1
        if leaf in plan.leaves:  # else that of another wrapper
            made.append(("backward", name, last_s, moment_s, {}))
        last_s = moment_s
        if bucket is not None:
            ready[bucket] = moment_s
    return ready


Names = Sequence[tuple[str, dict[str, Any]]]


def _note_wire(
    made: list[tuple[Any, ...]],
    names: Names,
    calls: Sequence[CallNote],
    sent: Sequence[int],
    handed: Sequence[tuple[str, int | None]],
) -> None:
    """Note what the wire did for each call, one after the other, and what calls that block waited for ranks."""
    reached_s = -1.0
    for (name, fields), call, nbytes, (kind, _) in zip(names, calls, sent, handed):
        start_s = min(max(call.started_s, reached_s), call.done_s)
        wire = {**fields, "collective": kind, "sent_bytes": nbytes, "queued_s": start_s - call.began_s}
        made.append(("wire", name, start_s, call.done_s, wire))
        reached_s = max(reached_s, call.done_s)
        if call.started_s > call.began_s and call.blocked:
            made.append(("idle", name, call.began_s, min(call.started_s, call.called_s), fields))


def _note_waits(made: list[tuple[Any, ...]], names: Names, calls: Sequence[CallNote], waits: Sequence[Wait]) -> None:
    """Note what the rank waited for: ranks first, then the wire."""
    for number, began_s, ended_s in waits:
        started_s, done_s = calls[number][:2]
        if began_s < done_s:
            name, fields = names[number]
            come_s = began_s + min(max(0.0, started_s - began_s), ended_s - began_s)
            if come_s > began_s:
                made.append(("idle", name, began_s, come_s, fields))
            if ended_s > come_s:
                made.append(("exposed", name, come_s, ended_s, fields))
