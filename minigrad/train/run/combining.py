"""What a rank combines with others where ranks are not in step, and how it goes back where that comes to nothing.

A round has three moments here: `end`, where this rank has made its batches; `combine`, where all members meet; and
`commit`, from which on what came out of it holds. Until then nothing counts: `restore` goes back to the last commit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np

from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.data.dispatch import Portion
from minigrad.distributed.average.buffers import average_buffers
from minigrad.distributed.average.gradients import LocalGradients
from minigrad.distributed.average.outer import Mean
from minigrad.distributed.average.subject import Subject
from minigrad.distributed.average.travelling import SCALE, Piece
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.solo import SoloCommunicator
from minigrad.nn.module import Module
from minigrad.stamp import mark_changed
from minigrad.train.run.remembered import BuffersOf, Remembered

_WHO = "Trainer.start"


class Trainee(Protocol):
    """What trains: a rank's model, and its steps."""

    model: Module
    device: Device

    def backward(self, batches: Iterable[Any]) -> float:
        """Forward and backward on batches, indices of samples; what the losses were means over, together."""

    def apply(self) -> None:
        """Step by the gradients that are there, and forget them."""

    def drop_gradients(self) -> None:
        """Forget them."""

    def objects(self) -> dict[str, Any]:
        """What its steps change beside model and random streams, by name: optimizer, schedule, scaler."""


class Combining(Protocol):
    """What of a rank is combined."""

    def cut(self, portions: Sequence[Portion]) -> list[list[Portion]]:
        """The batches of a part in runs of one epoch, each for one gradient."""

    def stepped(self, samples: float, is_last: bool) -> None:
        """The backward of a run of batches is over.

        Args:
            is_last: It is the last one of its round.
        """

    def end(self, number: int, samples: float) -> None:
        """This rank has made its part of a round."""

    def meet(self, comm: Communicator) -> None:
        """Combine by this from now on; what is committed stays."""

    def alike(self) -> dict[str, Any]:
        """What has to be alike on all members in a round, by name."""

    def combine(self, number: int, samples: float) -> None:
        """Combine a round with all members, and keep what comes out apart; 0 samples give nothing."""

    def commit(self, number: int, samples: float) -> None:
        """What came out holds; samples are those of all, and where they are 0 nothing has."""

    def remember(self) -> None:
        """What a callback has changed since the last commit holds, where this rank has made nothing since."""

    def as_committed(self) -> AbstractContextManager[None]:
        """Inside, all is as it was committed last, between two batches."""

    def restore(self) -> None:
        """Go back to the last commit."""


