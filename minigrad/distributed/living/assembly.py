"""How the living ranks come together to begin a communicator: small bytes from each to each, and a bounded wait."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from minigrad.errors import CollectiveMismatchError, CollectiveTimeoutError, RankFailedError

_LENGTH_BYTES = 4  # of what is before the data


class Brought(NamedTuple):
    """What a rank brings to one exchange.

    Attributes:
        generation: Of the communicator that is begun.
        step: Number of the exchange among those of this generation.
        living: The ranks that it begins with, as that rank was told.
        data: Its bytes.
    """

    generation: int
    step: int
    living: tuple[int, ...]
    data: bytes

    def packed(self) -> bytes:
        """It as bytes."""
        head = json.dumps([self.generation, self.step, list(self.living)]).encode()
        return len(head).to_bytes(_LENGTH_BYTES, "little") + head + self.data

    @staticmethod
    def unpacked(data: bytes) -> Brought:
        """What `packed` made bytes of."""
        stop = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        generation, step, living = json.loads(data[_LENGTH_BYTES:stop])
        return Brought(generation, step, tuple(living), data[stop:])


class Known:
    """What a rank has heard that ends a wait for others. Whoever reads or changes it holds `changed`.

    Attributes:
        changed: Notified at each change.
        dead: The ranks that died, and of what.
        left: Those that have closed their lifeline, and so will not come either.
        gave_up: By generation the first rank that gave it up, and why.
        broken_off: The highest generation that this rank was told to give up, and why.
        brought: What came, by generation, step and rank.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.dead: dict[int, str] = {}
        self.left: dict[int, str] = {}
        self.gave_up: dict[int, tuple[int, str]] = {}
        self.broken_off = -1, ""
        self.brought: dict[tuple[int, int, int], Brought] = {}

    def why_no_begin(self, living: Sequence[int], generation: int) -> str:
        """Why a communicator of these ranks can't begin; empty where it can."""
        left = next((f"rank {rank} {self.left[rank]}" for rank in living if rank in self.left), "")
        return self.why_failed(living, generation) or left

    def why_failed(self, living: Sequence[int], generation: int) -> str:
        """Why one that has begun can't go on; empty where it can. That a rank has left it notices by itself."""
        for rank in living:
            if rank in self.dead:
                return f"rank {rank} is dead: {self.dead[rank]}"
        if generation in self.gave_up:
            rank, why = self.gave_up[generation]
            return f"rank {rank} gave it up: {why}"
        return self.broken_off[1] if generation <= self.broken_off[0] else ""

    def forget_before(self, generation: int) -> None:
        """Drop what came for earlier generations, which nobody asks for any more."""
        self.brought = {key: brought for key, brought in self.brought.items() if key[0] >= generation}
        self.gave_up = {key: told for key, told in self.gave_up.items() if key >= generation}


class Assembly:
    """The exchanges of one generation, as one of its ranks makes them.

    Args:
        rank: This one, among all.
        living: The ranks that take part, in order.
        generation: Its number.
        known: What this rank has heard.
        tell: tell(rank, brought) lets another rank have it; never waits.
        timeout_s: How long all exchanges together wait for the others.
    """

    def __init__(
        self,
        rank: int,
        living: tuple[int, ...],
        generation: int,
        known: Known,
        tell: Callable[[int, Brought], None],
        timeout_s: float,
    ) -> None:
        self._rank, self._known, self._tell = rank, known, tell
        self.living, self.generation, self.timeout_s = living, generation, timeout_s
        self._step, self._deadline = 0, time.monotonic() + timeout_s

    @property
    def name(self) -> str:
        """It in words."""
        return f"regroup {self.generation} among ranks {list(self.living)}"

    def exchange(self, data: bytes) -> list[bytes]:
        """The data of all living ranks, in their order; blocks.

        Raises:
            RankFailedError: one of them died, left or gave up. CollectiveTimeoutError: one did not come in time.
            CollectiveMismatchError: one was told that other ranks live.
        """
        mine = Brought(self.generation, self._step, self.living, data)
        for rank in self.living:
            if rank != self._rank:
                self._tell(rank, mine)
        known, self._step = self._known, self._step + 1
        with known.changed:
            known.brought[mine.generation, mine.step, self._rank] = mine
            known.changed.wait_for(
                lambda: not self._missing(mine.step) or known.why_no_begin(self.living, self.generation),
                max(0.0, self._deadline - time.monotonic()),
            )
            missing = self._missing(mine.step)
            if missing:
                self._refuse(missing)
            came = [known.brought[mine.generation, mine.step, rank] for rank in self.living]
        for rank, brought in zip(self.living, came):
            if brought.living != self.living:
                raise CollectiveMismatchError(
                    f"rank {self._rank}: {self.name}: expected all to be told the same, got "
                    f"{list(brought.living)} on rank {rank}"
                )
        return [brought.data for brought in came]

    def _missing(self, step: int) -> list[int]:
        return [rank for rank in self.living if (self.generation, step, rank) not in self._known.brought]

    def _refuse(self, missing: Sequence[int]) -> None:
        why = self._known.why_no_begin(self.living, self.generation)
        if why:
            raise RankFailedError(f"rank {self._rank}: {self.name}: expected all to come, but {why}")
        raise CollectiveTimeoutError(
            f"rank {self._rank}: {self.name}: expected all within {self.timeout_s:g} s, got nothing from ranks "
            f"{list(missing)}"
        )


def among(dead: Mapping[int, str], world_size: int) -> list[int]:
    """The ranks that are not dead, in order.

    Example:
        >>> among({1: "ended by SIGKILL"}, 3)
        [0, 2]
    """
    return [rank for rank in range(world_size) if rank not in dead]
