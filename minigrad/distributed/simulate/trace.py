"""What a simulation saw: computing, waiting and communication of every rank, and every decision with its reason."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from minigrad.arguments import as_integer
from minigrad.distributed.record.spans import Event, TimeSpan, dump_plain, load_plain, plain, table_of
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.record.track import Track
from minigrad.distributed.simulate.plot import plot_of
from minigrad.errors import ArgumentError

_FORMAT = "minigrad trace 1"
_SECONDS = ("compute_s", "idle_s", "exposed_s", "hidden_s")
_NOTHING: Mapping[str, Any] = {}
_PARTS = {"compute_s", "idle_s", "exposed_s", "samples"}


@dataclass
class Times:
    """The virtual times of one collective, or message.

    Attributes:
        started_s: When all ranks had called it, or it was sent.
        done_s: When it was over, or there.
    """

    started_s: float = 0.0
    done_s: float = 0.0


@dataclass
class Step:
    """One step of one rank: some computing, then the collectives after it, up to the next computing of any rank.

    Those of a group of ranks are collectives too; of messages, all that follow each other count as one.

    Attributes:
        begin_s, end_s: In virtual time.
        compute_s: Forward and backward; 0 for a rank that only took part in the collectives.
        idle_s: Waiting for a slower rank to come.
        exposed_s: Waiting for communication itself, that nothing hid.
        hidden_s: What the network did for this step else.
        samples: Computed on.
        sent_bytes: What the rank handed in to collectives, and sent.
    """

    begin_s: float
    end_s: float
    compute_s: float = 0.0
    idle_s: float = 0.0
    exposed_s: float = 0.0
    samples: float = 0.0
    hidden_s: float = 0.0
    sent_bytes: int = 0

    @property
    def communication_s(self) -> float:
        """How long the network worked for this step, once all ranks had called a collective."""
        return self.exposed_s + self.hidden_s

    def add(self, later: Step) -> None:
        """One more stretch of it, after the others."""
        self.compute_s += later.compute_s
        self.idle_s += later.idle_s
        self.exposed_s += later.exposed_s
        self.samples += later.samples
        took_s = later.compute_s + later.idle_s + later.exposed_s
        self.end_s = max(self.end_s, later.begin_s) + took_s  # a backward may be under way


@dataclass(frozen=True)
class RankTrace:
    """The steps and decisions of one rank.

    Attributes:
        uncharged_backwards: How many backwards cost no time, since no call of a module, and no `clock.compute`, had
            been charged for what they went through.
    """

    steps: list[Step]
    decisions: list[dict[str, Any]]
    uncharged_backwards: int = 0


class _Later:
    """A moment that is known once a collective is over."""

    __slots__ = ("_times", "_name")

    def __init__(self, times: Times, name: str) -> None:
        self._times, self._name = times, name

    def __float__(self) -> float:
        return float(getattr(self._times, self._name))


class Recorder:
    """Takes the notes of one rank.

    The ranks call the same collectives in the same order, so their numbers say which stretches are of one step, also
    where a rank has nothing to compute. Where groups are split off, that holds as long as each rank is in as many.

    Attributes:
        decisions: So far.
        starts: How many collectives had been called whenever the rank began to compute.
        uncharged_backwards: So far; see `RankTrace`.
    """

    def __init__(self) -> None:
        self.decisions: list[dict[str, Any]] = []
        self.starts: set[int] = set()
        self.uncharged_backwards = 0
        self._calls = 0
        self._is_messaging = False  # since it computed, or called a collective
        self._decided: list[int] = []  # with what number each decision is noted
        self._sent: list[tuple[int, int]] = []  # bytes, with the number of the collective before which they were
        self._messages: list[tuple[int, Mapping[str, Any]]] = []  # sent, with that number
        self._needed: dict[int, tuple[float, int]] = {}  # of collectives: since when, and after how many calls
        self._track = Track(0, _no_clock)  # each span with the number of the collective before which it began

    def compute(self, now_s: float, seconds: float, samples: float) -> None:
        """The rank computes."""
        self._is_messaging = False
        self.starts.add(self._calls)
        self._note("compute", now_s, seconds, self._calls, {"compute_s": seconds, "samples": samples})

    def compute_again(self, now_s: float, seconds: float) -> None:
        """The rank computes once more what it did in this step: for a checkpoint, in backward."""
        self._note("compute", now_s, seconds, self._number, {"compute_s": seconds})

    @property
    def _number(self) -> int:
        """What the step under way is noted under."""
        return self._calls if self._calls in self.starts else self._calls - 1

    def called(self, times: Times | None = None, nbytes: int = 0, told: Mapping[str, Any] = _NOTHING) -> int:
        """The rank has called a collective: the next computing is a new step.

        Args:
            times: Of the collective, known once it is over; None for one that takes none.
            nbytes: What the rank handed in.
            told: Its kind as `collective`; `called_s`, when the rank called it; `ranks`, where that are not all.

        Returns:
            Its number.
        """
        if times is not None:
            self._carry(self._calls, times, {"sent_bytes": nbytes, **told})
        self._sent.append((self._calls, nbytes))
        self._calls += 1
        self._is_messaging = False
        return self._calls - 1

    def needs(self, number: int, now_s: float) -> None:
        """The rank can't go on before a collective is over; whether it is or not."""
        self._needed.setdefault(number, (now_s, self._calls))

    def messaged(self, times: Times | None, nbytes: int, told: Mapping[str, Any] = _NOTHING) -> None:
        """The rank has sent a message, or asks for one: the next computing is a new step.

        Args:
            times: Of one that it asks for, known once it is there.
            nbytes: Of one that it sends.
            told: `called_s`, when the rank called; `peer`, the other rank; `tag`; `nbytes`.
        """
        if not self._is_messaging:
            self.called()
            self._is_messaging = True
        if times is None:
            self._messages.append((self._number, told))
        else:
            self._carry(self._calls - 1, times, {"collective": "recv", **told})
        self._sent.append((self._calls - 1, nbytes))

    def decided(self, decision: dict[str, Any]) -> None:
        """Keep a decision: its kind, when it was taken (at_s), its reason, and what it has else."""
        self.decisions.append(decision)
        self._decided.append(self._number)

    def wait(self, now_s: float, idle_s: float, exposed_s: float) -> None:
        """The rank waits: first for the others, then for the network."""
        self._note("wait", now_s, idle_s + exposed_s, self._number, {"idle_s": idle_s, "exposed_s": exposed_s})

    def _note(self, kind: str, now_s: float, seconds: float, number: int, fields: dict[str, float]) -> None:
        self._track.note(kind, "", now_s, now_s + seconds, {"call": number, **fields})

    def _carry(self, number: int, times: Times, told: dict[str, Any]) -> None:
        self._track.note("wire", "", _Later(times, "started_s"), _Later(times, "done_s"), {"call": number, **told})

    def spans(self, rank: int, starts: Sequence[int]) -> list[TimeSpan]:
        """What was seen, each with the number of its step, in the steps that begin at these numbers; -1 before them."""
        noted, _, _ = self._track.as_noted()
        for span in noted:
            if "called_s" in span.fields:
                called_s, needed = span.fields.pop("called_s"), self._needed.get(span.fields["call"])
                span.fields["queued_s"] = span.began_s - called_s
                if needed is not None and span.fields["collective"] != "recv":
                    span.fields.update(needed_s=needed[0] - called_s, needed_by=needed[1])
        return [span._replace(rank=rank, step=bisect_right(starts, span.fields["call"]) - 1) for span in noted]

    def events(self, rank: int, starts: Sequence[int]) -> Iterable[Event]:
        """The decisions, and what was sent, each with the number of its step; -1 before them."""
        for number, told in self._messages:
            fields = {key: value for key, value in told.items() if key != "called_s"}
            yield Event(rank, "sent", float(told["called_s"]), bisect_right(starts, number) - 1, fields)
        for decision, number in zip(self.decisions, self._decided):
            fields = {key: plain(value) for key, value in decision.items() if key not in ("kind", "at_s")}
            step = bisect_right(starts, number) - 1
            yield Event(rank, str(decision["kind"]), float(decision["at_s"]), step, fields)

    def trace(self, starts: Sequence[int], spans: Sequence[TimeSpan]) -> RankTrace:
        """The steps that begin at these numbers; what came before the first is setting up."""
        steps: list[Step] = []
        for span in sorted(spans, key=lambda span: span.fields["call"]):
            if span.kind == "wire" or span.step < 0:
                continue
            stretch = Step(span.began_s, span.ended_s, **{key: span.fields[key] for key in _PARTS & span.fields.keys()})
            if span.step == len(steps) - 1:
                steps[-1].add(stretch)
            else:
                _pass_over(steps, span.step)
                steps.append(stretch)
        _pass_over(steps, len(starts))
        for step, carried_s in zip(steps, _carried_s(len(starts), spans)):
            step.hidden_s = max(0.0, carried_s - step.exposed_s)
        for number, nbytes in self._sent:
            which = bisect_right(starts, number) - 1
            if which >= 0:
                steps[which].sent_bytes += nbytes
        return RankTrace(steps, self.decisions, self.uncharged_backwards)


