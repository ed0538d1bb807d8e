"""The figures of epochs where ranks are not in step: sums travel with each round, and count once it is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minigrad.train.coordinator.messages import Commit
from minigrad.train.epoch import EpochMetrics, Told, combine_epoch
from minigrad.train.totals import added

Row = list[Any]  # [epoch, Told]: what a rank tells of its part of a round


def nothing() -> Told:
    """The sums of a rank that had no batch."""
    numbers = {"samples": 0.0, "steps": 0, "train_s": 0.0, "epoch_s": 0.0}
    return {"loss": [0.0, 0.0], "scalars": [0, {}], "metrics": {}, **numbers}


def plus(one: Told, other: Told) -> Told:
    """The sums of two parts of one rank.

    Example:
        >>> plus(nothing(), {**nothing(), "loss": [6.0, 3.0], "steps": 1})["loss"]
        [6.0, 3.0]
    """
    (batches, means), (more, others) = one["scalars"], other["scalars"]
    by_name = {
        name: [added(part) for part in zip(means.get(name, [0.0, 0.0]), others.get(name, [0.0, 0.0]))]
        for name in {**means, **others}
    }
    return {
        "loss": [added(part) for part in zip(one["loss"], other["loss"])],
        "scalars": [batches + more, by_name],
        "metrics": {},
        "samples": one["samples"] + other["samples"],
        "steps": one["steps"] + other["steps"],
        "train_s": one["train_s"] + other["train_s"],
        "epoch_s": max(one["epoch_s"], other["epoch_s"]),
    }


class EpochAccounts:
    """What was committed of each epoch, the same on all ranks; a rank that has died since counts for what it gave.

    Args:
        length: Samples of an epoch.
        world_size: Of all ranks.
    """

    def __init__(self, length: int, world_size: int) -> None:
        self._length, self._world_size = length, world_size
        self._taken: dict[int, int] = {}  # samples, by epoch
        self._sums: dict[int, dict[int, Told]] = {}  # by epoch and rank
        self._ended_s = 0.0  # when the last epoch ended, in the time that rows tell

    def commit(self, commit: Commit, rows: Mapping[int, Iterable[Row]]) -> list[EpochMetrics]:
        """A round is committed: the figures of the epochs that end with it.

        Args:
            rows: What each rank has told of its part; `epoch_s` is when that was made, from the start of the run on.
        """
        for rank, told in rows.items():
            for epoch, sums in told:
                mine = self._sums.setdefault(epoch, {})
                mine[rank] = plus(mine.get(rank, nothing()), sums)
        for each in commit.taken:
            for portion in each.portions:
                size = sum(stop - start for start, stop in portion.places)
                self._taken[portion.epoch] = self._taken.get(portion.epoch, 0) + size
        ended = sorted(epoch for epoch, samples in self._taken.items() if samples == self._length)
        return [self._finish(epoch) for epoch in ended]

    @property
    def samples(self) -> int:
        """Those committed of epochs that are not over."""
        return sum(self._taken.values())

    def begun(self) -> list[EpochMetrics]:
        """The figures so far of the epochs that are not over, which stay so."""
        ended_s, kept = self._ended_s, self.state_dict()
        found = [self._finish(epoch) for epoch in sorted(self._taken)]
        self.load_state_dict(kept)
        self._ended_s = ended_s
        return found

    def _finish(self, epoch: int) -> EpochMetrics:
        del self._taken[epoch]
        sums, before_s = self._sums.pop(epoch, {}), self._ended_s
        told = [dict(sums.get(rank, nothing())) for rank in range(self._world_size)]
        self._ended_s = max([before_s, *(each["epoch_s"] for each in told)])
        for each in told:
            each["epoch_s"] = max(0.0, each["epoch_s"] - before_s)
        return combine_epoch(epoch, told)

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        taken = [list(each) for each in self._taken.items()]
        sums = [[epoch, rank, told] for epoch, by_rank in self._sums.items() for rank, told in by_rank.items()]
        return {"taken": taken, "sums": sums, "ended_s": self._ended_s}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` told; of ranks that are no longer here the first one counts what they gave."""
        self._taken = {int(epoch): int(samples) for epoch, samples in state["taken"]}
        self._sums = {}
        for epoch, rank, told in state["sums"]:
            mine, counts = self._sums.setdefault(int(epoch), {}), int(rank) if rank < self._world_size else 0
            mine[counts] = plus(mine[counts], told) if counts in mine else dict(told)
        self._ended_s = float(state["ended_s"])
