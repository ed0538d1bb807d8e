"""A coordinator's messages and commands as JSON lines, the same commands from the same messages, and the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from minigrad.data.ledger import SampleLedger
from minigrad.errors import ArgumentError
from minigrad.train.coordinator.machine import step
from minigrad.train.coordinator.messages import Command, Commit, Contribution, CoordinatorMessage, from_data, to_data
from minigrad.train.coordinator.state import Coordinator, CoordinatorConfig


class CoordinatorJournal:
    """Writes what a coordinator hears and commands.

    Args:
        stream: Where lines go; it is flushed after each.
        state: Before the first message; or after a coordinator took over.

    Example:
        >>> import io
        >>> from minigrad.data import ChunkPool
        >>> from minigrad.data.dispatch import Dispatch
        >>> from minigrad.distributed.average import Sync
        >>> from minigrad.train.coordinator import Began
        >>> config = CoordinatorConfig(Dispatch(ChunkPool(4, batch_size=2), world_size=2, epochs=1), Sync())
        >>> stream, state = io.StringIO(), Coordinator.start(config)
        >>> journal = CoordinatorJournal(stream, state)
        >>> state, commands = step(state, Began())
        >>> journal.stepped(Began(), commands)
        >>> replay(stream.getvalue().splitlines(), config) == [commands]
        True
    """

    def __init__(self, stream: TextIO, state: Coordinator) -> None:
        self._stream = stream
        self.started(state)

    def started(self, state: Coordinator) -> None:
        """Note the state from which messages go on."""
        self._write({"state": state.state_dict()})

    def stepped(self, message: CoordinatorMessage, commands: Sequence[Command]) -> None:
        """Note a message, and what it led to."""
        self._write({"message": to_data(message), "commands": [to_data(command) for command in commands]})

    def _write(self, entry: dict[str, Any]) -> None:
        self._stream.write(json.dumps(entry) + "\n")
        self._stream.flush()


def replay(lines: Iterable[str], config: CoordinatorConfig) -> list[tuple[Command, ...]]:
    """Command again from the messages of a journal.

    Returns:
        The commands after each message.

    Raises:
        ArgumentError: a line that is no journal's, or commands that are not the recorded ones; the line is named.
    """
    found: list[tuple[Command, ...]] = []
    state: Coordinator | None = None
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if "state" in entry:
                state = Coordinator.start(config).loaded(entry["state"])
                continue
            message, recorded = from_data(entry["message"]), tuple(map(from_data, entry["commands"]))
        except (LookupError, TypeError, ValueError) as error:
            raise ArgumentError(f"replay: expected a journal's line, got line {number}: {error!r}") from error
        if state is None:
            raise ArgumentError("replay: expected a state before the first message, got none")
        state, commands = step(state, message)
        if commands != recorded:
            raise ArgumentError(
                f"replay: expected {recorded} of line {number} again, got {commands}: the journal was changed, or the "
                "code that decides"
            )
        found.append(commands)
    return found


def write_samples(ledger: SampleLedger, commit: Commit) -> None:
    """Tell a rank's ledger of a committed round, what all other ranks took too: so none of it dies with a rank.

    Args:
        ledger: That of this rank; it hears of the samples of these rounds from nobody else.
    """
    given = {each.rank: each for each in commit.taken}
    mine = given.get(ledger.rank)
    for portion in mine.portions if mine is not None else ():
        for start, stop in portion.places:
            ledger.dealt(start, stop - start, epoch=portion.epoch)
    ledger.combined(None if mine is None else mine.samples)
    others = [rank for rank in range(ledger.world_size) if rank != ledger.rank]
    told = [
        {"step": ledger.step, "rank": rank, "entries": _entries(ledger.step - 1, given.get(rank))} for rank in others
    ]
    ledger.merge([ledger.told(), *told])


def _entries(number: int, given: Contribution | None) -> list[Any]:
    """What a ledger is told of a rank's part, as its `told()`: rows by epoch."""
    rows: dict[int, list[Any]] = {}
    if given is None:
        return []
    whole = sum(stop - start for portion in given.portions for start, stop in portion.places)
    for portion in given.portions:
        for start, stop in portion.places:
            row = [number, 1, given.rank, start, stop - start, 1, 0, given.samples / whole]
            rows.setdefault(portion.epoch, []).append(row)
    return sorted([epoch, found] for epoch, found in rows.items())
