"""What ranks tell the coordinator, and what it commands: frozen dataclasses, and the same as plain data for JSON.

A command that wants an answer carries the number of its question, `ask`; the answer carries it back, with the round and
the term. So what was on its way when a question was asked, comes late or comes twice is no answer to it. A term is the
time of one coordinator: the next one, after the rank that it was on has died, has the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from minigrad.arguments import as_samples
from minigrad.data.dispatch import Portion
from minigrad.errors import ArgumentError


class Contribution(NamedTuple):
    """What one rank gave to a committed round.

    Attributes:
        rank: Who.
        samples: Its weight.
        portions: The batches that it was dealt.
    """

    rank: int
    samples: float
    portions: tuple[Portion, ...]


# ------------------------------------------------------------------------------------------------ to the coordinator


@dataclass(frozen=True)
class CoordinatorMessage:
    """What is told to the coordinator."""


@dataclass(frozen=True)
class Began(CoordinatorMessage):
    """All ranks are there: the first message of all."""


@dataclass(frozen=True)
class Answer(CoordinatorMessage):
    """What a rank says to a question.

    Attributes:
        rank: Who.
        term, round, ask: As in the command that asked.
    """

    rank: int
    term: int
    round: int
    ask: int


@dataclass(frozen=True)
class Working(Answer):
    """It has made so many batches of a `Train`, and goes on: it is waited for from now on again."""

    batches: int


@dataclass(frozen=True)
class Trained(Answer):
    """It has made all batches of a `Train`.

    Attributes:
        samples: What its part weighs, >= 0: samples or tokens that it really used.
        batches: Its steps.
        seconds: Of computing; 0 where it was not measured.

    Raises:
        ArgumentError: samples that are no finite number >= 0.
    """

    samples: float
    batches: int
    seconds: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", as_samples("Trained", self.samples))


@dataclass(frozen=True)
class Combined(Answer):
    """It has what came out of a `Combine`, and keeps it apart until the round is committed.

    Attributes:
        seconds: That it has waited for it.
    """

    seconds: float = 0.0


@dataclass(frozen=True)
class Broken(Answer):
    """A `Combine` came to nothing on it, by no fault of its own: another rank was missing.

    Attributes:
        error: What the communicator raised, in words.
    """

    error: str


@dataclass(frozen=True)
class Restored(Answer):
    """It is where it was after the round of a `Restore`."""


@dataclass(frozen=True)
class Recalled(Answer):
    """What it got last of the coordinator before, to a `Recall`.

    Attributes:
        last: The round of its last `Commit`; 0 for none.
        state: As that `Commit` brought it.
    """

    last: int
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Saved(Answer):
    """It has done its part of a `Save`."""


@dataclass(frozen=True)
class Finished(Answer):
    """It has the commits of all rounds, to a `Finish`."""


@dataclass(frozen=True)
class Failed(CoordinatorMessage):
    """A rank has raised, or its process or thread has ended; it says nothing any more.

    Attributes:
        rank: Who.
        error: The error in words, or how it ended.
    """

    rank: int
    error: str


@dataclass(frozen=True)
class Expired(CoordinatorMessage):
    """The time of an `Await` is over.

    Attributes:
        term, timer: As in the command.
    """

    term: int
    timer: int


@dataclass(frozen=True)
class StopAsked(CoordinatorMessage):
    """The user wants the run to end."""

    why: str = "run.stop()"


# ------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True)
class Command:
    """What the coordinator wants.

    Attributes:
        term: Of which coordinator; a rank that has heard a later one does nothing for it.
        reason: Why, in words.
    """

    term: int
    reason: str


@dataclass(frozen=True)
class Noted(Command):
    """Nothing to do: why a message counted for nothing."""


@dataclass(frozen=True)
class Await(Command):
    """Tell `Expired(term, timer)` after so many seconds.

    Attributes:
        timer: Its number.
        ranks: Those that are waited for.
    """

    timer: int
    seconds: float
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Order(Command):
    """What one rank is to do.

    Attributes:
        rank: Who.
        round: In which round, from 1.
        ask: The number of the question that it answers; 0 where it does not.
    """

    rank: int
    round: int
    ask: int = 0


@dataclass(frozen=True)
class Train(Order):
    """Make these batches, then say `Trained`."""

    portions: tuple[Portion, ...] = ()


@dataclass(frozen=True)
class Combine(Order):
    """Combine the round, keep what comes out apart, then say `Combined`.

    Attributes:
        members: All who do.
        givers: Those of them that have samples.
        samples: What each giver's part weighs.
    """

    members: tuple[int, ...] = ()
    givers: tuple[int, ...] = ()
    samples: tuple[float, ...] = ()


@dataclass(frozen=True)
class Commit(Order):
    """What came out of the round's `Combine` holds; `write_samples` tells a ledger.

    Attributes:
        taken: What each rank gave; nobody combines where none has samples, and then nothing changes.
        state: Of the coordinator, with nothing on its way: what to save, and to go on from where its rank dies.
    """

    taken: tuple[Contribution, ...] = ()
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Restore(Order):
    """Go back to what held after the commit of this round, as a group of these members; then say `Restored`.

    Attributes:
        members: All who go on.
    """

    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recall(Order):
    """Say by `Recalled` which round was committed last: there is a new coordinator."""


@dataclass(frozen=True)
class Save(Order):
    """Go back to what held after the commit of this round, write a checkpoint of it together, then say `Saved`.

    Attributes:
        members: All who do; the first one writes.
        error: Why the run ends; empty where the user has asked for it.
    """

    members: tuple[int, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Stop(Order):
    """End, with this error; without one, as it should be, where it is empty."""

    error: str = ""


@dataclass(frozen=True)
class Finish(Order):
    """All epochs are committed: say `Finished`, and wait for the `Stop`, which tells that all others have them too."""


@dataclass(frozen=True)
class Drop(Order):
    """This rank did not come in time: see that it has ended, and that no message of it arrives any more."""


KINDS: dict[str, type[CoordinatorMessage] | type[Command]] = {
    kind.__name__: kind
    for kind in (
        *(Began, Working, Trained, Combined, Broken, Restored, Recalled, Saved, Finished, Failed),
        *(Expired, StopAsked),
        *(Noted, Await, Train, Combine, Commit, Restore, Recall, Save, Stop, Finish, Drop),
    )
}


def to_data(said: CoordinatorMessage | Command) -> dict[str, Any]:
    """A message or command as plain data for JSON.

    Example:
        >>> to_data(Failed(2, "ValueError: no"))
        {'kind': 'Failed', 'rank': 2, 'error': 'ValueError: no'}
    """
    return {"kind": type(said).__name__, **{field.name: plain(getattr(said, field.name)) for field in fields(said)}}


def from_data(data: Mapping[str, Any]) -> Any:
    """What `to_data` told.

    Raises:
        ArgumentError: it is no such thing.
    """
    try:
        values = {name: _value(name, value) for name, value in data.items() if name != "kind"}
        return KINDS[data["kind"]](**values)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(f"coordinator: expected what to_data() told, got {data!r:.200}: {error!r}") from error


def plain(value: Any) -> Any:
    """The same with lists for all tuples, so that it is equal to what JSON makes of it."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def portions_from(data: Sequence[Any]) -> tuple[Portion, ...]:
    """Portions out of plain data."""
    return tuple(Portion(int(epoch), tuple((int(a), int(b)) for a, b in places)) for epoch, places in data)


def taken_from(data: Sequence[Any]) -> tuple[Contribution, ...]:
    """Contributions out of plain data."""
    return tuple(Contribution(int(rank), float(n), portions_from(portions)) for rank, n, portions in data)


def _value(name: str, value: Any) -> Any:
    if name == "portions":
        return portions_from(value)
    if name == "taken":
        return taken_from(value)
    return tuple(value) if isinstance(value, list) else value
