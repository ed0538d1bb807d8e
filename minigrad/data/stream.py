"""Streams: datasets that are read from front to back, and the batches that a loader makes of them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from minigrad.data.sampler import check_keys
from minigrad.errors import ArgumentError, CallError, StateDictError


class IterableDataset:
    """Samples that come one after the other and have no index: a log, a socket, more than a disk holds.

    A class derived from it gives `__iter__`, a new pass over its samples, and `__len__` only where it knows how many.
    `DataLoader(dataset, batch_size)` makes batches of them in the order in which they come: there is no sampler and no
    shuffle. A pass runs in the loader's thread, where `minigrad.rand` and the like draw from a stream for each batch.

    Ranks: which samples a rank reads is for the dataset to say, by the rank that it was made for, as in the example.
    Where ranks have different numbers of batches, the others wait for the one that ends first in their next backward,
    and raise there once it has returned, at the latest after the timeout. Either all loop `with ddp.join():`, in which
    a rank without samples takes part until the last one has ended, so that none is lost, or all stop after as many
    batches as each has.

    To stop and resume in mid-epoch without reading it all again it also needs `state_dict()`, plain data that say where
    the pass is, and `load_state_dict(state)`, after which the next `__iter__` goes on from there. The loader asks for
    the state after each batch that it makes, and hands out the one of the batch that was delivered last. Without them
    a resumed loader begins a new pass and leaves out as many batches as were delivered, so the samples have to be the
    same again.

    Example:
        >>> class Lines(IterableDataset):
        ...     def __init__(self, lines, rank=0, world_size=1):
        ...         self.lines, self.rank, self.world_size = lines, rank, world_size
        ...     def __iter__(self):
        ...         return itertools.islice(self.lines, self.rank, None, self.world_size)
        >>> list(DataLoader(Lines(["a", "b", "c", "d", "e"], rank=1, world_size=2), batch_size=1))
        [['b'], ['d']]
        >>> def train(comm):
        ...     ddp = distributed.DDP(nn.Linear(2, 1), comm)
        ...     optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        ...     with ddp.join():  # rank 1 has one batch less
        ...         batches = DataLoader(Lines(np.ones((5, 2), np.float32), comm.rank, comm.world_size), batch_size=1)
        ...         for number, batch in enumerate(batches, 1):
        ...             ddp(batch).mean().backward()
        ...             optimizer.step()
        ...     return number
        >>> distributed.run(train, 2)
        [3, 2]
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class Stream:
    """The batches of an IterableDataset, as lists of samples: what a loader has in the place of a batch sampler."""

    def __init__(self, dataset: IterableDataset, batch_size: int, drop_last: bool) -> None:
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        has = [callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict")]
        if any(has) and not all(has):
            raise ArgumentError(
                f"DataLoader: expected a dataset with both state_dict and load_state_dict or neither, got a "
                f"{type(dataset).__name__} with one of them"
            )
        self.is_stateful = all(has)
        self._has_ended = False  # in the state that was loaded, where the dataset may be in its next pass already

    def __iter__(self) -> Iterator[list[Any]]:
        if self._has_ended:
            self._has_ended = False
            return
        samples = iter(self.dataset)
        while batch := list(itertools.islice(samples, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def __len__(self) -> int:
        if not hasattr(self.dataset, "__len__"):
            raise CallError(
                f"len(DataLoader): expected a dataset with a length, got a {type(self.dataset).__name__}, which has no "
                "__len__: count the batches"
            )
        full, rest = divmod(len(self.dataset), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def state_dict(self) -> dict[str, Any]:
        """The settings, and where the dataset is: None where it does not say."""
        state = copy.deepcopy(self.dataset.state_dict()) if self.is_stateful else None  # type: ignore[attr-defined]
        settings = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        return {**settings, "dataset": state, "has_ended": self._has_ended}

    def state_after(self, batch: list[Any]) -> dict[str, Any]:
        """The state when this batch has just been made; behind one that is smaller there are no more samples."""
        return {**self.state_dict(), "has_ended": self.is_stateful and len(batch) < self.batch_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the dataset where that of another stream was.

        Raises:
            StateDictError: other settings, or a state of a dataset where this one takes none, or the other way round.
        """
        check_keys("DataLoader", state, {"batch_size": 1, "drop_last": False, "dataset": None, "has_ended": False})
        for key in ("batch_size", "drop_last"):
            if state[key] != getattr(self, key):
                expected, got = getattr(self, key), state[key]
                raise StateDictError(f"DataLoader: expected a state with {key} {expected!r}, got {got!r}")
        if self.is_stateful != (state["dataset"] is not None):
            kind, (ours, other) = type(self.dataset).__name__, ("with", "without")[:: 1 if self.is_stateful else -1]
            raise StateDictError(
                f"DataLoader: expected a state {ours} one of the dataset, as a {kind} has it, got one {other}: "
                "it was saved over another dataset"
            )
        if self.is_stateful:
            self.dataset.load_state_dict(copy.deepcopy(state["dataset"]))  # type: ignore[attr-defined]
        self._has_ended = bool(state["has_ended"])


def get_worker_info() -> None:
    """None: there are no worker processes, so that a pass reads all of its samples, as in PyTorch's main process."""