def _carried_s(count: int, spans: Iterable[TimeSpan]) -> list[float]:
    """How long the network worked for each of so many steps: for one collective after the other."""
    sums, reached_s = [0.0] * count, 0.0
    for span in spans:
        begin_s = max(span.began_s, reached_s)
        if span.kind == "wire" and span.ended_s > begin_s:
            reached_s = span.ended_s
            if span.step >= 0:
                sums[span.step] += span.ended_s - begin_s
    return sums


def _step_of(**figures: Any) -> Step:
    """A step as a file has it; TypeError or ValueError where that is none."""
    sent_bytes = int(figures.pop("sent_bytes"))
    return Step(**{name: float(figure) for name, figure in figures.items()}, sent_bytes=sent_bytes)


def _no_clock() -> float:
    """All moments are given."""
    return 0.0


def _pass_over(steps: list[Step], count: int) -> None:
    """Let the rank do nothing, up to so many steps."""
    end_s = steps[-1].end_s if steps else 0.0
    steps += [Step(end_s, end_s) for _ in range(count - len(steps))]


@dataclass
class Trace:
    """The outcome of `simulate.run`.

    Attributes:
        ranks: What each rank saw; all have the same number of steps.
        results: What fn returned on each rank.
        timeline: What it is made from: a span "compute", forward and backward of a call of a module, which what travels
            meanwhile may stretch; "wait", for ranks and then for the network; "wire", of a collective or a message; and
            the decisions as events. Step -1 is setting up.
    """

    ranks: list[RankTrace]
    results: list[Any] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline, repr=False)

    @staticmethod
    def of(recorders: Sequence[Recorder], results: Sequence[Any] = ()) -> Trace:
        """The notes of all ranks put side by side."""
        starts = sorted(set[int]().union(*(recorder.starts for recorder in recorders)))
        spans = [recorder.spans(rank, starts) for rank, recorder in enumerate(recorders)]
        ranks = [recorder.trace(starts, own) for recorder, own in zip(recorders, spans)]
        events = [event for rank, recorder in enumerate(recorders) for event in recorder.events(rank, starts)]
        return Trace(ranks, list(results), Timeline.of(chain.from_iterable(spans), events, "virtual"))

    def to_json(self) -> str:
        """The trace as text, for a file or another process; numbers come back to the last bit, results do not."""
        ranks = dump_plain([plain(asdict(rank)) for rank in self.ranks])
        return json.dumps({"format": _FORMAT, "ranks": ranks, "timeline": self.timeline.to_json()}, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Trace:
        """A trace that `to_json` wrote, without results; tuples in its decisions are lists now.

        Raises:
            ArgumentError: the text is none.
        """
        try:
            read = json.loads(text, object_hook=load_plain)
            if read["format"] != _FORMAT:
                raise ValueError(f"format {read['format']!r:.100}")
            ranks = []
            for rank in read["ranks"]:
                steps = [_step_of(**step) for step in rank["steps"]]
                ranks.append(RankTrace(steps, list(rank["decisions"]), int(rank["uncharged_backwards"])))
            if len({len(rank.steps) for rank in ranks}) != 1:
                raise ValueError("no ranks with as many steps each")
            return Trace(ranks, [], Timeline.from_json(read["timeline"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            wanted = f"the text of to_json, of {_FORMAT!r}"
            raise ArgumentError(f"Trace.from_json: expected {wanted}, got {text!r:.100}: {error}") from error

    def to_chakra(self, folder: str | os.PathLike[str], world_size: int | None = None) -> None:
        """Write Chakra execution traces; see `Timeline.to_chakra`.

        Args:
            folder: Made where it is not there.
            world_size: For how many ranks; by default those that were simulated.

        Raises:
            ArgumentError: world_size is no integer >= 1, or another number where messages or groups name ranks.
        """
        self.timeline.to_chakra(folder, world_size)

    def table(self, first: int = 0, last: int | None = None) -> str:
        """A line for each rank in each step of [first, last): its seconds, samples and bytes."""
        rows = [["step", "rank", "begin_s", "end_s", *_SECONDS, "samples", "sent_bytes"]]
        for number in self._numbers("Trace.table", first, last):
            for rank, trace in enumerate(self.ranks):
                step = trace.steps[number]
                seconds = [f"{getattr(step, name):.6f}" for name in ("begin_s", "end_s", *_SECONDS)]
                rows.append([str(number), str(rank), *seconds, f"{step.samples:g}", str(step.sent_bytes)])
        return table_of(rows)

    def _numbers(self, who: str, first: int, last: int | None) -> range:
        """The steps [first, last); negative numbers count from the end."""
        begin, end = as_integer(who, "first", first), None if last is None else as_integer(who, "last", last)
        return range(self.steps())[begin:end]

    def plot(self, first: int = 0, last: int | None = None, width: int = 72) -> str:
        """Steps [first, last) as a picture in text; print it. `distributed.save_page(trace, "run.html")` has more.

        Args:
            first, last: Numbers of steps; None for all that follow.
            width: Characters of a line, beside the rank's name, >= 1.

        Raises:
            ArgumentError: width is no integer >= 1, or first and last are none.

        Example:
            >>> from minigrad.distributed import simulate
            >>> def body(comm):
            ...     comm.clock.compute(8)
            ...     comm.barrier()
            >>> print(simulate.run(body, simulate.Cluster.of_speeds([2, 1])).plot(width=16))
            step 0: 0.008 s, a character is 0.0005 s
            # computes   . waits for ranks   ~ waits for the wire   = the wire works
            rank 0 |########........|
                   |                |
            rank 1 |################|
                   |                |
        """
        as_integer("Trace.plot", "width", width, 1)
        chosen = self._numbers("Trace.plot", first, last)
        spans = [span for span in self.timeline.spans if span.step in chosen]
        return plot_of(spans, len(self.ranks), (chosen.start, chosen.stop), width)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decisions that rank 0 took or heard of, each with its reason, in order."""
        return self.ranks[0].decisions

    @property
    def uncharged_backwards(self) -> int:
        """Backwards of all ranks that cost no time; see `RankTrace`."""
        return sum(rank.uncharged_backwards for rank in self.ranks)

    def steps(self) -> int:
        """Steps that the ranks made."""
        return len(self.ranks[0].steps)

    def step_times_s(self) -> list[float]:
        """Seconds of each step, from the first rank that began to the last that ended."""
        spans = zip(*(rank.steps for rank in self.ranks))
        return [max(s.end_s for s in span) - min(s.begin_s for s in span) for span in spans]

    def slowest_s(self) -> list[float]:
        """Seconds that the slowest rank computed in each step: the step's time, communication aside."""
        return [max(step.compute_s for step in span) for span in zip(*(rank.steps for rank in self.ranks))]

    def idle_fraction(self, first: int = 0, last: int | None = None) -> float:
        """The part of all ranks' time, over steps [first, last), that went into waiting for slower ranks."""
        return self._fraction(lambda step: step.idle_s, first, last)

    def exposed_fraction(self, first: int = 0, last: int | None = None) -> float:
        """The part of all ranks' time, over steps [first, last), that went into waiting for communication itself."""
        return self._fraction(lambda step: step.exposed_s, first, last)

    def throughput(self, first: int = 0, last: int | None = None) -> float:
        """Samples in a second of virtual time, over steps [first, last)."""
        chosen = self._chosen(first, last)
        if not chosen:
            return 0.0
        seconds = max(step.end_s for step in chosen) - min(step.begin_s for step in chosen)
        return sum(step.samples for step in chosen) / seconds if seconds else float("inf")

    def sent_bytes(self, first: int = 0, last: int | None = None) -> int:
        """What all ranks handed in to collectives, and sent, over steps [first, last)."""
        return sum(step.sent_bytes for step in self._chosen(first, last))

    def _fraction(self, part: Callable[[Step], float], first: int, last: int | None) -> float:
        chosen = self._chosen(first, last)
        whole = sum(step.end_s - step.begin_s for step in chosen)
        return sum(map(part, chosen)) / whole if whole else 0.0

    def _chosen(self, first: int, last: int | None) -> list[Step]:
        return [step for rank in self.ranks for step in rank.steps[first:last]]