class CombinedGradients:
    """Gradients: nobody steps before the round is committed.

    Args:
        trainee: This rank's.
    """

    def __init__(self, trainee: Trainee) -> None:
        self._trainee, self._alone = trainee, SoloCommunicator(trainee.device)
        self._comm: Communicator = self._alone
        subject = Subject(_WHO, trainee.model, self._alone)
        self._buffers, self._params = subject.buffers, subject.params
        self._gradients = LocalGradients(self._comm, self._buffers, self._params)
        self._last = 0.0  # samples whose gradients are where backward left them
        self._kept = self._keep()

    def _keep(self) -> Remembered:
        return Remembered({"buffers": BuffersOf(self._trainee.model)})

    def cut(self, portions: Sequence[Portion]) -> list[list[Portion]]:
        """See `Combining`."""
        return [list(each) for _, each in itertools.groupby(portions, lambda portion: portion.epoch)]

    def stepped(self, samples: float, is_last: bool) -> None:
        """See `Combining`."""
        if is_last:
            self._last = samples
        else:
            self._gradients.take(samples)

    def end(self, number: int, samples: float) -> None:
        """See `Combining`."""

    def meet(self, comm: Communicator) -> None:
        """See `Combining`."""
        self._comm = comm
        self._gradients.among(comm)

    def alike(self) -> dict[str, Any]:
        """See `Combining`: what makes the same step of the same gradients."""
        optimizer = self._trainee.objects()["optimizer"]
        groups = [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
        return {"optimizer": optimizer.name, **{f"group {i}": group for i, group in enumerate(groups)}}

    def combine(self, number: int, samples: float) -> None:
        """See `Combining`."""
        arrived = self._gradients.combine(self._last, f"gradients of round {number}")
        self._last = 0.0
        average_buffers(_WHO, self._trainee.model, self._comm, samples, arrived.total)

    def commit(self, number: int, samples: float) -> None:
        """See `Combining`."""
        if samples:
            self._trainee.apply()
        self.remember()

    def remember(self) -> None:
        """See `Combining`."""
        self._kept = self._keep()

    def as_committed(self) -> AbstractContextManager[None]:
        """See `Combining`; no rank is ahead."""
        return nullcontext()

    def restore(self) -> None:
        """See `Combining`."""
        self._last = 0.0
        self._gradients.clear()
        self._trainee.drop_gradients()
        self._kept.put_back()


class _Part(NamedTuple):
    """What this rank has made in a round that is not committed.

    Attributes:
        is_change: Whether the values are the change since the round before, which is not committed either.
        values: Arrays, one for each dtype.
        kept: What its steps had come to beside parameters.
    """

    is_change: bool
    values: list[Array]
    kept: Remembered


class CombinedParameters:
    """Parameters: each rank steps on its own, and takes over the mean of a round as a difference to its part of it.

    So steps that it has made since stay as they are; `distributed.average.asynchronous` has the formulas. Where none
    were made, its values are the mean to the bit.

    Args:
        trainee: This rank's.
        bound: How many rounds it may be ahead; with 0 buffers are merged too, for all are at one place.
    """

    def __init__(self, trainee: Trainee, bound: int) -> None:
        self._trainee, self._bound = trainee, bound
        self._comm: Communicator = SoloCommunicator(trainee.device)
        self._subject = Subject(_WHO, trainee.model, self._comm)
        self._pieces = self._made_by(self._comm)
        with trainee.device.current():
            self._common = [piece.values().copy() for piece in self._pieces]  # of the last commit
        self._seen = list(self._common)  # this rank's values after its last part, and all that was taken over since
        self._batches = 0  # since then
        self._parts: dict[int, _Part] = {}
        self._means: dict[int, list[Array]] = {}
        self._kept = self._keep()

    def _made_by(self, comm: Communicator) -> list[Piece]:
        (whole,) = self._subject.fragments(comm, Mean())
        return whole.pieces

    def _keep(self) -> Remembered:
        return Remembered({**self._trainee.objects(), "buffers": BuffersOf(self._trainee.model)})

    def cut(self, portions: Sequence[Portion]) -> list[list[Portion]]:
        """See `Combining`."""
        return [[portion] for portion in portions]

    def stepped(self, samples: float, is_last: bool) -> None:
        """See `Combining`."""
        if samples:
            self._trainee.apply()
            self._batches += 1
        else:
            self._trainee.drop_gradients()

    def end(self, number: int, samples: float) -> None:
        """See `Combining`."""
        with self._trainee.device.current():
            now = [piece.values() for piece in self._pieces]
            is_change = bool(self._parts)
            values = [each - seen if is_change else each.copy() for each, seen in zip(now, self._seen)]
            self._seen = [each.copy() for each in now]
        self._parts[number], self._batches = _Part(is_change, values, self._keep()), 0

    def meet(self, comm: Communicator) -> None:
        """See `Combining`."""
        self._comm, self._pieces = comm, self._made_by(comm)

    def alike(self) -> dict[str, Any]:
        """See `Combining`: ranks step on their own."""
        return {}

    def combine(self, number: int, samples: float) -> None:
        """See `Combining`."""
        comm, mine = self._comm, self._parts.get(number)
        layout = f"parameters of round {number}"
        with comm.device.current() as xp:
            total = xp.full(1, samples, np.float64)
            comm.all_reduce(total, layout=layout).wait()
            weight = xp.full(1, samples / SCALE, np.float64)
            for i, piece in enumerate(self._pieces):
                piece.sent[...] = self._stands_for(mine, i)
                comm.weighted_all_reduce(piece.sent, weight, layout).wait()
                piece.sent /= (total / SCALE).astype(piece.sent.dtype)
            self._means[number] = [piece.sent.copy() for piece in self._pieces]
        if not self._bound:
            average_buffers(_WHO, self._trainee.model, comm, samples, total)

    def _stands_for(self, part: _Part | None, i: int) -> Array:
        if part is None:
            return self._common[i]
        return self._common[i] + part.values[i] if part.is_change else part.values[i]

    def commit(self, number: int, samples: float) -> None:
        """See `Combining`."""
        part, means = self._parts.pop(number, None), self._means.pop(number, None)
        if samples and means is not None:
            with self._trainee.device.current():
                for i, mean in enumerate(means):
                    self._take_over(i, part, mean)
            self._mark()
        if part is not None:
            self._kept = part.kept
        self.remember()

    def remember(self) -> None:
        """See `Combining`."""
        if not self._parts and not self._batches:
            self._kept = self._keep()

    def _take_over(self, i: int, part: _Part | None, mean: Array) -> None:
        piece = self._pieces[i]
        if not self._parts and not self._batches:
            piece.put(mean)
            self._seen[i] = mean
        else:
            difference = mean - self._stands_for(part, i)
            piece.put(piece.values() + difference)
            self._seen[i] = self._seen[i] + difference
        self._common[i] = mean

    @contextmanager
    def as_committed(self) -> Iterator[None]:
        """See `Combining`."""
        if not self._parts and not self._batches:
            yield
            return
        ahead, own = self._keep(), [piece.values().copy() for piece in self._pieces]
        self._put(self._common)
        self._kept.put_back()
        try:
            yield
        finally:
            self._put(own)
            ahead.put_back()

    def _put(self, values: Sequence[Array]) -> None:
        with self._trainee.device.current():
            for piece, each in zip(self._pieces, values):
                piece.put(each)
        self._mark()

    def restore(self) -> None:
        """See `Combining`."""
        self._trainee.drop_gradients()
        self._parts, self._means, self._batches = {}, {}, 0
        self._put(self._common)
        self._seen = list(self._common)
        self._kept.put_back()

    def _mark(self) -> None:
        for param in self._subject.params:
            mark_changed(param)
