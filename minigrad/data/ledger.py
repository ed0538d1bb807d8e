"""SampleLedger: which samples a rank took, in which step, with which weight; what an epoch lacks, or has twice.

Whoever deals samples tells where in the epoch's order they lie: a sampler's loader, `Balancer`, `Rounds`, `Dispatcher`.
Whoever combines ranks tells that it did: DDP, `ParameterAverager`, or a loop of one's own. Only then are they written:
what was dealt and not combined is in no entry. A million samples are a few entries, for these hold stretches of places.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minigrad.arguments import as_integer, as_samples
from minigrad.backend.ranks import ranks_here
from minigrad.data.audit import Audit, Takings, audit_of
from minigrad.data.delivery import Strided, delivered, length_of, sampler_of
from minigrad.data.order import WORD, Indices
from minigrad.data.sampler import check_keys
from minigrad.errors import ArgumentError, StateDictError

T = TypeVar("T")


class LedgerEntry(NamedTuple):
    """What one rank took in one step, or in several one after the other that look alike.

    Attributes:
        step: The number of the combination, from 0.
        steps: How many; the i-th of them begins at start + i · jump.
        rank: Who.
        start, samples, stride: Places of the first one, so many, a stride apart; from the epoch's length on padding.
        jump: From the first place of a step to that of the next.
        weight: What each sample counted by: 1 for the mean over samples.
    """

    step: int
    steps: int
    rank: int
    start: int
    samples: int
    stride: int
    jump: int
    weight: float

    @property
    def end(self) -> int:
        """The number of the step after its last."""
        return self.step + self.steps

    def places(self) -> Indices:
        """All of them, a row for each step."""
        firsts = self.start + self.jump * np.arange(self.steps, dtype=np.int64)
        return firsts[:, None] + self.stride * np.arange(self.samples, dtype=np.int64)


class SampleLedger:
    """One rank's account of the samples of each epoch; after a merge that of all ranks.

    Args:
        length: Samples in an epoch's order, > 0: those of the data set, or of the sampler that draws from it.
        rank, world_size: Whose it is, of how many; by default those of this context, or the only one where it has none.

    Attributes:
        step: The combinations so far.
        keeps_pending: Whether what was dealt and not combined is a part of its state, since steps of this rank's own
            were made of it already, as with a `ParameterAverager`; False where it is to be dealt again after a resume.

    Raises:
        ArgumentError: a value out of its range.

    Example:
        >>> ledger = SampleLedger(6)
        >>> for start in (0, 2, 2):  # in an epoch of 6 samples, by twos; the second batch comes twice
        ...     ledger.dealt(start, 2)
        ...     ledger.combined()
        >>> print(ledger.audit())
        epoch 0 of 6 samples: missing 4-5; repeated 2-3 by rank 0 in step 1, 2-3 by rank 0 in step 2
    """

    def __init__(self, length: int, *, rank: int | None = None, world_size: int | None = None) -> None:
        who, here = "SampleLedger", ranks_here()
        self.length = as_integer(who, "length", length, 1)
        size = world_size if world_size is not None else 1 if here is None else here.world_size
        self.world_size = as_integer(who, "world_size", size, 1)
        mine = rank if rank is not None else 0 if here is None else here.rank
        self.rank = as_integer(who, "rank", mine, 0, self.world_size)
        self.step, self.keeps_pending = 0, False
        self._entries: dict[int, list[LedgerEntry]] = {}  # by epoch; those of all ranks as of the last merge
        self._own: dict[int, list[LedgerEntry]] = {}  # this rank's since then
        self._pending: list[tuple[int, Strided]] = []  # dealt and not combined, with their epoch
        self._under_way = deque[tuple[list[tuple[int, Strided]], float | None]]()  # the same, sent already
        self._skipped: set[int] = set()
        self._at = self._combined_at = 0, 0  # epoch and place of the next samples of all ranks; at the last combination
        self._goes_on = False  # in an epoch that was begun before the state was loaded
        self._is_dealing = False  # a loop over batches has begun, and not ended

    # ---------------------------------------------------------------------------------------------- what happened

    def dealt(self, start: int, count: int, stride: int = 1, *, epoch: int = 0) -> None:
        """This rank was given samples: the places start, start + stride, ..., so many, of an epoch's order.

        Places from the length of the epoch on are padding: the order begins again there.

        Raises:
            ArgumentError: a value out of its range.
        """
        as_integer("SampleLedger.dealt", "start", start, 0)
        as_integer("SampleLedger.dealt", "count", count, 0)
        as_integer("SampleLedger.dealt", "stride", stride, 1)
        as_integer("SampleLedger.dealt", "epoch", epoch, 0, WORD)
        if not count:
            return
        if self._pending:
            before, run = self._pending[-1]
            if before == epoch and run.stride == stride and start == run.start + run.samples * stride:
                self._pending[-1] = epoch, run._replace(samples=run.samples + count)
                return
        self._pending.append((int(epoch), Strided(int(start), int(count), int(stride))))

    def sent(self, weight: float | None = None) -> None:
        """What was dealt since the last time is on its way: a later `combined` writes it, and nothing dealt after it.

        Args:
            weight: See `combined`, which is not told it again.
        """
        weight = None if weight is None else as_samples("SampleLedger.combined", weight)
        self._under_way.append((self._pending, weight))
        self._pending = []

    def combined(self, weight: float | None = None) -> None:
        """A reduction is over: what was dealt since the last one is written. All ranks tell of each.

        Where something was said to be on its way it is that, in order, one a call.

        Args:
            weight: What this rank's part counted by, its samples or tokens; by default 1 for each sample. Of 0 nothing
                was taken over: its samples are missing.
        """
        if not self._under_way:
            self.sent(weight)
        runs, weight = self._under_way.popleft()
        samples = sum(run.samples for _, run in runs)
        each = 1.0 if weight is None or not samples else weight / samples
        for epoch, run in runs if each else []:
            entry = LedgerEntry(self.step, 1, self.rank, run.start, run.samples, run.stride, 0, each)
            _append(self._own.setdefault(epoch, []), entry)
        self.step, self._combined_at = self.step + 1, self._at

    def skipped(self) -> None:
        """No step was made by what was combined last: its samples are in no entry any more. All ranks tell of it.

        That is so where a `GradScaler` found an overflow: its scale is smaller after `update()`. A `Dispatcher` deals
        them again; of a loader they are named as missing.

        Raises:
            ArgumentError: nothing was combined, or it was said already.
        """
        last = self.step - 1
        if last < 0 or last in self._skipped:
            what = "one that was skipped already" if self.step else "none"
            raise ArgumentError(f"SampleLedger.skipped: expected a combination since the last one, got {what}")
        self._skipped.add(last)
        for found in (*self._entries.values(), *self._own.values()):
            found[:] = [entry for each in found if (entry := _before(each, last)).steps]

    def is_combined(self, step: int) -> bool:
        """Whether what was dealt before the combination of this number was made, and was stepped by."""
        as_integer("SampleLedger.is_combined", "step", step)
        return step < self.step and step not in self._skipped

    def give_back(self) -> None:
        """Forget what was dealt and not combined: it is dealt again, or missing."""
        self._pending, self._under_way = [], deque()

    @property
    def pending(self) -> list[tuple[int, Strided]]:
        """What was dealt and not combined: epochs and places."""
        return [run for runs, _ in self._under_way for run in runs] + self._pending

    # ---------------------------------------------------------------------------------------- for those who deal

    def wrap(self, batches: Any) -> Iterator[Any]:
        """The batches of a loader, or of a `BatchSampler`, each told as dealt when it is given out.

        Its sampler says which epoch it is, and which places a rank takes, also in mid-epoch after a resume. What a loop
        that was broken off has left uncombined when the next begins is given back, unless `keeps_pending`.

        Raises:
            ArgumentError: it has no sampler of `minigrad.data`, or one of another length.

        Example:
            >>> from minigrad.data import BatchSampler, DistributedSampler
            >>> sampler = DistributedSampler(5, rank=1, world_size=2, mode="pad")
            >>> ledger = SampleLedger(5, rank=1, world_size=2)
            >>> for batch in ledger.wrap(BatchSampler(sampler, 2)):
            ...     ledger.combined()
            >>> [entry.places().tolist() for entry in ledger.entries()]  # of 5: the last one is padding
            [[[1, 3]], [[5]]]
        """
        given = delivered("SampleLedger.wrap", batches, self.length)
        _begin(self)
        for batch, epoch, runs in given:
            for run in runs:
                self.dealt(*run, epoch=epoch)
            yield batch
        self._is_dealing = False

    def open(self, batches: Any) -> None:
        """Begin with batches of all ranks together: an epoch that their sampler says, else the one after the last.

        After a state was loaded in mid-epoch, batches without a sampler are the rest of that epoch.
        """
        sampler = sampler_of(batches)
        if sampler is not None and length_of(sampler) != self.length:
            raise ArgumentError(
                f"SampleLedger: expected batches of {self.length} samples, got those of {length_of(sampler)}"
            )
        if sampler is not None:
            self._at = sampler.epoch, 0
        elif not self._goes_on:
            self._at = self._at[0] + (self._at[1] > 0), 0
        self._goes_on = False
        _begin(self)

    def close(self) -> None:
        """The batches that were begun with by `open` are at their end, not broken off."""
        self._is_dealing = False

    def dealt_of(self, count: int, rows: slice) -> None:
        """All ranks were given so many samples, the next ones in order, of which this one has some rows."""
        if not isinstance(rows, slice):
            raise ArgumentError(f"SampleLedger.dealt_of: expected rows as a slice, got {rows!r:.100}")
        if self._at[1] >= self.length:
            self._at = self._at[0] + 1, 0
        epoch, start = self._at
        self._at = epoch, start + as_integer("SampleLedger.dealt_of", "count", count, 0)
        self.dealt(start + rows.start, rows.stop - rows.start, epoch=epoch)

    # ------------------------------------------------------------------------------------------------- what it says

    def audit(self, epoch: int = 0) -> Audit:
        """What of an epoch is missing, came more than once, or was padded, and by whom.

        Raises:
            ArgumentError: there are other ranks, and their entries are not here; or epoch is no number >= 0.
        """
        return audit_of(self.length, self.taken(epoch), epoch)

    def taken(self, epoch: int = 0) -> Takings:
        """Each sample that was combined in an epoch: its place in the order, who took it, in which step.

        Raises:
            ArgumentError: see `audit`.
        """
        entries = self.entries(epoch)
        _check_merged("SampleLedger.taken", self)
        return Takings.of([(entry, entry.places()) for entry in entries])

    def entries(self, epoch: int = 0) -> list[LedgerEntry]:
        """The entries of an epoch that are here, in order of step and rank."""
        epoch = as_integer("SampleLedger", "epoch", epoch, 0)
        return sorted(self._entries.get(epoch, []) + self._own.get(epoch, []))

    @property
    def epochs(self) -> list[int]:
        """Those of which a sample was combined."""
        return sorted(epoch for epoch in {**self._entries, **self._own} if self.entries(epoch))

    # ------------------------------------------------------------------------------------------------ over ranks

    def told(self) -> dict[str, Any]:
        """What `merge` takes from each rank, plain data: what this one has written since the last merge."""
        return {"step": self.step, "rank": self.rank, "entries": _rows(self._own)}

    def merge(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Take over what all ranks tell, this one among them: the same on all of them.

        Raises:
            ArgumentError: not one from each rank, or they have not combined as often as each other.
        """
        whole = isinstance(told, (list, tuple)) and all(isinstance(each, Mapping) for each in told)
        if not whole or not all(each.keys() >= {"step", "rank", "entries"} for each in told):
            raise ArgumentError(f"SampleLedger.merge: expected a list of what ranks tell by told(), got {told!r:.100}")
        ranks = [each["rank"] for each in told]
        if sorted(ranks) != list(range(self.world_size)):
            raise ArgumentError(f"SampleLedger.merge: expected what {self.world_size} ranks tell, got ranks {ranks}")
        steps = {each["rank"]: each["step"] for each in told}
        if len({*steps.values()}) > 1:
            raise ArgumentError(f"SampleLedger.merge: expected as many combinations on all ranks, got {steps}")
        for each in sorted(told, key=lambda each: int(each["rank"])):
            for epoch, entries in _read(each["entries"]).items():
                self._entries.setdefault(epoch, []).extend(entries)
        self._own = {}

    def state_dict(self) -> dict[str, Any]:
        """All entries as plain data for JSON; what was dealt and not combined is not in it, unless keeps_pending."""
        pending = [*self._under_way, (self._pending, None)] if self.keeps_pending else []
        waiting = [[[[epoch, *run] for epoch, run in runs], weight] for runs, weight in pending]
        is_alone = any(self._own.values()) or any(runs for runs, _ in waiting)
        kept = {"length": self.length, "step": self.step, "skipped": sorted(self._skipped)}
        kept["at"] = list(self._at if self.keeps_pending else self._combined_at)
        own = {"own": _rows(self._own), "waiting": waiting, "world_size": self.world_size}
        alone = self.rank if self.world_size > 1 and is_alone else None
        return {**kept, "entries": _rows(self._entries), **own, "of_rank": alone}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` told: after a merge that of any rank, for any number of them.

        Raises:
            StateDictError: it is of another length, no state of a ledger, or of another rank that was not merged.
        """
        who = "SampleLedger"
        check_keys(who, state, self.state_dict())
        alone = state["of_rank"]
        if state["length"] != self.length:
            raise StateDictError(f"{who}: expected a state of {self.length} samples, got one of {state['length']!r}")
        if alone is not None and (alone, state["world_size"]) != (self.rank, self.world_size):
            raise StateDictError(
                f"{who}: expected what rank {self.rank} of {self.world_size} saved, or what was merged, got that of "
                f"rank {alone} of {state['world_size']}: merge_ledger(comm, ledger) before it is saved"
            )
        try:
            step = as_integer(who, "step", state["step"], 0)
            entries, own, skipped = _read(state["entries"]), _read(state["own"]), {*map(int, state["skipped"])}
            at = int(state["at"][0]), int(state["at"][1])
            waiting = [([(int(e), Strided(*map(int, run))) for e, *run in runs], n) for runs, n in state["waiting"]]
        except (TypeError, ValueError) as error:
            raise StateDictError(f"{who}: expected a usable state, got {state!r:.200}: {error}") from error
        if alone is None:
            entries = {epoch: entries.get(epoch, []) + own.get(epoch, []) for epoch in {**entries, **own}}
            own = {}
        self.step, self._entries, self._own, self._skipped = step, entries, own, skipped
        self._at, self._combined_at, self._goes_on = at, at, 0 < at[1] < self.length
        self._is_dealing = False
        self._pending, self._under_way = waiting.pop()[0] if waiting else [], deque(waiting)


def joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of a merged ledger with what those of several ranks have written, for any number of ranks to load.

    Args:
        states: What `SampleLedger.state_dict` has told on each rank, from rank 0 on, not none. What is on its way in
            them is left out: it was not combined.

    Raises:
        StateDictError: one of them is no such state, or of another rank. ArgumentError: see `SampleLedger.merge`.
    """
    ledgers = []
    for rank, state in enumerate(states):
        ledger = SampleLedger(state["length"], rank=rank, world_size=len(states))
        ledger.load_state_dict(state)
        ledger.give_back()
        ledgers.append(ledger)
    ledgers[0].merge([ledger.told() for ledger in ledgers])
    return ledgers[0].state_dict()


def _begin(ledger: SampleLedger) -> None:
    """A loop over batches begins: one before it that never ended has left its last ones to nobody."""
    if ledger._is_dealing and not ledger.keeps_pending:
        ledger.give_back()
    ledger._is_dealing = True


def _check_merged(who: str, ledger: SampleLedger) -> None:
    if ledger.world_size > 1 and any(ledger._own.values()):
        first = min(entry.step for found in ledger._own.values() for entry in found)
        raise ArgumentError(
            f"{who}: expected the entries of {ledger.world_size} ranks, got those of rank {ledger.rank} alone since "
            f"step {first}: merge_ledger(comm, ledger) first, on all ranks"
        )


def _append(entries: list[LedgerEntry], new: LedgerEntry) -> None:
    """Add an entry of one step; as one more step of the last entry, where it goes on in the same way."""
    last = entries[-1] if entries else None
    if last is not None and new == last._replace(step=new.step, steps=1, start=new.start, jump=0):  # of one form
        jump = new.start - last.start if last.steps == 1 else last.jump
        if new.step == last.end and jump >= 0 and new.start == last.start + last.steps * jump:
            entries[-1] = last._replace(steps=last.steps + 1, jump=jump)
            return
    entries.append(new)


def _before(entry: LedgerEntry, step: int) -> LedgerEntry:
    """What of an entry is before a step, which is the last one of all."""
    return entry._replace(steps=max(0, min(entry.end, step) - entry.step))


def _rows(entries: Mapping[int, Iterable[LedgerEntry]]) -> list[Any]:
    return [[epoch, [list(entry) for entry in found]] for epoch, found in sorted(entries.items()) if found]


def _read(rows: Iterable[Any]) -> dict[int, list[LedgerEntry]]:
    return {int(epoch): [_entry(row) for row in found] for epoch, found in rows}


def _entry(row: Sequence[Any]) -> LedgerEntry:
    *numbers, weight = row
    return LedgerEntry._make([*map(int, numbers), float(weight)])
